"""What stands between a child and the machine, probed from inside by root and by an ordinary user.

No solution runs here: a forked process shuts itself in as a worker does and tries each probe on another process of the
same user. Without walls the same probes come through, so none fails for a reason of its own.
"""

import ctypes
import errno
import json
import mmap
import os
import platform
import resource
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from gdnspec.sandbox.child import isolation, landlock, namespaces
from gdnspec.sandbox.parent.confinement import Confinement

pytestmark = [
    pytest.mark.xdist_group("walls"),  # one after another: a probe changes the priority of others
    pytest.mark.skipif(landlock.abi() < 6, reason="this Linux has no Landlock that scopes signals"),
    pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no table of its system calls"),
]

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
OPEN, CHECK, CPU, BARE, GPU = "no walls", "check", "intake", "intake without namespaces", "intake on a GPU"
REFUSALS = {errno.EPERM, errno.EACCES, errno.ESRCH, errno.ENOENT, errno.ECONNREFUSED, errno.EFBIG}
NOBODY = 65534
NOBODYS = 4242  # a user who has no process: nobody else's is touched where a wall is missing
DUMPABLE, PTRACER, SCHED_CORE = 4, 0x59616D61, 62  # prctl(2)


def call(number: int, *arguments: Any) -> int:
    """A system call; raises `OSError`."""
    ctypes.set_errno(0)
    converted = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    code = int(LIBC.syscall(ctypes.c_long(number), *converted))
    if code < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return code


def arch(x86: int, arm: int) -> int:
    return x86 if X86 else arm


class Other:
    """The process that is probed, and what lies around it."""

    def __init__(self, folder: Path, pid: int, abstract: str, port: int) -> None:
        self.folder, self.pid, self.abstract, self.port = folder, pid, abstract, port

    def reads(self, name: str) -> bytes:
        return Path(f"/proc/{self.pid}/{name}").read_bytes()

    def pidfd(self) -> int:
        return os.pidfd_open(self.pid)


def _vector() -> Any:
    memory = ctypes.create_string_buffer(8)
    return ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(memory), 8))


def _attributes() -> Any:
    return ctypes.create_string_buffer(struct.pack("IIQiIQQQ", 48, 3, 0, 19, 0, 0, 0, 0))  # SCHED_BATCH, nice 19


def _parameter() -> Any:
    return ctypes.create_string_buffer(struct.pack("i", 0))


def _mask() -> Any:
    return ctypes.create_string_buffer(struct.pack("Q", 1), 128)


def _internet(family: int, kind: int, address: Any) -> None:
    with socket.socket(family, kind) as one:
        one.sendto(b"x", address) if kind == socket.SOCK_DGRAM else one.connect(address)


def _listening() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()


