"""Capabilities: what root may do beside reading files, which a confined child gives up.

Where it has no namespaces of its own, as on a GPU, they would be those of the machine: limits raised again, modules
loaded, the clock set, processors taken from everybody else. See capabilities(7).
"""

import ctypes
import os

_PR_CAPBSET_DROP, _VERSION_3 = 24, 0x20080522
_MOST = 64
# Files of another user, such as a checkout of whoever called sudo: which of them is Landlock's to say.
KEPT = 1 << 1  # CAP_DAC_OVERRIDE


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def drop() -> None:
    """Leaves this thread, and what it starts, none but `KEPT`, for good. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(_MOST):
        if not KEPT >> number & 1:
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # refused to whoever is not root, and has nothing to drop
    header, sets = _Header(_VERSION_3, 0), (_Sets * 2)()  # the lower 32 and the upper 32
    _checked(libc.capget(ctypes.byref(header), sets))
    for half, kept in zip(sets, (KEPT, 0), strict=True):
        half.permitted &= kept
        half.effective, half.inheritable = half.permitted, 0
    _checked(libc.capset(ctypes.byref(header), sets))


def _checked(code: int) -> None:
    if code != 0:
        raise OSError(ctypes.get_errno(), f"capabilities: {os.strerror(ctypes.get_errno())}")
