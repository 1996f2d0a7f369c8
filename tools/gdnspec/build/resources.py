"""What kernels take of a GPU - registers, spills, shared memory - found without one.

Triton solutions are run without one (build/dry.py). Assembly is by the ptxas that Triton brings; CUDA files are
compiled by nvcc.
"""

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gdnspec.build.dry import arguments, ask, described, intercept_launches, run
from gdnspec.build.loader import CUDA_FLAGS, load_function


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
        "calls": [(entry, described(inputs)) for entry, inputs in calls],
    }
    return [[KernelResources(**kernel) for kernel in kernels] for kernels in ask(__name__, request)]


def _answer() -> None:
    """In the child: a request on stdin, the kernels on stdout."""
    request = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as build:
        launches = intercept_launches()
        answer = []
        for entry, described in request["calls"]:
            launches.clear()
            load_function(Path(request["folder"]), entry, Path(build))(**arguments(described))
            kernels = {launch.kernel.hash: launch.kernel for launch in launches}  # a kernel once
            answer.append([asdict(_assembled(kernel)) for kernel in kernels.values()])
        print(json.dumps(answer))


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
        log = run([ptxas, "-v", f"--gpu-name={arch[1]}", str(source), "-o", str(source.with_suffix(".cubin"))]).stderr
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
        done = run(command)
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
    name = run([tool, mangled]).stdout.strip().replace("(anonymous namespace)::", "")
    return name.removeprefix("void ").split("(")[0]


if __name__ == "__main__":
    _answer()
