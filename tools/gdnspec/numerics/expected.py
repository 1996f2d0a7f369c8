"""Expected values: the reference in float64, cached on disk by content."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from gdnspec import paths
from gdnspec.build.reference import function, reference_hash
from gdnspec.catalog import kept
from gdnspec.catalog.definitions import Found
from gdnspec.inputs.materialise import Inputs, InvalidWorkload
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope
from gdnspec.model.roles import packed_tokens
from gdnspec.numerics.arguments import arguments
from gdnspec.numerics.pools import compact, left
from gdnspec.sandbox.wire.arena import TORCH

LARGEST_CACHED = 256 * 1024 * 1024
AGAIN = "its expected values are computed again"


def oracle(found: Found, tokens: int) -> Callable[..., tuple[Tensor, ...] | Tensor]:
    """The reference function; where the workload is long, the second reference that the definition names."""
    second = found.definition.second_reference
    first = second is None or tokens <= second.above_tokens
    return function(found.family, found.definition.reference if second is None or first else second.function)


def in_chunks(found: Found) -> Callable[..., tuple[Tensor, ...] | Tensor]:
    """The second reference, whatever the size of a workload; the only one where there is no second."""
    second = found.definition.second_reference
    return function(found.family, found.definition.reference if second is None else second.function)


def evaluate(found: Found, inputs: Inputs, device: str, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """What the reference leaves, by name: each output, and each mutated input, of an indexed one the slots that are
    written. In `dtype`, else in the types that its inputs have."""
    inputs = compact(found.definition, inputs)
    tokens = packed_tokens(found.definition, inputs.scope)
    values = oracle(found, tokens)(**arguments(found, inputs, device, dtype))
    return by_name(found.definition, values, inputs.scope)


def by_name(definition: Definition, values: tuple[Tensor, ...] | Tensor, scope: Scope) -> dict[str, Tensor]:
    """What a reference left of a call: one output needs no tuple; of an indexed input the slots that are written."""
    values = (values,) if isinstance(values, Tensor) else values
    whole = dict(zip((tensor.name for tensor in definition.judged), values, strict=True))
    return whole | left(definition, whole, scope)


class Expected:
    """Computes or remembers expected values. `warn` is told, once, that the cache cannot be written, and each time that
    an entry is broken."""

    def __init__(self, device: str, warn: Callable[[str], None]) -> None:
        self.device = device
        self._warn = warn
        self._warned = False
        kept.sweep(paths.expected_cache())

    def values(self, found: Found, inputs: Inputs, keep: bool = True) -> dict[str, Tensor]:
        """Every output in float64, on the device. `keep`: in the cache, for another run. Raises `InvalidWorkload` where
        one is not finite."""
        file = self._file(found, inputs)
        judged = found.definition.judged
        shapes = {tensor.name: found.definition.left(tensor, inputs.scope) for tensor in judged}
        values = self._read(file, shapes)
        if values is None:
            values = evaluate(found, inputs, self.device, torch.float64)
            for tensor in judged:
                value = values[tensor.name]
                if tuple(value.shape) != shapes[tensor.name] or value.dtype != torch.float64:
                    raise RuntimeError(f"the reference of {found.definition.name} returned another {tensor.name}")
                largest = torch.finfo(TORCH[tensor.dtype]).max
                if not bool((value.abs() <= largest).all()):  # NaN is not below anything
                    raise InvalidWorkload(f"the expected {tensor.name} is not finite in {tensor.dtype}")
            if keep:
                self._write(file, values)
        return values

    # --- the cache ----------------------------------------------------------------------------------------------

    def _file(self, found: Found, inputs: Inputs) -> Path:
        second = found.definition.second_reference
        named = [found.definition.reference, None if second is None else second.model_dump()]
        identity = json.dumps([named, inputs.key(), reference_hash(found.family)])
        return paths.expected_cache() / f"{hashlib.sha256(identity.encode()).hexdigest()}.values"

    def _read(self, file: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor] | None:
        content = kept.kept(file, self._warn, AGAIN)
        if content is None:
            return None
        try:
            values = {name: value.to(self.device) for name, value in load(content).items()}
        except (SafetensorError, RuntimeError, ValueError):
            values = {}
        whole = {name: tuple(value.shape) for name, value in values.items()} == shapes
        if whole and all(v.dtype == torch.float64 and bool(torch.isfinite(v).all()) for v in values.values()):
            return values
        kept.drop(file, self._warn, AGAIN)  # written by something else
        return None

    def _write(self, file: Path, values: dict[str, Tensor]) -> None:
        if sum(value.numel() * 8 for value in values.values()) > LARGEST_CACHED:
            return
        try:
            kept.keep(file, save({name: value.contiguous().cpu() for name, value in values.items()}))
        except (OSError, SafetensorError) as error:
            if not self._warned:
                self._warned = True
                reason = getattr(error, "strerror", None) or error
                self._warn(
                    f"cannot write expected values to {file.parent} ({reason}): they are computed again each time; "
                    "set GDNSPEC_CACHE to a folder that can be written"
                )
