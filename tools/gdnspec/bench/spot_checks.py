"""Reads some elements of a window's outputs when the child says that it is done, and again later.

The first look ends the window. On a GPU it waits for whatever the child still has running, and that time counts. An
element that differs at the second look was written after the child had said that it was done.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

EACH = 32  # elements per tensor and call


@dataclass(frozen=True, eq=False)
class Left:
    """The output of each call in one tensor: `rows` [calls, n], each of contiguous elements. For a pool, `rows` are its
    slots, and `slots` [calls, named] says which belong to each call."""

    rows: Tensor
    slots: Tensor | None = None

    def draw(self, generator: torch.Generator) -> "tuple[Tensor, Tensor]":
        """Draws some elements of each call: rows and columns, [calls, EACH]."""
        calls = len(self.rows) if self.slots is None else len(self.slots)
        column = _columns(calls, self.rows.shape[1], generator)
        if self.slots is None:
            return torch.arange(calls, device=column.device)[:, None].expand(column.shape), column
        which = _columns(calls, self.slots.shape[1], generator)
        return self.slots.gather(1, which), column[:, : which.shape[1]]

    def addresses(self, row: Tensor, column: Tensor) -> Tensor:
        """The addresses of these elements, or of the pair that an element of one byte is in."""
        return _even(self.rows.data_ptr() + (row * self.rows.stride(0) + column) * self.rows.element_size())

    def values(self, row: Tensor, column: Tensor) -> Tensor:
        """The values of these elements."""
        return self.rows[row, column]


@dataclass(frozen=True, eq=False)
class Scattered:
    """Like `Left`, for outputs at separate places: `tensors`, by call, of one dimension and one length, and their
    addresses `pointers`, int64 [calls]."""

    tensors: list[Tensor]
    pointers: Tensor

    def draw(self, generator: torch.Generator) -> "tuple[Tensor, Tensor]":
        """Like `Left.draw`; the row is the call."""
        column = _columns(len(self.tensors), len(self.tensors[0]), generator)
        return torch.arange(len(self.tensors), device=column.device)[:, None].expand(column.shape), column

    def addresses(self, row: Tensor, column: Tensor) -> Tensor:
        """As `Left`."""
        return _even(self.pointers[row] + column * self.tensors[0].element_size())

    def values(self, row: Tensor, column: Tensor) -> Tensor:
        """As `Left`."""
        return torch.stack([tensor[places] for tensor, places in zip(self.tensors, column, strict=True)])


class Samples:
    """The elements to read in one window, drawn by `generator` on its device."""

    def __init__(self, left: Sequence[Left | Scattered], generator: torch.Generator) -> None:
        self._places = [(one, *one.draw(generator)) for one in left]
        self._addresses = None
        if generator.device.type == "cuda" and _fused():
            found = [one.addresses(row, column).flatten() for one, row, column in self._places]
            self._addresses = torch.cat(found) if found else None

    def take(self) -> Tensor:
        """The lowest two bytes of each element, as int16; of an element of one byte, it and its neighbour."""
        if self._addresses is not None:
            from gdnspec.bench.spot_checks_cuda import gather

            found = gather(self._addresses)
            torch.cuda.synchronize()
            return found
        looked = [one.values(row, column).contiguous() for one, row, column in self._places]
        return torch.cat([x.view(torch.int16).flatten() for x in looked]) if looked else torch.empty(0)


def _columns(calls: int, size: int, generator: torch.Generator) -> Tensor:
    """Random places in rows of `size` elements, [calls, EACH]; empty if there are no elements."""
    shape = (calls, EACH if size else 0)
    return torch.randint(max(1, size), shape, generator=generator, device=generator.device)


def _even(addresses: Tensor) -> Tensor:
    """Two bytes are read at each address, which a GPU does at even ones alone."""
    return addresses - addresses % 2


def _fused() -> bool:
    """Whether to use the fused kernel. An interpreted one (TRITON_INTERPRET=1) would copy everything to the CPU."""
    return os.environ.get("TRITON_INTERPRET") != "1"
