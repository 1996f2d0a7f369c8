"""Loads an entry point: a function of a Python file, or an export of a CUDA file built with tvm-ffi."""

import importlib.util
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

CUDA_FLAGS = ["-O3", "-std=c++17", "-lineinfo", "--expt-relaxed-constexpr"]


def load_function(folder: Path, spec: str, build_dir: Path) -> Callable[..., Any]:
    """The function that `file::function` names. Whatever goes wrong inside the solution's code is raised as it is."""
    file, function = spec.split("::")
    if file.endswith(".cu"):
        return getattr(_cuda_module(folder / file, build_dir), function)  # type: ignore[no-any-return]
    return getattr(_python_module(folder / file), function)  # type: ignore[no-any-return]


@cache
def _python_module(path: Path) -> ModuleType:
    # A kernel may import its neighbours; its own module gets a name that no package has.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = f"gdnspec_solution_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: Triton and dataclasses look a function's module up
    spec.loader.exec_module(module)
    return module


@cache
def _cuda_module(path: Path, build_dir: Path) -> Any:
    import torch
    import tvm_ffi.cpp

    major, minor = torch.cuda.get_device_capability()
    # The "a" variants hold what only one generation has, wgmma among it.
    os.environ["TVM_FFI_CUDA_ARCH_LIST"] = f"{major}.{minor}{'a' if major >= 9 else ''}"
    return tvm_ffi.cpp.load(
        name=f"{path.parent.name}_{path.stem}",
        cuda_files=[str(path)],
        extra_cuda_cflags=CUDA_FLAGS,
        extra_include_paths=[str(path.parent)],
        build_directory=str(build_dir / path.stem),
    )
