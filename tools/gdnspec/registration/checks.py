"""What an operator says of a call that it cannot serve: one line that says what is wrong and what is served."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # torch computes with no smaller ones


def tensors(operator: str, floats: dict[str, Tensor | None], integers: dict[str, Tensor | None]) -> None:
    """All tensors on one device, of floating point or integer types as named."""
    given = {name: x for name, x in (floats | integers).items() if x is not None}
    first, home = next(iter(given.items()))
    for name, x in given.items():
        if x.device != home.device:
            raise ValueError(f"{operator}: {name} is on {x.device} and {first} on {home.device}: use one device")
        if name in floats and x.dtype not in FLOATS:
            served = "float16, bfloat16, float32 and float64 are served"
            raise TypeError(f"{operator}: {name} has the type {said(x)}: {served}")
        if name in integers and x.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{operator}: {name} has the type {said(x)}: int32 and int64 are served")


def shape(operator: str, name: str, x: Tensor | None, want: tuple[Any, ...], told: str) -> None:
    """The shape of a tensor; None is any size. `told`: the shape that is served, in the names of axes."""
    if x is None:
        return
    if x.dim() != len(want):
        raise ValueError(f"{operator}: {name} has the shape {list(x.shape)}: {told} is served")
    for size, wanted in zip(x.shape, want, strict=True):
        if wanted is not None:
            torch._check_value(size == wanted, lambda: _unlike(operator, name, x, want, told))


def _unlike(operator: str, name: str, x: Tensor, want: tuple[Any, ...], told: str) -> str:
    sizes = ", ".join("any" if size is None else str(size) for size in want)
    return f"{operator}: {name} has the shape {list(x.shape)}: {told}, here [{sizes}], is served"


def choice(operator: str, name: str, value: str, served: tuple[str, ...]) -> None:
    """An argument that is one of a few words."""
    if value not in served:
        raise ValueError(f"{operator}: {name}={value!r}: {' and '.join(map(repr, served))} are served")


def said(x: Tensor) -> str:
    """The name of a type: bfloat16."""
    return str(x.dtype).removeprefix("torch.")


def by_type(operator: str, name: str, x: Tensor, served: Mapping[torch.dtype, str]) -> str:
    """What stands for the type of a tensor, which on a GPU is one of these."""
    if x.dtype not in served:
        types = " and ".join(str(one).removeprefix("torch.") for one in served)
        raise TypeError(f"{operator}: {name} has the type {said(x)}: on a GPU {types} are served")
    return served[x.dtype]


def starts(operator: str, name: str, x: Tensor, tokens: int) -> list[int]:
    """The values of where sequences start, which are read on a CPU and where gradients are wanted."""
    found: list[int] = x.tolist()
    if found[0] != 0 or found[-1] != tokens or sorted(found) != found:
        raise ValueError(f"{operator}: {name} must rise from 0 to the number of tokens, {tokens}")
    return found


def slots(operator: str, name: str, named: Tensor, count: int) -> None:
    """The values of slots without -1, which are read on a CPU and where gradients are wanted."""
    if named.numel() and (named.min() < 0 or named.max() >= count):
        raise ValueError(f"{operator}: {name} names slots outside 0 .. {count - 1}")
