"""What a call of an operator costs the host beyond the kernel.

    python benchmarks/operator_host_time.py                  # on a CPU, with kernels that do nothing
    python benchmarks/operator_host_time.py --device cuda    # beside the kernel that the operator calls

On a CPU, every operator is defined once more, with what it calls for CUDA tensors as its kernel for CPU tensors. So all
steps are there: the dispatcher, the decision on gradients, the look-up of the kernel by shapes, strides and types, and
the order of its arguments. On a GPU, the kernel is called with the tensors that the operator gave it, so that outputs
are allocated by the operator alone. Each figure is the least of many short runs, for other processes only add to it.
The calls need no conversion, such as another layout of states, which is work for the device as well.
"""

import argparse
import sys
import time
import timeit
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from gdnspec.registration import by_kernel, registry
from gdnspec.registration.direct import direct
from helpers_operators import Call, calls


class Nothing:
    """A kernel that returns what was made before."""

    def __init__(self, outputs: Any) -> None:
        self.outputs = outputs

    def bind(self, *inputs: Any) -> Any:
        return lambda *inputs: self.outputs


def microseconds(call: Any, runs: int) -> float:
    call()
    return min(timeit.repeat(call, number=500, repeat=runs)) / 500 * 1e6


def measured(call: Call, runs: int) -> list[float]:
    """The times of the function in `gdnspec.ops` when calls have one form; of the operator; and of the dispatch alone,
    with a Python function as the kernel and no look-up."""
    outputs = call.operator(*call.copy())
    by_kernel.kernel = lambda *asked: Nothing(outputs)
    schema = str(call.operator._schema).partition("::")[2]
    served, found = registry.KERNELS[call.name]["CUDA"], []
    for prefix, kernel in (("timed", served), ("empty", lambda *args: outputs)):
        defined = registry.operator(f"{prefix}_{schema}", None, {"CPU": kernel}, None)
        found.append(defined)
    found.insert(0, direct(found[0], served, "CPU"))
    return [microseconds(lambda each=each: each(*call.args), runs) for each in found]


# --- on a GPU ---------------------------------------------------------------------------------------------------

CALLS = 50  # few enough for the queue of launches, so that the host never waits for the GPU


class Recorder:
    """A kernel's function, with the arguments of its last call."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *args: Any, **words: Any) -> Any:
        self.args, self.words = args, words
        return self.function(*args, **words)

    def again(self) -> Any:
        return self(*self.args, **self.words)


def launch_microseconds(call: Any, runs: int) -> float:
    found = []
    for _ in range(runs):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        found.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return min(found) / CALLS * 1e6


def measured_on_gpu(call: Call, runs: int) -> tuple[str, list[float]]:
    """The solution, and the times of its function, of what it prepares, of making its outputs by `torch.empty`, of the
    function in `gdnspec.ops`, and of the operator."""
    made: list[Any] = []
    choose = by_kernel.kernel

    def recording(*asked: Any) -> Any:
        kernel = choose(*asked)
        kernel._function = Recorder(kernel._function)
        if kernel._prepare is not None:
            kernel._prepare = Recorder(kernel._prepare)
        made.append(kernel)
        return kernel

    by_kernel.kernel = recording
    returned = call.operator(*call.args)
    by_kernel.kernel = choose
    kernel = made[-1]
    outputs = [(tuple(x.shape), x.dtype) for x in (returned if isinstance(returned, tuple) else (returned,))]
    parts = (
        kernel._function.again,
        kernel._prepare.again if kernel._prepare is not None else lambda: None,
        lambda: [torch.empty(shape, dtype=dtype, device="cuda") for shape, dtype in outputs],
        lambda: call.function(*call.args, **call.words),
        lambda: call.operator(*call.args),
    )
    return kernel.solution, [launch_microseconds(each, runs) for each in parts]


def of_gpu(runs: int) -> None:
    print("| operator | solution | kernel alone | its outputs | function beyond both | operator beyond both |")
    print("|---|---|---:|---:|---:|---:|")
    served = calls(torch.bfloat16, gates=torch.float32, state=torch.float32, K=128, V=128)
    for call in {call.name: call for call in reversed(served.values())}.values():
        moved = replace(call, args=tuple(x.cuda() if isinstance(x, torch.Tensor) else x for x in call.args))
        try:
            solution, (alone, prepared, outputs, *times) = measured_on_gpu(moved, runs)
        except Exception as error:
            print(f"{call.name} is left out: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        alone += prepared
        beyond = " | ".join(f"{time - alone - outputs:.1f} us" for time in times)
        print(f"| `{call.name}` | {solution} | {alone:.1f} us | {outputs:.1f} us | {beyond} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a call of an operator costs the host beyond the kernel.")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--runs", type=int, default=200, help="how many short runs give the least of their times")
    given = parser.parse_args()
    runs = given.runs
    if given.device == "cuda":
        if not torch.cuda.is_available():
            parser.error("no CUDA GPU here: --device cpu measures the operators with kernels that do nothing")
        of_gpu(runs)
        return
    torch.set_num_threads(1)
    print("| operator | calls of one form | by the dispatcher | of it the dispatch |\n|---|---:|---:|---:|")
    for call in {call.name: call for call in reversed(calls(V=4).values())}.values():
        times = " | ".join(f"{time:.1f} us" for time in measured(call, runs))
        print(f"| `{call.name}` | {times} |")


if __name__ == "__main__":
    main()
