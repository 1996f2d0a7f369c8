"""Seccomp: refuses system calls (EPERM) for which Landlock has no rule.

Every child: calls that change how another process runs (its limits, priority, affinity, I/O priority, the places of its
memory), because they could slow down the judge, and all sockets except local ones. A process may change itself, by its
own id or 0. A thread has another id, which a filter cannot tell from that of another process.

A confined child: also all sockets except pairs, io_uring, which could open sockets without this filter, new namespaces,
the session's keys, and memory and queues that outlive a process.
"""

import ctypes
import errno
import os
import platform
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; an argument has 8 bytes, the lower 4 first
_X32 = 0x40000000  # on x86_64, the same calls under other numbers
_AF_UNIX, _CLONE_NEWUSER = 1, 0x10000000
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_NUMBERS = {
    "x86_64": {
        "prlimit64": 302, "socket": 41, "clone": 56, "clone3": 435, "unshare": 272, "setns": 308, "add_key": 248,
        "request_key": 249, "keyctl": 250, "bpf": 321, "perf_event_open": 298, "io_uring_setup": 425,
        "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240, "setpriority": 141, "sched_setparam": 142,
        "sched_setscheduler": 144, "sched_setaffinity": 203, "ioprio_set": 251, "migrate_pages": 256,
        "move_pages": 279, "sched_setattr": 314, "process_madvise": 440, "process_mrelease": 448,
    },
    "aarch64": {
        "prlimit64": 261, "socket": 198, "clone": 220, "clone3": 435, "unshare": 97, "setns": 268, "add_key": 217,
        "request_key": 218, "keyctl": 219, "bpf": 280, "perf_event_open": 241, "io_uring_setup": 425,
        "shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180, "setpriority": 140, "sched_setparam": 118,
        "sched_setscheduler": 119, "sched_setaffinity": 122, "ioprio_set": 30, "migrate_pages": 238,
        "move_pages": 239, "sched_setattr": 274, "process_madvise": 440, "process_mrelease": 448,
    },
}  # fmt: skip


class Rule(NamedTuple):
    """A system call that fails with `error`, unless each argument in `unless` (by position) has one of the given
    values, or unless the first argument has none of `bits`."""

    call: str
    error: int = errno.EPERM
    unless: Mapping[int, Iterable[int]] = {}
    bits: int | None = None


# Calls that change a process, and the position of its id.
_CHANGES = {
    "prlimit64": 0, "sched_setaffinity": 0, "sched_setscheduler": 0, "sched_setparam": 0, "sched_setattr": 0,
    "migrate_pages": 0, "move_pages": 0,
}  # fmt: skip
LOCAL_SOCKETS = Rule("socket", unless={0: (_AF_UNIX,)})


def of_others(own: int) -> list[Rule]:
    """The rules for every child. `own`: the id of its process."""
    itself = (0, own)
    return [
        *(Rule(call, unless={at: itself}) for call, at in _CHANGES.items()),
        Rule("setpriority", unless={0: (_PRIO_PROCESS,), 1: itself}),  # not for a group or a user
        Rule("ioprio_set", unless={0: (_IOPRIO_WHO_PROCESS,), 1: itself}),
        Rule("process_madvise"),
        Rule("process_mrelease"),
        LOCAL_SOCKETS,
    ]


CONFINED = [
    *(Rule(call) for call in ("unshare", "setns", "add_key", "request_key", "keyctl", "bpf", "perf_event_open")),
    Rule("io_uring_setup"),
    Rule("clone", bits=_CLONE_NEWUSER),
    Rule("clone3", errno.ENOSYS),  # a filter cannot see its flags, which are in memory; C libraries fall back to clone
]
# CUDA's processes find each other through local sockets, and share memory by name.
ON_A_GPU = [LOCAL_SOCKETS]
ON_A_CPU = [Rule(call) for call in ("socket", "shmget", "semget", "msgget", "mq_open")]


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def available() -> bool:
    """Whether this kernel accepts a filter; tries it in another process."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if install([LOCAL_SOCKETS]) else 1)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def keep_off_other_processes() -> bool:
    """Installs the rules for every child, for good. Returns whether the kernel accepted them."""
    return install(of_others(os.getpid()))


def confine(device: str) -> bool:
    """Installs the rules for a confined child on that kind of device, for good. Returns whether the kernel did."""
    return install([*CONFINED, *(ON_A_CPU if device == "cpu" else ON_A_GPU)])


def install(rules: Iterable[Rule]) -> bool:
    """Refuses these calls for this thread and its future children, for good. Returns whether the kernel did."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        return False
    refused = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    lines = [(_LOAD, 0, 0, _ARCH), (_JUMP_EQUAL, 1, 0, _ARCHITECTURES[machine]), refused]
    lines += [(_LOAD, 0, 0, _NUMBER), (_JUMP_AT_LEAST, 0, 1, _X32), refused]
    for rule in rules:
        body = _refusal(rule)
        lines += [(_JUMP_EQUAL, 0, len(body), _NUMBERS[machine][rule.call]), *body]
    lines.append((_RETURN, 0, 0, _ALLOW))
    instructions = (_Instruction * len(lines))(*(_Instruction(*line) for line in lines))
    program = _Program(len(lines), instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return bool(libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) == 0)


def _refusal(rule: Rule) -> list[tuple[int, int, int, int]]:
    """The instructions for a call with the rule's number. They always return, because they overwrite the number."""
    fails, passes = (_RETURN, 0, 0, _ERRNO | rule.error), (_RETURN, 0, 0, _ALLOW)
    if rule.bits is not None:
        return [(_LOAD, 0, 0, _ARGUMENTS), (_JUMP_ANY_BIT, 0, 1, rule.bits), fails, passes]
    if not rule.unless:
        return [fails]
    lines = []
    for at, values in rule.unless.items():
        tests = [value & 0xFFFFFFFF for value in values]
        lines.append((_LOAD, 0, 0, _ARGUMENTS + 8 * at))
        lines += [(_JUMP_EQUAL, len(tests) - i, 0, value) for i, value in enumerate(tests)]  # jump past `fails`
        lines.append(fails)
    return [*lines, passes]
