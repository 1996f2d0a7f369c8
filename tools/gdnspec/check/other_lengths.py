"""Calls again in the same memory with other lengths of sequences: a kernel that kept the old lengths fails.

If the lengths differ, the sequences are permuted together with their states, slots and flags; the correct answer is
the first one in the new order. If all lengths are equal, the bounds between sequences move, and the reference computes
the correct answer.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gdnspec.check.batch import Batch
from gdnspec.check.call import Session
from gdnspec.check.content import Content
from gdnspec.check.junk import with_junk
from gdnspec.check.second import Judge
from gdnspec.inputs.array import CARRIER, Array
from gdnspec.inputs.materialise import Inputs, digest
from gdnspec.model import roles
from gdnspec.model.definition import Definition
from gdnspec.model.workload import Budget, Workload
from gdnspec.numerics.judge import Verdict

TRIES = 200  # to find bounds with the same number of pieces
CHEAP = 2000  # tokens: beyond this, the reference takes too long
# Factor on the workload's budget, which was measured with other bounds: longer sequences have longer sums.
SLACK = 2.0
WHAT = "on another call in the same memory, with other lengths of sequences"
HINT = "does the kernel keep lengths from an earlier call?"


@dataclass(frozen=True, eq=False)
class Relaid:
    """The content of the call with other lengths, without junk, and the judge of its outputs."""

    content: Content
    judge: Judge


def judged_anew(session: Session, relaid: Relaid) -> Verdict | None:
    """The verdict on the call with other lengths; None if its answer is correct. Raises `ChildFailed`."""
    answer = session.call(with_junk(session.definition, relaid.content))
    if answer.fault is not None:
        return Verdict(answer.fault.status, f"{WHAT}: {answer.fault.message}")
    failed = next((verdict for verdict in relaid.judge(answer.outputs) if verdict.status != "PASSED"), None)
    return None if failed is None else Verdict(failed.status, f"{WHAT} ({HINT}): {failed.message}", failed.errors)


def permuted(
    definition: Definition, content: Content, first: dict[str, Tensor], judge: Judge, generator: torch.Generator
) -> Relaid | None:
    """The sequences in an order with other lengths at each place; None if all lengths are equal."""
    if roles.bounds(definition) is None:
        return None
    batch = Batch(definition, content)
    lengths = [batch.whole(n).stop for n in range(batch.count)]
    if len(set(lengths)) < 2:
        return None
    order = torch.randperm(batch.count, generator=generator).tolist()
    while [lengths[n] for n in order] == lengths:  # a rotation always ends this loop
        order = order[1:] + order[:1]
    pieces = [batch.whole(n) for n in order]

    def put_back(outputs: dict[str, Tensor]) -> list[Verdict]:
        whole = {name: x.clone() for name, x in first.items()}
        batch.put(whole, outputs, pieces)
        return judge(whole)

    return Relaid(batch.padded(batch.take(pieces)), put_back)


def moved(definition: Definition, inputs: Inputs, generator: torch.Generator) -> Inputs | None:
    """The same tokens, cut at other places into the same number of sequences. None if no other cut keeps all sizes, or
    if the reference would take too long."""
    name = roles.bounds(definition)
    if name is None or inputs.scope[name][-1] > CHEAP:
        return None
    before = [b - a for a, b in zip(inputs.scope[name], inputs.scope[name][1:], strict=False)]
    lengths = _other(definition, before, inputs, generator)
    if lengths is None:
        return None
    counted = roles.starts(definition, lengths, inputs.scope)
    arrays = {other: _array(definition.input(other).dtype, values) for other, values in counted.items()}
    tensors = inputs.tensors | arrays
    # Expected values are looked up by this hash, so it must differ from that of the first call.
    return replace(inputs, tensors=tensors, scope=inputs.scope | counted, sha256=digest(tensors))


def widened(workload: Workload) -> Workload:
    """The workload with its budget multiplied by SLACK."""
    budget: Budget = {
        output: {metric: limit * SLACK for metric, limit in limits.items()}
        for output, limits in (workload.budget or {}).items()
    }
    return workload.model_copy(update={"budget": budget})


def _other(definition: Definition, before: list[int], inputs: Inputs, generator: torch.Generator) -> list[int] | None:
    """Other lengths with the same sum and the same number of pieces of each kind; None if none were found."""
    if len(before) < 2 or not sum(before):
        return None

    def below(n: int) -> int:
        return int(torch.randint(0, n, (1,), generator=generator))

    def counts(lengths: list[int]) -> dict[str, int]:
        return roles.sizes(definition, lengths, inputs.scope)

    for _ in range(TRIES):
        giver, taker = below(len(before)), below(len(before))
        if giver == taker or not before[giver]:
            continue
        lengths, tokens = list(before), 1 + below(before[giver])
        lengths[giver] -= tokens
        lengths[taker] += tokens
        if lengths != before and counts(lengths) == counts(before):
            return lengths
    return None


def _array(dtype: str, values: list[int]) -> Array:
    return Array(dtype, np.array(values, dtype=CARRIER[dtype]))
