"""Which kernels give a sequence the same bits in every batch, from the traces that still hold."""

from gdnspec.catalog import badges
from gdnspec.catalog.solutions import Solution, solutions
from gdnspec.model.batch_invariance import WORDS
from gdnspec.model.trace import Trace

from docs.page import Page, table, unbroken


def pages() -> list[Page]:
    rows = [(one, trace) for one in solutions()[0].values() for trace in badges.found(one)]
    devices = sorted({trace.device for _, trace in rows})
    text = (
        "# Batch invariance\n\nDoes a sequence, or a row of a decode batch, keep its bits whatever else is in the "
        "batch? [Batch invariance](../how-to/batch-invariance.md) says what was asked. *Pieces* compares a prefill in "
        "one call with the same prefill cut at multiples of 64 tokens. A cell is empty where nobody asked, or where no "
        "workload could answer. Answers of a device hold for this device alone.\n\n"
        "On a CPU, Triton runs in its interpreter, which says nothing about a GPU.\n\n"
    )
    for device in devices:
        text += f"## On {device}\n\n" + table(
            ["solution", "definition", "in other batches", "in pieces", "claimed", "asked"],
            [_row(one, trace) for one, trace in rows if trace.device == device],
        )
        commands = dict.fromkeys(trace.command for _, trace in rows if trace.device == device)
        text += "These commands asked, and wrote the traces that the table is made from:\n\n"
        text += "```sh\n" + "\n".join(commands) + "\n```\n\n"
    return [Page("scoreboard/invariance.md", text)]


def _row(one: Solution, trace: Trace) -> tuple[str, ...]:
    same = {None: "", True: "same bits", False: "other bits"}[trace.batch_invariant]
    pieces = "" if trace.pieces is None else WORDS[trace.pieces]
    name = trace.definition
    claimed = "yes" if one.manifest.batch_invariant else ""
    linked = f"[{name}](../reference/definitions/{name}.md)"
    return one.name, linked, unbroken(same), unbroken(pieces), claimed, unbroken(trace.recorded[:10])
