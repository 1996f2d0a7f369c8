"""The calls of a session: what the scheduler says in tokens and slots becomes the inputs of a definition."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gdnspec.catalog.definitions import Found
from gdnspec.check.content import Content
from gdnspec.inputs.materialise import scalars
from gdnspec.inputs.session_contract import MIXED, SessionWords
from gdnspec.model import roles
from gdnspec.model.preset import Preset
from gdnspec.model.session_line import SessionLine
from gdnspec.model.workload import Workload
from gdnspec.sandbox.wire.arena import TORCH

# Runs one call: its kind, definition, line and content. Returns outputs, and of each pool the written slots in order.
Run = Callable[[str, Found, Workload, Content], dict[str, Tensor]]
SKIPPED = -1  # the slot of a row that pads


@dataclass(frozen=True, eq=False)
class Made:
    """A call that was made, and its output."""

    kind: str
    found: Found
    content: Content
    output: Tensor


@dataclass(eq=False)
class Kernels:
    """The entries that a session calls. `made`: the calls so far, until the judge takes them."""

    line: SessionLine
    preset: Preset
    words: SessionWords
    served: Mapping[str, Found]
    weights: Mapping[str, Tensor]
    run: Run
    made: list[Made] = field(default_factory=list)

    def prefill(self, tokens: Mapping[str, Tensor], lengths: Sequence[int], before: Tensor | None) -> Tensor:
        """Whole pieces of sequences, from states [sequences, ..] or from nothing. Returns the states after them."""
        found = self._ragged("prefill", tokens, lengths, self._before("prefill", before), {})
        return found[self.words.roles["prefill"]["after"]]

    def keep(
        self, tokens: Mapping[str, Tensor], lengths: Sequence[int], before: Tensor | None, interval: int
    ) -> tuple[Tensor, list[Tensor]]:
        """As `prefill`. Returns also the states after every `interval` tokens of each sequence."""
        names = self.words.roles["keep"]
        found = self._ragged("keep", tokens, lengths, self._before("keep", before), {names["interval"]: interval})
        kept = list(torch.split(found[names["kept"]], [length // interval for length in lengths]))
        return found[names["after"]], kept

    def keep_absolute(
        self, tokens: Mapping[str, Tensor], lengths: Sequence[int], before: Tensor | None, interval: int,
        starts: Sequence[int],
    ) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
        """As `keep`, at multiples of `interval` of each request, which has seen `starts` tokens before."""
        names = self.words.roles["keep_absolute"]
        integers = {names["starts"]: list(starts)}
        given = {names["interval"]: interval}
        found = self._ragged("keep_absolute", tokens, lengths, self._before("keep_absolute", before), given, integers)
        return found[names["after"]], self._edges(found[names["kept"]], lengths, interval)

    def prefill_pool(
        self, tokens: Mapping[str, Tensor], lengths: Sequence[int], pool: Tensor, slots: Sequence[int],
        flags: Sequence[bool], behind: int = 0,
    ) -> None:  # fmt: skip
        """Whole pieces on states in `pool`, from what their slots hold where a flag says so. `behind`: tokens that no
        sequence has, after the last one."""
        names = self.words.roles["prefill_pool"]
        integers = {names["write"]: list(slots), names["flags"]: [int(flag) for flag in flags]}
        found = self._ragged("prefill_pool", tokens, lengths, {names["pool"]: pool}, {}, integers, behind)
        self._wrote("prefill_pool", pool, integers[names["write"]], found)

    def decode(self, tokens: Mapping[str, Tensor], pool: Tensor, read: Sequence[int], write: Sequence[int]) -> None:
        """One token of each row, from slot `read` of the pool to slot `write`."""
        self._rows("decode", tokens, 1, pool, {"read": read}, write)

    def verify(
        self, tokens: Mapping[str, Tensor], each: int, pool: Tensor, base: Sequence[int],
        slots: Sequence[Sequence[int]], accepted: Sequence[int],
    ) -> None:  # fmt: skip
        """`each` drafts of each row; the state after draft t goes to slots[row][t]."""
        flat = [slot for row in slots for slot in row]
        self._rows("verify", tokens, each, pool, {"read": base, "accepted": accepted}, flat)

    def draft(
        self, tokens: Mapping[str, Tensor], each: int, pool: Tensor, slots: Sequence[int], steps: Tensor,
        places: Sequence[int], counts: Sequence[int], parents: Sequence[Sequence[int]] | None = None,
    ) -> None:  # fmt: skip
        """The first `counts` of `each` tokens of each row, from slot `slots` of the pool. The state after token t goes
        to steps[place, t]. With `parents`, each token follows that one of its row, or the state."""
        kind = "draft" if parents is None else "tree"
        self._set_aside(kind, tokens, each, pool, slots, steps, places, counts, parents)

    def settle(
        self, pool: Tensor, slots: Sequence[int], steps: Tensor, places: Sequence[int], accepted: Sequence[int]
    ) -> None:
        """The state after token `accepted` of each row, counted from 1, goes from the buffer of steps to its slot."""
        names, each = self.words.roles["settle"], steps.shape[1]
        integers = {names["write"]: list(slots), names["read"]: list(places), names["accepted"]: list(accepted)}
        tensors = {names["pool"]: pool, names["steps"]: steps}
        found = self._call("settle", {}, [each] * len(slots), each, tensors, {}, integers)
        self._wrote("settle", pool, slots, found)

    def convolve(
        self, tokens: Mapping[str, Tensor], lengths: Sequence[int], pool: Tensor, slots: Sequence[int],
        flags: Sequence[bool],
    ) -> Tensor:  # fmt: skip
        """Whole pieces through the convolution, whose states are in `pool`. Returns its output."""
        names = self.words.roles["convolve"]
        integers = {names["write"]: list(slots), names["flags"]: [int(flag) for flag in flags]}
        found = self._ragged("convolve", tokens, lengths, {names["pool"]: pool}, {}, integers)
        self._wrote("convolve", pool, integers[names["write"]], found)
        return found[names["output"]]

    def convolve_keep(
        self, tokens: Mapping[str, Tensor], lengths: Sequence[int], pool: Tensor, slots: Sequence[int],
        flags: Sequence[bool], interval: int, starts: Sequence[int],
    ) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
        """As `convolve`. Returns also the convolution's states at the edges, as `keep_absolute` does."""
        names = self.words.roles["convolve_keep"]
        integers = {
            names["write"]: list(slots), names["flags"]: [int(flag) for flag in flags], names["starts"]: list(starts),
        }  # fmt: skip
        given = {names["interval"]: interval}
        found = self._ragged("convolve_keep", tokens, lengths, {names["pool"]: pool}, given, integers)
        self._wrote("convolve_keep", pool, integers[names["write"]], found)
        return found[names["output"]], self._edges(found[names["kept"]], lengths, interval)

    def convolve_drafts(
        self, tokens: Mapping[str, Tensor], each: int, pool: Tensor, slots: Sequence[int], accepted: Sequence[int],
        counts: Sequence[int],
    ) -> Tensor:  # fmt: skip
        """The tokens of a draft through the convolution, whose states keep the inputs of the step before; `accepted` of
        these count. Returns its output, [rows, each, ..]."""
        return self._rows("convolve_drafts", tokens, each, pool, {"accepted": accepted, "counts": counts}, slots)

    def convolve_tree(
        self, tokens: Mapping[str, Tensor], each: int, pool: Tensor, slots: Sequence[int], windows: Tensor,
        places: Sequence[int], counts: Sequence[int], parents: Sequence[Sequence[int]],
    ) -> Tensor:  # fmt: skip
        """As `draft`, through the convolution: the window after token t goes to windows[place, t]. Returns its output,
        [rows, each, ..]."""
        found = self._set_aside("convolve_tree", tokens, each, pool, slots, windows, places, counts, parents)
        return found[self.words.roles["convolve_tree"]["output"]]

    def convolve_one(self, tokens: Mapping[str, Tensor], pool: Tensor, slots: Sequence[int]) -> Tensor:
        """One token of each row through the convolution. Returns its output."""
        return self._rows("convolve_one", tokens, 1, pool, {}, slots)

    def take_made(self) -> list[Made]:
        """The calls since the last time."""
        made, self.made = self.made, []
        return made

    # --- one call -----------------------------------------------------------------------------------------------

    def _before(self, kind: str, states: Tensor | None) -> dict[str, Tensor]:
        return {} if states is None else {self.words.roles[kind]["before"]: states}

    def _edges(self, kept: Tensor, lengths: Sequence[int], interval: int) -> list[Tensor]:
        """The rows for checkpoints at absolute edges, of each sequence."""
        return list(torch.split(kept, [-(-length // interval) for length in lengths]))

    def _ragged(
        self, kind: str, tokens: Mapping[str, Tensor], lengths: Sequence[int], tensors: dict[str, Tensor],
        given: dict[str, int], integers: dict[str, list[int]] | None = None, behind: int = 0,
    ) -> dict[str, Tensor]:  # fmt: skip
        return self._call(kind, tokens, list(lengths), 1, tensors, given, integers or {}, behind)

    def _rows(
        self, kind: str, tokens: Mapping[str, Tensor], each: int, pool: Tensor, values: Mapping[str, Sequence[int]],
        write: Sequence[int],
    ) -> Tensor:  # fmt: skip
        names = self.words.roles[kind]
        integers = {names[role]: list(given) for role, given in {**values, "write": write}.items()}
        rows = len(tokens[next(iter(tokens))]) // each
        found = self._call(kind, tokens, [each] * rows, each, {names["pool"]: pool}, {}, integers)
        self._wrote(kind, pool, write, found)
        return found[names["output"]]

    def _set_aside(
        self, kind: str, tokens: Mapping[str, Tensor], each: int, pool: Tensor, slots: Sequence[int], steps: Tensor,
        places: Sequence[int], counts: Sequence[int], parents: Sequence[Sequence[int]] | None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """A call that leaves the pool as it is, and puts what follows each token into a buffer of steps."""
        names = self.words.roles[kind]
        integers = {names["read"]: list(slots), names["write"]: list(places), names["counts"]: list(counts)}
        if parents is not None:
            integers[names["parents"]] = [parent for row in parents for parent in row]
        tensors = {names["pool"]: pool, names["steps"]: steps}
        found = self._call(kind, tokens, [each] * len(slots), each, tensors, {}, integers)
        steps[sorted({place for place in places if place >= 0})] = found[names["steps"]]
        return found

    def _wrote(self, kind: str, pool: Tensor, slots: Sequence[int], found: Mapping[str, Tensor]) -> None:
        """Puts what a call left in its slots into the pool."""
        pool[sorted({slot for slot in slots if slot >= 0})] = found[self.words.roles[kind]["pool"]]

    def _call(
        self, kind: str, tokens: Mapping[str, Tensor], lengths: list[int], each: int, tensors: dict[str, Tensor],
        given: dict[str, int], integers: dict[str, list[int]], behind: int = 0,
    ) -> dict[str, Tensor]:  # fmt: skip
        found = self.served[kind]
        model = found.definition
        tensors = {name: x.contiguous() for name, x in tensors.items()}  # a pool may be a part of a wider one
        tensors |= self.words.inputs(kind, tokens, self.weights, self.preset.axes, each)
        axes = roles.sizes(model, lengths, given)
        if behind:
            axes[roles.axis(model, "tokens") or ""] += behind
        place, pool = roles.axis(model, "slots"), self.words.roles[kind].get("pool")
        if place is not None and pool is not None:
            axes[place] = len(tensors[pool])
        index = {tensor.name for tensor in model.inputs if tensor.is_index}
        absent = [t.name for t in model.inputs if t.name not in tensors and not t.is_scalar and t.name not in index]
        workload = Workload(
            name=kind, suite="conformance", preset=self.line.preset, axes=axes, regime=self.line.regime,
            seed=self.line.seed, omit=absent, integers=integers,
            scalars={**self.words.scalars(kind, self.line.convolution), **given},
            sequence_lengths=lengths if model.conventions.packing == "ragged" else None,
        )  # fmt: skip
        workload.check(model, self.preset)
        scope = workload.scope(model, self.preset)
        for tensor in model.inputs:
            if tensor.is_index:
                values = torch.tensor(scope[tensor.name], dtype=TORCH[tensor.dtype])
                tensors[tensor.name] = values.reshape(model.shape(tensor, scope))
        ordered = {t.name: tensors[t.name] for t in model.inputs if t.name in tensors}
        content = Content(ordered, scalars(found, workload, scope), scope)
        answer = self.run(kind, found, workload, content)
        output = self.words.roles[kind].get("output")
        if output is not None:
            judged = answer[output][: len(answer[output]) - behind]  # what is behind the last sequence is nobody's
            self.made.append(Made(kind, found, content, judged))
        return answer


def with_mixed(tokens: Mapping[str, Tensor], mixed: Tensor | None) -> dict[str, Tensor]:
    """The tokens, and what the convolution made of them."""
    return dict(tokens) if mixed is None else {**tokens, MIXED: mixed}
