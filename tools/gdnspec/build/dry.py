"""Runs Triton solutions without a GPU, up to their launches.

A solution runs with tensors that have shapes and types but no memory. Each launch compiles for sm_90 and stops, so the
compiled kernels are those that the solution would launch on a GPU, with arguments specialised by Triton. This happens
in a separate process, because TRITON_INTERPRET or an already chosen driver would interfere.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGET = ("cuda", 90, 32)
TIMEOUT = 300.0  # seconds


def ask(module: str, request: dict[str, Any], **environment: str) -> Any:
    """Runs a module of gdnspec in such a process with the request on stdin, and returns its answer, the last line that
    it prints. Raises `RuntimeError` with its output if it fails."""
    with tempfile.TemporaryDirectory() as cache:
        passed_on = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        tools = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [tools, os.environ.get("PYTHONPATH")]))
        passed_on |= {"TRITON_CACHE_DIR": cache, "PYTHONPATH": path, **environment}
        answer = run([sys.executable, "-m", module], json.dumps(request), passed_on).stdout
    return json.loads(answer.splitlines()[-1])


def described(inputs: Mapping[str, object]) -> dict[str, object]:
    """Describes inputs for another process: tensors by shape and type, other values as they are."""
    return {name: _described(value) for name, value in inputs.items()}


def _described(value: object) -> dict[str, object]:
    shape = getattr(value, "shape", None)
    if shape is None:
        return {"value": value}
    return {"shape": list(shape), "dtype": str(getattr(value, "dtype")).removeprefix("torch.")}  # noqa: B009


def arguments(described: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The inputs that `described` describes, with tensors on the device "meta"."""
    import torch

    arguments: dict[str, Any] = {}
    for name, it in described.items():
        if "shape" in it:
            arguments[name] = torch.empty(it["shape"], dtype=getattr(torch, it["dtype"]), device="meta")
        else:
            arguments[name] = it["value"]
    return arguments


@dataclass(frozen=True, eq=False)
class Launch:
    """A compiled kernel, the grid of its launch, and the other arguments in words. Constants are part of the kernel."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: list[str]


def intercept_launches() -> list[Launch]:
    """Makes every launch compile for TARGET and stop. Returns the list to which launches are added."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    class NoDriver:
        """The part of a driver that compiling needs."""

        def get_current_target(self) -> Any:
            return GPUTarget(*TARGET)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

    launches: list[Launch] = []
    launch = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, **kwargs: Any) -> Any:
        kernel = launch(self, *args, grid=grid, **{**kwargs, "warmup": True})
        given = dict(zip([parameter.name for parameter in self.params], args, strict=False)) | kwargs
        size = tuple(grid(given) if callable(grid) else grid)
        passed = [p.name for p in self.params if not p.is_constexpr and p.name in given]
        launches.append(Launch(kernel, size, [_in_words(given[name]) for name in passed]))
        return kernel

    def every_configuration(self: Any, *args: Any, **kwargs: Any) -> None:
        for configuration in self.configs:  # nothing can be timed here, so all are candidates
            self.fn.run(*args, **kwargs, **configuration.all_kwargs())

    driver.set_active(NoDriver())
    JITFunction.run = compile_only
    Autotuner.run = every_configuration
    return launches


def _in_words(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"{value.dtype} {list(shape)} {list(value.stride())}"


def run(
    command: list[str],
    stdin: str | None = None,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a compiler or another tool in a folder. Raises `RuntimeError` with its message if it fails."""
    done = subprocess.run(
        command, input=stdin, env=environment, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT
    )
    if done.returncode:
        raise RuntimeError(
            f"{Path(command[0]).name} failed with exit code {done.returncode}: {done.stderr[-2000:].strip()}"
        )
    return done
