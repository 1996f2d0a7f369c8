"""Forward and backward pass together, as training calls them: solutions beside FlashQLA, in one process.

    python benchmarks/training_rows.py [--forward hopper_prefill] [--backward hopper_backward] [--gates decay,typical]
                                       [--rows TEXT,TEXT] [--decay 0.1] [--kept 64,256] [--json FILE] [--jobs 9]
    python benchmarks/training_rows.py --show FILE [--show FILE]

The rows are the 60 long ones of prefill_rows.py, and 64x128, 256x128, 100x300 and 48x512 at three head counts. States
are given at both ends. gdnspec's backward pass is given nothing of the forward pass, and computes it again; FlashQLA's
is given what its own forward pass keeps. Both are one CUDA graph of a forward and a backward call, on two sets of
inputs, in turns; all else is as in backward_rows.py.

--kept adds the pair that keeps states: --forward as gdn_prefill_checkpoints, with so many tokens from one to the next,
and --backward as gdn_prefill_backward_checkpoints, which goes on from them. What keeping costs is in its time.

The ratio is chosen against us: of FlashQLA with its split of sequences and without it the faster one, and of both kinds
of gates the one where the ratio is smaller. The bound is that of the forward pass and that of the backward pass.
"""

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import backward_rows as backward
import prefill_rows as prefill
import prefill_shapes as shapes
import torch
from prefill_tables import KEYS, head, line, ratio, record, share
from row_files import Record, made_with, refuse, said_with, shown

ROWS = "long,short 64x128,short 256x128,short 100x300,short 48x512"
GATES = ("decay", "typical")
NAME = "gdnspec"
FORWARD_KEPT, BACKWARD_KEPT = "gdn_prefill_checkpoints", "gdn_prefill_backward_checkpoints"


class Ours:
    """Two solutions, one after the other."""

    def __init__(self, forward: str, back: str, build: Path) -> None:
        self.name = NAME
        self.forward = prefill.Subject(forward, prefill.folder_of(forward, "solutions"), build)
        self.backward = backward.Solution(back, build)

    def bound(self, given: backward.Tensors) -> Callable[[], backward.Tensors]:
        inputs = {name: x for name, x in given.items() if name not in ("do", "dht")}
        out = {"output": torch.empty_like(given["do"]), "final_state": torch.empty_like(given["dht"])}
        forward, back = self.forward.bound(inputs | out), self.backward.bound(given)

        def call() -> backward.Tensors:
            forward()
            return back()

        return call


class Kept:
    """The same, where the forward pass leaves states to the backward pass."""

    def __init__(self, forward: str, back: str, interval: int, build: Path) -> None:
        self.name, self.interval = f"every {interval}", interval
        self.forward = backward.Solution(forward, build, FORWARD_KEPT)
        self.backward = backward.Solution(back, build, BACKWARD_KEPT)

    def bound(self, given: backward.Tensors) -> Callable[[], backward.Tensors]:
        counts = given["cu_seqlens"].diff() // self.interval
        starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        kept = {"checkpoint_cu_starts": starts, "checkpoint_interval": self.interval}
        inputs = {name: x for name, x in given.items() if name not in ("do", "dht")} | kept
        output, states = torch.empty_like(given["do"]), torch.empty_like(given["dht"])
        checkpoints = states.new_empty(int(starts[-1]), *states.shape[1:])
        out = {"output": output, "final_state": states, "checkpoints": checkpoints}
        forward, back = (
            self.forward.calling(inputs, out),
            self.backward.bound(given | {"checkpoints": checkpoints} | kept),
        )

        def call() -> backward.Tensors:
            found = forward()
            if found["checkpoints"] is not checkpoints:  # the forward pass returns them
                checkpoints.copy_(found["checkpoints"])
            return back()

        return call


class Theirs:
    """FlashQLA, by the functions that its autograd calls."""

    def __init__(self, name: str) -> None:
        self.name, self.library = name, backward.FlashQLA(name)

    def bound(self, given: backward.Tensors) -> Callable[[], backward.Tensors]:
        forward, back = self.library.passes(given)
        return lambda: back(forward())


def bound(row: shapes.Row, copy: float) -> float:
    """Microseconds."""
    return shapes.bound(row, copy) + backward.bound(row, copy)


def loaded(options: argparse.Namespace, build: Path) -> list[Any]:
    subjects: list[Any] = [Ours(options.forward, options.backward, build)]
    subjects += [Kept(options.forward, options.backward, int(text), build) for text in options.kept]
    try:
        subjects += [Theirs(name) for name in backward.PEERS]
    except Exception as error:  # not installed, or it fails as it is imported, by the version of another library
        said = backward.said_of(error)
        print(f"FlashQLA is missing, and both its columns with it: {said}\nTo add it: {backward.INSTALL}\n")
    return subjects


def against_us(records: list[Record]) -> list[Record]:
    """Of each row the record with the smallest ratio; one without a ratio where none has one."""
    found: dict[str, Record] = {}
    for one in records:
        before = found.get(one["row"])
        if before is None or math.isnan(ratio(before)) or ratio(one) < ratio(before):
            found[one["row"]] = one
    return list(found.values())


