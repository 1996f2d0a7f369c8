"""Seccomp: system calls that the child is refused with EPERM, where Landlock has no rule for what they do.

Every child: prlimit64 with a pid other than 0, with which it could starve the judge of memory or descriptors. A
confined one: sockets but for pairs, io_uring, which would open them past this filter, namespaces of its own, the
session's keys, and memory and queues that stay in the system when a process ends.
"""

import ctypes
import errno
import platform
from collections.abc import Iterable
from typing import NamedTuple

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_X32 = 0x40000000  # on x86_64 the same calls again, by other numbers
_AF_UNIX, _CLONE_NEWUSER = 1, 0x10000000
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_NUMBERS = {
    "x86_64": {
        "prlimit64": 302, "socket": 41, "clone": 56, "clone3": 435, "unshare": 272, "setns": 308, "add_key": 248,
        "request_key": 249, "keyctl": 250, "bpf": 321, "perf_event_open": 298, "io_uring_setup": 425,
        "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240,
    },
    "aarch64": {
        "prlimit64": 261, "socket": 198, "clone": 220, "clone3": 435, "unshare": 97, "setns": 268, "add_key": 217,
        "request_key": 218, "keyctl": 219, "bpf": 280, "perf_event_open": 241, "io_uring_setup": 425,
        "shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180,
    },
}  # fmt: skip


class Rule(NamedTuple):
    """A system call that fails with `error`; where `argument` (the first) is `unless`, or has no bit of `bits`, it does
    not."""

    call: str
    error: int = errno.EPERM
    unless: int | None = None
    bits: int | None = None


OF_OTHERS = [Rule("prlimit64", unless=0)]
CONFINED = [
    *(Rule(call) for call in ("unshare", "setns", "add_key", "request_key", "keyctl", "bpf", "perf_event_open")),
    Rule("io_uring_setup"),
    Rule("clone", bits=_CLONE_NEWUSER),
    Rule("clone3", errno.ENOSYS),  # its flags lie in memory, where no filter looks; C libraries fall back to clone
]
# CUDA's processes find one another through local sockets, and share memory by name.
ON_A_GPU = [Rule("socket", unless=_AF_UNIX)]
ON_A_CPU = [Rule(call) for call in ("socket", "shmget", "semget", "msgget", "mq_open")]


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def keep_off_other_processes() -> bool:
    """Installs what holds for every child, for good; whether the kernel took it."""
    return install(OF_OTHERS)


def confine(device: str) -> bool:
    """Installs what holds for a confined child on that kind of device, for good; whether the kernel took it."""
    return install([*CONFINED, *(ON_A_CPU if device == "cpu" else ON_A_GPU)])


def install(rules: Iterable[Rule]) -> bool:
    """Refuses these calls to this thread and what it starts, for good; whether the kernel took the filter."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        return False
    refused = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    lines = [(_LOAD, 0, 0, _ARCH), (_JUMP_EQUAL, 1, 0, _ARCHITECTURES[machine]), refused]
    lines += [(_LOAD, 0, 0, _NUMBER), (_JUMP_AT_LEAST, 0, 1, _X32), refused]
    for rule in rules:
        fails = (_RETURN, 0, 0, _ERRNO | rule.error)
        number = _NUMBERS[machine][rule.call]
        if rule.unless is not None:
            test = (_JUMP_EQUAL, 1, 0, rule.unless)
        elif rule.bits is not None:
            test = (_JUMP_ANY_BIT, 0, 1, rule.bits)
        else:
            lines += [(_JUMP_EQUAL, 0, 1, number), fails]
            continue
        lines += [(_JUMP_EQUAL, 0, 4, number), (_LOAD, 0, 0, _FIRST_ARGUMENT), test, fails, (_RETURN, 0, 0, _ALLOW)]
    lines.append((_RETURN, 0, 0, _ALLOW))
    instructions = (_Instruction * len(lines))(*(_Instruction(*line) for line in lines))
    program = _Program(len(lines), instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return bool(libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) == 0)
