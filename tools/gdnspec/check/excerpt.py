"""A sample of a large call, as a smaller call: some of its sequences and some of its heads.

Sequences and heads are independent, so the reference result of the small call is also the correct result for that part
of the large one. The axes of a tensor and its packed parts say which dimension holds sequences, tokens, slots or heads.
"""

import random
from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from gdnspec.check.batch import Batch
from gdnspec.check.call import Content
from gdnspec.inputs.materialise import Inputs, InvalidWorkload, digest
from gdnspec.model.definition import Definition
from gdnspec.model.elements import DerivedAxis, Part, Scope
from gdnspec.model.elements import Tensor as TensorModel
from gdnspec.model.expression import parse
from gdnspec.model.workload import Workload
from gdnspec.numerics.judge import Verdict
from gdnspec.numerics.pools import integers, named_slots
from gdnspec.numerics.torch_arrays import in_blocks, to_array

Outputs = dict[str, Tensor]


def chosen(count: int, wanted: int, seed: int) -> list[int]:
    """`wanted` numbers below `count`, ascending: the first, the last, and others drawn from the seed."""
    if count <= wanted:
        return list(range(count))
    inner = random.Random(seed).sample(range(1, count - 1), wanted - 2)
    return sorted({0, count - 1, *inner})


class Sample:
    """The part of a call that is compared with expected values. Raises `InvalidWorkload`."""

    def __init__(self, definition: Definition, workload: Workload, content: Content) -> None:
        assert workload.judged is not None
        self.definition, self.content = definition, content
        seed = workload.seed or 0
        self._batch = Batch(definition, content)
        if self._batch.sums:
            named = ", ".join(self._batch.sums)
            raise InvalidWorkload(f"{named}: a sum over all sequences, so no sample can be judged: leave out `judged`")
        sequences = chosen(self._batch.count, workload.judged.sequences, seed)
        self._pieces = [self._batch.whole(n) for n in sequences]
        self._heads = None if workload.judged.heads is None else _Heads(definition, content.scope)
        self._groups = [] if self._heads is None else chosen(self._heads.groups, workload.judged.heads or 0, seed)

    def inputs(self) -> Inputs:
        """The inputs of the small call. Its pools have only the slots that the sample names, in order."""
        part = self._batch.take(self._pieces)
        tensors, scope = dict(part.tensors), dict(part.scope)
        slots = named_slots(self.definition, scope)
        for pool, named in slots.items():
            tensors[pool] = tensors[pool][named]
            scope[str((self.definition.input(pool).shape or [])[0])] = len(named)
        for model in self.definition.inputs:
            if model.indexes is not None:
                place = {slot: i for i, slot in enumerate(slots[model.indexes])}
                moved = [place.get(slot, slot) for slot in scope[model.name]]
                like = tensors[model.name]
                tensors[model.name] = torch.tensor(moved, dtype=like.dtype, device=like.device).reshape(like.shape)
        if self._heads is not None:
            models = {model.name: model for model in self.definition.inputs}
            tensors = {name: self._heads.take(models[name], x, self._groups) for name, x in tensors.items()}
            scope |= self._heads.bound(self._groups)
        scope |= integers(tensors)
        arrays = {name: to_array(x) for name, x in tensors.items()}
        return Inputs(arrays, part.scalars, scope, digest(arrays))

    def outputs(self, whole: Mapping[str, Tensor]) -> Outputs:
        """The part of the whole call's outputs that belongs to the sample."""
        part = self._batch.get(whole, self._pieces)
        if self._heads is None:
            return part
        models = {model.name: model for model in self.definition.judged}
        return {name: self._heads.take(models[name], x, self._groups) for name, x in part.items()}


