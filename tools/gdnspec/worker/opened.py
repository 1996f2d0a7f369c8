"""What the child has open: shared memory as tensors, and the solution's function on them."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gdnspec.build.loader import load_function
from gdnspec.protocol.arena import TORCH, Arena, Slot


class Refused(Exception):
    """What the solution gave back cannot be judged; `kind` says why."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Opened:
    """One workload's calls: views of the shared memory, the function, and what it prepared."""

    def __init__(
        self, message: dict[str, Any], slots: dict[str, Slot], arena: Arena, folder: Path, build_dir: Path
    ) -> None:
        assert arena.block is not None
        self.arena, self.entry = arena, message["entry"]
        self.function = load_function(folder, self.entry["entry"], build_dir)
        prepare = self.entry["prepare"]
        self._prepare = None if prepare is None else load_function(folder, prepare, build_dir)
        self.inputs: dict[str, Any] = dict.fromkeys(message["inputs"])
        self.inputs.update(message["scalars"])
        self.inputs.update({name: slots[name].view(arena.block) for name in self.inputs if name in slots})
        self.outputs = {name: slots[name].view(arena.block) for name in message["outputs"]}
        self.extra: dict[str, Any] = {}

    def prepare(self, wait: Callable[[], None]) -> float | None:
        """Runs `prepare`, where there is one; its seconds."""
        if self._prepare is None:
            return None
        started = time.perf_counter()
        self.extra = {"prepared": self._prepare(**self.inputs)}
        wait()
        return time.perf_counter() - started

    def invoke(self) -> Any:
        """Calls the entry point; what it returned, None where it writes to outputs."""
        if self.entry["call"] == "return":
            return self.function(**self.inputs, **self.extra)
        _call_out(self.function, self.entry["entry"], self.inputs, self.outputs, self.extra)
        return None

    def accept(self, returned: Any) -> list[dict[str, Any]] | None:
        """Takes what `invoke` returned to where the parent looks; says what it was, where something was returned."""
        return _accept(returned, self.outputs) if self.entry["call"] == "return" else None


def _call_out(
    function: Callable[..., Any], spec: str, inputs: dict[str, Any], outputs: dict[str, Any], extra: dict[str, Any]
) -> None:
    if spec.split("::")[0].endswith(".cu"):
        function(*inputs.values(), *outputs.values())  # an exported C++ function has no keywords
    else:
        function(**inputs, **outputs, **extra)


def _accept(returned: Any, outputs: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
    """Copies returned tensors to where the parent looks; says what they were, so that it can judge their form."""
    values = [returned] if isinstance(returned, torch.Tensor) else returned
    if not isinstance(values, tuple | list):
        raise Refused("shape", f"returned {type(returned).__name__}, not a tuple of {', '.join(outputs)}")
    if len(values) != len(outputs):
        raise Refused("shape", f"returned {len(values)} outputs, not {len(outputs)}: {', '.join(outputs)}")
    names = {dtype: name for name, dtype in TORCH.items()}
    described = []
    for (name, target), value in zip(outputs.items(), values, strict=True):
        if type(value) is not torch.Tensor:
            kind = "tampered" if isinstance(value, torch.Tensor) else "shape"
            raise Refused(kind, f"{name} is a {type(value).__name__}, not a torch.Tensor")
        if form := _unusual(value):
            raise Refused("tampered", f"{name} is a {form} tensor, not a plain one of strided memory")
        dtype = names.get(value.dtype, str(value.dtype))
        described.append({"shape": list(value.shape), "dtype": dtype})
        if value.shape == target.shape and value.dtype == target.dtype:
            target.copy_(value)
    return described


def _unusual(tensor: torch.Tensor) -> str:
    """What a tensor is that has no elements in memory, place by place; empty where it has."""
    if tensor.is_meta or tensor.is_nested:
        return "meta" if tensor.is_meta else "nested"
    return "" if tensor.layout is torch.strided else str(tensor.layout).removeprefix("torch.")