Probe = Callable[[Other], object]
# What every child is kept from.
ALWAYS: dict[str, Probe] = {
    "expected values": lambda o: list((o.folder / "expected").iterdir()),
    "an expected value": lambda o: (o.folder / "expected" / "x").read_bytes(),
    "an expected value written": lambda o: (o.folder / "expected" / "x").write_bytes(b"y"),
    "a home": lambda o: (o.folder / "home" / "token").read_bytes(),
    "a home written": lambda o: (o.folder / "home" / "new").write_bytes(b"y"),
    "its source written": lambda o: (o.folder / "solution" / "kernel.py").write_bytes(b"y"),
    "temporary files": lambda o: list(Path(tempfile.gettempdir()).iterdir()),
    "a temporary file": lambda o: os.open(o.folder / "new", os.O_CREAT),
    "the environment of another": lambda o: o.reads("environ"),
    "the memory of another": lambda o: os.open(f"/proc/{o.pid}/mem", os.O_RDONLY),
    "the files of another": lambda o: list(Path(f"/proc/{o.pid}/fd").iterdir()),
    "the command of another": lambda o: o.reads("cmdline"),
    "what ends another": lambda o: Path(f"/proc/{o.pid}/oom_score_adj").write_text("1000"),
    "a signal": lambda o: os.kill(o.pid, signal.SIGURG),
    "a signal to a thread": lambda o: call(arch(234, 131), o.pid, o.pid, signal.SIGURG),
    "a signal by descriptor": lambda o: signal.pidfd_send_signal(o.pidfd(), signal.SIGURG),
    "tracing": lambda o: call(arch(101, 117), 0x4206, o.pid, 0, 0),
    "reading memory": lambda o: call(arch(310, 270), o.pid, _vector(), 1, _vector(), 1, 0),
    "writing memory": lambda o: call(arch(311, 271), o.pid, _vector(), 1, _vector(), 1, 0),
    "taking a descriptor": lambda o: call(438, o.pidfd(), 0, 0),
    "moving memory": lambda o: call(arch(256, 238), o.pid, 8, _mask(), _mask()),
    "moving pages": lambda o: call(arch(279, 239), o.pid, 0, None, None, None, 0),
    "comparing": lambda o: call(arch(312, 272), o.pid, o.pid, 1, 0, 0),
    "limits": lambda o: resource.prlimit(o.pid, resource.RLIMIT_NOFILE, (64, 64)),
    "affinity": lambda o: os.sched_setaffinity(o.pid, {min(os.sched_getaffinity(0))}),
    "priority": lambda o: os.setpriority(os.PRIO_PROCESS, o.pid, 19),
    "priority of a group": lambda o: os.setpriority(os.PRIO_PGRP, os.getpgid(o.pid), 19),
    "priority of a user": lambda o: os.setpriority(os.PRIO_USER, NOBODYS, 7),
    "a scheduler": lambda o: os.sched_setscheduler(o.pid, os.SCHED_BATCH, os.sched_param(0)),
    "a scheduler's parameter": lambda o: call(arch(142, 118), o.pid, _parameter()),
    "a scheduler's attributes": lambda o: call(arch(314, 274), o.pid, _attributes(), 0),
    "I/O priority": lambda o: call(arch(251, 30), 1, o.pid, 2 << 13 | 7),
    "I/O priority of a group": lambda o: call(arch(251, 30), 2, os.getpgid(o.pid), 2 << 13 | 6),
    "I/O priority of a user": lambda o: call(arch(251, 30), 3, NOBODYS, 2 << 13 | 5),
    "TCP": lambda o: _internet(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", o.port)),
    "a TCP server": lambda o: _listening(),
    "UDP": lambda o: _internet(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 9)),
    "UDP of version 6": lambda o: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
    "netlink": lambda o: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "an abstract socket": lambda o: _internet(socket.AF_UNIX, socket.SOCK_STREAM, o.abstract),
}
OF_A_USER = {"priority of a user", "I/O priority of a user"}  # there is nothing to be found, so EPERM alone counts
# Never tried without walls: what they do would stay.
UNTRIED = {*OF_A_USER, "a mount"}
ROOTS: dict[str, Probe] = {
    "advice on memory": lambda o: call(440, o.pidfd(), _vector(), 0, 20, 0),
    "a packet socket": lambda o: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    "a raw socket": lambda o: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
    "a mount": lambda o: call(arch(165, 40), b"x", bytes(o.folder / "home"), b"tmpfs", 0, None),
}
# Of these a confined child alone is kept.
CONFINED: dict[str, Probe] = {
    "namespaces": lambda o: subprocess.run(["unshare", "-Ur", "true"], check=True, capture_output=True),
    "another's namespace": lambda o: call(arch(308, 268), o.pidfd(), 0x4000000),
    "keys": lambda o: call(arch(250, 219), 0, -3, 1),
    "io_uring": lambda o: call(425, 8, ctypes.create_string_buffer(256)),
    "shared memory that stays": lambda o: call(arch(29, 194), 0, 4096, 0o1600),
    "a queue that stays": lambda o: call(arch(68, 186), 0, 0o1600),
    "a file of 4 GiB": lambda o: os.posix_fallocate(os.open("big", os.O_CREAT | os.O_RDWR), 0, 4 << 30),
}
OPEN_ON_A_GPU = {"shared memory that stays", "a queue that stays"}  # CUDA's own ways between processes
PROBES = ALWAYS | ROOTS | CONFINED
# What torch, OpenMP, CUDA and nvcc need, and every child may.
ITSELF: dict[str, Callable[[], object]] = {
    "affinity": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    "affinity by its id": lambda: os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0)),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0)),
    "a scheduler": lambda: os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0)),
    "I/O priority": lambda: call(arch(251, 30), 1, 0, 2 << 13 | 7),
    "limits": lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    "limits by its id": lambda: resource.prlimit(os.getpid(), resource.RLIMIT_CORE, (0, 0)),
    "a pair": socket.socketpair,
    "a thread": lambda: threading.Thread(target=int).start(),
    "a process": lambda: subprocess.run(["/bin/true"], check=True),
    "a process ended": lambda: subprocess.Popen(["/bin/sleep", "600"]).kill(),
    "memory": lambda: mmap.mmap(-1, 1 << 20).madvise(mmap.MADV_DONTNEED),
    "its folder": lambda: Path("mine").write_text("x"),
}


