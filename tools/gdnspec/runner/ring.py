"""A ring of buffers for timing: every call finds content of its own, and every output is verified.

Content comes from the exact symmetries: one base call, whose outputs are known, multiplied by signs and powers of two
of each call's own, and permuted anew for each round. All buffers of a tensor lie at equal distances, so that one
operation fills, poisons or compares it in all of them: filling and verifying moves few times the bytes of the calls.
"""

import contextlib
from collections.abc import Iterator, Mapping
from types import TracebackType

import torch
from torch import Tensor

from gdnspec.compare.judge import Verdict
from gdnspec.model.dtypes import SIZES
from gdnspec.protocol.arena import GUARD_BYTE, TORCH, Arena, Slot, create, lay_out, zones
from gdnspec.runner.call import Content, description, number, poison
from gdnspec.runner.child import Child, ChildFailed
from gdnspec.runner.multiples import differing, write
from gdnspec.runner.plan import Job
from gdnspec.runner.second import Judge
from gdnspec.runner.symmetry import Transformation, apply_all, draw, same_values, undo_all


class Ring:
    """`count` sets of buffers, in `reserve` where that has room for them. Use as a context manager; raises
    `MemoryError` where the device is full."""

    def __init__(
        self, job: Job, content: Content, first: Mapping[str, Tensor], child: Child, count: int, timeout: float,
        reserve: Arena | None = None,
    ) -> None:  # fmt: skip
        self.job, self.content, self.first, self.child = job, content, dict(first), child
        self.count, self.timeout, self.device = count, timeout, job.device.kind
        definition = job.found.definition
        tensors = [(n, definition.input(n).dtype, tuple(x.shape)) for n, x in content.tensors.items()]
        tensors += [(t.name, t.dtype, definition.shape(t, content.scope)) for t in definition.outputs]
        slots, nbytes = lay_out(tensors)
        self.stride = nbytes  # a multiple of the alignment
        self._slots: dict[str, Slot] = {slot.name: slot for slot in slots}
        self._zones = zones(slots, nbytes)
        self._reserve = reserve if reserve is not None and self.nbytes <= reserve.nbytes else None
        self._arena: Arena | None = None
        self._filled = 0
        self._permuted: list[Transformation] = []
        self._base, self._want = content.tensors, self.first  # a call's inputs and outputs, permuted
        self._factors: list[Transformation] = []
        self._views: dict[str, Tensor] = {}

    @property
    def nbytes(self) -> int:
        return self.stride * self.count

    def __enter__(self) -> "Ring":
        self._arena = self._reserve or create(self.device, self.nbytes)
        assert self._arena.block is not None
        self._views = {name: self._stacked(slot) for name, slot in self._slots.items()}
        for guard in self._guards():
            guard.fill_(GUARD_BYTE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._arena is not None
        if error is None or isinstance(error, ChildFailed):
            with contextlib.suppress(ChildFailed):
                self.child.close(self.timeout)
        self._views = {}
        if self._reserve is None:
            self._arena.close()
        self._arena = None

    def open(self) -> float | None:
        """Lets the child map it and prepare; seconds of one `prepare`. Raises `ChildFailed`."""
        assert self._arena is not None
        definition, entry = self.job.found.definition, self.job.entry.model_dump()
        message, fds = description(definition, entry, self.content, self._slots, self._arena)
        message |= {"stride": self.stride, "count": self.count}
        return number(self.child.ring(message, fds, self.timeout).get("prepare_seconds"))

    def permute(self, generator: torch.Generator) -> None:
        """A new order of channels and heads, for all calls until the next."""
        self._permuted = [one for one in self._draw(generator, None) if one.indices]
        self._base, self._want = (apply_all(self._permuted, x) for x in (self.content.tensors, self.first))

    def fill(self, generator: torch.Generator, calls: int) -> None:
        """New factors for the first `calls` buffers, each its own, and outputs that nobody could have meant."""
        self._filled = calls
        self._factors = [one for one in self._draw(generator, calls) if one.factors]
        for name, base in self._base.items():
            write(self._views[name][:calls], base.contiguous(), self._product(name, base))
        for output in self.job.found.definition.outputs:
            poison(self._views[output.name][:calls])

    def verify(self, judge: Judge) -> Verdict | None:
        """What is wrong with the outputs of the buffers last filled; None where each is what it must be."""
        for name, base in self._want.items():
            got, factors = self._views[name][: self._filled], self._product(name, base)
            for i in differing(got, base.contiguous(), factors).nonzero().flatten().tolist():
                want = base if factors is None else base * factors[i].to(base.dtype)
                if not bool(same_values(got[i], want).all()):
                    verdict = self._judged(i, judge)
                    if verdict is not None:
                        return verdict
                    break
        return None

    def overrun(self) -> Verdict | None:
        """What is wrong where something was written outside of every tensor, in any call; None where nothing was."""
        if all(bool((guard == GUARD_BYTE).all()) for guard in self._guards()):
            return None
        return Verdict("RUNTIME_ERROR", "wrote outside of every tensor in a timed call")

    def _guards(self) -> Iterator[Tensor]:
        """Each guard zone in all buffers: [count, bytes]."""
        assert self._arena is not None
        assert self._arena.block is not None
        rows = self._arena.block[: self.nbytes].view(self.count, self.stride)
        return (rows[:, zone] for _, zone in self._zones)

    # --- content ------------------------------------------------------------------------------------------------

    def _judged(self, first: int, judge: Judge) -> Verdict | None:
        """A difference: forgiven where nothing but the budget is promised and all calls keep it."""
        deterministic = self.job.solution.manifest.deterministic
        for i in range(first, self._filled):
            outputs = self._outputs(i)
            failed = next((verdict for verdict in judge(outputs) if verdict.status != "PASSED"), None)
            if failed is not None:
                return Verdict(failed.status, f"in call {i} of a timed window: {failed.message}", failed.errors)
            if deterministic:
                message = "the outputs of a timed call are not those of the same call untimed; the symmetries are exact"
                return Verdict("NOT_REPRODUCIBLE", f"call {i} of a timed window: {message}")
        return None

    def _outputs(self, i: int) -> dict[str, Tensor]:
        """Those of call `i`, its transformations undone."""
        factors = [one.of_call(i) for one in self._factors]
        outputs = {output.name: self._views[output.name][i] for output in self.job.found.definition.outputs}
        return undo_all([*self._permuted, *factors], outputs)

    def _draw(self, generator: torch.Generator, count: int | None) -> list[Transformation]:
        return draw(self.job.found.definition, self.content.scope, generator, count)

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

    def _stacked(self, slot: Slot) -> Tensor:
        """One tensor in all buffers: [count, *shape]."""
        assert self._arena is not None
        assert self._arena.block is not None
        size = SIZES[slot.dtype]
        flat = self._arena.block[: self.nbytes].view(TORCH[slot.dtype])
        strides = [1] * len(slot.shape)
        for i in range(len(slot.shape) - 2, -1, -1):
            strides[i] = strides[i + 1] * slot.shape[i + 1]
        return flat.as_strided((self.count, *slot.shape), (self.stride // size, *strides), slot.offset // size)
