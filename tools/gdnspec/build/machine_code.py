"""A hash of what a call of a Triton solution does on a GPU. It stays the same if a change of the sources does not
affect the GPU.

It covers, for each launch in order, the kernel's machine code for sm_90, its shared memory, warps, grid and arguments,
and each PyTorch operation in between. It does not cover line numbers, which change with every comment.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gdnspec.build.dry import TARGET, arguments, ask, described, intercept_launches
from gdnspec.build.loader import load_function

Call = tuple[str, Mapping[str, object]]


def hashes(folder: Path, calls: Sequence[Call]) -> list[str]:
    """For each call (`file.py::function` and its inputs by name, with outputs if the entry takes them): sha256 over
    what it launches. Raises `RuntimeError` if a call cannot run without a GPU, for example because it reads values on
    the host."""
    request = {"folder": str(folder.resolve()), "calls": [(entry, described(inputs)) for entry, inputs in calls]}
    found: list[str] = ask(__name__, request, TRITON_DISABLE_LINE_INFO="1")
    return found


def compiler() -> dict[str, str]:
    """The version of Triton and the target."""
    from importlib.metadata import version

    return {"triton": version("triton"), "target": f"sm_{TARGET[1]}"}


def _answer() -> None:
    """The child process: reads a request from stdin, and prints the hashes."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Records the operations of PyTorch, except views and allocations."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = func(*args, **(kwargs or {}))
            if not (func.is_view or func.name().startswith("aten::empty")):
                done.append([len(launches), func.name(), [str(getattr(x, "shape", x)) for x in args]])
            return found

    request = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as build:
        launches, answer = intercept_launches(), []
        done: list[Any] = []
        for entry, inputs in request["calls"]:
            function, given = load_function(Path(request["folder"]), entry, Path(build)), arguments(inputs)
            launches.clear()
            done.clear()
            with Operations():  # type: ignore[no-untyped-call]
                function(**given)
            answer.append(_hash([launches, done]))
        print(json.dumps(answer))


def _hash(found: list[list[Any]]) -> str:
    launches, operations = found
    said = [
        [
            launch.kernel.name,
            hashlib.sha256(launch.kernel.asm["cubin"]).hexdigest(),
            [launch.kernel.metadata.shared, launch.kernel.metadata.num_warps],
            launch.grid,
            launch.arguments,
        ]
        for launch in launches
    ]
    return hashlib.sha256(json.dumps([said, operations]).encode()).hexdigest()


if __name__ == "__main__":
    _answer()
