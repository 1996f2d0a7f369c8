"""What kernels take of a GPU - registers, spills, shared memory - found without one.

Triton solutions are run as they are, with tensors that have shapes and types but no memory, and with launches that
compile for sm_90 and stop: so what is compiled is what the solution would launch on a GPU, with the arguments
specialised as Triton does it. That happens in a process of its own, where neither TRITON_INTERPRET nor a driver chosen
earlier stands in the way. Assembly is by the ptxas that Triton brings; CUDA files are compiled by nvcc.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gdnspec.build.loader import CUDA_FLAGS, load_function

TARGET = ("cuda", 90, 32)
TIMEOUT = 300.0  # seconds


@dataclass(frozen=True)
class KernelResources:
    """Of one compiled kernel: registers a thread, bytes spilled a thread, bytes of shared memory a block; whether ptxas
    says that its wgmma instructions wait for one another."""

    name: str
    registers: int
    spill_stores: int
    spill_loads: int
    shared_bytes: int
    serialised: bool = False


# --- Triton -----------------------------------------------------------------------------------------------------


def triton_resources(
    solution_folder: Path, calls: Sequence[tuple[str, Mapping[str, object]]]
) -> list[list[KernelResources]]:
    """For each call, `file.py::function` and its inputs by keyword, outputs among them where the entry takes them: the
    kernels that it launches. Tensors count by shape and type alone and arrive on the device "meta": an entry that
    reads values on the host cannot be looked at this way."""
    request = {
        "folder": str(solution_folder.resolve()),
        "calls": [(entry, {name: _described(value) for name, value in inputs.items()}) for entry, inputs in calls],
    }
    with tempfile.TemporaryDirectory() as cache:
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        environment["TRITON_CACHE_DIR"] = cache
        tools = str(Path(__file__).resolve().parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [tools, os.environ.get("PYTHONPATH")]))
        answer = _run([sys.executable, "-m", __name__], json.dumps(request), environment).stdout
    # The solution may print; the answer is the last line.
    return [[KernelResources(**kernel) for kernel in kernels] for kernels in json.loads(answer.splitlines()[-1])]


def _described(value: object) -> dict[str, object]:
    shape = getattr(value, "shape", None)
    if shape is None:
        return {"value": value}
    return {"shape": list(shape), "dtype": str(getattr(value, "dtype")).removeprefix("torch.")}  # noqa: B009


def _answer() -> None:
    """In the child: a request on stdin, the kernels on stdout."""
    request = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as build:
        compiled = _intercept_launches()
        answer = []
        for entry, described in request["calls"]:
            compiled.clear()
            load_function(Path(request["folder"]), entry, Path(build))(**_arguments(described))
            answer.append([asdict(_assembled(kernel)) for kernel in compiled])
        print(json.dumps(answer))


def _arguments(described: dict[str, dict[str, Any]]) -> dict[str, Any]:
    import torch

    arguments: dict[str, Any] = {}
    for name, it in described.items():
        if "shape" in it:
            arguments[name] = torch.empty(it["shape"], dtype=getattr(torch, it["dtype"]), device="meta")
        else:
            arguments[name] = it["value"]
    return arguments


def _intercept_launches() -> list[Any]:
    """From here on a launch compiles for TARGET and goes no further. Returns the list that the kernels are added to."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    class NoDriver:
        """As much of a driver as compiling asks for."""

        def get_current_target(self) -> Any:
            return GPUTarget(*TARGET)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

    compiled: list[Any] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = run(self, *args, **{**kwargs, "warmup": True})
        if all(kernel.hash != other.hash for other in compiled):
            compiled.append(kernel)
        return kernel

    def every_configuration(self: Any, *args: Any, **kwargs: Any) -> None:
        for configuration in self.configs:  # nothing can be timed here: all of them are candidates
            self.fn.run(*args, **kwargs, **configuration.all_kwargs())

    driver.set_active(NoDriver())
    JITFunction.run = compile_only
    Autotuner.run = every_configuration
    return compiled


def _assembled(kernel: Any) -> KernelResources:
    import triton

    ptx = kernel.asm["ptx"]
    arch = re.search(r"^\.target\s+(sm_\w+)", ptx, re.MULTILINE)
    if arch is None:
        raise RuntimeError("Triton's PTX names no target")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        ptxas = triton.knobs.nvidia.ptxas.path
        log = _run([ptxas, "-v", f"--gpu-name={arch[1]}", str(source), "-o", str(source.with_suffix(".cubin"))]).stderr
    (used,) = parse_ptxas(log)
    # ptxas sees Triton's shared memory as dynamic, of size unknown; Triton knows.
    return KernelResources(used.name, used.registers, used.spill_stores, used.spill_loads, int(kernel.metadata.shared))


# --- CUDA -------------------------------------------------------------------------------------------------------


def cuda_resources(source: Path, arch: str = "90a") -> list[KernelResources]:
    """The kernels of a .cu file compiled by nvcc for sm_<arch>, with the flags that solutions are built with."""
    import tvm_ffi.libinfo

    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise RuntimeError("no nvcc on PATH: install the CUDA toolkit to compile CUDA solutions")
    includes = [tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path(), source.parent]
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, *CUDA_FLAGS, f"-gencode=arch=compute_{arch},code=sm_{arch}", "-Xptxas", "-v", "-cubin"]
        command += [*(f"-I{include}" for include in includes), str(source), "-o", f"{folder}/kernel.cubin"]
        done = _run(command)
    return parse_ptxas(done.stdout + done.stderr)


# --- ptxas ------------------------------------------------------------------------------------------------------


def parse_ptxas(log: str) -> list[KernelResources]:
    """The entry functions in what `ptxas -v` says, by name."""
    kernels = []
    serialised = set(re.findall(r"wgmma.mma_async instructions are serialized .* function '([^']+)'", log))
    for part in re.split(r"Compiling entry function ", log)[1:]:
        name = re.match(r"'([^']+)'", part)
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        if name is None or spills is None or registers is None:
            raise RuntimeError(f"unexpected words from ptxas: {part[:400]}")
        shared = re.search(r"(\d+) bytes smem", part)
        counts = (int(registers[1]), int(spills[1]), int(spills[2]), int(shared[1]) if shared else 0)
        kernels.append(KernelResources(_readable(name[1]), *counts, serialised=name[1] in serialised))
    return sorted(kernels, key=lambda kernel: kernel.name)


def _readable(mangled: str) -> str:
    """Namespace, return type and arguments dropped: `kernel<128>`. As it is where c++filt is not to be had."""
    tool = shutil.which("c++filt")
    if tool is None or not mangled.startswith("_Z"):
        return mangled
    name = _run([tool, mangled]).stdout.strip().replace("(anonymous namespace)::", "")
    return name.removeprefix("void ").split("(")[0]


def _run(
    command: list[str], stdin: str | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode}: {done.stderr[-2000:].strip()}")
    return done


if __name__ == "__main__":
    _answer()
