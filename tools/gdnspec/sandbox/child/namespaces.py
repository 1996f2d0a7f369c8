"""Namespaces of the child's own: no network, no process to be seen but its own, a scratch folder of limited size.

Whoever may make a user namespace may make the others in it. The child forks twice: the first process in the new
namespace of processes is one that waits, and when it ends the kernel ends all others, whatever they have become.
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
_BY_SIGNAL = 128  # and its number: an exit status, as shells give it


def allowed() -> bool:
    """Whether `enter` would succeed, tried in a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            _separate()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def enter(work: Path, nbytes: int, in_each: Callable[[], None], close: Callable[[], None]) -> None:
    """Goes on in namespaces of its own, as a grandchild that this process waits for. Raises `OSError`.

    `work` becomes a file system of `nbytes` in memory. `in_each` is called in every process on the way, and `close` in
    those that only wait. This process must have one thread.
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
    """Waits for it, and meanwhile for orphans that come here."""
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _BY_SIGNAL - code


def _end_as(code: int) -> NoReturn:
    """Ends this process as the one in the namespaces has ended."""
    if code > _BY_SIGNAL:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):  # of SIGKILL, which needs none, and of what is no signal
            signal.signal(code - _BY_SIGNAL, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            os.kill(os.getpid(), code - _BY_SIGNAL)
    os._exit(code)
