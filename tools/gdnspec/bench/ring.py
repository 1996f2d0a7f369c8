"""A ring of buffers for timing: every call gets its own content, and every output is verified.

Exact symmetries give the content: the outputs of one base call are known, and each call multiplies it by its own signs
and powers of two; each round permutes it anew. The buffers of a tensor are at equal distances, so that one operation
fills, poisons or compares all of them. Filling and verifying thus move only a few times the bytes of the calls.

Every call has its own slots of a pool, anywhere in it: the choice of slots does not affect what is computed.
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
from gdnspec.check.excerpt import strayed
from gdnspec.check.junk import with_junk
from gdnspec.check.plan import Job
from gdnspec.check.second import Judge, by_place
from gdnspec.check.symmetry import Transformation, apply_all, draw, same_values, undo_all
from gdnspec.model.roles import padding
from gdnspec.numerics.judge import Verdict
from gdnspec.numerics.pools import left, untouched
from gdnspec.sandbox.parent.process import Child, ChildFailed
from gdnspec.sandbox.wire.arena import GUARD_BYTE, Arena, create

CHECKED = 256  # slots per step


class Ring:
    """`count` sets of buffers, in `reserve` if they fit there. Use as a context manager. Raises `MemoryError` if the
    device is full."""

    def __init__(
        self, job: Job, content: Content, first: Mapping[str, Tensor], child: Child, count: int, timeout: float,
        reserve: Arena | None = None,
    ) -> None:  # fmt: skip
        self.job, self.content, self.child = job, content, child
        self.count, self.timeout, self.device = count, timeout, job.device.kind
        self.definition = job.found.definition
        self.layout = Layout(self.definition, job.workload.gaps, content, count)
        # NaN could not be compared later, so slots that a call names but does not write get no junk.
        kept = {name: set(slots) - set(self._written(name)) for name, slots in self.layout.named.items()}
        junked = with_junk(self.definition, content, kept)
        self._reserve = reserve if reserve is not None and self.nbytes <= reserve.nbytes else None
        self._arena: Arena | None = None
        # The inputs of the base call and what it leaves, later permuted. Pools have only the named slots.
        self._inputs = self._compacted(junked.tensors)
        self._first = dict(first)
        self._outputs = {**first, **self._whole_pools(first)}
        self._base, self._want = self._inputs, self._outputs
        self._filled = 0
        self._permuted: list[Transformation] = []
        self._factors: list[Transformation] = []
        self._views: dict[str, Tensor] = {}
        self._rows: dict[str, Tensor] = {}  # for each pool, the slots of every call, [count, named]
        self._opened = Opened()
        self._returned: dict[int, dict[str, list[Tensor]]] = {}  # for each length of a graph: what its calls return
        self._fetched: dict[str, list[Tensor]] = {}  # for the window that was filled last, by call
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
            for i in range(0, len(pool), CHECKED):  # NaN for a kernel that reads a slot that no call names
                _bytes(pool[i : i + CHECKED]).fill_(GUARD_BYTE)
            first = 1 + padding(self.definition)  # no call gets the slot that means none
            slots = first + torch.randperm(len(pool) - first, device=pool.device)[: self.count * len(named)]
            same = self._rows.get(self.definition.input(name).pool)  # scales are in the slots of their codes
            self._rows[name] = slots.view(self.count, len(named)) if same is None else same
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._arena is not None
        if error is None or isinstance(error, ChildFailed):
            with contextlib.suppress(ChildFailed):
                self.child.close(self.timeout)
        else:
            self.child.end()  # as in a session: it would keep this memory open for the next one
        self._views, self._returned, self._fetched, self._samples = {}, {}, {}, None
        self._opened.close()
        if self._reserve is None:
            self._arena.close()
        self._arena = None

    def open(self) -> float | None:
        """Lets the child map the ring and prepare, on content that is already there. Returns the seconds of one
        `prepare`. Raises `ChildFailed`."""
        assert self._arena is not None
        entry = self.job.entry.model_dump()
        message = description(self.definition, entry, self.content, self.layout.slots)
        message |= {"stride": self.layout.stride, "count": self.count, "shared": sorted(self.layout.shared)}
        return number(self.child.ring(message, self._arena, self.timeout).get("prepare_seconds"))

    def returned(self, calls: int, told: dict[str, Any] | None) -> None:
        """Records where a graph of `calls` calls leaves its outputs, as the child reports it; None means in the ring
        itself. Raises `NoSuchMemory`."""
        self._returned.pop(calls, None)
        if told is not None:
            shapes = [(output, self.definition.shape(output, self.content.scope)) for output in self.definition.outputs]
            self._returned[calls] = found = self._opened.returned(told, shapes, self._block)
            for name, tensors in found.items():
                places = [tensor.data_ptr() for tensor in tensors]
                self._pointers[calls, name] = torch.tensor(places, dtype=torch.int64, device=self.device)

    def permute(self, generator: torch.Generator) -> None:
        """Draws a new order of channels and heads, for all calls until the next."""
        self._permuted = [one for one in self._draw(generator, None) if one.indices]
        self._base, self._want = (apply_all(self._permuted, x) for x in (self._inputs, self._outputs))

    def fill(self, generator: torch.Generator, calls: int, graph: bool = False) -> None:
        """Draws new factors for each of the first `calls` buffers, and fills outputs with values that no kernel could
        mean. No call names the slots of later buffers. `graph`: the next window replays a graph."""
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
                self._views[name][:calls] = _renamed(base, self._rows[pool][:calls], padding(self.definition))
            else:
                write(self._views[name][:calls], base.contiguous(), self._product(name, base))
        for output in self.definition.outputs:
            poison(self._views[output.name][:calls])
        self._fetched = self._returned.get(calls, {}) if graph else {}
        self._samples = Samples(list(self._left()), generator)

    def look(self) -> None:
        """Reads some elements of the outputs, as soon as the child says that they are there."""
        assert self._samples is not None
        self._seen = self._samples.take()

    def verify(self, judge: Judge) -> Verdict | None:
        """The verdict on the outputs of the last window; None if all are correct and unchanged since the first look."""
        for name, tensors in self._fetched.items():
            torch._foreach_copy_(list(self._views[name][: self._filled].unbind()), tensors)
        wrong = self._wrong(judge)
        return wrong or self._changed_since()

    def _changed_since(self) -> Verdict | None:
        """A verdict if the sampled elements have changed since the first look."""
        assert self._samples is not None
        if self._seen is None or torch.equal(self._seen, self._samples.take()):
            return None
        message = "the outputs of a timed call changed after its process had reported that it was done"
        return Verdict("SUSPECT_TIMING", message)

    def _left(self) -> Iterator[Left | Scattered]:
        """The outputs of the calls, in their places."""
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
        """A verdict if a timed call wrote where no call may write."""
        if not all(bool((guard == GUARD_BYTE).all()) for guard in self.layout.guards(self._block)):
            return Verdict("RUNTIME_ERROR", "a timed call wrote outside its tensors")
        for name, rows in self._rows.items():
            pool = self._views[name]
            free = torch.ones(len(pool), dtype=torch.bool, device=pool.device)
            free[rows[: self._filled].flatten()] = False
            unnamed = free.nonzero().flatten()
            for i in range(0, len(unnamed), CHECKED):
                if not bool((_bytes(pool[unnamed[i : i + CHECKED]]) == GUARD_BYTE).all()):
                    return Verdict("MUTATED_INPUT", f"a timed call wrote to a slot of {name} that no call names")
        return None

    @property
    def _block(self) -> Tensor:
        assert self._arena is not None
        assert self._arena.block is not None
        return self._arena.block

    # --- content ------------------------------------------------------------------------------------------------

    def _compacted(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors with only the named slots of each pool, in order. Slots become their places among these."""
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
        """The named slots after the first call. `first` has only the slots that it wrote."""
        found = {}
        for name, named in self.layout.named.items():
            written = self._written(name)
            found[name] = self._inputs[name].clone()
            if name in first:  # else a pool that is only read
                found[name][[named.index(slot) for slot in written]] = first[name]
        return found

    def _written(self, pool: str) -> list[int]:
        """The slots that the first call writes."""
        return self.definition.written(self.definition.input(pool), self.content.scope) or []

    def _judged(self, first: int, judge: Judge) -> Verdict | None:
        """The verdict on a difference. A solution that promises only the budget may differ within it."""
        deterministic = self.job.solution.manifest.deterministic
        for i in range(first, self._filled):
            outputs, written_to = self._of_call(i)
            failed = next((verdict for verdict in judge(outputs) if verdict.status != "PASSED"), written_to)
            if failed is None and self.job.workload.judged is not None:
                failed = strayed(self.definition, outputs, self._first)
            if failed is not None:
                return Verdict(failed.status, f"in call {i} of a timed window: {failed.message}", failed.errors)
            if deterministic:
                message = (
                    "the outputs of a timed call differ from those of the same untimed call; the symmetries are exact"
                )
                return Verdict(
                    "NOT_REPRODUCIBLE", f"call {i} of a timed window: {message}; {by_place(self.job.solution)}"
                )
        return None

    def _of_call(self, i: int) -> tuple[dict[str, Tensor], Verdict | None]:
        """The outputs of call `i` without its transformations, and a verdict if it changed slots to read."""
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
        return [one for one in drawn if one.symmetry.exact]  # outputs are compared bit for bit

    def _product(self, name: str, like: Tensor) -> Tensor | None:
        """The factors of a tensor for each call: [calls, ...], with size 1 where they do not vary; or None."""
        product = None
        for one in self._factors:
            if name in one.factors:
                dimension, factor = one.factors[name]
                shape = (len(factor), *[1] * dimension, -1, *[1] * (like.dim() - dimension - 1))
                shaped = factor.to(like.device).reshape(shape)
                product = shaped if product is None else product * shaped
        return product


def _renamed(slots: Tensor, rows: Tensor, skip: int) -> Tensor:
    """The slots of each call, [calls, *shape], from their places among its named slots; that of none stays."""
    if not rows.shape[1]:
        return slots.expand(len(rows), *slots.shape)
    chosen = rows[:, slots.long().flatten().clamp(min=0)].view(len(rows), *slots.shape)
    return torch.where(slots <= skip, slots, chosen.to(slots.dtype))


def _row(x: Tensor) -> Tensor:
    """Elements of one call's output that are adjacent in memory: all of it, or a part if it is strided."""
    if x.is_contiguous():
        return x.view(-1)
    return x.as_strided((x.shape[-1] if x.stride(-1) == 1 else 1,), (1,), x.storage_offset())


def _bytes(x: Tensor) -> Tensor:
    return x.flatten(1).view(torch.uint8)
