"""What a call of a Triton solution makes a GPU do, as a hash: the same before and after a change of its sources where
the change reaches no GPU.

Of each launch in turn the kernel's machine code for sm_90, its shared memory, warps, grid and arguments; and each
operation of PyTorch in between. No line numbers: those move with every comment.
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
    """For each call, `file.py::function` and its inputs by keyword, outputs among them where the entry takes them:
    sha256 over what it launches. Raises `RuntimeError` where a call cannot be looked at without a GPU, as one that
    reads values on the host."""
    request = {"folder": str(folder.resolve()), "calls": [(entry, described(inputs)) for entry, inputs in calls]}
    found: list[str] = ask(__name__, request, TRITON_DISABLE_LINE_INFO="1")
    return found


def compiler() -> dict[str, str]:
    """What the machine code is made by, and for."""
    from importlib.metadata import version

    return {"triton": version("triton"), "target": f"sm_{TARGET[1]}"}


def _answer() -> None:
    """In the child: a request on stdin, the hashes on stdout."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Writes down what PyTorch is told to do; what only makes room or looks at memory otherwise does nothing."""

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
