"""gdnspec doctor: show what this machine can run."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdnspec import __version__, paths
from gdnspec.cli.console import add_row, complain, print_json, print_table, say, table
from gdnspec.cli.options import AsJson, SolutionsDir

if TYPE_CHECKING:
    from gdnspec.build.machine import Device

UNWRITABLE = " (not writable: set GDNSPEC_CACHE to another folder)"


def doctor(
    solutions_dir: SolutionsDir = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure this GPU's copy bandwidth and matrix rate again, and keep the result."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what this machine can run, and what is missing for the rest."""
    from gdnspec.catalog.solutions import solutions

    known, problems = solutions(solutions_dir)

    from gdnspec.build import machine
    from gdnspec.sandbox.child import landlock

    gpu = machine.device("cuda")
    facts = {
        "gdnspec": __version__,
        "data": str(paths.data_root()),
        **machine.environment(machine.best_device()),
        "gpu": "none" if gpu is None else f"{gpu.name}, compute capability {'.'.join(map(str, gpu.capability or ()))}",
        "nvcc": machine.nvcc() or "none: CUDA solutions cannot be built",
        "triton on a CPU": f"interpreted, workloads of at most {_limit()} token-programs",
        "isolation": f"Landlock {landlock.abi()}" if landlock.abi() else "none: this Linux has no Landlock",
        **_walls("cpu" if gpu is None else "cuda"),
        "cache": str(paths.cache_dir()) + ("" if _writable(paths.cache_dir()) else UNWRITABLE),
    }
    if measure:
        facts |= _measured(gpu)
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


def _walls(device: str) -> dict[str, str]:
    """The other parts of the isolation that intake and submit need, and whether it is complete for this device."""
    from gdnspec.sandbox.child import isolation, namespaces, seccomp

    missing = isolation.offered(device)
    lacks = f"not fully isolated on {device}: {missing}; nothing is run without --trusted"
    return {
        "seccomp": "yes" if seccomp.available() else "none: this kernel cannot filter system calls",
        "namespaces": "yes" if namespaces.allowed() else "none: this user may not make namespaces here",
        "intake": lacks if missing else f"fully isolated on {device}",
    }


def _measured(gpu: "Device | None") -> dict[str, str]:
    """The rates from which every bound is computed, measured again. Exits with code 3 if there is no GPU."""
    if gpu is None:
        complain("gdnspec: this machine has no CUDA GPU, so --measure has nothing to measure")
        raise typer.Exit(3)

    from gdnspec.bench.ceilings import ceilings

    found = ceilings(gpu, again=True)
    return {
        "copy bandwidth": _of(found.copy_bandwidth / 1e12, found.nominal_bandwidth, 1e12, "TB/s, read and written"),
        "matrix rate": _of(found.matrix_rate / 1e12, found.nominal_rate, 1e12, "TFLOP/s, dense bfloat16"),
    }


def _of(value: float, nominal: float | None, unit: float, name: str) -> str:
    share = f", {value * unit / nominal:.0%} of the nominal {nominal / unit:.3g}" if nominal else ""
    return f"{value:.3g} {name}{share}"


def _limit() -> int:
    from gdnspec.check.plan import INTERPRETER_LIMIT

    return INTERPRETER_LIMIT


def _writable(folder: Path) -> bool:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)
