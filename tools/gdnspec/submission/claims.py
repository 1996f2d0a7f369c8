"""Compare the times that a bundle claims with times that were measured here."""

from collections.abc import Iterable

from gdnspec.model.trace import Trace
from gdnspec.report.units import shown_time

MARGIN = 0.05  # by which a claimed time may be better than the measured one


def claims(traces: Iterable[Trace]) -> list[Trace]:
    """The traces that claim a time."""
    return [trace for trace in traces if trace.status == "PASSED" and trace.timing is not None]


def devices(traces: Iterable[Trace]) -> list[str]:
    """The slugs of the devices for which a time is claimed."""
    return sorted({trace.device for trace in claims(traces)})


def unfounded(claimed: Iterable[Trace], measured: Iterable[Trace]) -> list[str]:
    """One sentence per claimed time that is more than 5% better than the measured one, or that was not measured in the
    same way here."""
    here = {(trace.solution, trace.definition, trace.workload): trace for trace in measured}
    problems = []
    for claim in claims(claimed):
        where = f"{claim.definition}/{claim.workload}"
        mine = here.get((claim.solution, claim.definition, claim.workload))
        assert claim.timing is not None
        said = f"{where}: claims {shown_time(claim.timing.median)} on {claim.device}"
        if mine is None or mine.timing is None or mine.status != "PASSED":
            why = (
                "no such workload here"
                if mine is None
                else f"{mine.status} here: {(mine.message.splitlines() or [''])[0]}"
            )
            problems.append(f"{said}; {why}")
        elif mine.device != claim.device:
            problems.append(f"{said}; measured on {mine.device}")
        elif mine.timing.method != claim.timing.method:
            problems.append(f"{said} by {claim.timing.method}; measured here by {mine.timing.method}")
        elif mine.timing.median > claim.timing.median * (1 + MARGIN):
            over = mine.timing.median / claim.timing.median - 1
            busy = f" ({', '.join(mine.unclean)}: measure again)" if mine.unclean else ""
            problems.append(f"{said}; measured here {shown_time(mine.timing.median)}, {over:.0%} more{busy}")
    return problems
