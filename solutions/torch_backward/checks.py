"""What is refused, with a ValueError that names the argument: what PyTorch would broadcast, or read past its end."""

import torch
from torch import Tensor


def require(name: str, x: Tensor | None, shape: tuple[int, ...]) -> None:
    """A tensor in floating point of this shape, if it is given."""
    if x is None:
        return
    if tuple(x.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(x.shape)}, not {tuple(shape)}")
    if not x.is_floating_point():
        raise ValueError(f"{name} is {x.dtype}, not a type in floating point")


def require_heads(q: Tensor, k: Tensor, v: Tensor) -> int:
    """How many heads states have. q, k and v are rows of heads, of as many tokens and of two sizes."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 3:
            raise ValueError(f"{name} has {x.ndim} dimensions, not 3")
        require(name, x, (len(q), x.shape[1], x.shape[2] if name == "v" else q.shape[2]))
    HQ, HK, HV = q.shape[1], k.shape[1], v.shape[1]
    if min(HQ, HK, HV) == 0 or not ((HK == HV and HQ % HK == 0) or (HQ == HK and HV % HQ == 0)):
        raise ValueError(f"{HQ} query, {HK} key and {HV} value heads are neither GQA nor GVA")
    return max(HQ, HV)


def require_bounds(cu_seqlens: Tensor, total: int) -> tuple[int, int]:
    """How many sequences there are, and how many tokens. Bounds rise from 0; rows may follow behind the last."""
    if cu_seqlens.ndim != 1 or len(cu_seqlens) < 1 or cu_seqlens.dtype not in (torch.int64, torch.int32):
        said = f"cu_seqlens is {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}"
        raise ValueError(f"{said}, not integers of shape (num_seqs + 1,)")
    bounds = cu_seqlens.tolist()
    if bounds[0] != 0 or bounds[-1] > total or bounds != sorted(bounds):
        raise ValueError(f"cu_seqlens must rise from 0 and end within total_seq_len {total}; it is {bounds}")
    return len(bounds) - 1, bounds[-1]


def without_rest(x: Tensor, total: int) -> Tensor:
    """x with zeros from row `total` on: rows that belong to no sequence may hold anything, NaN too."""
    return torch.cat([x[:total], torch.zeros_like(x[total:])])
