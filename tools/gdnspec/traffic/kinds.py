"""What limits the speed of a call: the launch, the chain of chunks, the memory, or the operations."""

from typing import Literal, NamedTuple

from gdnspec.model.trace import Ceilings
from gdnspec.numerics.floor import Work
from gdnspec.traffic.calls import Shape

Kind = Literal["launch", "chain", "memory", "compute"]
KINDS: dict[Kind, str] = {
    "launch": "over before it has begun: what the launch costs",
    "chain": "chunks of the longest sequence, one after the other",
    "memory": "bytes, at the device's copy bandwidth",
    "compute": "operations, at the device's matrix rate",
}

CHUNK = 64  # tokens
# Seconds on an H200. LAUNCH: a copy of almost no bytes in a graph (solutions/cuda_decode/README.md). SERIAL: the least
# time of one chunk in a chain, only the products that wait for each other (solutions/hopper_prefill/README.md).
LAUNCH, SERIAL = 1.1e-6, 0.43e-6


class Parts(NamedTuple):
    """The seconds that each part would take alone."""

    launch: float
    chain: float
    memory: float
    compute: float

    @property
    def kind(self) -> Kind:
        """The largest part."""
        names: tuple[Kind, ...] = ("launch", "chain", "memory", "compute")
        return max(zip(self, names, strict=True))[1]


def parts(call: Work, shape: Shape, ceilings: Ceilings) -> Parts:
    """The parts of a call on this device. Up to 16 tokens count as no chain, because the launch hides it."""
    chunks = -(-shape.longest // CHUNK) if shape.longest > 16 else 0
    return Parts(LAUNCH, chunks * SERIAL, call.bytes / ceilings.copy_bandwidth, call.operations / ceilings.matrix_rate)
