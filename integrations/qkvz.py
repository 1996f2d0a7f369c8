"""Rows of Qwen3-Next's projection have q, k, the value heads and their output gates of one key head side by side. The
operators want rows of all queries, then all keys, then all values, and rows of gates.

Each element is copied once, in words of 16 bytes where these fit, and so is its gradient on the way back. `split` and
`cat` would copy it twice each way, and on a GPU the way back would take as long as the rule's own gradients.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

WORD = 16  # bytes, the most that a thread of a GPU copies at a time


class Sizes(NamedTuple):
    """Key heads, and for one of them the elements of its query or key, and of all its value heads."""

    heads: int
    key: int
    values: int


def apart(qkvz: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """q, k and v side by side, and z: [.., channels] each."""
    if not qkvz.requires_grad:
        return _apart(qkvz, sizes)
    if not torch.compiler.is_compiling():
        found: tuple[Tensor, Tensor] = _Apart.apply(qkvz, sizes)
        return found
    H, K, V = sizes  # what a compiler can differentiate and fuse by itself
    *parts, z = (x.flatten(-2) for x in qkvz.unflatten(-1, (H, -1)).split([K, K, V, V], dim=-1))
    return torch.cat(parts, dim=-1), z


def _apart(qkvz: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    H, K, V = sizes
    qkv, z = (qkvz.new_empty(*qkvz.shape[:-1], H * size) for size in (2 * K + V, V))
    for mixed, own in _pieces(qkvz, qkv, z, sizes):
        own.copy_(mixed)
    return qkv, z


def _together(qkv: Tensor, z: Tensor, sizes: Sizes) -> Tensor:
    qkvz = qkv.new_empty(*qkv.shape[:-1], qkv.shape[-1] + z.shape[-1])
    for mixed, own in _pieces(qkvz, qkv, z, sizes):
        mixed.copy_(own)
    return qkvz


def _pieces(qkvz: Tensor, qkv: Tensor, z: Tensor, sizes: Sizes) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of the same elements [.., heads, size]: in qkvz, and in qkv or z."""
    H, K, V = sizes
    size, every = WORD // qkvz.element_size(), (qkvz, qkv, z)
    # Strides too: a contiguous tensor may have any where it has one row.
    at = [n for x in every for n in (x.storage_offset(), *x.stride()[:-1])]
    if all(x.is_contiguous() for x in every) and not any(n % size for n in (K, V, *at)):
        qkvz, qkv, z = (x.view(torch.complex128) for x in every)
        K, V = K // size, V // size
    of_keys, v, gates = qkvz.unflatten(-1, (H, -1)).split([2 * K, V, V], dim=-1)
    own_keys, own_v = qkv.split([2 * H * K, H * V], dim=-1)
    yield of_keys.unflatten(-1, (2, K)).transpose(-3, -2), own_keys.unflatten(-1, (2, H, K))
    yield v, own_v.unflatten(-1, (H, V))
    yield gates, z.unflatten(-1, (H, V))


class _Apart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkvz: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
        ctx.sizes = sizes
        return _apart(qkvz, sizes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _Together.apply(*grads, ctx.sizes), None


class _Together(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, z: Tensor, sizes: Sizes) -> Tensor:
        ctx.sizes = sizes
        return _together(qkv, z, sizes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *_Apart.apply(grads[0], ctx.sizes), None
