"""gdnspec doctor: what this machine can run, and why not."""

import os
from pathlib import Path
from typing import Annotated

import typer

from gdnspec import __version__, paths
from gdnspec.cli.console import add_row, print_json, print_table, say, table

UNWRITABLE = " (cannot be written: set GDNSPEC_CACHE)"


def doctor(
    solutions_dir: Annotated[Path | None, typer.Option(help="Also look for solutions here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Say what this machine can run, and why not."""
    from gdnspec.build import machine
    from gdnspec.catalog.solutions import solutions
    from gdnspec.worker import landlock

    gpu = machine.device("cuda")
    facts = {
        "gdnspec": __version__,
        "data": str(paths.data_root()),
        **machine.environment(machine.best_device()),
        "gpu": "none" if gpu is None else f"{gpu.name}, compute capability {'.'.join(map(str, gpu.capability or ()))}",
        "nvcc": machine.nvcc() or "none: CUDA solutions cannot be built",
        "triton on a CPU": f"interpreted, workloads of at most {_limit()} token-programs",
        "isolation": f"Landlock {landlock.abi()}" if landlock.abi() else "none: this kernel has no Landlock",
        "cache": str(paths.cache_dir()) + ("" if _writable(paths.cache_dir()) else UNWRITABLE),
    }
    known, problems = solutions(solutions_dir)
    devices = [device for device in (machine.device("cpu"), gpu) if device is not None]
    can = {
        name: {device.kind: machine.lacking(solution.manifest, device) or "yes" for device in devices}
        for name, solution in known.items()
    }
    if as_json:
        print_json({"machine": facts, "solutions": can, "problems": [str(problem) for problem in problems]})
        return
    for key, value in facts.items():
        say(f"{key:16} {value}")
    say()
    rows = table("", "solution", *(device.kind for device in devices))
    for name, answers in can.items():
        add_row(rows, name, *answers.values())
    print_table(rows)
    for problem in problems:
        say(f"cannot be used: {problem}")


def _limit() -> int:
    from gdnspec.runner.plan import INTERPRETER_LIMIT

    return INTERPRETER_LIMIT


def _writable(folder: Path) -> bool:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)
