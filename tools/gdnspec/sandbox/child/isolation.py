"""Isolates the child, and says what it can still access."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gdnspec.sandbox.child import capabilities, landlock, namespaces, rlimits, seccomp
from gdnspec.sandbox.wire.lifetime import die_with_parent

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/sys", "/run", "/nix")
# In /etc and /run, a confined child may read only what the loader, the C library and the driver need.
SYSTEM_CONFINED = (
    *(folder for folder in SYSTEM if folder not in ("/etc", "/run")),
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/etc/passwd",
    "/etc/group", "/etc/nsswitch.conf", "/etc/nvidia", "/run/opengl-driver",
)  # fmt: skip
# In /proc, its own entry and those of the machine, never other processes: they would show their environment.
PROC = ("self", "cpuinfo", "meminfo", "stat", "devices", "driver", "filesystems", "version", "loadavg", "sys")
DEVICES = ("null", "zero", "full", "random", "urandom", "dri", "kfd")
SCOPED = 6  # the first Landlock version that blocks signals to outside processes


class Isolation(NamedTuple):
    """`text`: the isolation between the child and the machine, for reports. `missing`: what a confined child should
    have but does not; "" if it has everything."""

    text: str
    missing: str = ""


def offered(device: str) -> str:
    """What this kernel lacks for a confined child on that kind of device; "" if nothing."""
    version = landlock.abi()
    text = f"landlock {version}" if version else "none (this Linux has no Landlock)"
    return _missing(text, seccomp.available(), device == "cpu" and namespaces.allowed())


def shut_in(hello: dict[str, Any], close: Callable[[], None]) -> Isolation:
    """Applies Landlock, and for a confined child every other protection of this kernel.

    `close` closes the channel in a process that only waits for another.
    """
    confined: dict[str, Any] | None = hello["confined"]
    if confined is None:
        return Isolation(_landlocked(hello, SYSTEM, [Path(hello["secret"])]))
    device = hello["device"]
    # CUDA cannot share memory between namespaces.
    alone = device == "cpu" and namespaces.allowed()
    if alone:
        namespaces.enter(Path(hello["scratch"]), confined["disk"], die_with_parent, close)
    rlimits.limit(confined, device, alone)
    capabilities.drop()
    text = _landlocked(hello, SYSTEM_CONFINED, [Path(hello["secret"]), *map(Path, confined["closed"])])
    filtered = seccomp.confine(device)
    walls = [text, *(["system calls filtered"] if filtered else []), *(["own namespaces"] if alone else [])]
    return Isolation(", ".join(walls), _missing(text, filtered, alone))


def _missing(landlocked: str, filtered: bool, alone: bool) -> str:
    kind, _, version = landlocked.partition(" ")
    if kind != "landlock" or not version.isdigit():
        return f"files: {landlocked}"
    if not filtered:
        return "the network: this kernel accepts no seccomp filter"
    if not alone and int(version) < SCOPED:
        return f"signals to other processes: it has no namespaces, and Landlock {version} instead of {SCOPED}"
    return ""


def _landlocked(hello: dict[str, Any], system: Sequence[str], closed: Sequence[Path]) -> str:
    before = len(list(Path("/proc/self/task").glob("*")))
    readable = list(_readable(Path(hello["folder"]), system))
    writable = [Path(hello["scratch"]), Path(hello["build_dir"]), *_of_the_device(hello["device"])]
    try:
        version = landlock.restrict(readable, writable)
    except OSError as error:
        return f"none ({error.strerror})"
    seccomp.keep_off_other_processes()
    if version == 0:
        return "none (this Linux has no Landlock)"
    for path in closed:
        secret = path.resolve()
        open_to = next((folder for folder in (*readable, *writable) if folder in (secret, *secret.parents)), None)
        if open_to is not None:
            what = "expected values lie" if path == closed[0] else f"{path.name or path} lies"
            return f"landlock {version}, but {what} below {open_to}, which the child reads"
    if before > 1:  # existing threads are not bound by Landlock, and could run work for the solution
        return f"landlock {version}, but for {before - 1} threads that were there before"
    return f"landlock {version}"


def _of_the_device(device: str) -> list[Path]:
    """Harmless device files. For a GPU, also its files, /dev/shm, through which CUDA shares memory, and this process's
    thread entries: cuInit names its threads there, and fails with error 304 if it may not."""
    found = [Path("/dev") / name for name in DEVICES]
    if device != "cuda":
        return found
    return [*found, *Path("/dev").glob("nvidia*"), Path("/dev/shm"), Path("/proc/self/task")]


def _readable(solution: Path, system: Sequence[str]) -> Iterator[Path]:
    """System folders, the interpreter and its packages, the toolchain on PATH, and the solution itself."""
    named = [*system, sys.prefix, sys.base_prefix, sys.exec_prefix, str(solution), *sys.path]
    for variable in ("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CUDA_HOME", "CUDA_PATH"):
        named += os.environ.get(variable, "").split(os.pathsep)
    yield from (Path("/proc") / name for name in PROC)
    seen = set()
    for name in named:
        if name:
            path = Path(name).resolve()
            # Not path.exists(), which raises if a parent folder may not be searched; PATH often has such folders.
            if path != Path("/") and path not in seen and os.path.exists(path):  # noqa: PTH110
                seen.add(path)
                yield path
