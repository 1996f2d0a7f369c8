"""What the host refuses: a ValueError that names the argument, before anything is launched."""

import os
from itertools import pairwise

import torch

# Slots and bounds are values on the device, which a call does not wait for. With GDNSPEC_DEBUG=1 it does, and checks.
DEBUG = os.environ.get("GDNSPEC_DEBUG") == "1"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def require(device, dtype, **tensors):
    """Each of tensors, (tensor, shape): of this type and shape, contiguous, on this device."""
    for name, (x, shape) in tensors.items():
        if x.dtype != dtype:
            raise ValueError(f"{name} is {x.dtype}, not {dtype}")
        if x.shape != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, not {tuple(shape)}")
        if not x.is_contiguous():
            raise ValueError(f"{name} must be contiguous; it has shape {tuple(x.shape)}, strides {x.stride()}")
        if x.device != device:
            raise ValueError(f"{name} is on {x.device}, not on {device}")


def require_dimensions(count, **tensors):
    for name, x in tensors.items():
        if x.ndim != count:
            raise ValueError(f"{name} has {x.ndim} dimensions, not {count}")


def require_float(**tensors):
    for name, x in tensors.items():
        if x.dtype not in FLOATS:
            raise ValueError(f"{name} is {x.dtype}, none of bfloat16, float16, float32")


def require_pool(pool, name, shape, device):
    """A pool [slots, *shape]: contiguous within a slot; slots may stand farther apart, and never overlap."""
    require_float(**{name: pool})
    if pool.ndim != 1 + len(shape) or pool.shape[1:] != shape:
        raise ValueError(f"{name} has shape {tuple(pool.shape)}, not [slots, {', '.join(map(str, shape))}]")
    if not pool[:1].is_contiguous() or (len(pool) > 1 and pool.stride(0) < pool[0].numel()):
        raise ValueError(f"{name} must be contiguous but for its first dimension; its strides are {pool.stride()}")
    if pool.device != device:
        raise ValueError(f"{name} is on {pool.device}, not on {device}")


def check_slots(slots, num_slots):
    """Waits for the device."""
    named = [slot for slot in slots.tolist() if slot != -1]
    for slot in named:
        if not 0 <= slot < num_slots:
            raise ValueError(f"slot {slot} is none of the pool's {num_slots}, and not -1")
        if named.count(slot) > 1:
            raise ValueError(f"slot {slot} is named twice")


def check_bounds(name, bounds, total):
    """Waits for the device."""
    values = bounds.tolist()
    if values[0] != 0 or values[-1] != total or any(a > b for a, b in pairwise(values)):
        raise ValueError(f"{name} must rise from 0 to {total}, the number of tokens; it is {values}")
