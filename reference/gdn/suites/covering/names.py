"""Names of gated delta net that suites go by."""

from gdnspec.family import Definition

INTERVAL = "checkpoint_interval"  # a scalar input: tokens from one checkpoint of a sequence to the next
CHECKPOINTS, CHUNKS = "num_checkpoints", "num_chunks"  # axes
CHUNK = 64  # tokens


def keeps_checkpoints(definition: Definition) -> bool:
    return any(axis.name == CHECKPOINTS for axis in definition.axes)


def counts_chunks(definition: Definition) -> bool:
    return any(axis.name == CHUNKS for axis in definition.axes)
