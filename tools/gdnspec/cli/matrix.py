"""The kill matrix: which workload rejects which known-bad solution, as tables and as Markdown."""

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
FRESH = "lengths and gates that nobody has published"
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
    """One row a workload of a stage: both layouts have the same lines."""
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
    """The workloads that kill nothing best, and do not say why they are kept."""
    for name, _, _, best, covers in workload_rows(bad, results):
        if not best and not covers:
            yield f"workload {name} is the best killer of nothing, and says not what it covers"


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
    """gdn_prefill_k_last and gdn_prefill_k_first are prefill; with _bf16_state behind, prefill_bf16_state."""
    return without_family(definition).replace("_k_last", "").replace("_k_first", "")


def _ratio(x: float) -> str:
    return "inf" if math.isinf(x) else f"{x:.3g}"


# --- where they are shown ---------------------------------------------------------------------------------------


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
    """The text of a Markdown file that has a place for the matrix, and can be written; of a new one where there is
    none. Raises `SpecError`."""
    if not file.exists():
        require_file(file, "--markdown FILE")
        return f"{TITLE}\n\n{MATRIX_BEGIN}\n{MATRIX_END}\n"
    text = read_text(file)
    if text.count(MATRIX_BEGIN) != 1 or text.count(MATRIX_END) != 1:
        raise SpecError([Problem(file, "has no place for the matrix", hint=f"lines {MATRIX_BEGIN} and {MATRIX_END}")])
    require_file(file, "--markdown FILE")
    return text


def write(file: Path, bad: list[Bad], good: list[Solution], results: Results) -> None:
    """Replaces what stands between the two marks of a Markdown file, which it makes where there is none."""
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
