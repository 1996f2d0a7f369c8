"""The child's loop: load an entry point, call it on shared inputs, say what came back."""

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gdnspec.build.loader import load_function
from gdnspec.protocol.arena import TORCH, Arena, Slot, attach
from gdnspec.protocol.channel import Channel, ChannelClosed
from gdnspec.worker import tamper

TRACE_FRAMES = 8


class Refused(Exception):
    """What the solution gave back cannot be judged; `kind` says why."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def serve(channel: Channel, hello: dict[str, Any], isolation: str) -> None:
    """Answers messages until "stop" or until the parent is gone. The process has shut itself in already."""
    worker = _Worker(hello)
    channel.send({"op": "ready", "isolation": isolation})
    while True:
        try:
            message, fds = channel.receive()
        except ChannelClosed:
            return
        if message["op"] == "stop":
            return
        reply = {**worker.answer(message, fds), "id": message.get("id")}
        channel.send(reply)
        if reply.get("fatal"):
            sys.exit(1)


class _Worker:
    """One solution."""

    def __init__(self, hello: dict[str, Any]) -> None:
        self.folder = Path(hello["folder"])
        self.build_dir = Path(hello["build_dir"])
        self.device: str = hello["device"]
        self.originals = tamper.originals()
        self.open: _Open | None = None
        if os.environ.get("TRITON_INTERPRET") == "1":
            from gdnspec.build.interpreter import correct_interpreter

            correct_interpreter()

    def answer(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Runs one request; whatever the solution raises becomes an "error" reply."""
        loading = message["op"] == "load"
        try:
            match message["op"]:
                case "load":
                    return self._load(message)
                case "open":
                    return self._open(message, fds)
                case "call":
                    return self._call()
                case _:
                    return self._close()
        except Refused as error:
            return {"op": "error", "kind": error.kind, "message": str(error)}
        except (Exception, SystemExit) as error:
            kind = "compile" if loading or _is_compile_error(error) else "runtime"
            return {
                "op": "error",
                "kind": kind,
                "message": f"{type(error).__name__}: {error}"[:2000],
                "trace": self._trace(error),
                "fatal": self._device_is_lost(),
            }

    def _trace(self, error: BaseException) -> str:
        """Where in the solution it happened: frames of this package say nothing to its author."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [i for i, frame in enumerate(frames) if Path(frame.filename).is_relative_to(self.folder)]
        kept = frames[own[0] :] if own else frames
        return "".join(traceback.format_list(kept)[-TRACE_FRAMES:]).rstrip()[:8000]

    def _device_is_lost(self) -> bool:
        """After some CUDA errors no call of this process works again: it must end."""
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
                load_function(self.folder, spec, self.build_dir)
        return {"op": "loaded"}

    def _open(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self._close()
        arena = attach(message["arena"], fds)
        try:
            self.open = _Open(message, arena, self.folder, self.build_dir)
            seconds = self.open.prepare(self._wait)
            self._refuse_tampering()
        except BaseException:
            self.open = None
            arena.close()
            raise
        return {"op": "opened", "prepare_seconds": seconds}

    def _call(self) -> dict[str, Any]:
        if self.open is None:
            raise Refused("runtime", "called with nothing open")
        started = time.perf_counter()
        described = self.open.call()
        self._wait()
        seconds = time.perf_counter() - started
        self._refuse_tampering()
        return {"op": "done", "returned": described, "seconds": seconds}

    def _close(self) -> dict[str, Any]:
        if self.open is not None:
            arena, self.open = self.open.arena, None
            arena.close()
        return {"op": "closed"}

    def _refuse_tampering(self) -> None:
        """What was replaced would not fool the judge, who is elsewhere: it says what the author was after."""
        replaced = tamper.replaced(self.originals)
        if replaced:
            raise Refused("tampered", f"replaced {', '.join(replaced)}")

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


class _Open:
    """One workload's calls: views of the shared memory, the function, and what it prepared."""

    def __init__(self, message: dict[str, Any], arena: Arena, folder: Path, build_dir: Path) -> None:
        assert arena.block is not None
        self.arena, self.entry = arena, message["entry"]
        self.function = load_function(folder, self.entry["entry"], build_dir)
        prepare = self.entry["prepare"]
        self._prepare = None if prepare is None else load_function(folder, prepare, build_dir)
        slots = {name: Slot.from_json(slot) for name, slot in message["slots"].items()}
        self.inputs: dict[str, Any] = dict.fromkeys(message["inputs"])
        self.inputs.update(message["scalars"])
        self.inputs.update({name: slots[name].view(arena.block) for name in self.inputs if name in slots})
        self.outputs = {name: slots[name].view(arena.block) for name in message["outputs"]}
        self.extra: dict[str, Any] = {}

    def prepare(self, wait: Callable[[], None]) -> float | None:
        """Runs `prepare`, where there is one; its seconds."""
        if self._prepare is None:
            return None
        started = time.perf_counter()
        self.extra = {"prepared": self._prepare(**self.inputs)}
        wait()
        return time.perf_counter() - started

    def call(self) -> list[dict[str, Any]] | None:
        """Calls the entry point; says what was returned, where it returns."""
        if self.entry["call"] == "return":
            return _accept(self.function(**self.inputs, **self.extra), self.outputs)
        _call_out(self.function, self.entry["entry"], self.inputs, self.outputs, self.extra)
        return None


def _call_out(
    function: Callable[..., Any], spec: str, inputs: dict[str, Any], outputs: dict[str, Any], extra: dict[str, Any]
) -> None:
    if spec.split("::")[0].endswith(".cu"):
        function(*inputs.values(), *outputs.values())  # an exported C++ function has no keywords
    else:
        function(**inputs, **outputs, **extra)


def _accept(returned: Any, outputs: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
    """Copies returned tensors to where the parent looks; says what they were, so that it can judge their form."""
    values = [returned] if isinstance(returned, torch.Tensor) else returned
    if not isinstance(values, tuple | list):
        raise Refused("shape", f"returned {type(returned).__name__}, not a tuple of {', '.join(outputs)}")
    if len(values) != len(outputs):
        raise Refused("shape", f"returned {len(values)} outputs, not {len(outputs)}: {', '.join(outputs)}")
    names = {dtype: name for name, dtype in TORCH.items()}
    described = []
    for (name, target), value in zip(outputs.items(), values, strict=True):
        if type(value) is not torch.Tensor:
            kind = "tampered" if isinstance(value, torch.Tensor) else "shape"
            raise Refused(kind, f"{name} is a {type(value).__name__}, not a torch.Tensor")
        dtype = names.get(value.dtype, str(value.dtype))
        described.append({"shape": list(value.shape), "dtype": dtype})
        if value.shape == target.shape and value.dtype == target.dtype:
            target.copy_(value)
    return described


def _is_compile_error(error: BaseException) -> bool:
    """Triton compiles at the first call."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"CompilationError", "CompileTimeAssertionFailure", "PTXASError", "OutOfResources"})
