"""A ring of buffers for timing: every call finds content of its own, and every output is verified.

Content comes from the exact symmetries: one base call, whose outputs are known, multiplied by signs and powers of two
of each call's own, and permuted anew for each round. All buffers of a tensor lie at equal distances, so that one
operation fills, poisons or compares it in all of them: filling and verifying moves few times the bytes of the calls.

Of a pool every call has slots of its own, anywhere in it: which ones they are makes no difference to what is computed.
"""

import contextlib
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from gdnspec.bench.multiples import differing, multiple, write
from gdnspec.bench.returned import Opened
from gdnspec.bench.ring_layout import Layout
from gdnspec.bench.spot_checks import Left, Samples, Scattered
from gdnspec.check.call import Content, description, number, poison
from gdnspec.check.junk import with_junk
from gdnspec.check.plan import Job
from gdnspec.check.second import BY_PLACE, Judge
from gdnspec.check.symmetry import Transformation, apply_all, draw, same_values, undo_all
from gdnspec.numerics.judge import Verdict
from gdnspec.numerics.pools import left, untouched
from gdnspec.sandbox.parent.process import Child, ChildFailed
from gdnspec.sandbox.wire.arena import GUARD_BYTE, Arena, create

CHECKED = 256  # slots at a time


class Ring:
    """`count` sets of buffers, in `reserve` where that has room for them. Use as a context manager; raises
    `MemoryError` where the device is full."""

    def __init__(
        self, job: Job, content: Content, first: Mapping[str, Tensor], child: Child, count: int, timeout: float,
        reserve: Arena | None = None,
    ) -> None:  # fmt: skip
        self.job, self.content, self.child = job, content, child
        self.count, self.timeout, self.device = count, timeout, job.device.kind
        self.definition = job.found.definition
        self.layout = Layout(self.definition, job.workload.gaps, content, count)
        # Slots that a call names and leaves as they are must be found again, which NaN never is.
        kept = {name: set(slots) - set(self._written(name)) for name, slots in self.layout.named.items()}
        junked = with_junk(self.definition, content, kept)
        self._reserve = reserve if reserve is not None and self.nbytes <= reserve.nbytes else None
        self._arena: Arena | None = None
        # A call's inputs, and what it leaves behind, first as they are and then permuted; of pools the named slots.
        self._inputs = self._compacted(junked.tensors)
        self._outputs = {**first, **self._whole_pools(first)}
        self._base, self._want = self._inputs, self._outputs
        self._filled = 0
        self._permuted: list[Transformation] = []
        self._factors: list[Transformation] = []
        self._views: dict[str, Tensor] = {}
        self._rows: dict[str, Tensor] = {}  # of each pool, the slots of every call, [count, named]
        self._opened = Opened()
        self._returned: dict[int, dict[str, list[Tensor]]] = {}  # by length of a graph: what its calls return
        self._fetched: dict[str, list[Tensor]] = {}  # of the window that was filled last, by call
        self._pointers: dict[tuple[int, str], Tensor] = {}
        self._samples: Samples | None = None
        self._seen: Tensor | None = None

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    def __enter__(self) -> "Ring":
        self._arena = self._reserve or create(self.device, self.nbytes)
        self._views = self.layout.views(self._block)
        for guard in self.layout.guards(self._block):
            guard.fill_(GUARD_BYTE)
        for name, named in self.layout.named.items():
            pool = self._views[name]
            for i in range(0, len(pool), CHECKED):  # NaN, for whoever reads a slot that no call names
                _bytes(pool[i : i + CHECKED]).fill_(GUARD_BYTE)
            slots = torch.randperm(len(pool), device=pool.device)[: self.count * len(named)]
            self._rows[name] = slots.view(self.count, len(named))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._arena is not None
        if error is None or isinstance(error, ChildFailed):
            with contextlib.suppress(ChildFailed):
                self.child.close(self.timeout)
        else:
            self.child.end()  # as with a session: it would have this memory open for the next
        self._views, self._returned, self._fetched, self._samples = {}, {}, {}, None
        self._opened.close()
        if self._reserve is None:
            self._arena.close()
        self._arena = None

    def open(self) -> float | None:
        """Lets the child map it and prepare, on content that was filled in before; seconds of one `prepare`. Raises
        `ChildFailed`."""
        assert self._arena is not None
        entry = self.job.entry.model_dump()
        message = description(self.definition, entry, self.content, self.layout.slots)
        message |= {"stride": self.layout.stride, "count": self.count, "shared": sorted(self.layout.shared)}
        return number(self.child.ring(message, self._arena, self.timeout).get("prepare_seconds"))

    def returned(self, calls: int, told: dict[str, Any] | None) -> None:
        """Where a graph of so many calls leaves what they return, by the child's word; None where that is where the
        judge looks. Raises `NoSuchMemory`."""
        self._returned.pop(calls, None)
        if told is not None:
            shapes = [(output, self.definition.shape(output, self.content.scope)) for output in self.definition.outputs]
            self._returned[calls] = found = self._opened.returned(told, shapes, self._block)
            for name, tensors in found.items():
                places = [tensor.data_ptr() for tensor in tensors]
                self._pointers[calls, name] = torch.tensor(places, dtype=torch.int64, device=self.device)

    def permute(self, generator: torch.Generator) -> None:
        """A new order of channels and heads, for all calls until the next."""
        self._permuted = [one for one in self._draw(generator, None) if one.indices]
        self._base, self._want = (apply_all(self._permuted, x) for x in (self._inputs, self._outputs))

    def fill(self, generator: torch.Generator, calls: int, graph: bool = False) -> None:
        """New factors for the first `calls` buffers, each its own, and outputs that nobody could have meant. Slots of
        other calls are named by nobody, as those that no call has. `graph`: the window to come replays one."""
        for name, slots in self._rows.items():
            stale = slots[calls : self._filled].flatten()
            for i in range(0, len(stale), CHECKED):
                _bytes(self._views[name])[stale[i : i + CHECKED]] = GUARD_BYTE
        self._filled = calls
        self._factors = [one for one in self._draw(generator, calls) if one.factors]
        for name, base in self._base.items():
            pool = self.definition.input(name).indexes
            if name in self._rows:
                rows = self._rows[name][:calls]
                write(self._views[name], base.contiguous(), self._product(name, base), rows)
            elif pool is not None:
                self._views[name][:calls] = _renamed(base, self._rows[pool][:calls])
            else:
                write(self._views[name][:calls], base.contiguous(), self._product(name, base))
        for output in self.definition.outputs:
            poison(self._views[output.name][:calls])
        self._fetched = self._returned.get(calls, {}) if graph else {}
        self._samples = Samples(list(self._left()), generator)

    def look(self) -> None:
        """At some elements of what the calls left, as soon as the child says that they are there."""
        assert self._samples is not None
        self._seen = self._samples.take()

    def verify(self, judge: Judge) -> Verdict | None:
        """What is wrong with what the calls on the buffers last filled left; None where each is what it must be, and
        was so at the first look."""
        for name, tensors in self._fetched.items():
            torch._foreach_copy_(list(self._views[name][: self._filled].unbind()), tensors)
        wrong = self._wrong(judge)
        return wrong or self._changed_since()

    def _changed_since(self) -> Verdict | None:
        """What calls left, looked at once more."""
        assert self._samples is not None
        if self._seen is None or torch.equal(self._seen, self._samples.take()):
            return None
        message = "what a timed call left changed after its process had said that it was done"
        return Verdict("SUSPECT_TIMING", message)

    def _left(self) -> Iterator[Left | Scattered]:
        """What the calls leave, where they leave it."""
        for name in self._want:
            if name in self._rows:
                yield Left(self._views[name].flatten(1), self._rows[name][: self._filled])
            elif name in self._fetched:
                tensors = [_row(tensor) for tensor in self._fetched[name]]
                yield Scattered(tensors, self._pointers[self._filled, name])
            else:
                yield Left(self._views[name][: self._filled].flatten(1))

    def _wrong(self, judge: Judge) -> Verdict | None:
        for name, want in self._want.items():
            factors = self._product(name, want)
            rows = self._rows[name][: self._filled] if name in self._rows else None
            got = self._views[name] if rows is not None else self._views[name][: self._filled]
            for i in differing(got, want.contiguous(), factors, rows).nonzero().flatten().tolist():
                mine = got[i] if rows is None else got[rows[i]]
                if not bool(same_values(mine, multiple(want, factors, i)).all()):
                    verdict = self._judged(i, judge)
                    if verdict is not None:
                        return verdict
                    break
        return None

    def overrun(self) -> Verdict | None:
        """What is wrong where something was written that no call may write to; None where nothing was."""
        if not all(bool((guard == GUARD_BYTE).all()) for guard in self.layout.guards(self._block)):
            return Verdict("RUNTIME_ERROR", "wrote outside of every tensor in a timed call")
        for name, rows in self._rows.items():
            pool = self._views[name]
            free = torch.ones(len(pool), dtype=torch.bool, device=pool.device)
            free[rows[: self._filled].flatten()] = False
            unnamed = free.nonzero().flatten()
            for i in range(0, len(unnamed), CHECKED):
                if not bool((_bytes(pool[unnamed[i : i + CHECKED]]) == GUARD_BYTE).all()):
                    return Verdict("MUTATED_INPUT", f"a slot of {name} was written to that no timed call names")
        return None

    @property
    def _block(self) -> Tensor:
        assert self._arena is not None
        assert self._arena.block is not None
        return self._arena.block

    # --- content ------------------------------------------------------------------------------------------------

    def _compacted(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of pools the slots that are named, in order; slots by their place among those."""
        found = dict(tensors)
        for name, named in self.layout.named.items():
            found[name] = tensors[name][named]
        for model in self.definition.inputs:
            if model.indexes is not None:
                slots = tensors[model.name]
                known = torch.tensor(self.layout.named[model.indexes], dtype=slots.dtype, device=slots.device)
                places = torch.searchsorted(known, slots).to(slots.dtype)
                found[model.name] = torch.where(slots < 0, slots, places)
        return found

    def _whole_pools(self, first: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The named slots as the first call left them: `first` has those alone that it wrote."""
        found = {}
        for name, named in self.layout.named.items():
            written = self._written(name)
            found[name] = self._inputs[name].clone()
            if first:
                found[name][[named.index(slot) for slot in written]] = first[name]
        return found

    def _written(self, pool: str) -> list[int]:
        """The slots that the first call writes."""
        return self.definition.written(self.definition.input(pool), self.content.scope) or []

    def _judged(self, first: int, judge: Judge) -> Verdict | None:
        """A difference: forgiven where nothing but the budget is promised and all calls keep it."""
        deterministic = self.job.solution.manifest.deterministic
        for i in range(first, self._filled):
            outputs, written_to = self._of_call(i)
            failed = next((verdict for verdict in judge(outputs) if verdict.status != "PASSED"), written_to)
            if failed is not None:
                return Verdict(failed.status, f"in call {i} of a timed window: {failed.message}", failed.errors)
            if deterministic:
                message = "the outputs of a timed call are not those of the same call untimed; the symmetries are exact"
                return Verdict("NOT_REPRODUCIBLE", f"call {i} of a timed window: {message}; {BY_PLACE}")
        return None

    def _of_call(self, i: int) -> tuple[dict[str, Tensor], Verdict | None]:
        """What call `i` left, its transformations undone; and what is wrong with slots that it was to read alone."""
        found = {
            name: self._views[name][self._rows[name][i]] if name in self._rows else self._views[name][i]
            for name in self._want
        }
        found = undo_all([*self._permuted, *(one.of_call(i) for one in self._factors)], found)
        slots = {name: x.flatten().tolist() for name, x in self._inputs.items() if self._indexes(name)}
        return found | left(self.definition, found, slots), untouched(self.definition, self._inputs, found)

    def _indexes(self, name: str) -> bool:
        return self.definition.input(name).indexes is not None

    def _draw(self, generator: torch.Generator, count: int | None) -> list[Transformation]:
        drawn = draw(self.definition, self.content.scope, generator, count)
        return [one for one in drawn if one.symmetry.exact]  # what calls leave is compared bit for bit

    def _product(self, name: str, like: Tensor) -> Tensor | None:
        """What each call multiplies a tensor by: [calls, ...], of size 1 where that does not vary. None for nothing."""
        product = None
        for one in self._factors:
            if name in one.factors:
                dimension, factor = one.factors[name]
                shape = (len(factor), *[1] * dimension, -1, *[1] * (like.dim() - dimension - 1))
                shaped = factor.to(like.device).reshape(shape)
                product = shaped if product is None else product * shaped
        return product


def _renamed(slots: Tensor, rows: Tensor) -> Tensor:
    """The slots of each call, [calls, *shape], from their places among those that it names; -1 stays."""
    if not rows.shape[1]:
        return slots.expand(len(rows), *slots.shape)
    chosen = rows[:, slots.long().flatten().clamp(min=0)].view(len(rows), *slots.shape)
    return torch.where(slots < 0, slots, chosen.to(slots.dtype))


def _row(x: Tensor) -> Tensor:
    """One call's output, or a part of it, as elements side by side: strides are the solution's affair."""
    if x.is_contiguous():
        return x.view(-1)
    return x.as_strided((x.shape[-1] if x.stride(-1) == 1 else 1,), (1,), x.storage_offset())


def _bytes(x: Tensor) -> Tensor:
    return x.flatten(1).view(torch.uint8)
