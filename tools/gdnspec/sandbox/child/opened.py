"""What the child has open: shared memory as tensors, and the solution's function on them."""

import time
from collections.abc import Callable
from typing import Any

import torch

from gdnspec.sandbox.wire.arena import TORCH, Arena, Slot


class Refused(Exception):
    """What the solution gave back cannot be judged; `kind` says why."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Opened:
    """One workload's calls: views of the shared memory, the function, and what it prepared."""

    def __init__(
        self, message: dict[str, Any], slots: dict[str, Slot], arena: Arena, load: Callable[[str], Callable[..., Any]]
    ) -> None:
        assert arena.block is not None
        self.arena, self.entry = arena, message["entry"]
        self.function = load(self.entry["entry"])
        prepare = self.entry["prepare"]
        self._prepare = None if prepare is None else load(prepare)
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
        if self.entry["call"] != "return":
            return None
        tensors = unpacked(returned, self.outputs)
        copy_over(tensors, self.outputs)
        return [form_of(tensor) for tensor in tensors]

    def unpack(self, returned: Any) -> list[torch.Tensor]:
        """The tensors that `invoke` returned; none where it writes to outputs. Raises `Refused`."""
        return unpacked(returned, self.outputs) if self.entry["call"] == "return" else []

    def copy_over(self, tensors: list[torch.Tensor]) -> None:
        """Copies unpacked tensors to where the parent looks."""
        copy_over(tensors, self.outputs)


def _call_out(
    function: Callable[..., Any], spec: str, inputs: dict[str, Any], outputs: dict[str, Any], extra: dict[str, Any]
) -> None:
    if spec.split("::")[0].endswith(".cu"):
        function(*inputs.values(), *outputs.values())  # an exported C++ function has no keywords
    else:
        function(**inputs, **outputs, **extra)


def unpacked(returned: Any, outputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The plain tensors in what a solution returned, one for each output.

    Only an exact tuple or list of exact tensors counts. A class of the solution's own could do its work while it is
    looked at, after the clock has stopped. Raises `Refused`.
    """
    if type(returned) is torch.Tensor:
        values = [returned]
    elif type(returned) is tuple or type(returned) is list:
        values = list(returned)
    else:
        kind = "tampered" if isinstance(returned, tuple | list | torch.Tensor) else "shape"
        raise Refused(kind, f"returned a {type(returned).__name__}, not a plain tuple of {', '.join(outputs)}")
    if len(values) != len(outputs):
        raise Refused("shape", f"returned {len(values)} outputs, not {len(outputs)}: {', '.join(outputs)}")
    for name, value in zip(outputs, values, strict=True):
        if type(value) is not torch.Tensor:
            kind = "tampered" if isinstance(value, torch.Tensor) else "shape"
            raise Refused(kind, f"{name} is a {type(value).__name__}, not a torch.Tensor")
        if form := _unusual(value):
            raise Refused("tampered", f"{name} is a {form} tensor, not a plain one of strided memory")
    return values


_NAMES = {dtype: name for name, dtype in TORCH.items()}


def form_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Shape and element type, so that the parent can judge them."""
    return {"shape": list(tensor.shape), "dtype": _NAMES.get(tensor.dtype, str(tensor.dtype))}


def copy_over(tensors: list[torch.Tensor], outputs: dict[str, torch.Tensor]) -> None:
    """Copies tensors to where the parent looks; those of another form stay where they are."""
    for tensor, target in zip(tensors, outputs.values(), strict=True):
        if tensor.shape == target.shape and tensor.dtype == target.dtype:
            target.copy_(tensor)


def _unusual(tensor: torch.Tensor) -> str:
    """What a tensor is that has no elements in memory, place by place; empty where it has."""
    if tensor.is_meta or tensor.is_nested:
        return "meta" if tensor.is_meta else "nested"
    return "" if tensor.layout is torch.strided else str(tensor.layout).removeprefix("torch.")
