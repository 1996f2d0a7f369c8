"""The tables of `gdnspec check --symmetries` and `--errors`."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

from gdnspec.cli.console import add_row, print_table, say, table
from gdnspec.cli.selection import Selected
from gdnspec.cli.verdicts import Summary
from gdnspec.model.result import CheckResult
from gdnspec.report.rows import largest


def print_symmetries(summary: Summary) -> None:
    """Prints one row per symmetry: on how many workloads it held."""
    rows = table("", "definition", "solution", "symmetry", "held", "failed", "does not apply")
    for (definition, solution), results in sorted(summary.rows.items()):
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for result in results:
            for name, status in result.symmetries.items():
                counts[name][status or ""] += 1
        for name, statuses in counts.items():
            failed = sum(count for status, count in statuses.items() if status not in ("PASSED", ""))
            styles = {3: "green"} if not failed else {4: "red"}
            held, beside = str(statuses["PASSED"] or ""), str(statuses[""] or "")
            add_row(rows, definition, solution, name, held, str(failed or ""), beside, styles=styles)
    say()
    if rows.row_count:
        print_table(rows)
    else:
        say("no symmetry was tried: a workload has to pass first")


def print_errors(summary: Summary, selected: Selected) -> None:
    """Prints one row per regime: the worst vector of tokens by position in the sequence, and the worst state."""
    regimes = {
        (found.definition.name, line.name): line.regime or "recorded" for found, lines in selected for line in lines
    }
    for (definition, solution), results in sorted(summary.rows.items()):
        by_regime: dict[str, list[CheckResult]] = defaultdict(list)
        for result in results:
            if result.outputs:
                by_regime[regimes[definition, result.workload]].append(result)
        if not by_regime:
            continue
        edges = sorted({bucket.first for result in results for output in result.outputs for bucket in output.profile})
        columns = [_range(first, following) for first, following in zip(edges, [*edges[1:], None], strict=True)]
        title = f"{solution} on {definition}: largest error of a vector, by regime and position in the sequence"
        many = len({output.output for result in results for output in result.outputs}) > 2  # as of gradients
        rows = table("", "regime", *columns, "state", "relative L2", "of state", "error / budget", *["where"] * many)
        for regime, mine in sorted(by_regime.items()):
            over, where = largest(output for result in mine for output in result.outputs)
            share = "" if over is None else "not finite" if math.isinf(over) else f"{over:.2g}"
            add_row(rows, regime, *_positions(mine, edges), *_totals(mine), share, *[where] * many)
        say()
        say(title)
        print_table(rows)


def _range(first: int, following: int | None) -> str:
    if following is None:
        return f"{first}.."
    return str(first) if following == first + 1 else f"{first}-{following - 1}"


def _positions(results: list[CheckResult], edges: list[int]) -> list[str]:
    found: dict[int, list[float | None]] = defaultdict(list)
    for result in results:
        for output in result.outputs:
            for bucket in output.profile:
                found[bucket.first].append(bucket.worst_vector)
    return [_worst(found[first]) for first in edges]


def _totals(results: list[CheckResult]) -> list[str]:
    tokens = [output for result in results for output in result.outputs if output.profile]
    states = [output for result in results for output in result.outputs if not output.profile]
    return [
        _worst(output.errors.get("worst_vector") for output in states),
        _worst(output.errors.get("relative_l2") for output in tokens),
        _worst(output.errors.get("relative_l2") for output in states),
    ]


def _worst(values: Iterable[float | None]) -> str:
    """The largest value. `None` means not finite; no value gives an empty text."""
    known = list(values)
    if any(value is None for value in known):
        return "not finite"
    return f"{max(value for value in known if value is not None):.2g}" if known else ""
