"""Draw the slots of an engine's pool that a batch uses. Each row has slots of its own."""

from collections.abc import Iterator

import numpy as np

from gdnspec.inputs.random import Stream
from gdnspec.model.definition import Definition
from gdnspec.model.roles import axis, padding


def rows_of(definition: Definition, batch: int, tokens: int, seed: int) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Axes and integer inputs for `batch` rows of `tokens` each; empty if the definition has no pool. A decode row
    writes to the slot that it reads. A verify row has a slot per token, and starts from the state that the last step
    accepted. The pool has a quarter more slots, for requests that are not in the batch."""
    naming = [tensor for tensor in definition.inputs if tensor.indexes is not None]
    known = dict(_numbers(definition, batch, tokens))
    if not naming:
        return {}, known
    counting = [tensor.name for tensor in definition.inputs if tensor.counts is not None]
    verifies, slots = bool(counting), axis(definition, "slots") or ""
    each = tokens + 1 if verifies else 1
    stream = Stream(seed, "slots")
    total = batch * each + max(1, batch * each // 4) + 1 + padding(definition)
    order = np.argsort(stream.raw(total), kind="stable")
    free = order[order > padding(definition)][: batch * each].reshape(batch, each)
    if not verifies:
        return {slots: total}, {tensor.name: free[:, 0].tolist() for tensor in naming} | known
    values = {
        tensor.name: (free[:, 1:].reshape(-1) if len(tensor.shape or []) == 2 else free[:, 0]).tolist()
        for tensor in naming
    }
    # A step accepts at least one token, and at most all of them.
    for name in counting:
        values[name] = (1 + stream.raw(batch) % np.uint64(tokens)).tolist()
    for tensor in definition.inputs:
        if tensor.earlier is not None:  # drafts one after the other
            values[tensor.name] = [*range(-1, tokens - 1)] * batch
    return {slots: total}, values


def _numbers(definition: Definition, batch: int, tokens: int) -> Iterator[tuple[str, list[int]]]:
    """A request of a log is prefilled whole: what counts before a call is at its least, and all tokens are there."""
    for tensor in definition.inputs:
        if tensor.is_number and tensor.ends is not None:
            low, high = tensor.ends
            each = len(tensor.shape or []) == 2
            yield tensor.name, [high] * (batch * tokens) if each else [low] * batch
