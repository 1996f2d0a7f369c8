"""Whether prefill gives the same bits every time: runs on the same inputs, outputs poisoned before each.

    python benchmarks/same_bits.py [--solutions hopper_prefill,triton_chunkwise] [--runs 1000] [--rows TEXT,TEXT]

The rows are those of prefill_rows.py whose names contain one of the texts. Ends with 1 where any run differs from the
first. Needs a CUDA GPU.
"""

import argparse
import math
import sys
import tempfile
from pathlib import Path

import torch
from prefill_rows import Arguments, Subject, arguments, folder_of
from prefill_shapes import rows

ROWS = (
    "2/8 2x4096,2/8 4x8192,4/16 1x2048,4/16 1x8192,16/32 1x8192,16/32 1x32768,16/32 4x2048,16/48 4x2048,16/64 4x2048,"
    "16/32 lognormal8,4/16 ragged"
)


def count_other(subject: Subject, given: Arguments, runs: int) -> int:
    """Runs that left other bits than the first, in output or final state."""
    call, first = subject.bound(given), []
    other = torch.zeros((), dtype=torch.int64, device="cuda")
    for i in range(runs):
        for name in ("output", "final_state"):
            given[name].fill_(math.nan)
        answer = call()
        found = [given["output"], given["final_state"]] if answer is None else list(answer[:2])
        found = [x.view(torch.int16 if x.element_size() == 2 else torch.int32) for x in found]  # bits: a NaN is a NaN
        if i == 0:
            first = [x.clone() for x in found]
        other += torch.stack([(x != y).any() for x, y in zip(found, first, strict=True)]).any()
    return int(other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solutions", default="hopper_prefill,triton_chunkwise")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rows", default=ROWS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("same_bits.py: needs a CUDA GPU")
    texts, differ = options.rows.split(","), 0
    with tempfile.TemporaryDirectory() as build:
        for name in options.solutions.split(","):
            subject = Subject(name, folder_of(name, "solutions"), Path(build))
            for row in rows():
                if any(text in row.name for text in texts):
                    other = count_other(subject, arguments(row, 0.1), options.runs)
                    differ += other
                    print(f"{row.name:20} {subject.name:24} {options.runs} runs, {other} of other bits", flush=True)
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
