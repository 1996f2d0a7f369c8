"""Draws which slots of a pool the rows of a call read and write, and the size of the pool, if a line does not say."""

import numpy as np

from gdnspec.inputs.random import Stream
from gdnspec.model.definition import Definition
from gdnspec.model.roles import axis, padding

SKIPPED = 8  # one row in this many is skipped
SPARE = 3  # at least this many slots are not named by any row


def slots(
    definition: Definition, batch: int, tokens: int, stream: Stream, most: int = 0
) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Axes and integer inputs of a call of `batch` rows with `tokens` each; no slots if there is no pool.

    A row that writes one slot writes to the slot that it reads, or to another. Some rows are skipped. Flags are random.
    """
    naming = [tensor for tensor in definition.inputs if tensor.indexes is not None]
    if not naming:
        return {}, numbers(definition, batch, tokens, stream)
    pools = [tensor.indexes for tensor in naming]
    each = [tokens if len(tensor.shape or []) == 2 else 1 for tensor in naming]
    total = batch * sum(each) + SPARE + int(stream.raw(1)[0] % np.uint64(batch + 1))
    if most > total:
        total = int(total * (most / total) ** stream.uniform(1)[0])
    skip = padding(definition)
    free = iter([slot for slot in np.argsort(stream.raw(total), kind="stable").tolist() if slot > skip])
    values: dict[str, list[int]] = {tensor.name: [] for tensor in naming}
    for _ in range(batch):
        skipped, in_place = (int(x) for x in stream.raw(2) % np.array([SKIPPED, 2], dtype=np.uint64))
        first = next(free)
        for tensor, count in zip(naming, each, strict=True):
            alone = pools.count(tensor.indexes) == 1  # one input names the slot for both reading and writing
            shares = alone or not tensor.writes or (in_place and count == 1 and tokens == 1)
            chosen = [first] * count if shares else [next(free) for _ in range(count)]
            values[tensor.name] += [skip] * count if skipped == 0 else chosen
    for tensor in definition.inputs:
        if tensor.counts is not None:
            least = int((tensor.domain or [0])[0] or 0)
            values[tensor.name] = [least + int(x) for x in stream.raw(batch) % np.uint64(tokens + 1 - least)]
    for tensor in definition.inputs:
        if tensor.earlier is not None:
            drawn = stream.raw(batch * tokens).reshape(batch, tokens) % np.arange(1, tokens + 1, dtype=np.uint64)
            values[tensor.name] = [int(x) - 1 for x in drawn.flatten()]
        if tensor.is_flag:
            values[tensor.name] = [int(x) for x in stream.raw(batch) % np.uint64(2)]
    return {axis(definition, "slots") or "": total}, values | numbers(definition, batch, tokens, stream)


def numbers(definition: Definition, batch: int, tokens: int, stream: Stream) -> dict[str, list[int]]:
    """The integer inputs that have a number for each row, or for each of its tokens: any number of their domain."""
    found = {}
    for tensor in definition.inputs:
        if tensor.is_number and tensor.ends is not None:
            count = batch * (tokens if len(tensor.shape or []) == 2 else 1)
            low, high = tensor.ends
            found[tensor.name] = [low + int(x) for x in stream.raw(count) % np.uint64(high - low + 1)]
    return found
