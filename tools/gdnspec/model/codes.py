"""States that are kept as codes: which inputs hold the codes, and which their scales."""

from typing import TYPE_CHECKING

from gdnspec.model.errors import PlacedError, nearest

if TYPE_CHECKING:
    from gdnspec.model.definition import Definition
    from gdnspec.model.elements import Tensor


def naming(definition: "Definition", pool: "Tensor") -> "list[Tensor]":
    """The inputs whose values are slots of `pool`: those that index it, or the codes that it scales."""
    return [tensor for tensor in definition.inputs if tensor.indexes is not None and tensor.indexes == pool.pool]


def pools(definition: "Definition", index: "Tensor") -> list[str]:
    """The inputs that have the slots which an input of integers names: a pool, and its scales."""
    return [] if index.indexes is None else [t.name for t in definition.inputs if t.pool == index.indexes]


def check(definition: "Definition") -> None:
    """Raises `PlacedError` if codes have no scales, scales no codes, or the conventions say otherwise."""
    coded = {tensor.name: tensor for tensor in definition.inputs if tensor.is_code}
    for side in ("inputs", "outputs"):
        for i, tensor in enumerate(getattr(definition, side)):
            if tensor.is_code and not tensor.mutates:
                message = f"{tensor.dtype} is a type of codes, and only a mutated input may hold codes"
                raise PlacedError(f"/{side}/{i}/dtype", message)
            if tensor.scales is not None:
                _check_scales(f"/{side}/{i}", tensor, coded)
    scaled = [tensor.scales for tensor in definition.inputs if tensor.scales is not None]
    for i, tensor in enumerate(definition.inputs):
        if tensor.is_code and scaled.count(tensor.name) != 1:
            message = f"{scaled.count(tensor.name)} inputs scale its codes: it needs one"
            raise PlacedError(f"/inputs/{i}/dtype", message, f'"scales": "{tensor.name}" makes an input its scales')
    if bool(coded) != (definition.conventions.state_scale != "none"):
        said = "no input has codes" if not coded else f"{next(iter(coded))!r} has codes"
        raise PlacedError("/conventions/state_scale", f"{said}: the convention must say the same")


def _check_scales(pointer: str, tensor: "Tensor", coded: "dict[str, Tensor]") -> None:
    codes = coded.get(str(tensor.scales))
    if codes is None:
        message = f"{tensor.scales!r} is not an input of codes"
        raise PlacedError(f"{pointer}/scales", message, nearest(str(tensor.scales), coded))
    if tensor.dtype != "float32" or not tensor.mutates:
        raise PlacedError(f"{pointer}/scales", "scales must be a mutated input of float32")
    if tensor.shape != (codes.shape or [])[:-1]:
        message = f"scales need one element for each row of {codes.name!r}: its shape without the last dimension"
        raise PlacedError(f"{pointer}/shape", message)
