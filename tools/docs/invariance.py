"""Which kernels give a sequence the same bits in every batch, from the traces that still hold."""

from gdnspec.catalog import badges
from gdnspec.catalog.solutions import Solution, solutions
from gdnspec.model.batch_invariance import WORDS
from gdnspec.model.trace import Trace

from docs.page import Page, table, unbroken

COMMAND = "gdnspec check --invariance --save --solution NAME"


def pages() -> list[Page]:
    rows = [(one, trace) for one in solutions()[0].values() for trace in badges.found(one)]
    devices = sorted({trace.device for _, trace in rows})
    text = (
        "# Batch invariance\n\nDoes a sequence, or a row of a decode batch, keep its bits whatever else is in the "
        "batch? [Batch invariance](../how-to/batch-invariance.md) says what was asked. *Pieces* compares a prefill in "
        "one call with the same prefill cut at multiples of 64 tokens. A cell is empty where nobody asked, or where no "
        "workload could answer. Answers of a device hold for this device alone.\n\n"
        f"This command asked, and wrote the traces that this page is made from:\n\n```sh\n{COMMAND}\n```\n\n"
    )
    for device in devices:
        text += f"## On {device}\n\n" + table(
            ["solution", "definition", "in other batches", "in pieces", "claimed", "asked"],
            [_row(one, trace) for one, trace in rows if trace.device == device],
        )
    return [Page("scoreboard/invariance.md", text)]


def _row(one: Solution, trace: Trace) -> tuple[str, ...]:
    same = {None: "", True: "same bits", False: "other bits"}[trace.batch_invariant]
    pieces = "" if trace.pieces is None else WORDS[trace.pieces]
    name = trace.definition
    claimed = "yes" if one.manifest.batch_invariant else ""
    linked = f"[{name}](../reference/definitions/{name}.md)"
    return one.name, linked, unbroken(same), unbroken(pieces), claimed, unbroken(trace.recorded[:10])