def said_of_all(records: list[Record], named: str) -> str:
    """One line: how many rows, their mean ratio, the least, those below 1, and the share of the bound."""
    ratios = {f"{x['row']} {x['gates']}": ratio(x) for x in records if not math.isnan(ratio(x))}
    shares = [share(x) for x in records if not math.isnan(share(x))]
    text = f"{named}: {len(records)} rows"
    if ratios:
        least = min(ratios, key=lambda name: ratios[name])
        below = sum(x < 1 for x in ratios.values())
        mean = statistics.geometric_mean(ratios.values())
        text += (
            f"; FlashQLA / gdnspec {mean:.3f} (geometric mean), least {ratios[least]:.3f} ({least}), {below} below 1"
        )
    return text + (f"; {statistics.geometric_mean(shares):.1%} of the bound" if shares else "")


def tables(records: list[Record]) -> str:
    """For each device all rows with both kinds of gates, and then what counts: the worse of both."""
    text = []
    for device in dict.fromkeys(x["device"] for x in records):
        last = {(x["row"], x["gates"]): x for x in records if x["device"] == device}
        own = list(last.values())
        before = None
        for x in own:
            if before != (before := (list(x["us"]), said_with(x))):
                text += [device, *filter(None, before[1:]), "", f"{head(before[0])}  gates"]
            text.append(f"{line(x)}  {x['gates']}")
        text.append("")
        text += [said_of_all([x for x in own if x["gates"] == gates], f"{device}, {gates} gates") for gates in GATES]
        text += [said_of_all(against_us(own), f"{device}, chosen against us"), ""]
    return "\n".join(text)


def measure_all(subjects: list[Any], asked: list[shapes.Row], options: argparse.Namespace) -> None:
    device = torch.cuda.get_device_name()
    rate, records = prefill.copy_rate(device), list[Record]()
    print(
        f"{device}, copy {rate / 1e12:.2f} TB/s; microseconds; peer: best of FlashQLA / gdnspec, share: of the bound\n"
        f"{said_with(made_with())}\n"
    )
    print(f"{head(subject.name for subject in subjects)}  gates")
    for row in asked:
        for gates in options.gates.split(","):
            options_of_row = argparse.Namespace(gates=gates, decay=options.decay)
            us, _ = backward.measure(subjects, row, options_of_row)
            found = record(row, device, bound(row, rate), us, list(backward.PEERS)) | {"gates": gates}
            records.append(found)
            print(f"{line(found)}  {gates}", flush=True)
            if options.json:
                with options.json.open("a") as to:
                    to.write(json.dumps(found) + "\n")
    print("", *tables(records).splitlines()[-5:], sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forward", default="hopper_prefill", help="a solution of gdn_prefill_k_last")
    parser.add_argument("--backward", default="hopper_backward", help="a solution of gdn_prefill_backward_k_last")
    parser.add_argument("--gates", default=",".join(GATES), metavar="KIND,KIND", help="decay, typical or both")
    parser.add_argument("--decay", type=float, default=0.1, help="of the decay gates")
    kept = "tokens from one kept state to the next, multiples of 64"
    parser.add_argument("--kept", default=[], type=lambda text: text.split(","), metavar="N,N", help=kept)
    parser.add_argument(
        "--rows", default=ROWS, metavar="TEXT,TEXT", help="rows whose name or group has one of these texts"
    )
    parser.add_argument("--build", type=Path, help="where builds are kept for the next run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line per row and kind of gates")
    parser.add_argument("--show", type=Path, metavar="FILE", action="append", help="print the tables of such a file")
    parser.add_argument("--jobs", type=int, default=0, help="compile in so many processes before anything is timed")
    options = parser.parse_args()
    if options.show:
        print(tables(shown(parser, options.show, [*KEYS, "gates"])))
        return
    asked = shapes.chosen(options.rows)
    unknown = [gates for gates in options.gates.split(",") if gates not in GATES]
    if not asked:
        parser.error(
            f"--rows: no row has one of {options.rows!r} in its name; benchmarks/prefill_shapes.py has the rows"
        )
    if unknown:
        parser.error(f"--gates: {unknown[0]!r} is neither decay nor typical")
    wrong = [text for text in options.kept if not text.isdecimal() or int(text) == 0 or int(text) % 64]
    if wrong:
        parser.error(f"--kept: {wrong[0]!r} is no positive multiple of 64")
    refuse(parser, options, [prefill.folder_of(name, "solutions") for name in (options.forward, options.backward)])
    if not torch.cuda.is_available():
        raise SystemExit("training_rows.py: needs a CUDA GPU; --show prints what was measured on another machine")
    with tempfile.TemporaryDirectory() as scratch:
        build = options.build or Path(scratch)
        if (
            options.jobs > 0
        ):  # TileLang's compiler takes most of the time: the backward pass's script calls its forward pass, too
            names = {"gates": GATES[0], "decay": options.decay, "build": build, "jobs": options.jobs}
            backward.compile_before(asked, argparse.Namespace(solutions=options.backward, **names))
        measure_all(loaded(options, build), asked, options)


if __name__ == "__main__":
    main()
