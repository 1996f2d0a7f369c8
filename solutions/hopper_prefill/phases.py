"""Which kernel runs when: begin and end of each, microseconds from the call's first, and every way to cut a sequence.

    python solutions/hopper_prefill/phases.py [--heads 16,32] [--lengths 8192] [--groups 1] [--first 51 --segment 39]
    python solutions/hopper_prefill/phases.py --heads 4,16 --lengths 8192 --cuts [--head-size 64]
    python solutions/hopper_prefill/phases.py --heads 16,48 --lengths 8192,8192,8192,8192 --last

Medians over calls. Without --groups the kernel chooses; --cuts times what it could have chosen, the fastest first,
which is what the models of time in cut.cuh and cut_64.cuh are to be held to. Needs an sm_90 GPU.
"""

import argparse
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from clocks import FOLDER, arguments
from gdnspec.build.loader import load_function
from torch.profiler import ProfilerActivity, profile

CHUNK, CALLS = 64, 12
COUNTS = (3, 4, 5, 6, 7, 8, 9, 11, 13, 16)  # of segments
DECIDED = 31  # sequences: kDecided of choose.cuh
LONGER = (1.0, 1.1, 1.2, 1.3, 1.5)  # the first one than others
# By parts of names.
PHASES = {"gdn_order": "order", "gdn_prepare": "prepare", ",false,false>": "states", ">": "outputs"}


def choose(groups: int | None, first: int = 0, segment: int = 0, alone: bool = False) -> None:
    """What clocks.cu reads at each call: slices of a block, chunks of a sequence's first segment and of others."""
    given = {"GROUPS": groups, "FIRST": first, "LENGTH": segment, "ALONE": int(alone)}
    for name, value in given.items():
        os.environ.pop(f"GDN_{name}", None)
        if groups is not None:
            os.environ[f"GDN_{name}"] = str(value)


def phase_of(name: str) -> str:
    return next(phase for part, phase in PHASES.items() if part in name.replace(" ", ""))


def phases(call: Callable[[], object]) -> dict[str, tuple[float, float]]:
    """Of each kernel: begin and end. Two have outputs where sequences are cut: of first segments, and of the others."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    seen = defaultdict(list)
    zero, before = 0.0, set[str]()
    for event in sorted((e for e in recorded.events() if "gdn_" in e.name), key=lambda e: e.time_range.start):
        phase = phase_of(event.name)
        if phase in ("order", "prepare"):
            zero, before = event.time_range.start, set()
        phase = "others" if phase in before else phase
        before.add(phase)
        seen[phase].append((event.time_range.start - zero, event.time_range.end - zero))
    return {
        phase: tuple(statistics.median(x[i] for x in times) for i in range(2))  # type: ignore[misc]
        for phase, times in seen.items()
    }


def microseconds(call: Callable[[], object]) -> float:
    """Of a call, in a graph of several."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(6):
            call()
    times = []
    for _ in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / 6)
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", default="16,32", help="of q and k, of v")
    parser.add_argument("--head-size", type=int, choices=(64, 128), default=128)
    parser.add_argument("--lengths", default="8192", help="of the sequences, tokens")
    parser.add_argument("--groups", type=int, choices=(1, 2), help="slices that a block advances")
    parser.add_argument("--first", type=int, default=0, help="chunks of a first segment, as many as of others or more")
    parser.add_argument("--segment", type=int, default=0, help="of others; 0: not cut")
    parser.add_argument("--cuts", action="store_true", help="time every way to cut")
    parser.add_argument("--last", action="store_true", help="time two slices a block, and one of the last ones")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("phases.py: needs a CUDA GPU")
    q_heads, heads = (int(x) for x in options.heads.split(","))
    lengths = [int(x) for x in options.lengths.split(",")]
    if options.last and len(lengths) > DECIDED:
        raise SystemExit(f"phases.py: --last is for up to {DECIDED} sequences")
    with tempfile.TemporaryDirectory() as build:
        kernel = load_function(FOLDER, "clocks.cu::gdn_prefill_k_last", Path(build))
        given = arguments(q_heads, heads, lengths, options.head_size)
        call = lambda: kernel(*given)  # noqa: E731
        if options.last:
            choose(2, 0, 0)  # what is given is looked at only where slices are
            for last in (0, 1, 0, 1):
                os.environ["GDN_LAST"] = str(last)
                print(f"{'the last ones in slices' if last else 'all alike':45} {microseconds(call):8.1f}")
            return
        if not options.cuts:
            choose(options.groups, max(options.first, options.segment), options.segment)
            for phase, (begin, end) in phases(call).items():
                print(f"{phase:8} {begin:8.1f} to {end:8.1f}")
            return
        choose(None)
        print(f"{'as chosen':45} {microseconds(call):8.1f}")
        found = []
        each = -(-(sum(lengths) // CHUNK + len(lengths)) // len(lengths))
        left = torch.cuda.get_device_properties(0).multi_processor_count
        slices = options.head_size // 64
        for groups in range(1, slices + 1):
            choose(groups)
            found.append((microseconds(call), f"slices {groups}, one segment"))
            for count, longer in ((c, x) for c in COUNTS for x in LONGER if each >= 4 * c):
                segment = int(each / (count - 1 + longer))
                first, pairs = each - (count - 1) * segment, heads * len(lengths)
                others = 2 * slices * pairs * (count - 2)
                choose(groups, first, segment, others <= left - pairs * slices // groups)
                found.append((microseconds(call), f"slices {groups}, segments {count}: {first}, {segment}"))
        for time, said in sorted(found):
            print(f"{said:45} {time:8.1f}")


if __name__ == "__main__":
    main()
