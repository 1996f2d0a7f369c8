"""What a call's time is made of, so what a kernel for it should be good at."""

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
# Seconds on an H200: a bare copy in a graph as its bytes go to none (solutions/cuda_decode/README.md), and the fewest
# that one chunk of a chain has taken, products that wait for one another alone (solutions/hopper_prefill/README.md).
LAUNCH, SERIAL = 1.1e-6, 0.43e-6


class Parts(NamedTuple):
    """Seconds that each would take alone."""

    launch: float
    chain: float
    memory: float
    compute: float

    @property
    def kind(self) -> Kind:
        """The largest."""
        names: tuple[Kind, ...] = ("launch", "chain", "memory", "compute")
        return max(zip(self, names, strict=True))[1]


def parts(call: Work, shape: Shape, ceilings: Ceilings) -> Parts:
    """Of a call on this device. A decode or verify of a few tokens has no chain: a launch hides it."""
    chunks = -(-shape.longest // CHUNK) if shape.longest > 16 else 0
    return Parts(LAUNCH, chunks * SERIAL, call.bytes / ceilings.copy_bandwidth, call.operations / ceilings.matrix_rate)
