"""Print a comparison: what was not compared, then the table, then the means."""

from gdnspec.cli.console import add_row, print_table, say, table
from gdnspec.model.errors import visible
from gdnspec.report.pairing import Comparison, Mean, Pair
from gdnspec.report.units import shown_ratio, shown_share, shown_time

LONGEST = 300  # characters of a reason


def print_comparison(result: Comparison) -> None:
    """Prints the whole comparison on stdout."""
    say()
    same = result.a_device == result.b_device
    say(visible(f"on {result.a_device}" if same else f"A on {result.a_device}, B on {result.b_device}"))
    _print_apart(result)
    for item in result.differences:
        in_all = f"in {item.pairs} of {len(result.compared)} compared"
        say(visible(f"different {item.field}, {in_all}: A {', '.join(item.a)}; B {', '.join(item.b)}"))
    if result.compared:
        _print_pairs(result.compared)
        _print_means(result)


def _print_apart(result: Comparison) -> None:
    if not result.not_compared:
        return
    say(f"not compared: {len(result.not_compared)} of {result.overall.workloads} workloads")
    rows = table("", "definition", "workload", "time A", "time B", "why")
    for item in result.not_compared:
        times = ("" if seconds is None else shown_time(seconds) for seconds in (item.a, item.b))
        why = _clipped("; ".join(item.reasons))
        add_row(rows, item.definition, visible(item.workload), *times, visible(why), styles={4: "yellow"})
    print_table(rows)
    say()


def _clipped(text: str) -> str:
    # A message may quote pages of compiler output.
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def _print_pairs(pairs: list[Pair]) -> None:
    columns = ("time A", "time B", "B / A", "95%", "A of bound", "B of bound", "faster", "measured")
    rows = table("", "definition", "workload", *columns)
    for pair in pairs:
        add_row(
            rows,
            pair.definition,
            pair.workload,
            shown_time(pair.a),
            shown_time(pair.b),
            *shown_ratio(pair.ratio, pair.interval),
            shown_share(pair.a_of_bound),
            shown_share(pair.b_of_bound),
            _faster(pair.interval),
            "in turns" if pair.in_turns else "apart",
        )
    print_table(rows)
    methods = sorted({pair.method for pair in pairs})
    say(f"time: median of one call, by {' and '.join(methods)}; bound: its bytes and operations at the device's rates")
    if not all(pair.in_turns for pair in pairs):
        say("apart: from two runs, whose clocks may differ; gdnspec bench --against measures both in turns")


def _faster(interval: tuple[float, float]) -> str:
    """A, B, or nothing if the interval contains 1."""
    return "A" if interval[0] > 1 else "B" if interval[1] < 1 else ""


def _print_means(result: Comparison) -> None:
    say()
    say("geometric mean of B / A (above 1, A is faster), 95% interval for these workloads")
    for name, mean in result.definitions.items():
        say(f"  {name}: {_mean(mean)}")
    if len(result.definitions) > 1:
        say(f"  overall: {_mean(result.overall)}")


def _mean(mean: Mean) -> str:
    apart = mean.workloads - mean.compared
    listed = f"; {apart} not compared, listed above" if apart else ""
    counted = f"over {mean.compared} of {mean.workloads} workloads{listed}"
    if mean.ratio is None or mean.interval is None:
        return f"none, {counted}"
    return f"{' '.join(shown_ratio(mean.ratio, mean.interval))} {counted}"
