"""The child's loop: loads an entry point, calls it on shared inputs, and reports what it returned."""

import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gdnspec.build.full_memory import full, out_of_memory
from gdnspec.build.loader import load_function
from gdnspec.sandbox.child import tamper
from gdnspec.sandbox.child.crowd import Crowd
from gdnspec.sandbox.child.isolation import Isolation
from gdnspec.sandbox.child.opened import Opened, Refused
from gdnspec.sandbox.child.replayed import Replayed
from gdnspec.sandbox.child.windows import Windows
from gdnspec.sandbox.wire.arena import Arena, Slot, attach
from gdnspec.sandbox.wire.channel import Channel, ChannelClosed

TRACE_FRAMES = 8
AWAKE = 1.0  # seconds of busy waiting for a window


def serve(channel: Channel, hello: dict[str, Any], isolation: Isolation) -> None:
    """Answers messages until "stop" or until the parent is gone. The process is already isolated."""
    worker = Worker(hello)
    channel.send({"op": "ready", "isolation": isolation.text, "missing": isolation.missing})
    awake = 0.0
    while True:
        try:
            message, fds = channel.receive(awake=awake)
        except ChannelClosed:
            return
        if message["op"] == "stop":
            return
        awake = AWAKE if message["op"] == "wake" else 0.0
        reply = {**worker.answer(message, fds), "id": message.get("id")}
        channel.send(reply)
        if reply.get("fatal"):
            sys.exit(1)


