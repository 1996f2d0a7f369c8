"""The environment of a child: the tools and libraries that it needs, and nothing private."""

import os
import re
from pathlib import Path

# Names that begin so, unless they look like a secret: vendors' keys begin like their libraries' settings.
PASSED_ON = (
    "PATH", "LANG", "LC_", "TZ", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CUDA", "NVIDIA", "NVCC", "CC", "CXX",
    "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OMP_", "MKL_", "TORCH", "TRITON", "TVM_FFI", "FLA_", "FLASHINFER",
)  # fmt: skip

# With these OpenMP binds each thread by its own id, which the child's filter refuses: OpenMP would end the process.
BINDING = ("OMP_PROC_BIND", "OMP_PLACES")

SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)


# Of a confined child the names alone: others that begin like these may hold a key.
PASSED_ON_CONFINED = (
    "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CUDA_HOME", "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CC", "CXX", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS",
    "TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)  # fmt: skip


# Where compilers keep what they have made, a folder each of the solution's own: HOME is another one with every child.
CACHES = {
    "TRITON_CACHE_DIR": "triton", "TVM_FFI_CACHE_DIR": "tvm-ffi", "TILELANG_CACHE_DIR": "tilelang",
    "CUTE_DSL_CACHE_DIR": "cute-dsl", "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}  # fmt: skip


def environment(work: Path, build_dir: Path, confined: bool, interpret: bool) -> dict[str, str]:
    """The variables of a child that works in `work` and keeps what compilers make in `build_dir`."""
    found = {name: value for name, value in os.environ.items() if _passed_on(name, confined)}
    found.pop("TRITON_INTERPRET", None)
    found |= {
        "HOME": str(work),
        "TMPDIR": str(work),
        "XDG_CACHE_HOME": str(work),
        **{variable: str(build_dir / name) for variable, name in CACHES.items()},
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin at a barrier slow every other process down tenfold
        "PYTHONFAULTHANDLER": "1",
    }
    if interpret:
        found["TRITON_INTERPRET"] = "1"
    return found


def _passed_on(name: str, confined: bool) -> bool:
    if confined:
        return name in PASSED_ON_CONFINED
    return name.startswith(PASSED_ON) and name not in BINDING and not SECRET.search(name)


def make_caches(build_dir: Path) -> None:
    """Not every compiler makes its own folder."""
    for name in CACHES.values():
        (build_dir / name).mkdir(parents=True, exist_ok=True)
