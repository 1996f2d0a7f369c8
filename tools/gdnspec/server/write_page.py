"""python -m gdnspec.server.write_page all|job: write page.html about the jobs in the working folder."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.solutions import Solution, load_solution, solutions
from gdnspec.model.errors import SpecError
from gdnspec.model.loading import build
from gdnspec.model.result import CheckResult
from gdnspec.model.trace import Trace
from gdnspec.server.pages import BUNDLE, FULL, PAGE, TRACES, VERDICTS
from gdnspec.server.room import for_want_of_room
from gdnspec.submission.admission import admit
from gdnspec.submission.bundle import read

NEEDED = ("altair", "jinja2", "vl_convert")


def main() -> None:
    """Exits with status 1 and one line if no page can be made, and with `FULL` if the disk is full."""
    scope = sys.argv[1]
    try:
        if any(find_spec(module) is None for module in NEEDED):
            raise SpecError("the server cannot make a report: its operator must run pip install 'gdnspec[report]'")
        Path(PAGE).write_bytes(_page(scope == "all").encode("utf-8", errors="replace"))
    except (SpecError, OSError) as error:
        print(error)
        sys.exit(FULL if for_want_of_room(error) else 1)


def _page(everything: bool) -> str:
    from gdnspec.report.page import Contents, render
    from gdnspec.report.sources import traces

    found, problems = definitions(), list[str]()
    submitted, verdicts = _submitted()
    known = [*(solutions()[0].values() if everything else ()), *submitted]
    if not everything:
        found = {name: found[name] for solution in submitted for name in solution.manifest.entries}
    return render(
        Contents(found, traces(known, known, found, problems.append), verdicts, None, "gdnspec serve", (), problems)
    )


def _submitted() -> tuple[list[Solution], list[CheckResult]]:
    """The submitted solutions, unpacked with their traces, and their verdicts."""
    into = Path("solutions")
    into.mkdir()
    known, verdicts = [], []
    for file in sorted(Path().glob(f"*/{BUNDLE}")):
        rows = {name: json.loads((file.parent / name).read_text()) for name in (VERDICTS, TRACES)}
        verdicts += [build(CheckResult, row, file) for row in rows[VERDICTS]]
        measured = [build(Trace, row, file) for row in rows[TRACES]]
        bundle = read(file)
        solution = load_solution(admit(bundle, [t for t in measured if t.timing is not None], into))
        known += [solution, *solution.variants]
    return known, verdicts


if __name__ == "__main__":
    main()
