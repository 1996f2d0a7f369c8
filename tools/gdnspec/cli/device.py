"""The option --device: where solutions run."""

from typing import TYPE_CHECKING

import typer

from gdnspec.cli.console import complain
from gdnspec.model.errors import SpecError

if TYPE_CHECKING:
    from gdnspec.build.machine import Device


def chosen_device(name: str) -> "Device":
    """The device that auto, cpu or cuda means on this machine. Exits with code 3 if there is none."""
    from gdnspec.build import machine

    if name == "auto":
        return machine.best_device()
    if name not in ("cpu", "cuda"):
        raise SpecError(f"no device {name!r}: --device takes auto, cpu or cuda")
    found = machine.device(name)
    if found is None:
        complain("gdnspec: this machine has no CUDA GPU; gdnspec doctor shows what it can run")
        raise typer.Exit(3)
    return found
