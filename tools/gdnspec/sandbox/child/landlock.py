"""Landlock: the child gives up all files that it does not need, and its access to other processes.

A landlocked process cannot trace a process outside its domain, so it cannot read the parent's memory
(Linux 5.13; see landlock(7)). The kernel interface is three system calls; the constants below are its ABI.
"""

import ctypes
import os
import platform
import stat
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same number on every architecture
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_FILE_RIGHTS_ABI_1 = (1 << 13) - 1
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_SCOPE_ABSTRACT_SOCKET, _SCOPE_SIGNAL = 1 << 0, 1 << 1
_READING = _EXECUTE | _READ_FILE | _READ_DIR
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("fd", ctypes.c_int32))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def abi() -> int:
    """The Landlock version of the kernel; 0 if it has none."""
    if platform.system() != "Linux":
        return 0
    return max(0, int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))))


def restrict(readable: Iterable[Path], writable: Iterable[Path]) -> int:
    """Limits this process, for good, to the given folders and files, and forbids TCP if the kernel can.

    Returns the ABI used, 0 if Linux has none. Raises `OSError`.
    """
    version = abi()
    if version == 0:
        return 0
    libc = _libc()
    handled = _FILE_RIGHTS_ABI_1 | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    scoped = (_SCOPE_ABSTRACT_SOCKET | _SCOPE_SIGNAL) if version >= 6 else 0
    size = 24 if version >= 6 else (16 if version >= 4 else 8)
    attributes = _Ruleset(fs=handled, net=(_BIND_TCP | _CONNECT_TCP) if version >= 4 else 0, scoped=scoped)
    ruleset = _checked(libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0))
    try:
        for path in readable:
            _allow(libc, ruleset, path, _READING)
        for path in writable:
            _allow(libc, ruleset, path, handled)
        _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked(libc.syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)
    return version


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # it does not exist: nothing to allow
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_A_FILE
        rule = _PathBeneath(allowed=rights, fd=fd)
        _checked(libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0))
    finally:
        os.close(fd)


def _checked(code: int) -> int:
    if code < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock: {os.strerror(error)}")
    return int(code)
