"""What kernels leave for one another, and in how many parts, so that it takes at most twice what the inputs take."""

import math
from typing import NamedTuple

import torch
import triton
from arguments import CHUNK
from cut import INTERPRETED, KEPT, PARTS, long


class Problem(NamedTuple):
    """What sizes depend on."""

    total: int
    num_seqs: int
    H: int
    D: int
    segment: int  # chunks, or 0
    value_slices: int  # of backward_kernel
    key_slices: int  # of gradients_kernel, times its turns over value channels where those have sums of their own
    stacked: bool  # how gradients_kernel multiplies
    beside: bool  # both walks side by side, if there is room

    @property
    def slots(self) -> int:
        """For all chunks (chunks.py)."""
        return triton.cdiv(self.total, CHUNK) + self.num_seqs - 1

    @property
    def segments(self) -> int:
        return triton.cdiv(self.total, CHUNK * self.segment) + self.num_seqs - 1 if self.segment else 0

    def places(self, parts: int) -> int:
        """For the chunks of one part of so many (chunks.py)."""
        if self.segment:
            return self.segments * (self.segment // parts)
        return triton.cdiv(self.total, CHUNK * parts) + self.num_seqs - 1


class Way(NamedTuple):
    """Sequences or segments are cut into so many parts. Gradients of states have places for `kept` parts at a time."""

    parts: int = 1
    kept: int = 1
    beside: bool = False  # both walks, one beside the other; else a part is a round
    aside: bool = False  # what segments make of a state, and of its gradient, are found at once

    @property
    def all_kept(self) -> bool:
        return self.kept == self.parts


class Workspace(NamedTuple):
    """dv, and what segments make of a state, are in the rows of dv itself, where each head has some."""

    starts: torch.Tensor  # the state before each chunk
    ends: torch.Tensor  # the gradient of the one behind it, of all chunks or those of some parts
    r: torch.Tensor
    dv: torch.Tensor
    inverse: torch.Tensor  # triangles (rows.py)
    P: torch.Tensor
    later: torch.Tensor
    decay: torch.Tensor
    of_walk: torch.Tensor
    between: torch.Tensor
    of_gradients: torch.Tensor
    bounds: torch.Tensor  # at the starts of segments, or the gradients at their ends, in float32
    moves: torch.Tensor
    diagonals: torch.Tensor
    bounds_back: torch.Tensor | None = None  # those of gradients, if both are found at once


OPERANDS = ("starts", "ends", "r", "dv", "inverse", "P", "later", "moves")  # the others are float32


def shapes(x: Problem, way: Way) -> dict[str, tuple[int, ...]]:
    states, triangle = (x.H, x.D, x.D), CHUNK * (CHUNK + 8) // 2
    of_chunks = dict.fromkeys(("inverse", "P"), (x.slots, x.H, triangle)) | {
        "starts": (x.slots, *states), "decay": (x.slots, x.H, 8, CHUNK), "between": (x.slots, x.H, CHUNK),
        "of_walk": (x.slots, x.H, x.value_slices, CHUNK),
        "of_gradients": (x.slots, x.H, x.key_slices, 4 * CHUNK if x.stacked else 2 * CHUNK + 4),
    }  # fmt: skip
    of_segments = dict.fromkeys(("bounds", "moves"), (x.segments, *states)) | {"diagonals": (x.segments, x.H, x.D)}
    if way.aside:
        of_segments["bounds_back"] = of_segments["bounds"]
    if way.beside:  # the walk forward is two launches, too
        of_segments["bounds"] = (x.num_seqs, *states)
    of_tokens = dict.fromkeys(("r", "dv"), (x.total, x.H, x.D))
    ends = (x.slots if way.all_kept else way.kept * x.places(way.parts), *states)
    return of_chunks | of_segments | of_tokens | {"ends": ends, "later": (CHUNK, CHUNK)}


def room_in(dv: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
    """The first elements of dv, where it has as many."""
    count = math.prod(shape)
    return dv.view(-1)[:count].view(shape) if dv.dtype == dtype and dv.numel() >= count else None


def workspace(x: Problem, inputs: int, dv: torch.Tensor, dtype: torch.dtype) -> tuple[Way, Workspace]:
    """The first way whose workspace takes at most twice the bytes of the inputs, else the last. dv [total, HV, D] is an
    output; operands are of type `dtype`."""
    within = {"dv": dv} if dv.dtype == dtype and dv.shape[1] == x.H else {}
    moves = room_in(dv, shapes(x, Way())["moves"], dtype) if within else None
    within |= {} if moves is None else {"moves": moves}
    ways = [Way(PARTS, kept, True) for kept in KEPT] if x.beside else []
    # segments in rounds are to be seen in the interpreter
    for parts in (2,) if INTERPRETED and x.segment else (1, 2, 4):
        ways += [Way(parts, aside=True), Way(parts)] if long(x.segment) else [Way(parts)]
    for way in ways:
        new = {name: shape for name, shape in shapes(x, way).items() if name not in within}
        of = {name: dtype if name in OPERANDS else torch.float32 for name in new}
        if sum(of[n].itemsize * math.prod(shape) for n, shape in new.items()) <= 2 * inputs:
            break
    return way, Workspace(**within, **{name: dv.new_empty(shape, dtype=of[name]) for name, shape in new.items()})
