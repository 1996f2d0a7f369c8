"""Drops capabilities, the rights of root besides reading files, from a confined child.

A child without its own namespaces, as on a GPU, would have them for the whole machine: it could raise limits, load
modules, set the clock, or take processors from others. See capabilities(7).
"""

import ctypes
import os

_PR_CAPBSET_DROP, _VERSION_3 = 24, 0x20080522
_MOST = 64
# For files of another user, such as the checkout of a user who called sudo. Landlock decides which of them.
KEPT = 1 << 1  # CAP_DAC_OVERRIDE


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def drop() -> None:
    """Drops all capabilities except `KEPT` from this thread and its future children, for good. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(_MOST):
        if not KEPT >> number & 1:
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # fails for other users than root, who have nothing to drop
    header, sets = _Header(_VERSION_3, 0), (_Sets * 2)()  # the lower 32 and the upper 32
    _checked(libc.capget(ctypes.byref(header), sets))
    for half, kept in zip(sets, (KEPT, 0), strict=True):
        half.permitted &= kept
        half.effective, half.inheritable = half.permitted, 0
    _checked(libc.capset(ctypes.byref(header), sets))


def _checked(code: int) -> None:
    if code != 0:
        raise OSError(ctypes.get_errno(), f"capabilities: {os.strerror(ctypes.get_errno())}")
