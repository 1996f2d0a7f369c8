"""Gives the child its own namespaces: no network, no other processes, and a scratch folder of limited size.

A process that may create a user namespace may create the others in it. The child forks twice: the first process in the
new PID namespace only waits, and when it ends the kernel ends all others in it.
"""

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_PIDS, _NEW_NETWORK = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_NOSUID, _NODEV, _RECURSIVE, _PRIVATE = 2, 4, 1 << 14, 1 << 18
FILES = 100_000
_BY_SIGNAL = 128  # plus its number: the exit status of shells


def allowed() -> bool:
    """Whether `enter` would succeed; tries it in another process."""
    child = os.fork()
    if child == 0:
        try:
            _separate()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def enter(work: Path, nbytes: int, in_each: Callable[[], None], close: Callable[[], None]) -> None:
    """Continues in new namespaces, as a grandchild for which this process waits. Raises `OSError`.

    `work` becomes a file system of `nbytes` in memory. `in_each` is called in every new process, and `close` in those
    that only wait. This process must have one thread.
    """
    _separate()
    first = os.fork()
    if first:
        close()
        _end_as(_exit_code(first))
    in_each()
    child = os.fork()
    if child:
        close()
        os._exit(_exit_code(child))
    in_each()
    libc = _libc()
    _checked(libc.mount(None, b"/", None, ctypes.c_ulong(_RECURSIVE | _PRIVATE), None))
    options = f"size={nbytes},nr_inodes={FILES},mode=700".encode()
    _checked(libc.mount(b"tmpfs", os.fsencode(work), b"tmpfs", ctypes.c_ulong(_NOSUID | _NODEV), options))
    os.chdir(work)


def _separate() -> None:
    user, group = os.geteuid(), os.getegid()
    _checked(_libc().unshare(_NEW_USER | _NEW_MOUNTS | _NEW_IPC | _NEW_PIDS | _NEW_NETWORK))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(code: int) -> None:
    if code != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _exit_code(child: int) -> int:
    """Waits for the child, and reaps orphans meanwhile. Returns its exit code."""
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _BY_SIGNAL - code


def _end_as(code: int) -> NoReturn:
    """Ends this process in the same way as the one in the namespaces."""
    if code > _BY_SIGNAL:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):  # SIGKILL cannot be set, and the code may not be a signal
            signal.signal(code - _BY_SIGNAL, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            os.kill(os.getpid(), code - _BY_SIGNAL)
    os._exit(code)
