"""Calls one workload repeatedly in the same memory. Each call gets new content and poisoned outputs; its outputs are
copied as soon as it ends."""

import contextlib
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from gdnspec.check.content import Content as Content
from gdnspec.check.junk import with_junk
from gdnspec.check.plan import Job
from gdnspec.model.definition import Definition
from gdnspec.model.roles import axis, behind, bounds
from gdnspec.numerics.judge import Verdict
from gdnspec.numerics.pools import integers, left, untouched
from gdnspec.numerics.torch_arrays import give_back, in_blocks
from gdnspec.sandbox.parent.output import printable
from gdnspec.sandbox.parent.process import Child, ChildFailed
from gdnspec.sandbox.wire.arena import GUARD_BYTE, Arena, Slot, create, lay_out, zones

LARGE = 1 << 30  # bytes: larger inputs are not copied a second time


@dataclass(frozen=True, eq=False)
class Answer:
    """What a call returned: the outputs, and the inputs that it mutated. `fault` is a problem that needs no comparison
    of numbers. The child reports the seconds, so they are not trusted."""

    outputs: dict[str, Tensor]
    fault: Verdict | None
    seconds: float | None
    prepare_seconds: float | None


class Session:
    """Calls with tensors of the same shapes. The child maps the memory and prepares once; then the judge calls it as
    often as it likes.

    Every call gets the same pointers, and may get other content. Junk replaces everything in `content` that no call may
    read. Use as a context manager.
    """

    def __init__(self, job: Job, content: Content, device: str, child: Child, timeout: float) -> None:
        self.definition, self.entry = job.found.definition, job.entry.model_dump()
        self.device, self.child, self.timeout = device, child, timeout
        self.content = with_junk(self.definition, content)
        tensors = [(n, self.definition.input(n).dtype, tuple(x.shape)) for n, x in content.tensors.items()]
        tensors += [(t.name, t.dtype, self.definition.shape(t, content.scope)) for t in self.definition.outputs]
        slots, self._nbytes = lay_out(tensors, job.workload.gaps, self.definition.leading)
        self._zones = zones(slots, self._nbytes)
        self._slots: dict[str, Slot] = {slot.name: slot for slot in slots}
        self._arena: Arena | None = None
        self._prepare_seconds: float | None = None
        self._prepared_for: list[int] | None = None  # the bounds of sequences at the last `prepare`

    def __enter__(self) -> "Session":
        """Raises `MemoryError` if the device has no room."""
        give_back(self.device)
        self._arena = create(self.device, self._nbytes)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._arena is not None
        if error is None or isinstance(error, ChildFailed):
            with contextlib.suppress(ChildFailed):  # too late to change the verdict
                self._let_go()
        else:
            # Out of memory, or Ctrl-C: the child may be inside a call, and must not keep this memory open.
            self.child.end()
        self._arena.close()
        self._arena = None

    def call(self, content: Content | None = None) -> Answer:
        """One call, on the session's content or on other content of the same shapes. `prepare` runs again if the
        lengths of sequences differ. Raises `ChildFailed`."""
        given = self.content if content is None else content
        views = self.ready(given)
        give_back(self.device)
        return self.answer(given, views, self.child.call(self.timeout))

    def replayed(self) -> Answer | str:
        """The session's call as a CUDA graph, replayed once; or why it cannot be captured. Raises `ChildFailed`."""
        views = self.ready(self.content)
        give_back(self.device)
        reply = self.child.replay(self.timeout)
        why_not = reply.get("why_not")
        return self.answer(self.content, views, reply) if why_not is None else printable(str(why_not), 300)

    def with_tensors(self, tensors: dict[str, Tensor]) -> Content:
        """The session's content, with its tensors replaced by these."""
        return replace(self.content, tensors=tensors)

    def ready(self, content: Content) -> dict[str, Tensor]:
        """Fills the memory for a call, and makes sure that the child has opened it and prepared. Returns the tensors in
        this memory. Raises `ChildFailed`."""
        views = self._fill(content)
        lengths = self._lengths(content)
        if not self.is_open:
            self._open(self._held)
        elif self.entry["prepare"] is not None and lengths != self._prepared_for:
            self._prepare_again()
        else:
            return views
        self._prepared_for = lengths
        return self._fill(content)  # undo what `prepare` may have written

    def answer(self, content: Content, views: dict[str, Tensor], reply: dict[str, Any]) -> Answer:
        """The outputs of a call, copied at once: later writes do not count."""
        outputs = {output.name: views[output.name].clone() for output in self.definition.outputs}
        after = {name: self._kept(name, views[name]) for name in content.tensors}
        block = self._block
        overrun = [name for name, zone in self._zones if not bool((block[zone] == GUARD_BYTE).all())]
        overrun += [name for name, slot in self._slots.items() if not bool((slot.gaps(block) == GUARD_BYTE).all())]
        fault = _overrun(overrun) or self._form(reply) or self._mutated(content.tensors, after)
        fault = self._behind(content, outputs) or fault
        return Answer(outputs | self._left(after), fault, number(reply.get("seconds")), self._prepare_seconds)

    def _behind(self, content: Content, outputs: dict[str, Tensor]) -> Verdict | None:
        """A verdict if the call wrote to rows of an output that no sequence has. They become zero: what a solution
        returns there, in memory of its own, does not count."""
        first, tokens = behind(self.definition, content.scope), axis(self.definition, "tokens")
        fault = None
        for output in self.definition.outputs if first is not None else ():
            if (output.shape or [""])[0] == tokens:
                rows = outputs[output.name][first:]
                poisoned = torch.empty_like(rows)
                poison(poisoned)
                if self.entry["call"] == "out" and not same_bits(rows, poisoned):
                    message = f"the call wrote to rows of {output.name} behind the last sequence"
                    fault = fault or Verdict("MUTATED_INPUT", message)
                rows.zero_()
        return fault

    def _kept(self, name: str, view: Tensor) -> Tensor:
        """An input after a call: a copy, or the memory itself if it is large and only compared."""
        compared = not self.definition.input(name).mutates and view.nbytes > LARGE
        return view if compared else view.clone()

    @property
    def is_open(self) -> bool:
        """Whether the child has mapped this session's memory."""
        return self.child.is_open

    @property
    def _held(self) -> Arena:
        assert self._arena is not None
        return self._arena

    @property
    def _block(self) -> Tensor:
        assert self._held.block is not None
        return self._held.block

    def _lengths(self, content: Content) -> list[int] | None:
        name = bounds(self.definition)
        return None if name is None else content.tensors[name].tolist()

    def _prepare_again(self) -> None:
        self.child.prepare(self.timeout)

    def _let_go(self) -> None:
        self.child.close(self.timeout)

    def _fill(self, content: Content) -> dict[str, Tensor]:
        block = self._block
        for _, zone in self._zones:
            block[zone] = GUARD_BYTE
        for slot in self._slots.values():
            slot.gaps(block).fill_(GUARD_BYTE)
        views = {name: slot.view(block) for name, slot in self._slots.items()}
        for name, value in content.tensors.items():
            views[name].copy_(value)
        for output in self.definition.outputs:
            poison(views[output.name])
        if self.device == "cuda":
            torch.cuda.synchronize()
        return views

    def _open(self, arena: Arena) -> None:
        message = description(self.definition, self.entry, self.content, self._slots)
        self._prepare_seconds = number(self.child.open(message, arena, self.timeout).get("prepare_seconds"))

    def _form(self, reply: dict[str, Any]) -> Verdict | None:
        """Compares the shape and type of returned outputs with the definition."""
        if self.entry["call"] == "out":
            return None  # the parent allocated the outputs
        returned: Any = reply.get("returned")
        outputs = self.definition.outputs
        told = isinstance(returned, list) and all(isinstance(got, dict) for got in returned)
        if not told or len(returned) != len(outputs):
            return Verdict("PROTOCOL_ERROR", "the process did not report what the entry returned")
        for output, got in zip(outputs, returned, strict=True):
            wanted = list(self._slots[output.name].shape)
            if got.get("shape") != wanted:
                return Verdict(
                    "INCORRECT_SHAPE", f"{output.name} has shape {printable(str(got.get('shape')), 80)}, not {wanted}"
                )
        for output, got in zip(outputs, returned, strict=True):
            if got.get("dtype") != output.dtype:
                return Verdict(
                    "INCORRECT_DTYPE", f"{output.name} is {printable(str(got.get('dtype')), 40)}, not {output.dtype}"
                )
        return None

    def _mutated(self, before: dict[str, Tensor], after: dict[str, Tensor]) -> Verdict | None:
        for name, value in after.items():
            if not self.definition.input(name).mutates and not same_bits(value, before[name]):
                return Verdict("MUTATED_INPUT", f"the call wrote to the input {name}, which it may only read")
        return untouched(self.definition, before, after)

    def _left(self, after: dict[str, Tensor]) -> dict[str, Tensor]:
        """The mutated inputs after the call; only the written slots of an indexed one."""
        return left(self.definition, after, integers(after))


def description(
    definition: Definition, entry: dict[str, Any], content: Content, slots: dict[str, Slot]
) -> dict[str, Any]:
    """The message that tells a child how to call on its memory."""
    return {
        "entry": entry,
        "slots": {name: slot.to_json() for name, slot in slots.items()},
        "inputs": [tensor.name for tensor in definition.inputs],
        "outputs": [output.name for output in definition.outputs],
        "scalars": content.scalars,
    }


def poison(tensor: Tensor) -> None:
    """Fills an output before the call with values that no kernel could mean."""
    if tensor.is_floating_point():
        tensor.fill_(torch.nan)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).min if tensor.dtype != torch.bool else True)


def _overrun(names: list[str]) -> Verdict | None:
    if not names:
        return None
    return Verdict("RUNTIME_ERROR", f"the call wrote outside its tensors, behind {', '.join(names)}")


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether the bits are equal: NaN equals itself, and +0 differs from -0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return all(
        torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8)) for x, y in in_blocks(a, b)
    )


def number(value: Any) -> float | None:
    """A time that the child reports, or None if it is not plausible. It is shown, never trusted."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9
    return float(value) if known else None
