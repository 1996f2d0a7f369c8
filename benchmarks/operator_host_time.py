"""What a call of an operator costs the host beyond the kernel: on a CPU, with kernels that do nothing.

    python benchmarks/operator_host_time.py

Every operator is defined once more, with what it calls for CUDA tensors as its kernel for CPU tensors. So all steps are
there: the dispatcher, the decision on gradients, the look-up of the kernel by shapes, strides and types, and the order
of its arguments. Each figure is the least of many short runs, for other processes only add to it. The calls need no
conversion, such as another layout of states, which is work for the device as well.
"""

import argparse
import sys
import timeit
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from gdnspec import family
from helpers_operators import Call, calls
from helpers_unit import reference


class Nothing:
    """A kernel that returns what was made before."""

    def __init__(self, outputs: Any) -> None:
        self.outputs = outputs

    def bind(self, *inputs: Any) -> Any:
        return lambda *inputs: self.outputs


def microseconds(call: Any, runs: int) -> float:
    call()
    return min(timeit.repeat(call, number=500, repeat=runs)) / 500 * 1e6


def measured(call: Call, runs: int) -> tuple[float, float]:
    """The time of the operator, and of the dispatch alone: a Python function as its kernel, and no look-up."""
    outputs = call.operator(*call.copy())
    family.kernel = lambda *asked: Nothing(outputs)
    registry, schema = reference("ops.registry"), str(call.operator._schema).partition("::")[2]
    found = []
    for prefix, kernel in (("timed", registry.KERNELS[call.name]["CUDA"]), ("empty", lambda *args: outputs)):
        defined = registry.operator(f"{prefix}_{schema}", None, {"CPU": kernel}, None)
        found.append(microseconds(lambda defined=defined: defined(*call.args), runs))
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    runs = parser.parse_args().runs
    torch.set_num_threads(1)
    print("| operator | host time | of it the dispatch |\n|---|---:|---:|")
    for call in {call.name: call for call in reversed(calls(V=4).values())}.values():
        whole, dispatch = measured(call, runs)
        print(f"| `{call.name}` | {whole:.1f} us | {dispatch:.1f} us |")


if __name__ == "__main__":
    main()
