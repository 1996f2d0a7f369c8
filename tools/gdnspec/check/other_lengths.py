"""A further call on the same memory with other lengths of sequences: who kept those of an earlier one is wrong there.

Where sequences differ in length they change places, each with its state, its slots and its flags, and the right answer
is that of the first call in another order. Where all are of one length the bounds between them move, and the reference
says what is right.
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

TRIES = 200  # at bounds that leave as many pieces of sequences as there were
CHEAP = 2000  # tokens up to which the reference is asked anew
# Times the workload's budget, which is that of other bounds: sequences change in length, and so do their sums.
SLACK = 2.0
WHAT = "on a further call with other lengths of sequences in the same memory"
HINT = "are lengths kept from an earlier call?"


@dataclass(frozen=True, eq=False)
class Relaid:
    """What the further call is given, without junk, and what judges what it leaves."""

    content: Content
    judge: Judge


def judged_anew(session: Session, relaid: Relaid) -> Verdict | None:
    """The verdict on the further call, or None where its answer is right. Raises `ChildFailed`."""
    answer = session.call(with_junk(session.definition, relaid.content))
    if answer.fault is not None:
        return Verdict(answer.fault.status, f"{WHAT}: {answer.fault.message}")
    failed = next((verdict for verdict in relaid.judge(answer.outputs) if verdict.status != "PASSED"), None)
    return None if failed is None else Verdict(failed.status, f"{WHAT} ({HINT}): {failed.message}", failed.errors)


def permuted(
    definition: Definition, content: Content, first: dict[str, Tensor], judge: Judge, generator: torch.Generator
) -> Relaid | None:
    """The sequences in an order that gives other lengths; None where there is none."""
    if roles.bounds(definition) is None:
        return None
    batch = Batch(definition, content)
    lengths = [batch.whole(n).stop for n in range(batch.count)]
    if len(set(lengths)) < 2:
        return None
    order = torch.randperm(batch.count, generator=generator).tolist()
    while [lengths[n] for n in order] == lengths:  # turned far enough it is another
        order = order[1:] + order[:1]
    pieces = [batch.whole(n) for n in order]

    def put_back(outputs: dict[str, Tensor]) -> list[Verdict]:
        whole = {name: x.clone() for name, x in first.items()}
        batch.put(whole, outputs, pieces)
        return judge(whole)

    return Relaid(batch.take(pieces), put_back)


def moved(definition: Definition, inputs: Inputs, generator: torch.Generator) -> Inputs | None:
    """The same tokens cut into as many sequences at other places; None where no other cut leaves all sizes as they are,
    or where it would take the reference long."""
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
    # Expected values are looked up by the hash: those of the first call are not right here.
    return replace(inputs, tensors=tensors, scope=inputs.scope | counted, sha256=digest(tensors))


def widened(workload: Workload) -> Workload:
    """The workload with the budget of other bounds."""
    budget: Budget = {
        output: {metric: limit * SLACK for metric, limit in limits.items()}
        for output, limits in (workload.budget or {}).items()
    }
    return workload.model_copy(update={"budget": budget})


def _other(definition: Definition, before: list[int], inputs: Inputs, generator: torch.Generator) -> list[int] | None:
    """Other lengths of the same sum, with as many pieces of each kind; None where none were found."""
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
