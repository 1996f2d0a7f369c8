"""Seccomp: the child may not set the limits of other processes, for which Landlock has no rule.

prlimit64 with a pid other than 0 fails with EPERM: a child could starve the judge of memory or descriptors with it.
"""

import ctypes
import errno
import platform

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_ARCHITECTURES = {"x86_64": (0xC000003E, 302), "aarch64": (0xC00000B7, 261)}  # AUDIT_ARCH_*, prlimit64
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def keep_off_other_processes() -> bool:
    """Installs the filter, for good; whether the kernel took it."""
    known = _ARCHITECTURES.get(platform.machine())
    if known is None:
        return False
    architecture, prlimit64 = known
    lines = [
        (_LOAD, 0, 0, _ARCH),
        (_JUMP_EQUAL, 0, 4, architecture),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_EQUAL, 0, 2, prlimit64),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_EQUAL, 0, 1, 0),  # pid 0: itself
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
    ]
    instructions = (_Instruction * len(lines))(*(_Instruction(*line) for line in lines))
    program = _Program(len(lines), instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return bool(libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) == 0)
