"""Finds the registers, spills and shared memory that kernels use, without a GPU.

Triton solutions run without a GPU (build/dry.py), and the ptxas of Triton assembles their kernels. nvcc compiles CUDA
files.
"""

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gdnspec.build.dry import arguments, ask, described, intercept_launches, run
from gdnspec.build.loader import CUDA_FLAGS, load_function
from gdnspec.build.refilled import refilled


@dataclass(frozen=True)
class KernelResources:
    """The resources of one compiled kernel: registers per thread, bytes spilled per thread, bytes of shared memory per
    block, and whether ptxas reports that its wgmma instructions are serialised. `refilled` counts the tiles that a loop
    of a Triton kernel fills again while a product still reads them (refilled.py): then its results are wrong at times.
    """

    name: str
    registers: int
    spill_stores: int
    spill_loads: int
    shared_bytes: int
    serialised: bool = False
    refilled: int = 0


# --- Triton -----------------------------------------------------------------------------------------------------


def triton_resources(
    solution_folder: Path, calls: Sequence[tuple[str, Mapping[str, object]]]
) -> list[list[KernelResources]]:
    """The kernels that each call launches. A call is `file.py::function` and its inputs by name, with outputs if the
    entry takes them. Tensors have only shape and type, on the device "meta", so an entry that reads values on the host
    fails."""
    request = {
        "folder": str(solution_folder.resolve()),
        "calls": [(entry, described(inputs)) for entry, inputs in calls],
    }
    return [[KernelResources(**kernel) for kernel in kernels] for kernels in ask(__name__, request)]


def _answer() -> None:
    """The child process: reads a request from stdin, and prints the kernels."""
    request = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as build:
        launches = intercept_launches()
        answer = []
        for entry, described in request["calls"]:
            launches.clear()
            load_function(Path(request["folder"]), entry, Path(build))(**arguments(described))
            kernels = {launch.kernel.hash: launch.kernel for launch in launches}  # each kernel once
            answer.append([asdict(_assembled(kernel)) for kernel in kernels.values()])
        print(json.dumps(answer))


def _assembled(kernel: Any) -> KernelResources:
    import triton

    ptx = kernel.asm["ptx"]
    arch = re.search(r"^\.target\s+(sm_\w+)", ptx, re.MULTILINE)
    if arch is None:
        raise RuntimeError("the PTX of Triton names no target")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        ptxas = triton.knobs.nvidia.ptxas.path
        fused = [] if kernel.metadata.enable_fp_fusion else ["--fmad=false"]  # as Triton tells it
        target = [f"--gpu-name={arch[1]}", *fused]
        log = run([ptxas, "-v", *target, str(source), "-o", str(source.with_suffix(".cubin"))]).stderr
    (used,) = parse_ptxas(log)
    # For ptxas, Triton's shared memory is dynamic and of unknown size; Triton knows the size.
    return replace(used, shared_bytes=int(kernel.metadata.shared), refilled=len(refilled(kernel.asm["ttgir"])))


# --- CUDA -------------------------------------------------------------------------------------------------------


def cuda_resources(source: Path, arch: str = "90a") -> list[KernelResources]:
    """The kernels of a .cu file, compiled by nvcc for sm_<arch> with the flags for solutions. Raises `RuntimeError`."""
    import tvm_ffi.libinfo

    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise RuntimeError("nvcc is not on PATH: install the CUDA toolkit to compile CUDA solutions")
    includes = [tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path(), source.parent]
    with tempfile.TemporaryDirectory() as folder:
        command = [nvcc, *CUDA_FLAGS, f"-gencode=arch=compute_{arch},code=sm_{arch}", "-Xptxas", "-v", "-cubin"]
        command += [*(f"-I{include}" for include in includes), str(source), "-o", f"{folder}/kernel.cubin"]
        done = run(command)
    return parse_ptxas(done.stdout + done.stderr)


# --- ptxas ------------------------------------------------------------------------------------------------------


def parse_ptxas(log: str) -> list[KernelResources]:
    """The kernels in the output of `ptxas -v`, by name."""
    kernels = []
    serialised = set(re.findall(r"wgmma.mma_async instructions are serialized .* function '([^']+)'", log))
    for part in re.split(r"Compiling entry function ", log)[1:]:
        name = re.match(r"'([^']+)'", part)
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        if name is None or spills is None or registers is None:
            raise RuntimeError(f"unexpected output of ptxas: {part[:400]}")
        shared = re.search(r"(\d+) bytes smem", part)
        counts = (int(registers[1]), int(spills[1]), int(spills[2]), int(shared[1]) if shared else 0)
        kernels.append(KernelResources(_readable(name[1]), *counts, serialised=name[1] in serialised))
    return sorted(kernels, key=lambda kernel: kernel.name)


def _readable(mangled: str) -> str:
    """The name without namespace, return type and arguments, such as `kernel<128>`; unchanged without c++filt."""
    tool = shutil.which("c++filt")
    if tool is None or not mangled.startswith("_Z"):
        return mangled
    name = run([tool, mangled]).stdout.strip().replace("(anonymous namespace)::", "")
    return name.removeprefix("void ").split("(")[0]


if __name__ == "__main__":
    _answer()
