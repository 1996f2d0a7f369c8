"""Slots of a pool for the rows of a batch, the same for each name."""

import random
import zlib

Row = tuple[int, int]  # the slot that it reads, the slot that it writes
SKIPPED = (-1, -1)


def somewhere(name: str, count: int, num_slots: int) -> list[int]:
    """`count` slots, the same for each name."""
    return random.Random(zlib.crc32(name.encode())).sample(range(num_slots), count)


def in_place(name: str, batch: int, num_slots: int) -> list[Row]:
    return [(slot, slot) for slot in somewhere(name, batch, num_slots)]


def moved(name: str, batch: int, num_slots: int) -> list[Row]:
    slots = somewhere(name, 2 * batch, num_slots)
    return list(zip(slots[:batch], slots[batch:], strict=True))


def shared(name: str, batch: int, num_slots: int) -> list[Row]:
    """All rows start from one slot, as sequences with a prefix in common do."""
    first, *others = somewhere(name, batch + 1, num_slots)
    return [(first, slot) for slot in others]
