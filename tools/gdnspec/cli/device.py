"""The option --device: where solutions run."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gdnspec.cli.console import complain
from gdnspec.model.errors import SpecError

if TYPE_CHECKING:
    from gdnspec.build.machine import Device


def require_device(name: str) -> None:
    """Raises `SpecError` unless --device takes this name. It imports nothing."""
    if name not in ("auto", "cpu", "cuda"):
        raise SpecError(f"no device {name!r}: --device takes auto, cpu or cuda")


def likely_device(name: str) -> str:
    """The kind of device that `chosen_device` will probably find, without importing torch."""
    if name != "auto":
        return name
    return "cuda" if any(Path(driver).exists() for driver in ("/dev/nvidiactl", "/dev/dxg")) else "cpu"


def chosen_device(name: str) -> "Device":
    """The device that auto, cpu or cuda means on this machine. Exits with code 3 if there is none."""
    require_device(name)

    from gdnspec.build import machine

    if name == "auto":
        return machine.best_device()
    found = machine.device(name)
    if found is None:
        complain("gdnspec: this machine has no CUDA GPU; gdnspec doctor shows what it can run")
        raise typer.Exit(3)
    return found
