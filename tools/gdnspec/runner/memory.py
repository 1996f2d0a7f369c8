"""Whether a workload fits, before anything is drawn."""

from gdnspec.catalog.definitions import Found, presets
from gdnspec.inputs.memory import available
from gdnspec.model.workload import Workload

ON_A_CPU = 10  # times its bytes: drawn, shared, in float64 for the reference, and what that makes
ON_A_GPU = 3  # of the host's memory: drawn, and as a tensor; the rest is the GPU's, which says so itself


def check_memory(found: Found, workload: Workload, device: str) -> None:
    """Raises `MemoryError` with the bytes that it needs."""
    scope = workload.scope(found.definition, presets()[workload.preset])
    need = found.definition.bytes_moved(scope, workload.omitted(found.definition))
    need *= ON_A_CPU if device == "cpu" else ON_A_GPU
    have = available()
    if have is not None and need > have:
        raise MemoryError(f"it needs about {need / 2**30:.1f} GiB, {have / 2**30:.1f} GiB are free")