class _Heads:
    """Groups of heads that belong together: a key head with the value heads that use it, or the reverse."""

    def __init__(self, definition: Definition, scope: Scope) -> None:
        self.definition, self.scope = definition, scope
        self.names = definition.head_axes
        self.groups = min((int(scope[name]) for name in self.names), default=0)
        for model in definition.outputs:
            dimensions = len(model.shape or [])
            if self.groups < 1 or not any(self._parts(model, at) for at in range(dimensions)):
                raise InvalidWorkload(f"{model.name} has no dimension of heads: leave `heads` out of `judged`")

    def bound(self, groups: list[int]) -> Scope:
        """The axes of a call on only these groups."""
        values = {
            axis.name: int(self.scope[axis.name]) * (len(groups) if axis.name in self.names else self.groups)
            // self.groups
            for axis in self.definition.axes
            if not isinstance(axis, DerivedAxis)
        }  # fmt: skip
        return {axis.name: self.definition.bind(values)[axis.name] for axis in self.definition.axes if axis.name in
                self.names or isinstance(axis, DerivedAxis)}  # fmt: skip

    def take(self, model: TensorModel, x: Tensor, groups: list[int]) -> Tensor:
        """`x` with only the heads of these groups, in every dimension that holds heads."""
        for at in range(x.dim()):
            parts = self._parts(model, at)
            if parts:
                index, start = [], 0
                for names, sizes in parts:
                    places = torch.arange(start, start + prod(sizes)).reshape(sizes)
                    for i, (name, size) in enumerate(zip(names, sizes, strict=True)):
                        if name in self.names:
                            each = size // self.groups
                            heads = [head for group in groups for head in range(group * each, (group + 1) * each)]
                            places = places.index_select(i, torch.tensor(heads))
                    index.append(places.flatten())
                    start += prod(sizes)
                x = x.index_select(at, torch.cat(index).to(x.device))
        return x

    def _parts(self, model: TensorModel, at: int) -> list[tuple[list[str], tuple[int, ...]]]:
        """The parts of a dimension, each with the names and sizes of its own dimensions; empty without heads."""
        size = str((model.shape or [])[at])
        if size in self.names:
            return [([size], (int(self.scope[size]),))]
        axis = next((a for a in self.definition.axes if isinstance(a, DerivedAxis) and a.name == size), None)
        packed = model if model.parts and at == len(model.shape or []) - 1 else axis
        if packed is not None and packed.parts:
            shapes = self.definition.part_shapes(packed, self.scope)
            return [(self._named(part), shapes[part.name]) for part in packed.parts]
        if axis is not None and self._of_heads(axis):
            raise InvalidWorkload(
                f"axis {size!r} of {model.name} mixes heads without `parts`: leave `heads` out of `judged`"
            )
        return []

    @staticmethod
    def _named(part: Part) -> list[str]:
        return [str(size) for size in part.shape]

    def _of_heads(self, axis: DerivedAxis) -> bool:
        """Whether its size depends on the number of heads, directly or through other derived axes."""
        derived = {a.name: a for a in self.definition.axes if isinstance(a, DerivedAxis)}
        names = parse(axis.expression).names
        return any(name in self.names or (name in derived and self._of_heads(derived[name])) for name in names)


def unfinished(definition: Definition, outputs: Mapping[str, Tensor]) -> Verdict | None:
    """A verdict if any judged value is not finite, even outside the sample. Usually it was never written."""
    for model in definition.judged:
        first = 0
        for (part,) in in_blocks(outputs[model.name]):
            block = part.float() if part.element_size() == 1 else part  # PyTorch on a GPU asks no such float
            finite = torch.isfinite(block)
            if not bool(finite.all()):
                place = (~finite).nonzero()[0].tolist()
                place[0] += first
                shape = ", ".join(map(str, model.shape or []))
                message = f"{model.name} is not finite at {place} of [{shape}]: was it never written?"
                return Verdict("NON_FINITE", message)
            first += len(block)
    return None


GROSS = 0.25


def strayed(definition: Definition, outputs: Mapping[str, Tensor], first: Mapping[str, Tensor]) -> Verdict | None:
    """A verdict if an output of a call is far apart from that of the first call, with which it must agree."""
    judged = [model for model in definition.judged if model.name in outputs]
    apart = (_far_apart(model, outputs[model.name], first[model.name]) for model in judged)
    return next((verdict for verdict in apart if verdict is not None), None)


def _far_apart(model: TensorModel, a: Tensor, b: Tensor) -> Verdict | None:
    """A verdict if two calls that must agree differ by more than rounding could explain: by a quarter of a vector
    (along the last dimension) and of the average vector. It compares every element, even outside the sample."""
    first = 0
    for x, y in in_blocks(a, b):
        difference = torch.linalg.vector_norm(x.float() - y.float(), dim=-1)
        size = torch.linalg.vector_norm(y.float(), dim=-1)
        average = size.double().square().mean().sqrt().float() if size.numel() else size
        wrong = ~(difference <= GROSS * torch.maximum(size, average))
        if bool(wrong.any()):
            place = wrong.nonzero()[0].tolist()
            place[0] += first
            message = f"{model.name}: two calls that must agree differ strongly at {place}, outside the judged sample"
            return Verdict("INCORRECT_NUMERICAL", message)
        first += len(x)
    return None
