"""The environment variables of a child: tools and libraries that it needs, and nothing private."""

import os
import re
from pathlib import Path

# Prefixes of names that are passed on, unless a name looks like a secret: vendors' keys have the same prefixes.
PASSED_ON = (
    "PATH", "LANG", "LC_", "TZ", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CUDA", "NVIDIA", "NVCC", "CC", "CXX",
    "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OMP_", "MKL_", "TORCH", "TRITON", "TVM_FFI", "FLA_", "FLASHINFER",
)  # fmt: skip

# These make OpenMP bind each thread by its own id, which the child's filter refuses: OpenMP would end the process.
BINDING = ("OMP_PROC_BIND", "OMP_PLACES")

SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)


# A confined child gets only these exact names: others with these prefixes may contain a key.
PASSED_ON_CONFINED = (
    "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CUDA_HOME", "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CC", "CXX", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS",
    "TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)  # fmt: skip


# Compilers' caches, in folders of the solution: HOME differs for every child.
CACHES = {
    "TRITON_CACHE_DIR": "triton", "TVM_FFI_CACHE_DIR": "tvm-ffi", "TILELANG_CACHE_DIR": "tilelang",
    "CUTE_DSL_CACHE_DIR": "cute-dsl", "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}  # fmt: skip


def environment(work: Path, build_dir: Path, confined: bool, interpret: bool) -> dict[str, str]:
    """The variables of a child that works in `work`, with compilers' caches in `build_dir`."""
    found = {name: value for name, value in os.environ.items() if _passed_on(name, confined)}
    found.pop("TRITON_INTERPRET", None)
    found |= {
        "HOME": str(work),
        "TMPDIR": str(work),
        "XDG_CACHE_HOME": str(work),
        **{variable: str(build_dir / name) for variable, name in CACHES.items()},
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin at a barrier slow down every other process tenfold
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
    """Creates the cache folders, which not every compiler does itself."""
    for name in CACHES.values():
        (build_dir / name).mkdir(parents=True, exist_ok=True)
