"""Finds out what this machine can run, and why not."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from packaging.requirements import InvalidRequirement, Requirement

from gdnspec.catalog.device_names import cpu_name, slug
from gdnspec.model.solution import Manifest

SAID = re.compile(r"""^__version__ *(?:: *str *)?= *["']([^"']+)["']""", re.MULTILINE)


@dataclass(frozen=True)
class Device:
    """A device for solutions: "cpu" or "cuda", its name, and the compute capability of a GPU."""

    kind: str
    name: str
    capability: tuple[int, int] | None = None

    @property
    def slug(self) -> str:
        """`nvidia-h200`: the name of a trace file."""
        return slug(self.name)


@cache
def device(kind: str) -> Device | None:
    """The device of that kind, or None."""
    if kind == "cpu":
        return Device("cpu", cpu_name())
    if not torch.cuda.is_available():
        return None
    return Device("cuda", torch.cuda.get_device_name(), torch.cuda.get_device_capability())


def best_device() -> Device:
    found = device("cuda") or device("cpu")
    assert found is not None
    return found


@cache
def version(package: str) -> str | None:
    """What its metadata says. A package may lie on the path without any, as an unpacked archive: then what its module
    says, which is not imported for that."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        names = dict.fromkeys((package.replace("-", "_"), package.partition("-")[0]))  # the module of fla-core is fla
        return next(filter(None, map(_said_by_module, names)), None)


def _said_by_module(name: str) -> str | None:
    """The `__version__` in a module's own text, unless the module belongs to an installed package of another name."""
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if spec is None or spec.origin is None or name in importlib.metadata.packages_distributions():
            return None
        found = SAID.search(Path(spec.origin).read_text())
    except (OSError, ValueError, ImportError):  # no text, or a module that a program has put together
        return None
    return found.group(1) if found else None


def environment(where: Device) -> dict[str, str | None]:
    """What a result depends on, besides the sources."""
    return {
        "device": where.name,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": version("triton"),
        "numpy": version("numpy"),
        "cuda": torch.version.cuda,
        "system": f"{platform.system()} {platform.machine()}",
    }


def nvcc() -> str | None:
    """The CUDA compiler that a build would use."""
    found = shutil.which("nvcc")
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if found is None and (home := os.environ.get(variable)):
            found = shutil.which("nvcc", path=str(Path(home) / "bin"))
    return found


def lacking(manifest: Manifest, where: Device, compiler: bool = True) -> str | None:
    """Why this machine cannot run the solution, or None. `compiler`: whether a compiler must be here, as it must unless
    the solution is built already."""
    requires = manifest.requires
    if requires.device not in ("any", where.kind):
        if requires.device == "cuda":
            return "needs a CUDA GPU: " + ("run with --device cuda" if device("cuda") else "this machine has none")
        return f"runs only on a {requires.device}"
    if requires.compute_capability is not None and where.capability is not None:
        major, minor = (int(x) for x in requires.compute_capability.split("."))
        if where.capability < (major, minor):
            return f"needs compute capability {requires.compute_capability}, but this GPU has {where.capability}"
    for line in requires.packages:
        reason = _package(line)
        if reason is not None:
            return reason
    if compiler and any(source.endswith(".cu") for source in manifest.sources) and nvcc() is None:
        return "needs nvcc to build: install the CUDA toolkit, or set CUDA_HOME"
    return None


def _package(line: str) -> str | None:
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return f"requires.packages: {line!r} is not a valid requirement"
    if requirement.marker is not None and not requirement.marker.evaluate():
        return None
    have = version(requirement.name)
    if have is None:
        return f'needs {line}: pip install "{line}"'
    if not requirement.specifier.contains(have, prereleases=True):
        return f'needs {line}, but {have} is installed: pip install "{line}"'
    return None
