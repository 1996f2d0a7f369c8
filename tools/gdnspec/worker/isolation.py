"""What the child may still touch once it has shut itself in."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gdnspec.worker import landlock, seccomp

_PR_SET_PDEATHSIG = 1
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/sys", "/run", "/nix")
# Of /proc its own entry and the machine's; never the folders of other processes, whose environment they would show.
PROC = ("self", "cpuinfo", "meminfo", "stat", "devices", "driver", "filesystems", "version", "loadavg", "sys")
DEVICES = ("null", "zero", "full", "random", "urandom", "dri", "kfd")


def die_with_parent() -> None:
    """A parent that is killed leaves no child behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def shut_in(hello: dict[str, Any]) -> str:
    """Applies Landlock; returns how the child is isolated, for the report."""
    before = len(list(Path("/proc/self/task").glob("*")))
    readable = list(_readable(Path(hello["folder"])))
    writable = [Path(hello["scratch"]), Path(hello["build_dir"]), *_of_the_device(hello["device"])]
    try:
        version = landlock.restrict(readable, writable)
    except OSError as error:
        return f"none ({error.strerror})"
    seccomp.keep_off_other_processes()
    if version == 0:
        return "none (this kernel has no Landlock)"
    secret = Path(hello["secret"]).resolve()
    open_to = next((folder for folder in (*readable, *writable) if folder in (secret, *secret.parents)), None)
    if open_to is not None:
        return f"landlock {version}, but expected values lie below {open_to}, which the child reads"
    if before > 1:  # what starts threads may also hand them work: no solution is kept out by a wall with a door
        return f"landlock {version}, but for {before - 1} threads that were there before"
    return f"landlock {version}"


def _of_the_device(device: str) -> list[Path]:
    """Harmless device files; the GPU's where it is used, /dev/shm, through which CUDA shares memory, and the entries of
    this process's own threads: cuInit names its threads there, and fails with error 304 where it may not."""
    found = [Path("/dev") / name for name in DEVICES]
    if device != "cuda":
        return found
    return [*found, *Path("/dev").glob("nvidia*"), Path("/dev/shm"), Path("/proc/self/task")]


def _readable(solution: Path) -> Iterator[Path]:
    """System folders, the interpreter and its packages, the toolchain on PATH, and the solution itself."""
    named = [*SYSTEM, sys.prefix, sys.base_prefix, sys.exec_prefix, str(solution), *sys.path]
    for variable in ("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CUDA_HOME", "CUDA_PATH"):
        named += os.environ.get(variable, "").split(os.pathsep)
    yield from (Path("/proc") / name for name in PROC)
    seen = set()
    for name in named:
        if name:
            path = Path(name).resolve()
            if path != Path("/") and path not in seen and path.is_dir():
                seen.add(path)
                yield path