def outcome(attempt: Callable[[], object]) -> int | str:
    """0 where it came through, the number of its error, or what else was raised."""
    try:
        attempt()
    except OSError as error:
        return error.errno or repr(error)
    except subprocess.CalledProcessError:
        return errno.EPERM
    except BaseException as error:
        return repr(error)
    return 0


def drop() -> None:
    """Becomes an ordinary user, who can be traced and may have namespaces as any other."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    LIBC.prctl(DUMPABLE, 1, 0, 0, 0)


def forked(work: Callable[[], None]) -> int:
    """A process that does that and ends; its id."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            os.write(2, "".join(traceback.format_exception(error)).encode())
            os._exit(1)
        os._exit(0)
    return pid


@contextmanager
def other(ordinary: bool) -> Iterator[Other]:
    """A process of that user that sleeps, and a folder of what a child has no business with."""
    folder = Path(tempfile.mkdtemp(prefix="gdnspec-walls-"))
    for name in ("expected", "home", "solution", "work"):
        (folder / name).mkdir()
    for name in ("expected/x", "home/token", "solution/kernel.py"):
        (folder / name).write_text("x")
    if ordinary:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    ready, told = os.pipe()

    def sleep() -> None:
        os.setpgid(0, 0)
        if ordinary:
            drop()
        LIBC.prctl(PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
        os.write(told, b"x")
        while True:
            signal.pause()

    with socket.socket() as server, socket.socket(socket.AF_UNIX) as local:
        server.bind(("127.0.0.1", 0))
        server.listen()
        local.bind(f"\0gdnspec-walls-{folder.name}")
        local.listen()
        pid = forked(sleep)
        try:
            os.read(ready, 1)
            yield Other(folder, pid, f"\0gdnspec-walls-{folder.name}", server.getsockname()[1])
        finally:
            os.close(ready)
            os.close(told)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            shutil.rmtree(folder)


def shut_in(how: str, it: Other, close: Callable[[], None]) -> isolation.Isolation:
    work = it.folder / "work"
    os.environ["PATH"] += f":{it.folder}/no/such:{Path.home()}/bin"  # which an ordinary user may not even look for
    os.chdir(work)
    if how == OPEN:
        return isolation.Isolation("none")
    if how == BARE:
        namespaces.allowed = lambda: False  # this process ends soon
    confined = None if how == CHECK else Confinement(closed=(it.folder / "home",)).to_json()
    hello = {
        "folder": str(it.folder / "solution"), "device": "cuda" if how == GPU else "cpu", "scratch": str(work),
        "build_dir": str(work), "secret": str(it.folder / "expected"), "confined": confined,
    }  # fmt: skip
    return isolation.shut_in(hello, close)


def probed(how: str, ordinary: bool, it: Other, names: Collection[str]) -> dict[str, Any]:
    """What came of everything, tried from inside."""
    reading, writing = os.pipe()

    def inside() -> None:
        if ordinary:
            drop()
        found = shut_in(how, it, lambda: os.close(writing))
        probes = {name: PROBES[name] for name in names}
        said = {
            "isolation": found.text, "missing": found.missing,
            "others": {name: outcome(lambda probe=probe: probe(it)) for name, probe in probes.items()},  # type: ignore[misc]
            "itself": {name: outcome(attempt) for name, attempt in ITSELF.items()},
        }  # fmt: skip
        os.write(writing, json.dumps(said).encode())

    pid = forked(inside)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        said = stream.read()
    assert os.waitpid(pid, 0)[1] == 0
    found: dict[str, Any] = json.loads(said)
    return found


def how_it_runs(pid: int) -> dict[str, object]:
    """What another process could have changed of this one."""
    return {
        "affinity": os.sched_getaffinity(pid),
        "priority": os.getpriority(os.PRIO_PROCESS, pid),
        "scheduler": os.sched_getscheduler(pid),
        "I/O priority": call(arch(252, 31), 1, pid),
        "limits": Path(f"/proc/{pid}/limits").read_text(),
    }


@pytest.fixture(params=["as it is", "an ordinary user"])
def ordinary(request: pytest.FixtureRequest) -> bool:
    """Whether root becomes somebody else first."""
    wanted: bool = request.param == "an ordinary user"
    if wanted and os.getuid() != 0:
        pytest.skip("is one already")
    return wanted


@pytest.mark.parametrize("how", [CHECK, CPU, BARE, GPU])
def test_no_probe_reaches_another_process(how: str, ordinary: bool) -> None:
    if how == CPU and not namespaces.allowed():
        pytest.skip("no user namespaces here")
    closed = {*ALWAYS, *ROOTS, *(() if how == CHECK else CONFINED)} - (OPEN_ON_A_GPU if how == GPU else set())
    with other(ordinary) as it:
        before = how_it_runs(it.pid)
        found = probed(how, ordinary, it, closed)
        assert how_it_runs(it.pid) == before
        assert (it.folder / "expected" / "x").read_text() == "x"
        assert sorted(path.name for path in (it.folder / "home").iterdir()) == ["token"]
    assert found["missing"] == ""
    assert found["isolation"].startswith(f"landlock {landlock.abi()}")
    assert ("own namespaces" in found["isolation"]) == (how == CPU)
    came = {
        name: code for name, code in found["others"].items()
        if code not in ({errno.EPERM} if name in OF_A_USER else REFUSALS)
    }  # fmt: skip
    assert came == {}, "what came through (0), or failed for another reason"
    assert {name: code for name, code in found["itself"].items() if code} == {}, "what it needs for itself"


def test_without_walls_the_probes_come_through(ordinary: bool) -> None:
    root = os.getuid() == 0 and not ordinary
    with other(ordinary) as it:
        before = how_it_runs(it.pid)
        found = probed(OPEN, ordinary, it, {*ALWAYS, *(ROOTS if root else ())} - UNTRIED)
        assert how_it_runs(it.pid) != before
    assert {name: code for name, code in found["others"].items() if code} == {}


def test_the_table_is_no_shorter_than_what_was_probed_by_hand() -> None:
    assert len(PROBES) >= 42


BOUND = """
def run(**inputs):
    import torch
    torch.set_num_threads(2)
    torch.ones(1 << 22).exp().sum()
    return decode_k_last(**inputs)
"""


def test_threads_that_are_to_be_bound_start_all_the_same(gdnspec: Run, make_solution: Callable[..., Path]) -> None:
    """OpenMP binds a thread by its own id, which is another's for all the filter knows."""
    words = ("check", "gdn_decode_k_last", "--device", "cpu", "--workload", "one_row", "--solution", "under_test")
    env = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores", "OMP_NUM_THREADS": "2"}
    done = gdnspec(*words, "--solutions-dir", make_solution(BOUND).parent, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
