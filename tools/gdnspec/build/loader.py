"""Loads an entry point: a function of a Python file, or an export of a CUDA file that tvm-ffi builds."""

import contextlib
import hashlib
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from gdnspec.build.kept_builds import NoCompiler, library, rebuilt

PREFIX = "gdnspec_solution_"  # of the names of modules with entry points
CUDA_FLAGS = ["-std=c++17", "-lineinfo", "--expt-relaxed-constexpr"]


def load_function(
    folder: Path,
    spec: str,
    build_dir: Path,
    defines: Mapping[str, int] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The function that `file::function` names. Exceptions of the solution's code are not caught.

    A variant has `defines`, macros for compiling a .cu file, or `arguments`, keyword arguments for a Python
    function."""
    file, function = spec.split("::")
    if file.endswith(".cu"):
        macros = tuple(sorted((defines or {}).items()))
        return getattr(_cuda_module(folder / file, build_dir, macros), function)  # type: ignore[no-any-return]
    found = getattr(_python_module(folder / file), function)
    return partial(found, **arguments) if arguments else found


def define_flags(defines: Mapping[str, int]) -> list[str]:
    """Compiler flags for the macros of a variant."""
    return [f"-D{name}={value}" for name, value in sorted(defines.items())]


@cache
def _python_module(path: Path) -> ModuleType:
    _make_way_for_neighbours_in(path.parent.resolve())
    # The module gets a name that no package has.
    name = f"{PREFIX}{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, because Triton and dataclasses look up a function's module
    spec.loader.exec_module(module)
    return module


_solution_folders: set[Path] = set()


def _make_way_for_neighbours_in(folder: Path) -> None:
    """Lets a kernel import the files beside it by their bare names. Another solution in this process may have files
    with the same names, so modules from other solutions' folders are removed, and this folder comes first on the path.
    Modules that were already imported keep their references; only later imports are affected."""
    _solution_folders.add(folder)
    others = tuple(f"{one}{os.sep}" for one in _solution_folders if one != folder)
    for name, module in list(sys.modules.items()):
        file = str(getattr(module, "__file__", None))  # as text: there are thousands
        if file.startswith(others) and not name.startswith(PREFIX) and not file.startswith(f"{folder}{os.sep}"):
            del sys.modules[name]
    sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]


_importing = threading.RLock()
_neighbours: dict[Path, dict[str, ModuleType]] = {}


@contextlib.contextmanager
def apart(folder: Path) -> Iterator[None]:
    """Loads a solution in a process that is not its own: the names of the files beside its kernel, and the path that
    they are found by, are as before when it ends. Such a file may be named like a module of the program."""
    with _importing:
        path = list(sys.path)
        names = {entry.stem for entry in folder.iterdir() if entry.suffix == ".py" or entry.is_dir()}
        before = _taken(names)
        sys.modules.update(_neighbours.get(folder, {}))
        try:
            yield
        finally:
            _neighbours[folder] = _taken(names)
            sys.path[:] = path
            sys.modules.update(before)


def _taken(names: set[str]) -> dict[str, ModuleType]:
    """Takes the modules of these names out of the process, with those below them."""
    found = [name for name in sys.modules if name.partition(".")[0] in names]
    return {name: sys.modules.pop(name) for name in found}


@cache
def _cuda_module(path: Path, build_dir: Path, macros: tuple[tuple[str, int], ...]) -> Any:
    import torch
    import tvm_ffi.cpp

    # Two variants of a file need two libraries.
    own = [hashlib.sha256(repr(macros).encode()).hexdigest()[:12]] if macros else []
    major, minor = torch.cuda.get_device_capability()
    # The "a" targets have instructions of one generation only, such as wgmma.
    target = f"{major}.{minor}{'a' if major >= 9 else ''}"
    flags = [*CUDA_FLAGS, *define_flags(dict(macros))]
    name = "_".join([path.parent.name, path.stem, *own])

    def make(scratch: Path) -> Path:
        from gdnspec.build.machine import nvcc  # late: it imports manifests and pydantic

        if nvcc() is None:
            raise NoCompiler("needs nvcc to build: install the CUDA toolkit, or set CUDA_HOME")
        os.environ["TVM_FFI_CUDA_ARCH_LIST"] = target
        built = tvm_ffi.cpp.build(
            name=name, cuda_files=[str(path)], extra_cuda_cflags=flags, extra_ldflags=_cudart_folders(),
            extra_include_paths=[str(path.parent)], build_directory=str(scratch),
        )  # fmt: skip
        return Path(built)

    folder = build_dir / "_".join([path.stem, *own])
    depends = (target, flags, tvm_ffi.__version__, torch.version.cuda)
    file = library(folder, name, depends, make)
    try:
        return tvm_ffi.load_module(file)
    except (OSError, RuntimeError):  # not a library, or one for other versions: once more, from the sources
        return tvm_ffi.load_module(rebuilt(file, name, depends, make))


def _cudart_folders() -> list[str]:
    """The folders of libcudart, for an nvcc on PATH that is a link or script outside its toolkit."""
    from gdnspec.build.machine import nvcc  # late: it imports manifests and pydantic

    compiler = nvcc()
    if compiler is None:
        return []
    said = subprocess.run([compiler, "--dryrun", "-x", "cu", "/dev/null"], capture_output=True, text=True).stderr
    top = next((line.split("TOP=", 1)[1].strip() for line in said.splitlines() if "TOP=" in line), "")
    candidates = [Path(top) / name for name in ("lib64", "lib", "targets/x86_64-linux/lib")] if top else []
    return [f"-L{folder}" for folder in candidates if any(folder.glob("libcudart.so*"))]
