"""The L2 cache before a window: nothing of what is to be read lies in it, and nothing is pinned there."""

import ctypes
from functools import cache

import torch
from torch import Tensor

EMPTIED = 2  # times its size is read


def l2_bytes() -> int:
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)


@cache
def _filler() -> Tensor:
    return torch.ones(EMPTIED * l2_bytes() // 4, device="cuda")


def empty_cache() -> None:
    """Reads, not writes: dirty lines would be written back during the window, at its cost. Waits until all is done."""
    ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache()
    _filler().sum()
    torch.cuda.synchronize()