class Worker:
    """Serves one solution."""

    def __init__(self, hello: dict[str, Any]) -> None:
        self.folder = Path(hello["folder"])
        # Bound before any code of the solution runs. `settings`: the macros and arguments of a variant.
        self.load: Callable[[str], Callable[..., Any]] = partial(
            load_function, self.folder, build_dir=Path(hello["build_dir"]), **hello["settings"]
        )
        self.attach: Callable[[dict[str, Any], list[int]], Arena] = attach
        self.device: str = hello["device"]
        self.originals = tamper.originals()
        self.open: Opened | None = None
        self.second: Opened | None = None
        self.crowd = Crowd(self.device)
        self.windows: Windows | None = None
        if os.environ.get("TRITON_INTERPRET") == "1":
            from gdnspec.build.interpreter import correct_interpreter

            correct_interpreter()

    def answer(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Runs one request. An exception of the solution becomes an "error" reply."""
        loading = message["op"] == "load"
        try:
            match message["op"]:
                case "load":
                    return self._load(message)
                case "open":
                    return self._open(message, fds)
                case "prepare":
                    return self._prepare()
                case "call":
                    return self._call(message.get("filler") is True)
                case "replay":
                    return self._replay()
                case "second":
                    return self._second(message, fds)
                case "both":
                    return self._both()
                case "release":
                    return self._release()
                case "ring":
                    return self._ring(message, fds)
                case "capture":
                    return self._capture(message)
                case "window":
                    return self._window(message)
                case "inspect":
                    return self._inspect()
                case "wake":
                    return {"op": "awake"}
                case _:
                    return self._close()
        except (Exception, SystemExit) as error:
            return self._failed(error, "compile" if loading else "runtime")

    def _failed(self, error: BaseException, kind: str) -> dict[str, Any]:
        if isinstance(error, Refused):
            return {"op": "error", "kind": error.kind, "message": str(error)}
        message = f"{type(error).__name__}: {error}"
        if out_of_memory(error):  # whatever the kernel was doing: it has too little memory, and compiles elsewhere
            kind, message = "runtime", full("kernel", error)
        return {
            "op": "error",
            "kind": "compile" if _is_compile_error(error) else kind,
            "message": message[:2000],
            "trace": self._trace(error),
            "fatal": self._device_is_lost(),
        }

    def _trace(self, error: BaseException) -> str:
        """The traceback from the first frame in the solution on: frames of gdnspec do not help its author."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [i for i, frame in enumerate(frames) if Path(frame.filename).is_relative_to(self.folder)]
        kept = frames[own[0] :] if own else frames
        return "".join(traceback.format_list(kept)[-TRACE_FRAMES:]).rstrip()[:8000]

    def _device_is_lost(self) -> bool:
        """Whether a CUDA error made the device unusable for this process: it must end then."""
        if self.device != "cuda":
            return False
        try:
            torch.cuda.synchronize()
        except Exception:
            return True
        return False

    def _load(self, message: dict[str, Any]) -> dict[str, Any]:
        entry = message["entry"]
        for spec in (entry["entry"], entry["prepare"]):
            if spec is not None:
                self.load(spec)
        return {"op": "loaded"}

    def _open(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self._close()
        self.open, seconds = self._opened(message, fds)
        return {"op": "opened", "prepare_seconds": seconds}

    def _second(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self.second, seconds = self._opened(message, fds)
        return {"op": "opened", "prepare_seconds": seconds}

    def _release(self) -> dict[str, Any]:
        if self.second is not None:
            second, self.second = self.second, None
            second.arena.close()
        return {"op": "closed"}

    def _opened(self, message: dict[str, Any], fds: list[int]) -> tuple[Opened, float | None]:
        arena = self.attach(message["arena"], fds)
        try:
            slots = {name: Slot.from_json(slot) for name, slot in message["slots"].items()}
            opened = Opened(message, slots, arena, self.load)
            seconds = opened.prepare(self._wait)
            self._refuse_tampering()
        except BaseException:
            arena.close()
            raise
        return opened, seconds

    def _prepare(self) -> dict[str, Any]:
        if self.open is None:
            raise Refused("runtime", "`prepare` was requested but no memory is open")
        self.open.prepare(self._wait)
        self._refuse_tampering()
        return {"op": "prepared"}

    def _call(self, filler: bool = False) -> dict[str, Any]:
        if self.open is None:
            raise Refused("runtime", "a call was requested but no memory is open")
        if filler:
            self.crowd.work()
        started = time.perf_counter()
        described = self.open.accept(self.open.invoke())
        self._wait()
        seconds = time.perf_counter() - started
        self._refuse_tampering()
        return {"op": "done", "returned": described, "seconds": seconds}

    def _replay(self) -> dict[str, Any]:
        """One call, captured as a graph and replayed. A solution that cannot be captured is not wrong."""
        if self.open is None:
            raise Refused("runtime", "a replay was requested but no memory is open")
        try:
            replayed = Replayed(self.open)
            self._wait()
        except Exception as error:
            if isinstance(error, Refused) or self._device_is_lost():
                raise
            return {"op": "replayed", "why_not": f"{type(error).__name__}: {error}"[:300]}
        described = replayed.run(self._wait)
        self._refuse_tampering()
        return {"op": "replayed", "why_not": None, "returned": described}

    def _both(self) -> dict[str, Any]:
        """Calls on two sets of buffers at once; neither waits for the other."""
        if self.open is None or self.second is None:
            raise Refused("runtime", "a call on two sets of buffers was requested but they are not open")
        described = self.crowd.at_once([self.open, self.second])
        self._wait()
        self._refuse_tampering()
        return {"op": "done", "returned": described}

    def _ring(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self._close()
        arena = self.attach(message["arena"], fds)
        try:
            self.windows = Windows(message, arena, self.load)
            seconds = self.windows.prepare(self._wait)
            self._refuse_tampering()
        except BaseException:
            self.windows = None
            arena.close()
            raise
        return {"op": "ringed", "prepare_seconds": seconds}

    def _capture(self, message: dict[str, Any]) -> dict[str, Any]:
        """Captures a graph. A solution that cannot be captured is timed in another way, which is not an error."""
        assert self.windows is not None
        try:
            captured = self.windows.capture(message["calls"])
            self._wait()
        except Exception as error:
            if isinstance(error, Refused) or self._device_is_lost():
                raise
            return {"op": "captured", "why_not": f"{type(error).__name__}: {error}"[:300]}
        return {"op": "captured", "why_not": None, **captured}

    def _window(self, message: dict[str, Any]) -> dict[str, Any]:
        """Runs a window. When it answers, all work is done and the parent can see the outputs: the clock stops
        there."""
        assert self.windows is not None
        seconds = self.windows.run(message["calls"], message["method"])
        self._wait()
        return {"op": "timed", **seconds}

    def _inspect(self) -> dict[str, Any]:
        """Looks for tampering, after the parent has the outputs of a window: looking may run code of the solution."""
        self._refuse_tampering()
        return {"op": "inspected"}

    def _close(self) -> dict[str, Any]:
        for opened in (self.open, self.second, self.windows):
            if opened is not None:
                self.open = self.second = self.windows = None
                opened.arena.close()
        return {"op": "closed"}

    def _refuse_tampering(self) -> None:
        """Raises `Refused` if something was replaced. It cannot fool the judge in another process, but shows intent."""
        replaced = tamper.replaced(self.originals)
        if replaced:
            raise Refused("tampered", f"the solution replaced {', '.join(replaced)}")

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def _is_compile_error(error: BaseException) -> bool:
    """Whether it is a compile error, by its name: Triton compiles at the first call."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"CompilationError", "CompileTimeAssertionFailure", "PTXASError", "OutOfResources"})
