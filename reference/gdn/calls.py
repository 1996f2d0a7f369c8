"""A call of somebody's gated delta rule, read as a workload.

flash-linear-attention, the `transformers` package and what follows them call it with q, k, v [B, T, H, D], a forget
gate in log space and beta [B, T, H], states [B, H, K, V], and `cu_seqlens` where a batch is packed into B = 1.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, isfinite
from typing import TYPE_CHECKING, Any

from gdnspec.family import Calls, Definition, NotRecorded, Regrouped

if TYPE_CHECKING:
    import torch

ARGUMENTS = {
    "q": ("q", "query"),
    "k": ("k", "key"),
    "v": ("v", "value"),
    "g": ("g", "gate", "decay"),
    "beta": ("beta",),
    "initial_state": ("initial_state", "state", "h0"),
    "cu_seqlens": ("cu_seqlens", "cu_seq_lens_q"),
    "scale": ("scale", "softmax_scale"),
    "use_qk_l2norm": ("use_qk_l2norm_in_kernel", "use_qk_l2norm"),
}
NEEDED = ("q", "k", "v", "g", "beta")
SLOTS = ("ssm_state_indices", "state_indices", "slots", "initial_state_indices")
PACKAGE = "transformers.models.qwen3_next.modeling_qwen3_next"
DOUBLED = "allow_neg_eigval"  # twice the sigmoid: a write strength of up to 2
BOTH = {"key_head_dim", "value_head_dim"}
MOST_KNOWN = 10_000  # sets of shapes that are remembered

Heads = tuple[int, int, int]


@dataclass(frozen=True)
class Seen:
    """What is recorded of a call without a look at its values."""

    lengths: tuple[int, ...]
    heads: Heads  # query, key, value: as they came, repeated ones too
    key_size: int
    value_size: int
    carried: bool
    scale: float | None
    normalised: bool  # q and k inside

    def __str__(self) -> str:
        return f"heads {self.heads} of {self.key_size}"


def seen(call: Mapping[str, Any], repeats: int = 1) -> Seen:
    """Shapes and switches. `repeats`: how often each query and key head is said to have been repeated to match those of
    v before the call. Raises `NotRecorded`."""
    q, k, v, g, beta = (call[name] for name in NEEDED)
    if g is None or beta is None:
        raise NotRecorded("g or beta is absent")
    if not (q.ndim == k.ndim == v.ndim == 4):
        raise NotRecorded(f"q, k, v have {q.ndim}, {k.ndim} and {v.ndim} dimensions, not 4: [B, T, H, D]")
    batch, tokens, heads, size = k.shape
    if q.shape[-1] != size:
        raise NotRecorded(f"queries of {q.shape[-1]} and keys of {size} elements")
    sab = max(q.shape[2], v.shape[2])
    for name, x in (("q", q), ("v", v), ("g", g), ("beta", beta)):
        wanted = (batch, tokens) if name in "qv" else (batch, tokens, sab)
        if tuple(x.shape[: len(wanted)]) != wanted or (name not in "qv" and x.ndim != 3):
            raise NotRecorded(f"{name} {list(x.shape)} does not go with k {list(k.shape)}: [B, T, ..] is wanted")
    if heads % repeats or q.shape[2] % repeats:
        raise NotRecorded(f"{q.shape[2]} query and {heads} key heads are not repeated {repeats} times")
    lengths = _lengths(call.get("cu_seqlens"), batch, tokens)
    state = call.get("initial_state")
    wanted_state = (len(lengths), sab, size, v.shape[-1])
    if state is not None and tuple(state.shape) != wanted_state:
        raise NotRecorded(f"a state {list(state.shape)} for {len(lengths)} sequences: {list(wanted_state)} is wanted")
    scale = call.get("scale")
    if scale is not None and not isfinite(float(scale)):
        raise NotRecorded("a scale that is not finite")
    default = scale is None or abs(float(scale) - size**-0.5) < 1e-6
    return Seen(
        lengths,
        (q.shape[2], heads, v.shape[2]),
        size,
        v.shape[-1],
        state is not None,
        None if default or scale is None else float(scale),
        bool(call.get("use_qk_l2norm", False)),
    )


def _refuse(call: Mapping[str, Any]) -> None:
    """Raises `NotRecorded` for what a call says by name and no definition here has."""
    if call.get("head_first"):
        raise NotRecorded("head_first: heads stand before tokens")
    for name in SLOTS:
        if call.get(name) is not None:
            raise NotRecorded(f"{name}: its states lie in a pool")


def _lengths(bounds: Any, batch: int, tokens: int) -> tuple[int, ...]:
    if bounds is None:
        return (tokens,) * batch
    if batch != 1:
        raise NotRecorded(f"cu_seqlens with a batch of {batch}")
    values = bounds.tolist() if hasattr(bounds, "tolist") else [int(x) for x in bounds]
    lengths = tuple(b - a for a, b in pairwise(values))
    if not lengths or min(lengths) < 0 or sum(lengths) != tokens or values[0] != 0:
        raise NotRecorded(f"cu_seqlens that do not fit {tokens} tokens")
    return lengths


def records(definition: Definition) -> bool:
    """Whether calls of a gated delta rule are calls of this definition."""
    names = {tensor.name for tensor in definition.inputs}
    if definition.conventions.packing == "ragged":
        given = {"q", "k", "v", "g", "beta", "cu_seqlens"}
        return given <= names and not names & {"checkpoint_interval", "pool"}
    return definition.conventions.packing == "one_token" and {"q", "state", "a"} <= names


class Reader:
    """The calls of one recording. Query and key heads that a program repeated before the call, so that each value head
    has one of its own, are recorded once: their values tell, for they are the same, bit for bit."""

    def __init__(self, definition: Definition, siblings: Mapping[str, Definition], repeats: int | None) -> None:
        """`repeats`: how often heads were repeated, where the user says so; then nothing is looked at. Otherwise heads
        count as repeated where they were on every call so far; calls of zeros tell nothing."""
        self._definition, self._siblings, self._given = definition, siblings, repeats
        self._repeats: dict[Heads, int] = {}
        self._known: dict[tuple[Any, ...], Seen] = {}

    def repeats(self, heads: Heads) -> int:
        return self._given or self._repeats.get(heads) or 1

    def seen(self, call: Mapping[str, Any]) -> Seen:
        """Looked at once for each set of shapes, as long as no lengths have to be read."""
        _refuse(call)
        tensors = [call[name] for name in NEEDED]
        if call.get("cu_seqlens") is not None or any(x is None for x in tensors):
            return seen(call, self._given or 1)
        state, scale = call.get("initial_state"), call.get("scale")
        key = (*(x.shape for x in tensors), None if state is None else state.shape, scale, call.get("use_qk_l2norm"))
        known = self._known.get(key)
        if known is None:
            known = seen(call, self._given or 1)
            if len(self._known) < MOST_KNOWN:
                self._known[key] = known
        return known

    def serves(self, shape: Seen) -> bool:
        """Decode: one token each, from a state. Prefill: whatever is not that."""
        is_decode = shape.carried and all(length == 1 for length in shape.lengths)
        return is_decode == (self._definition.stage == "decode")

    def look(self, call: Mapping[str, Any], shape: Seen) -> Regrouped | None:
        """Whether heads are repeated in another way now. Waits for a GPU, until a call had heads of its own."""
        q, k, v = shape.heads
        before = self._repeats.get(shape.heads, 0)
        if self._given or before == 1 or not q == k == v > 1:
            return None
        try:
            now = gcd(before, _repeated(call["q"]), _repeated(call["k"]))
        except Exception:  # no values to look at: heads are recorded as they came
            return None
        self._repeats[shape.heads] = now
        if (now or 1) == (before or 1):
            return None

        def tensors(kept: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
            from .call_tensors import regrouped

            return regrouped(kept, before or 1, now or 1)

        return Regrouped(lambda other: other.heads == shape.heads, tensors)

    def line(self, shape: Seen) -> dict[str, Any]:
        """With the heads before they were repeated."""
        self._hold_sizes(shape)
        (q, k, v), repeats = shape.heads, self.repeats(shape.heads)
        heads, one = f"heads-{q // repeats}x{k // repeats}x{v}", shape.key_size == shape.value_size
        sizes = f"d{shape.key_size}" if one else f"k{shape.key_size}-v{shape.value_size}"
        data: dict[str, Any] = {"preset": f"{heads}-{sizes}"}
        if self._definition.stage == "decode":
            data["axes"] = {"batch_size": len(shape.lengths)}
        else:
            data["axes"] = {"total_seq_len": sum(shape.lengths), "num_seqs": len(shape.lengths)}
            data["sequence_lengths"] = list(shape.lengths)
            if not shape.carried:
                data["omit"] = ["initial_state"]
        scalars: dict[str, Any] = {} if shape.scale is None else {"scale": shape.scale}
        if self._definition.conventions.qk_norm == "optional_l2":
            scalars["use_qk_l2norm"] = shape.normalised
        if any(tensor.name == DOUBLED for tensor in self._definition.inputs):
            scalars[DOUBLED] = True  # it holds what a plain sigmoid gives as well
        return data | ({"scalars": scalars} if scalars else {})

    def _hold_sizes(self, shape: Seen) -> None:
        """Raises `NotRecorded` where keys and values differ in size, and the definition has one size for both."""
        definition = self._definition
        if shape.key_size == shape.value_size or set(definition.const_axes()) >= BOTH:
            return
        two = {name: other for name, other in self._siblings.items() if set(other.const_axes()) >= BOTH}
        fit = [name for name, other in two.items() if records(other) and other.stage == definition.stage]
        sizes = f"keys of {shape.key_size} and values of {shape.value_size} elements"
        why = f"{sizes}, and {definition.name} has one size for both"
        if fit:
            raise NotRecorded(f"{why}: --definition {' or '.join(fit)} records them")
        alike = [name for name, other in two.items() if other.stage == definition.stage] or list(two)
        raise NotRecorded(f"{why}; {', '.join(alike)} have two, and take more than a gated delta rule is called with")

    def tensors(self, call: Mapping[str, Any], shape: Seen) -> "dict[str, torch.Tensor]":
        from .call_tensors import inputs

        return inputs(self._definition, call, shape, self.repeats(shape.heads))

    def size(self, shape: Seen) -> int:
        """Bytes of q, k, v in bfloat16, of float32 states, and of gates."""
        tokens, (q, k, v) = sum(shape.lengths), shape.heads
        states = len(shape.lengths) * max(q, v) * shape.key_size * shape.value_size * 4 if shape.carried else 0
        rows = (q + k) // self.repeats(shape.heads) * shape.key_size + v * shape.value_size
        return tokens * (rows * 2 + max(q, v) * 4) + states

    def told(self, recorded: Iterable[Seen]) -> list[str]:
        """What was undone of these."""
        heads = {shape.heads for shape in recorded}
        return [
            f"query and key heads came repeated {times} times, bit for bit, on every call: {q}x{k}x{v} is recorded as "
            f"{q // times}x{k // times}x{v} (--repeats 1 records heads as they come)"
            for (q, k, v), times in self._repeats.items()
            if times > 1 and (q, k, v) in heads
        ]


def _repeated(x: Any) -> int:
    """How many heads of x [B, T, H, D] in a row are equal everywhere: the largest such number. 0 where all are zero."""
    import torch

    bits = x.detach().view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])
    same = (bits[:, :, 1:] == bits[:, :, :-1]).all(dim=3).all(dim=1).all(dim=0).tolist()
    heads = int(x.shape[2])
    if all(same) and not bool((x[:, :, 0] != 0).any()):
        return 0
    return gcd(heads, *(i + 1 for i, equal in enumerate(same) if not equal))


CALLS = Calls(
    named="gated delta rule",
    arguments=ARGUMENTS,
    needed=NEEDED,
    told={**dict.fromkeys(NEEDED, ""), "initial_state": "no state", "cu_seqlens": ""},
    usual={
        "prefill": f"{PACKAGE}:torch_chunk_gated_delta_rule", "decode": f"{PACKAGE}:torch_recurrent_gated_delta_rule",
    },
    regime="typical",
    records=records,
    served="prefill of whole tensors, or decode of one token, with q, k, v and states of their own",
    stages="a decode takes one token of each sequence, from a state; a prefill takes all other calls",
    reader=Reader,
)  # fmt: skip
