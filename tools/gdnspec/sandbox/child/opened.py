"""The child's view of a workload: shared memory as tensors, and the solution's function."""

import time
from collections.abc import Callable
from typing import Any

import torch

from gdnspec.sandbox.wire.arena import TORCH, Arena, Slot


class Refused(Exception):
    """The returned values cannot be judged; `kind` says why."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Opened:
    """The calls of one workload: views of the shared memory, the function, and its prepared value."""

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
        """Runs `prepare`, if there is one, and returns its seconds."""
        if self._prepare is None:
            return None
        started = time.perf_counter()
        self.extra = {"prepared": self._prepare(**self.inputs)}
        wait()
        return time.perf_counter() - started

    def invoke(self) -> Any:
        """Calls the entry point and returns what it returned; None if it writes to outputs."""
        if self.entry["call"] == "return":
            return self.function(**self.inputs, **self.extra)
        _call_out(self.function, self.entry["entry"], self.inputs, self.outputs, self.extra)
        return None

    def accept(self, returned: Any) -> list[dict[str, Any]] | None:
        """Copies what `invoke` returned to the parent's memory, and describes it; None if nothing is returned."""
        if self.entry["call"] != "return":
            return None
        tensors = unpacked(returned, self.outputs)
        copy_over(tensors, self.outputs)
        return [form_of(tensor) for tensor in tensors]

    def unpack(self, returned: Any) -> list[torch.Tensor]:
        """The tensors that `invoke` returned; empty if it writes to outputs. Raises `Refused`."""
        return unpacked(returned, self.outputs) if self.entry["call"] == "return" else []

    def copy_over(self, tensors: list[torch.Tensor]) -> None:
        """Copies unpacked tensors to the parent's memory."""
        copy_over(tensors, self.outputs)


def _call_out(
    function: Callable[..., Any], spec: str, inputs: dict[str, Any], outputs: dict[str, Any], extra: dict[str, Any]
) -> None:
    if spec.split("::")[0].endswith(".cu"):
        function(*inputs.values(), *outputs.values())  # an exported C++ function has no keywords
    else:
        function(**inputs, **outputs, **extra)


def unpacked(returned: Any, outputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that a solution returned, one for each output. Raises `Refused`.

    Only an exact tuple or list of exact tensors is accepted. A subclass could do its work when the judge looks at it,
    after the clock has stopped.
    """
    if returned is None and not outputs:
        values = []  # all that the call leaves is in inputs that it mutates
    elif type(returned) is torch.Tensor:
        values = [returned]
    elif type(returned) is tuple or type(returned) is list:
        values = list(returned)
    else:
        kind = "tampered" if isinstance(returned, tuple | list | torch.Tensor) else "shape"
        got = type(returned).__name__
        raise Refused(kind, f"the entry returned a {got} instead of a plain tuple of {', '.join(outputs)}")
    if len(values) != len(outputs):
        wanted = f"{len(outputs)}: {', '.join(outputs)}"
        noun = "output" if len(values) == 1 else "outputs"
        more = " (what it updates in place is not returned)" if len(values) > len(outputs) else ""
        raise Refused("shape", f"the entry returned {len(values)} {noun} instead of {wanted}{more}")
    for name, value in zip(outputs, values, strict=True):
        if type(value) is not torch.Tensor:
            kind = "tampered" if isinstance(value, torch.Tensor) else "shape"
            raise Refused(kind, f"{name} is a {type(value).__name__} instead of a torch.Tensor")
        if form := _unusual(value):
            raise Refused("tampered", f"{name} is a {form} tensor instead of a plain strided one")
    return values


_NAMES = {dtype: name for name, dtype in TORCH.items()}


def form_of(tensor: torch.Tensor) -> dict[str, Any]:
    """The shape and type, which the parent judges."""
    return {"shape": list(tensor.shape), "dtype": _NAMES.get(tensor.dtype, str(tensor.dtype))}


def copy_over(tensors: list[torch.Tensor], outputs: dict[str, torch.Tensor]) -> None:
    """Copies tensors to the parent's memory, except those of another form."""
    for tensor, target in zip(tensors, outputs.values(), strict=True):
        if tensor.shape == target.shape and tensor.dtype == target.dtype:
            target.copy_(tensor)


def _unusual(tensor: torch.Tensor) -> str:
    """The kind of a tensor without plain memory for each element; "" if it has."""
    if tensor.is_meta or tensor.is_nested:
        return "meta" if tensor.is_meta else "nested"
    return "" if tensor.layout is torch.strided else str(tensor.layout).removeprefix("torch.")
