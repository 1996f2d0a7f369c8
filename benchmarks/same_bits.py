"""Whether a solution leaves the same bits every time: runs on the same inputs, outputs poisoned in between.

    python benchmarks/same_bits.py DEFINITION [DEFINITION ..] --solution NAME [--runs 1000] [--suite conformance]
                                   [--workloads TEXT,TEXT] [--seconds 20] [--device cuda]

Takes the workloads whose names contain one of the texts, or all of the suite. Each is drawn, and the solution is called
`--runs` times, or until a workload has taken `--seconds`: the line says how often. A tensor that the call mutates gets
its first values back before each call. NaN is written over the outputs of one call before the next one allocates its
own, mostly in the same place, so that what a call does not write shows. Ends with 1 where any run differs from the
first, in a single bit of what the call leaves behind.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator

import gdnspec
import torch
from gdnspec.api.spec import Case
from gdnspec.inputs.materialise import InvalidWorkload
from gdnspec.model.errors import SpecError

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
ASKED_EVERY = 50  # runs: whether all bits were the same waits for the device


def count_other(case: Case, solution: str, device: str, runs: int, seconds: float) -> tuple[int, int]:
    """How many runs left other bits than the first, and how many runs there were."""
    given = case.inputs(device)
    mutated = [x.name for x in case.found.definition.inputs if x.mutates]
    first_values = {name: _tensor(given[name]).clone() for name in mutated}
    call = gdnspec.kernel(case.found.definition.name, given, solution=solution)
    other, first, until, i = torch.zeros((), dtype=torch.int64, device=device), [], time.monotonic() + seconds, 0
    for i in range(1, runs + 1):
        for name, value in first_values.items():
            _tensor(given[name]).copy_(value)
        answer = call(**given)
        outputs = list(answer) if isinstance(answer, tuple) else [answer]
        left = [_bits(x) for x in (*outputs, *(_tensor(given[name]) for name in mutated))]
        if i == 1:
            first = [x.clone() for x in left]
        other += torch.stack([(x != y).any() for x, y in zip(left, first, strict=True)]).any()
        for x in outputs:
            x.fill_(math.nan if x.is_floating_point() else -1)
        if i % ASKED_EVERY == 0 and (int(other), time.monotonic())[1] > until:
            break
    return int(other), i


def _tensor(value: object) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(BITS[x.element_size()])  # a NaN is a NaN


def cases(names: list[str], suite: str, texts: list[str]) -> Iterator[tuple[str, Case]]:
    for name in names:
        for case in gdnspec.definition(name).workloads(suite):
            if not texts or any(text in case.name for text in texts):
                yield name, case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("definitions", nargs="+", metavar="DEFINITION")
    parser.add_argument("--solution", required=True)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--suite", default="conformance")
    parser.add_argument("--workloads", default="", help="texts, separated by commas")
    parser.add_argument("--seconds", type=float, default=20, help="of one workload, at most")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("same_bits.py: no CUDA GPU here; --device cpu runs what a CPU can")
    texts, differ, count = [text for text in options.workloads.split(",") if text], 0, 0
    for name, case in cases(options.definitions, options.suite, texts):
        try:
            other, runs = count_other(case, options.solution, options.device, options.runs, options.seconds)
        except (SpecError, InvalidWorkload) as error:
            print(f"{name:32} {case.name:32} not run: {error}", flush=True)
            continue
        differ, count = differ + other, count + 1
        print(f"{name:32} {case.name:32} {runs} runs, {other} of other bits", flush=True)
    where = torch.cuda.get_device_name() if options.device == "cuda" else "the CPU"
    print(f"{options.solution} on {where}: {count} workloads, {differ} runs of other bits")
    sys.exit(differ > 0 or count == 0)


if __name__ == "__main__":
    main()
