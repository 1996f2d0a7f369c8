"""The kill matrix as tables and as Markdown: which workload rejects which known-bad solution."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from gdnspec.catalog.definitions import definitions, without_family
from gdnspec.catalog.faults import Bad
from gdnspec.catalog.solutions import Solution
from gdnspec.catalog.workloads import workloads
from gdnspec.catalog.writing import require_file
from gdnspec.check.selftest import LONG, SUITES, best_killers, has_badge, margin, strength
from gdnspec.cli.console import add_row, table
from gdnspec.cli.files import whole
from gdnspec.inputs.fresh import names
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import read_text
from gdnspec.model.result import CheckResult
from gdnspec.report.kills import MATRIX_BEGIN, MATRIX_END

Results = dict[str, list[CheckResult]]
Row = list[str]
TITLE = "# Kill matrix\n\nWhich workload rejects which known-bad solution."
FRESH = "lengths and gates that are not published"
HONEST = ["honest solution", "passed", "unsupported", "strict suite", "least margin", "least margin, strict"]
BAD = ["known-bad solution", "kind", "rejected as", "killed by", "best killer", "error / budget", "fault"]
WORKLOADS = ["workload", "suite", "kills", "best killer of", "covers"]


def honest_rows(good: list[Solution], results: Results) -> Iterator[Row]:
    for solution in good:
        mine = results[solution.name]
        counts = Counter(result.status for result in mine)
        strict = [result for result in mine if result.suite == "strict"]
        ordinary = [result for result in mine if result.suite != "strict"]
        badge = "passed" if has_badge(mine) else "failed" if any(r.failed for r in strict) else ""
        yield [
            solution.name, f"{counts['PASSED']} of {len(mine)}", str(counts["UNSUPPORTED"] or ""), badge,
            _ratio(margin(ordinary)) if counts["PASSED"] else "", _ratio(margin(strict)) if badge == "passed" else "",
        ]  # fmt: skip


def bad_rows(bad: list[Bad], results: Results) -> Iterator[Row]:
    best = best_killers({item.solution.name: results[item.solution.name] for item in bad})
    for item in sorted(bad, key=lambda b: (b.known.kind != "wrong", b.solution.name)):
        mine = results[item.solution.name]
        statuses = Counter(result.status for result in mine if result.failed)
        ran = [result for result in mine if result.status != "UNSUPPORTED"]
        killer = best.get(item.solution.name)
        yield [
            item.solution.name, item.known.kind, ", ".join(name for name, _ in statuses.most_common()) or "NOTHING",
            f"{sum(statuses.values())} of {len(ran)}",
            f"{_family(killer.definition)} {killer.workload}" if killer else "",
            _ratio(strength(killer)) if killer else "", item.known.fault,
        ]  # fmt: skip


def workload_rows(bad: list[Bad], results: Results) -> Iterator[Row]:
    """One row per workload of a stage. Both state layouts share it, because they have the same workloads."""
    best = best_killers({item.solution.name: results[item.solution.name] for item in bad})
    kills: dict[tuple[str, str], set[str]] = defaultdict(set)
    favourite: dict[tuple[str, str], list[str]] = defaultdict(list)
    for item in bad:
        for result in results[item.solution.name]:
            if result.failed:
                kills[_family(result.definition), result.workload].add(item.solution.name)
    for name, killer in sorted(best.items()):
        favourite[_family(killer.definition), killer.workload].append(name)
    for (family, name), (suite, covers) in _lines().items():
        yield [
            f"{family} {name}", suite, str(len(kills[family, name]) or ""),
            ", ".join(favourite[family, name]), covers or "",
        ]  # fmt: skip


def idle_workloads(bad: list[Bad], results: Results) -> Iterator[str]:
    """A complaint for each workload that is nobody's best killer and has no `covers` that says why it is kept."""
    for name, _, _, best, covers in workload_rows(bad, results):
        if not best and not covers:
            yield f'workload {name} is not the best killer of any solution, and has no "covers" to say why it is kept'


def _lines() -> dict[tuple[str, str], tuple[str, str | None]]:
    rows: dict[tuple[str, str], tuple[str, str | None]] = {
        (_family(name), line.name): (line.suite, line.covers)
        for name, found in definitions().items()
        for line in workloads(found)
        if line.suite in SUITES
    }
    rows |= {(_family(n), line): ("fresh", FRESH) for n, found in definitions().items() for line in names(found, "cpu")}
    return rows


def _family(definition: str) -> str:
    """The name without family and layout: gdn_prefill_k_last and gdn_prefill_k_first give prefill."""
    return without_family(definition).replace("_k_last", "").replace("_k_first", "")


def _ratio(x: float) -> str:
    return "inf" if math.isinf(x) else f"{x:.3g}"


# --- tables and Markdown ----------------------------------------------------------------------------------------


def honest_table(good: list[Solution], results: Results) -> Table:
    return _table(HONEST, honest_rows(good, results))


def bad_table(bad: list[Bad], results: Results) -> Table:
    return _table(BAD, bad_rows(bad, results))


def workload_table(bad: list[Bad], results: Results) -> Table:
    return _table(WORKLOADS, workload_rows(bad, results))


def _table(columns: list[str], rows: Iterator[Row]) -> Table:
    result = table("", *columns)
    for row in rows:
        add_row(result, *row)
    return result


def require_place(file: Path) -> str:
    """The text of a Markdown file, or of a new one if the file does not exist. Raises `SpecError` if it has no place
    for the matrix or cannot be written."""
    if not file.exists():
        require_file(file, "--markdown FILE")
        return f"{TITLE}\n\n{MATRIX_BEGIN}\n{MATRIX_END}\n"
    text = read_text(file)
    if text.count(MATRIX_BEGIN) != 1 or text.count(MATRIX_END) != 1:
        hint = f"add the lines {MATRIX_BEGIN} and {MATRIX_END}"
        raise SpecError([Problem(file, "has no place for the matrix", hint=hint)])
    require_file(file, "--markdown FILE")
    return text


def write(file: Path, bad: list[Bad], good: list[Solution], results: Results) -> None:
    """Replaces the text between the two marks of a Markdown file. Makes the file if it does not exist."""
    text = require_place(file)
    before, rest = text.split(MATRIX_BEGIN)
    after = rest.split(MATRIX_END)[1]
    parts = [
        f"Workloads of over {LONG} tokens are run for honest solutions, and for faults that show there alone.",
        _markdown(HONEST, honest_rows(good, results)),
        _markdown(BAD, bad_rows(bad, results)),
        _markdown(WORKLOADS, workload_rows(bad, results)),
    ]
    with whole(file) as target:
        target.write(f"{before}{MATRIX_BEGIN}\n\n" + "\n\n".join(parts) + f"\n\n{MATRIX_END}{after}")


def _markdown(columns: list[str], rows: Iterator[Row]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
