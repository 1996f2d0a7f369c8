"""One child process for one solution: starts it, sends requests with a deadline, and ends it."""

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdnspec import paths
from gdnspec.catalog import kept
from gdnspec.catalog.solutions import Solution
from gdnspec.model.result import Status
from gdnspec.sandbox.parent import descendants
from gdnspec.sandbox.parent.confinement import Confinement, NotIsolated, Watch
from gdnspec.sandbox.parent.environment import environment, make_caches
from gdnspec.sandbox.parent.output import TAIL_BYTES, Tail, printable
from gdnspec.sandbox.wire.channel import Channel, ChannelClosed, ChannelTimeout, ProtocolError

if TYPE_CHECKING:
    from gdnspec.sandbox.wire.arena import Arena  # it imports torch, which a child must not wait for

SCRATCH = "gdnspec-child-"  # prefix of scratch folders; the judge holds a lock on its own
START_SECONDS = 180.0
BUILD_SECONDS = 600.0
AWAKE = 1.0  # seconds of busy waiting for a window on a GPU


def _remove(folder: Path) -> None:
    # Not shutil.rmtree: it fails on folders nested deeper than Python's stack, which a child may create.
    subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)


@cache
def _sweep_scratch() -> None:
    """Once per process: removes scratch folders of killed judges of this user."""
    for folder in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.geteuid():
                kept.remove_abandoned(folder, _remove)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class ChildFailed(Exception):
    """The child died or reported a failure: the status and the message for the author."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status: Status = status
        self.message = message


ERROR_STATUS: dict[str, Status] = {
    "compile": "COMPILE_ERROR",
    "runtime": "RUNTIME_ERROR",
    "shape": "INCORRECT_SHAPE",
    "tampered": "TAMPERED",
}


class Child:
    """A child process. It starts at the first request, and again after a death. Use as a context manager.

    `echo` gets what it prints.
    """

    def __init__(
        self, solution: Solution, device: str, interpret: bool, confinement: Confinement | None = None,
        echo: Callable[[bytes], object] | None = None,
    ) -> None:  # fmt: skip
        self.solution, self.device, self.interpret = solution, device, interpret
        self.confinement = confinement
        self._watch: Watch | None = None
        self.isolation = ""
        self.exceeded = ""  # the limit of its confinement for which it was ended
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._scratch: Path | None = None
        self._scratch_lock = -1
        self._output = Tail(echo)
        self._at_once = {"PYTHONUNBUFFERED": "1"} if echo else {}
        self._greeted = False
        self._loaded: set[str] = set()
        self._unusable: dict[str, tuple[Status, str]] = {}
        self._requests = 0
        self._awake = AWAKE if device == "cuda" else 0.0  # on a CPU, the child needs the processors
        self._pidfd = -1
        self.is_open = False
        self.deaths = 0
        self.last_failure = ChildFailed("RUNTIME_ERROR", "")

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    # --- requests -----------------------------------------------------------------------------------------------

    def load(self, entry: dict[str, Any]) -> None:
        """Imports or builds an entry point, once per process. Raises `ChildFailed`."""
        if entry["entry"] in self._unusable:
            raise ChildFailed(*self._unusable[entry["entry"]])
        if self._process is None or entry["entry"] not in self._loaded:
            try:
                self._request({"op": "load", "entry": entry}, BUILD_SECONDS, "loaded")
            except ChildFailed as failure:
                # A failed build is not repeated. Keeping the exception itself would keep its frames alive.
                self._unusable[entry["entry"]] = (failure.status, failure.message)
                raise
            self._loaded.add(entry["entry"])

    def open(self, message: dict[str, Any], arena: "Arena", timeout: float) -> dict[str, Any]:
        """Maps the memory of a workload's calls and prepares. Returns the reply. Raises `ChildFailed`."""
        reply = self._mapped("open", "opened", message, arena, timeout)
        self.is_open = True
        return reply

    def prepare(self, timeout: float) -> None:
        """Prepares again, for the current content of the open memory. Raises `ChildFailed`."""
        self._request({"op": "prepare"}, timeout, "prepared")

    def call(self, timeout: float, filler: bool = False) -> dict[str, Any]:
        """Calls the entry point on the open memory; with `filler`, beside other work. Raises `ChildFailed`."""
        return self._request({"op": "call", "filler": filler}, timeout, "done")

    def replay(self, timeout: float) -> dict[str, Any]:
        """Captures a call as a graph and replays it once. `why_not` in the reply: why not. Raises `ChildFailed`."""
        return self._request({"op": "replay"}, timeout, "replayed")

    def open_second(self, message: dict[str, Any], arena: "Arena", timeout: float) -> None:
        """Maps a second set of buffers beside the open one, and prepares. Raises `ChildFailed`."""
        self._mapped("second", "opened", message, arena, timeout)

    def close_second(self, timeout: float) -> None:
        """Closes the second set of buffers. Raises `ChildFailed`."""
        self._request({"op": "release"}, timeout, "closed")

    def call_both(self, timeout: float) -> dict[str, Any]:
        """Calls on both sets of buffers at once, each on its own stream. Returns the reply. Raises `ChildFailed`."""
        return self._request({"op": "both"}, timeout, "done")

    def ring(self, message: dict[str, Any], arena: "Arena", timeout: float) -> dict[str, Any]:
        """Maps a ring of buffers and prepares each. Returns the reply. Raises `ChildFailed`."""
        reply = self._mapped("ring", "ringed", message, arena, timeout)
        self.is_open = True
        return reply

    def capture(self, calls: int, timeout: float) -> dict[str, Any]:
        """Captures a graph of `calls` calls. Returns the reply. Raises `ChildFailed`."""
        return self._request({"op": "capture", "calls": calls}, timeout, "captured")

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops the child and its processes while the content of a window is written, so that none starts before the
        clock."""
        try:
            self._signal(signal.SIGSTOP)
            yield
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        for pid in descendants.tree(self._process.pid):
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def wake(self, timeout: float) -> None:
        """Wakes the child before a window, so that it answers the request at once. Raises `ChildFailed`."""
        self._request({"op": "wake"}, timeout, "awake")

    def window(
        self, calls: int, method: str, timeout: float, taken: Callable[[], object]
    ) -> tuple[float, dict[str, Any]]:
        """Runs a window on the ring's first buffers. Returns seconds by this process's clock, and the child's reply.

        The clock stops when `taken`, which looks at the outputs, has returned, not when the child says that it is done.
        Raises `ChildFailed`.
        """
        started = time.perf_counter()
        reply = self._request({"op": "window", "calls": calls, "method": method}, timeout, "timed", awake=self._awake)
        taken()
        return time.perf_counter() - started, reply

    def inspect(self, timeout: float) -> None:
        """After a window, asks whether the solution replaced functions that judge or time it. Raises `ChildFailed`."""
        self._request({"op": "inspect"}, timeout, "inspected")

    def close(self, timeout: float) -> None:
        """Closes the open memory in the child, if any. Raises `ChildFailed`."""
        if self.is_open:
            self.is_open = False
            self._request({"op": "close"}, timeout, "closed")

    def _mapped(self, op: str, wanted: str, message: dict[str, Any], arena: "Arena", timeout: float) -> dict[str, Any]:
        """A request that hands memory over."""
        return self._request({**message, "op": op, "arena": arena.describe()}, timeout, wanted, arena.fds)

    def _request(
        self, message: dict[str, Any], timeout: float, wanted: str, fds: list[int] | None = None, awake: float = 0.0
    ) -> dict[str, Any]:
        if self._process is None:
            self.start()
        if not self._greeted:
            self._greet()
        self._requests += 1
        with self._talking(timeout) as channel:
            channel.send({**message, "id": self._requests}, fds, timeout)
            reply, _ = channel.receive(timeout, self._pidfd, awake)
        answered = reply.get("id")
        if type(answered) is not int or answered != self._requests or reply["op"] not in (wanted, "error"):
            raise self._lost(
                "PROTOCOL_ERROR", f"the process sent an unexpected answer, {printable(str(reply['op']), 40)!r}"
            )
        if reply["op"] == "error":
            failure = self._said_error(reply)
            raise self._lost(failure.status, failure.message) if reply.get("fatal") else failure
        return reply

    @contextlib.contextmanager
    def _talking(self, timeout: float) -> Iterator[Channel]:
        """The channel. A failure of it ends the child. Raises `ChildFailed`."""
        assert self._channel is not None
        try:
            yield self._channel
        except ChannelTimeout:
            raise self._lost("TIMEOUT", f"no answer within {timeout:g} s; the process was ended") from None
        except ChannelClosed:
            raise self._died() from None
        except ProtocolError as error:
            raise self._lost("PROTOCOL_ERROR", f"the process sent an invalid message: {error}") from None

    def _lost(self, status: Status, message: str) -> ChildFailed:
        """Ends the child, and returns the exception to raise."""
        self.end()
        self.deaths += 1
        self.last_failure = ChildFailed(status, message)
        return ChildFailed(status, message)

    def _said_error(self, reply: dict[str, Any]) -> ChildFailed:
        status = ERROR_STATUS.get(str(reply.get("kind")), "PROTOCOL_ERROR")
        trace = printable(str(reply.get("trace", "")), 8000)
        message = printable(str(reply.get("message", "")), 2000) + (f"\n{trace}" if trace else "")
        return ChildFailed(status, self._in_place(message))

    def _died(self) -> ChildFailed:
        assert self._process is not None
        if self._watch is not None and self._watch.ended:
            self.exceeded = self._watch.ended
            return self._lost("RUNTIME_ERROR", f"the judge ended the process, which used {self.exceeded}")
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            code = None  # it closed its socket but still runs
        said = self._in_place(printable(self._output.text(), TAIL_BYTES))
        if code is None:
            return self._lost("PROTOCOL_ERROR", "the process closed its channel to the judge")
        how = f"by {_signal_name(-code)}" if code < 0 else f"with exit code {code}"
        return self._lost(
            "RUNTIME_ERROR", f"the process ended {how} before it answered" + (f"\n{said}" if said else "")
        )

    # --- life and death -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the process, and does not wait until it is ready: the judge can import torch while it does. Raises
        `ChildFailed`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        _sweep_scratch()
        self._scratch, self._scratch_lock = kept.new_folder(Path(tempfile.gettempdir()), SCRATCH)
        self._work.mkdir(exist_ok=True)
        descendants.adopt()
        build_dir = self._build_dir()
        self._loaded = set()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gdnspec.sandbox.child", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._work,
            env=environment(self._work, build_dir, self.confinement is not None, self.interpret) | self._at_once,
            start_new_session=True,  # Ctrl-C reaches only the parent, which then ends the whole group
        )
        theirs.close()
        descendants.keep(self._process.pid)
        if self.confinement is not None:
            self._watch = Watch(self._process.pid, self._scratch, self.device, self.confinement)
        self._pidfd = os.pidfd_open(self._process.pid)
        assert self._process.stdout is not None
        self._output.follow(self._process.stdout.fileno())
        self._channel = Channel(ours)
        try:
            staged = self._stage()
        except OSError as error:
            raise self._lost("COMPILE_ERROR", f"a source cannot be read: {error.strerror or error}") from None
        hello = {
            "op": "hello",
            "folder": str(staged),
            "settings": self.solution.settings,
            "device": self.device,
            "scratch": str(self._work),
            "build_dir": str(build_dir),
            "secret": str(paths.expected_cache()),
            "confined": None if self.confinement is None else self.confinement.to_json(),
        }
        self._greeted = False
        with self._talking(START_SECONDS) as channel:
            channel.send(hello, None, START_SECONDS)

    def _greet(self) -> None:
        """Waits until the started process is ready. Raises `ChildFailed`."""
        with self._talking(START_SECONDS) as channel:
            reply, _ = channel.receive(START_SECONDS, self._pidfd)
        self._greeted = True
        if reply["op"] != "ready":
            raise self._lost("PROTOCOL_ERROR", "the process did not report that it is ready")
        self.isolation = printable(str(reply.get("isolation", "")), 200)
        if self.confinement is not None and reply.get("missing") and not self.confinement.trusted:
            self.end()
            raise NotIsolated(printable(str(reply["missing"]), 300))

    @property
    def _work(self) -> Path:
        """The folder that the child may write to. A confined child may not write to its own sources."""
        assert self._scratch is not None
        return self._scratch if self.confinement is None else self._scratch / "_work"  # no solution has the name _work

    def _stage(self) -> Path:
        """Copies exactly the sources in the manifest: a file that is not listed, and so not hashed, is not
        available."""
        assert self._scratch is not None
        staged = self._scratch / self.solution.folder.name  # a variant's name has a colon, which breaks builds
        for name in self.solution.manifest.sources:
            target = staged / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.solution.folder / name, target)
        return staged

    def _in_place(self, text: str) -> str:
        """The text with paths of the copy replaced by paths of the solution's folder."""
        return text.replace(f"{self._scratch}/{self.solution.folder.name}", paths.shown(self.solution.folder))

    def _build_dir(self) -> Path:
        folder = paths.build_cache(self.solution.source_hash)
        if self.confinement is None:  # a confined child must leave nothing for the next one
            try:
                make_caches(folder)
                if os.access(folder, os.W_OK):
                    return folder
            except OSError:
                pass  # an unwritable cache only costs a rebuild each time
        make_caches(self._work)
        return self._work

    def end(self) -> None:
        """Ends the child and everything that it started."""
        process, self._process = self._process, None
        self.is_open = False
        if self._channel is not None:
            with contextlib.suppress(ChannelClosed, ChannelTimeout):
                self._channel.send({"op": "stop"}, timeout=0.1)
            self._channel.close()
            self._channel = None
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        if process is not None:
            # A working child ends by itself after "stop". Any other is killed.
            ended = select.poll()
            ended.register(self._pidfd, select.POLLIN)
            ended.poll(500)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            descendants.end_orphans()
            os.close(self._pidfd)
            self._output.finish()
            if process.stdout is not None:
                process.stdout.close()
        if self._scratch is not None:
            _remove(self._scratch)
            os.close(self._scratch_lock)
            self._scratch = None
