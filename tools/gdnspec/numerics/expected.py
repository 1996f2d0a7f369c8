"""Computes expected values with the reference in float64, and caches them on disk by content."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from gdnspec import paths
from gdnspec.build.reference import function, reference_hash, running
from gdnspec.catalog import kept
from gdnspec.catalog.definitions import Found
from gdnspec.inputs.materialise import Inputs, InvalidWorkload
from gdnspec.model.dtypes import CODES
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.roles import packed_tokens
from gdnspec.numerics.arguments import arguments
from gdnspec.numerics.pools import compact, left
from gdnspec.sandbox.wire.arena import TORCH

LARGEST_CACHED = 256 * 1024 * 1024
AGAIN = "its expected values are computed again"


def oracle(found: Found, tokens: int) -> Callable[..., tuple[Tensor, ...] | Tensor]:
    """The reference function for a workload with this many tokens: long ones use the second, if there is one."""
    return function(found.family, _asked(found, tokens)[0])


def _asked(found: Found, tokens: int) -> tuple[str, str]:
    """The reference for this many tokens, and the JSON pointer where the definition names it."""
    second = found.definition.second_reference
    if second is None or tokens <= second.above_tokens:
        return found.definition.reference, "/reference"
    return second.function, "/second_reference/function"


def in_chunks(found: Found) -> Callable[..., tuple[Tensor, ...] | Tensor]:
    """The second reference for any size, or the first if there is no second."""
    second = found.definition.second_reference
    return function(found.family, found.definition.reference if second is None else second.function)


def evaluate(found: Found, inputs: Inputs, device: str, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """The values that the reference returns, by name: each output and each mutated input, but only the written slots of
    an indexed one. Computed in `dtype`, or in the types of the inputs."""
    inputs = compact(found.definition, inputs)
    tokens = packed_tokens(found.definition, inputs.scope)
    asked, place = _asked(found, tokens)
    with running(found.family, f"computing expected values of {found.definition.name} with {asked}"):
        values = function(found.family, asked)(**arguments(found, inputs, device, dtype))
    try:
        return by_name(found, values, inputs, dtype)
    except ValueError as error:
        raise SpecError([Problem(found.file, f"{asked} returned {error}", place)]) from None


def by_name(found: Found, values: object, inputs: Inputs, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """The returned values of a reference by name, but only the written slots of an indexed input. A single output needs
    no tuple. Raises `ValueError` if number, shapes or types differ from the definition or from `dtype`."""
    definition, scope = found.definition, inputs.scope
    given = values if isinstance(values, tuple | list) else (values,)
    if len(given) != len(definition.judged):
        raise ValueError(f"{len(given)} values instead of {', '.join(tensor.name for tensor in definition.judged)}")
    whole: dict[str, Tensor] = {}
    for tensor, value in zip(definition.judged, given, strict=True):
        if not isinstance(value, Tensor):
            raise ValueError(f"a {type(value).__name__} for {tensor.name}, not a tensor")
        # Here a pool has only the slots that the call names.
        shape = inputs.tensors[tensor.name].shape if tensor.mutates else definition.shape(tensor, scope)
        if tuple(value.shape) != shape:
            raise ValueError(f"{tensor.name} with shape {list(value.shape)} instead of {list(shape)}")
        if dtype is not None and value.dtype != dtype:
            raise ValueError(f"{tensor.name} in {value.dtype}, but its inputs are in {dtype}")
        whole[tensor.name] = value
    return whole | left(definition, whole, scope)


class Expected:
    """Computes expected values and caches them. `warn` gets a message once if the cache cannot be written, and for each
    broken entry."""

    def __init__(self, device: str, warn: Callable[[str], None]) -> None:
        self.device = device
        self._warn = warn
        self._warned = False
        kept.sweep(paths.expected_cache())

    def values(self, found: Found, inputs: Inputs, keep: bool = True) -> dict[str, Tensor]:
        """All outputs in float64, on the device. `keep`: whether to cache them for other runs. Raises `InvalidWorkload`
        if one is not finite."""
        file = self._file(found, inputs)
        judged = found.definition.judged
        shapes = {tensor.name: found.definition.left(tensor, inputs.scope) for tensor in judged}
        values = self._read(file, shapes)
        if values is None:
            values = evaluate(found, inputs, self.device, torch.float64)
            for tensor in judged:
                value = values[tensor.name]
                largest = CODES.get(tensor.dtype) or torch.finfo(TORCH[tensor.dtype]).max
                if not bool((value.abs() <= largest).all()):  # also true for NaN
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
            return {name: values[name] for name in shapes}  # a file of safetensors has no order
        kept.drop(file, self._warn, AGAIN)  # another program wrote it
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
                    f"cannot write expected values to {file.parent} ({reason}): they will be computed again each time; "
                    "set GDNSPEC_CACHE to a writable folder"
                )
