"""Clears the L2 cache before a window: it must contain no inputs, and no pinned lines."""

import ctypes
from functools import cache

import torch
from torch import Tensor

EMPTIED = 2  # reads this many times the size of the cache


def l2_bytes() -> int:
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)


@cache
def _filler() -> Tensor:
    return torch.ones(EMPTIED * l2_bytes() // 4, device="cuda")


def empty_cache() -> None:
    """Replaces the content of the cache by reads: writes would leave dirty lines, which the window would have to write
    back. Waits until it is done."""
    ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache()
    _filler().sum()
    torch.cuda.synchronize()
