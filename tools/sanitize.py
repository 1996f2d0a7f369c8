"""Calls a solution on workloads in this one process, for compute-sanitizer: no judge, no IPC, nothing but the kernel.

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1        every tensor an allocation of its own: a byte too far shows
    compute-sanitizer --tool memcheck --error-exitcode 1 python tools/sanitize.py SOLUTION
    compute-sanitizer --tool racecheck --error-exitcode 1 python tools/sanitize.py SOLUTION --suite conformance

Takes what `gdnspec check` takes: definitions, --suite, --workload, --workloads, --solutions-dir. Workloads over --gib
are left out. --define NAME: kernels are built with that macro defined. The README of a solution names one where it has
one under which racecheck sees who waits for whom. --build FOLDER: CUDA kernels are built there, or were, as by a first
call without compute-sanitizer, under which compilers are slow.
"""

import argparse
import hashlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gdnspec.build.loader import load_function
from gdnspec.build.machine import device
from gdnspec.catalog.definitions import preset_of
from gdnspec.check.plan import Job, plan
from gdnspec.cli.selection import chosen_solutions, select
from gdnspec.inputs.materialise import materialise
from gdnspec.model.errors import SpecError
from gdnspec.numerics.arguments import arguments
from gdnspec.sandbox.wire.arena import TORCH


def call(job: Job, folder: Path, build: Path) -> None:
    """Once, as the worker does, but for memory: each tensor, gaps included, ends where its allocation does."""
    found, entry = job.found, job.entry
    inputs = materialise(found, job.workload)
    values: dict[str, Any] = arguments(found, inputs, "cuda")
    for name, gap in job.workload.gaps.items():
        values[name] = spread(values[name], gap, found.definition.leading[name])
    outputs = {
        output.name: torch.empty(found.definition.shape(output, inputs.scope), dtype=TORCH[output.dtype], device="cuda")
        for output in found.definition.outputs
    }

    def load(spec: str) -> Callable[..., Any]:
        return load_function(folder, spec, build, **job.solution.settings)

    function = load(entry.entry)
    extra = {}
    if entry.prepare is not None:
        extra = {"prepared": load(entry.prepare)(**values)}
    if entry.call == "return":
        function(**values, **extra)
    elif entry.entry.split("::")[0].endswith(".cu"):
        function(*values.values(), *outputs.values())
    else:
        function(**values, **outputs, **extra)
    torch.cuda.synchronize()


def spread(dense: torch.Tensor, gap: int, leading: int = 1) -> torch.Tensor:
    """The same values with `gap` elements between two indices of the first `leading` dimensions, and none after the
    last."""
    rows = dense.flatten(0, leading - 1)
    pitch = rows[0].numel() + gap
    memory = torch.empty(pitch * rows.shape[0] - gap, dtype=dense.dtype, device=dense.device)
    view = memory.as_strided(rows.shape, (pitch, *rows.stride()[1:])).view(dense.shape)
    view.copy_(dense)
    return view


def defined(folder: Path, names: list[str], into: Path) -> Path:
    """A copy of a solution's folder whose .cu files begin by defining these names; their lines keep their numbers."""
    shutil.copytree(folder, into, ignore=shutil.ignore_patterns("traces"))
    sources = list(into.glob("*.cu"))
    if not sources:
        raise SpecError(f"{folder.name} has no .cu file to define {names[0]} in")
    for file in sources:
        macros = "".join(f"#define {name}\n" for name in names)
        file.write_text(f'{macros}#line 1 "{file.name}"\n{file.read_text()}')
    return into


def of_sources(folder: Path, into: Path) -> Path:
    """Where what is built of a solution's files lies: elsewhere for other files, macros that they define included."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    return into / hashlib.sha256(b"".join(file.name.encode() + file.read_bytes() for file in files)).hexdigest()[:16]


def macro(text: str) -> str:
    if re.fullmatch(r"[A-Za-z_]\w*", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a macro")
    return text


def gib(job: Job) -> float:
    """Of all inputs and outputs."""
    definition = job.found.definition
    return definition.bytes_held(job.workload.scope(definition, preset_of(job.found, job.workload))) / 2**30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("solution")
    parser.add_argument("definitions", nargs="*")
    parser.add_argument("--suite", action="append", default=[])
    parser.add_argument("--workload", action="append")
    parser.add_argument("--workloads", type=Path, help="of this file, of one definition")
    parser.add_argument("--solutions-dir", type=Path)
    parser.add_argument("--gib", type=float, default=1.0, help="workloads that hold more are left out (1)")
    parser.add_argument("--define", action="append", default=[], type=macro, metavar="NAME", help="for .cu files")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="keeps what is built (nothing is kept)")
    options = parser.parse_args()
    gpu = device("cuda")
    if gpu is None:
        print("no CUDA GPU here: compute-sanitizer has nothing to look at", file=sys.stderr)
        return 3
    try:
        solutions, _ = chosen_solutions([options.solution], options.solutions_dir)
        selected = select(options.definitions, options.suite, options.workload, options.workloads)
    except SpecError as error:
        print(error, file=sys.stderr)
        return 2
    done = left_out = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = solutions[0].folder
        if options.define:
            try:
                folder = defined(folder, options.define, Path(scratch) / "sources")
            except SpecError as error:
                print(error, file=sys.stderr)
                return 2
        build = of_sources(folder, options.build or Path(scratch) / "build")
        for job in plan(solutions, selected, gpu):
            if job.unsupported is not None or job.workload.drawn is not None or gib(job) > options.gib:
                left_out += 1
                continue
            call(job, folder, build)
            done += 1
            print(job.workload.name, file=sys.stderr, flush=True)  # what a run that is cut short has seen
    print(
        f"{options.solution}: {done} workloads called, {left_out} left out (unsupported, or over {options.gib:g} GiB)"
    )
    return 0 if done else 3


if __name__ == "__main__":
    sys.exit(main())
