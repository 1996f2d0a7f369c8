"""What the host refuses: a ValueError that names the argument, before anything is launched."""

import os
from itertools import pairwise

import torch

# Bounds are values on the device, which a call does not wait for. With GDNSPEC_DEBUG=1 it does, and checks them.
DEBUG = os.environ.get("GDNSPEC_DEBUG") == "1"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def require(name, x, shape, like, dtypes=FLOATS, rows=False):
    """x, where it is given: of one of these types, of this shape, where `like` is, contiguous; with `rows`, of a last
    dimension without gaps."""
    if x is None:
        return
    if x.dtype not in dtypes:
        raise ValueError(f"{name} is {x.dtype}, not {' or '.join(map(str, dtypes))}")
    if x.shape != shape:
        raise ValueError(f"{name} has shape {tuple(x.shape)}, not {tuple(shape)}")
    if rows and x.shape[-1] > 1 and x.numel() and x.stride(-1) != 1:
        raise ValueError(f"{name} must have no gaps in its last dimension; its strides are {x.stride()}")
    if not rows and not x.is_contiguous():
        raise ValueError(f"{name} must be contiguous; it has shape {tuple(x.shape)}, strides {x.stride()}")
    if x.device != like.device:
        raise ValueError(f"{name} is on {x.device}, not on {like.device}")


def require_dimensions(count, **tensors):
    for name, x in tensors.items():
        if x.ndim != count:
            raise ValueError(f"{name} has {x.ndim} dimensions, not {count}")


def check_bounds(bounds, total):
    """Waits for the device."""
    values = bounds.tolist()
    if values[0] != 0 or values[-1] > total or any(a > b for a, b in pairwise(values)):
        raise ValueError(f"cu_seqlens must rise from 0 and end within {total}, the number of tokens; it is {values}")
