"""Workers of the judge as forks of a process that has torch loaded: two to three seconds less each than from nothing.

They go through `python -m gdnspec.sandbox.child` as any does, in an environment, a session and a folder of their own,
with no file open but the channel, and are children of the process that judges. Tests that start a command as a process
of its own have workers from nothing, and so has a machine with a GPU.
"""

import array
import contextlib
import faulthandler
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, NoReturn

WORKER = ["-P", "-m", "gdnspec.sandbox.child"]
# By an interpreter, or by torch.
READ_AT_START = ("PYTHON", "LD_", "LC_", "LANG", "OMP_", "MKL_", "OPENBLAS_", "KMP_")
SET_BY_THE_JUDGE = ("PYTHONDONTWRITEBYTECODE", "PYTHONFAULTHANDLER", "OMP_WAIT_POLICY")  # the same in every worker
LONGEST = 1 << 20  # bytes: an environment and a few words
_ASKED = [sys.executable, "-P", "-c", "import json, sys; print(json.dumps(sys.path))"]
_ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
PATH: list[str] = json.loads(subprocess.run(_ASKED, env=_ALONE, check=True, capture_output=True).stdout)  # of a worker
HAS_GPU = Path("/dev/nvidiactl").exists()


@contextlib.contextmanager
def below() -> Iterator[None]:
    """For a process that has torch and no thread besides its first, and is about to judge."""
    if HAS_GPU:
        yield
        return
    ours, theirs = _pair()
    forker = os.fork()
    if forker == 0:
        ours.close()
        _tend(theirs)
    theirs.close()
    _have_workers_from(ours)
    try:
        yield
    finally:
        ours.close()
        os.waitpid(forker, 0)


def open_beside(context: ForkServerContext) -> None:
    """For one that is no good to fork: its forking process is a fork of the context's server."""
    if HAS_GPU:
        return
    ours, theirs = _pair()
    context.Process(target=_tend, args=(theirs,), daemon=True).start()
    theirs.close()
    _have_workers_from(ours)


def _pair() -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
    return pair


def _have_workers_from(forker: socket.socket) -> None:
    from gdnspec.sandbox.parent import process

    worker, read, one_at_a_time = [sys.executable, *WORKER], _read_at_start(os.environ), threading.Lock()

    def start(command: list[str], **options: Any) -> Any:
        # What a library reads when it is loaded is another there: from nothing, then.
        if command[:4] != worker or not _read_at_start(options["env"]).items() <= read.items():
            return subprocess.Popen(command, **options)
        with one_at_a_time:
            return Forked(forker, command, options)

    process.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": start})  # type: ignore[attr-defined]


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_AT_START) and name not in SET_BY_THE_JUDGE
    }


class Forked:
    """What the judge uses of a `subprocess.Popen`."""

    def __init__(self, forker: socket.socket, command: list[str], options: dict[str, Any]) -> None:
        reading, writing = os.pipe()
        self.stdout: BinaryIO = os.fdopen(reading, "rb")
        (channel,) = options["pass_fds"]
        asked = {"argument": command[4], "cwd": str(options["cwd"]), "environment": options["env"]}
        fds = array.array("i", [channel, writing])
        forker.sendmsg([json.dumps(asked).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        os.close(writing)
        self.pid = int(forker.recv(LONGEST))
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            found, status = os.waitpid(self.pid, 0 if deadline is None else os.WNOHANG)
            if found:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            else:
                time.sleep(0.005)
        return self.returncode


# --- in the process that forks ----------------------------------------------------------------------------------


def _tend(orders: socket.socket) -> NoReturn:
    while True:
        text, ancillary, _, _ = orders.recvmsg(LONGEST, socket.CMSG_SPACE(2 * 4))
        if not text:  # whoever asks has ended
            os._exit(0)
        fds = array.array("i", ancillary[0][2])
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:  # ends at once, and leaves its child to the process that judges, which adopts orphans
            between = os.getpid()
            worker = os.fork()
            if worker == 0:
                orders.close()
                os.close(reading), os.close(writing)
                _become(json.loads(text), *fds, between)
            os.write(writing, str(worker).encode())
            os._exit(0)
        os.close(writing)
        worker_pid = os.read(reading, 20)
        os.waitpid(between, 0)
        for fd in (reading, *fds):
            os.close(fd)
        orders.send(worker_pid)


def _become(asked: dict[str, Any], channel: int, output: int, between: int) -> NoReturn:
    """A worker, as from nothing."""
    code = 1
    try:
        os.setsid()
        while os.getppid() == between:  # not before it has the parent that it is to die with
            time.sleep(0.0005)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        at = int(asked["argument"])  # the number that the channel has where it was asked for
        os.dup2(channel, at)
        os.closerange(3, at), os.closerange(at + 1, os.sysconf("SC_OPEN_MAX"))
        for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["cwd"])
        tempfile.tempdir = None
        added = os.environ.get("PYTHONPATH", "")
        sys.path[:] = [*filter(None, added.split(os.pathsep)), *PATH]  # what is there a confined one may read
        sys.dont_write_bytecode = True
        sys.argv = ["gdnspec.sandbox.child", asked["argument"]]
        faulthandler.enable()
        gc.unfreeze()
        runpy.run_module("gdnspec.sandbox.child", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
