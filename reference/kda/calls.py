"""A call of somebody's Kimi Delta Attention, read as a workload.

The `transformers` package calls it with q, k, v, g [B, T, H, D] and beta [B, T, H], gates finished, states
[B, H, K, V]. flash-linear-attention takes that too, and by flags raw gates, a lower bound, states [B, H, V, K], and
`cu_seqlens` where a batch is packed into B = 1.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
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
    "A_log": ("A_log",),
    "dt_bias": ("dt_bias",),
    "lower_bound": ("lower_bound",),
    "raw_gates": ("use_gate_in_kernel",),
    "raw_beta": ("use_beta_sigmoid_in_kernel",),
    "turned": ("state_v_first",),
}
NEEDED = ("q", "k", "v", "g", "beta")
UNSERVED = {
    "ssm_state_indices": "its states lie in a pool",
    "state_indices": "its states lie in a pool",
    "head_first": "heads stand before tokens",
    "allow_neg_eigval": "its write strength is up to 2, and no raw gate here gives that",
    "cp_context": "its sequences are divided among devices",
}
PACKAGE = "transformers.models.kimi_linear.modeling_kimi_linear"
BOUND = "lower_bound"


@dataclass(frozen=True)
class Seen:
    """What is recorded of a call without a look at its values."""

    lengths: tuple[int, ...]
    key_heads: int  # and query heads
    value_heads: int
    size: int
    carried: bool
    scale: float | None
    normalised: bool  # q and k inside
    raw_gates: bool
    raw_beta: bool
    bound: float | None  # of raw gates
    turned: bool  # states [V, K]

    def __str__(self) -> str:
        return f"heads {(self.key_heads, self.value_heads)} of {self.size}"


def seen(call: Mapping[str, Any]) -> Seen:
    """Shapes and switches. Raises `NotRecorded`."""
    for name, why in UNSERVED.items():
        value = call.get(name)
        if value is not None and value is not False:
            raise NotRecorded(f"{name}: {why}")
    q, k, v, g, beta = (call[name] for name in NEEDED)
    if g is None or beta is None:
        raise NotRecorded("g or beta is absent")
    if not (q.ndim == k.ndim == v.ndim == 4):
        raise NotRecorded(f"q, k, v have {q.ndim}, {k.ndim} and {v.ndim} dimensions, not 4: [B, T, H, D]")
    (batch, tokens, heads, size), values = k.shape, v.shape[2]
    wanted = {
        "q": (batch, tokens, heads, size), "v": (batch, tokens, values, size), "g": (batch, tokens, values, size),
        "beta": (batch, tokens, values),
    }  # fmt: skip
    for name, shape in wanted.items():
        if tuple(call[name].shape) != shape:
            found = f"{name} {list(call[name].shape)} does not go with k {list(k.shape)} and {values} value heads"
            raise NotRecorded(f"{found}: {list(shape)} is wanted")
    if values % heads:
        raise NotRecorded(f"{heads} key heads do not divide {values} value heads")
    lengths = _lengths(call.get("cu_seqlens"), batch, tokens)
    state = call.get("initial_state")
    if state is not None and tuple(state.shape) != (len(lengths), values, size, size):
        said = f"a state {list(state.shape)} for {len(lengths)} sequences"
        raise NotRecorded(f"{said}: {[len(lengths), values, size, size]} is wanted")
    scale, bound = call.get("scale"), call.get(BOUND)
    if scale is not None and not isfinite(float(scale)):
        raise NotRecorded("a scale that is not finite")
    default = scale is None or abs(float(scale) - size**-0.5) < 1e-6
    raw = bool(call.get("raw_gates"))
    if raw and call.get("A_log") is None and not bound:  # with a bound, an absent rate is one
        raise NotRecorded("raw gates without A_log")
    return Seen(
        lengths, heads, values, size, state is not None, None if default or scale is None else float(scale),
        bool(call.get("use_qk_l2norm")), raw, bool(call.get("raw_beta")), float(bound) if raw and bound else None,
        bool(call.get("turned")),
    )  # fmt: skip


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
    """Whether calls of Kimi Delta Attention are calls of this definition."""
    names = {tensor.name for tensor in definition.inputs}
    if definition.stage == "prefill":
        return "cu_seqlens" in names and not names & {"checkpoint_interval", "pool"}
    return definition.stage == "decode" and "state" in names


class Reader:
    """The calls of one recording. No heads are repeated in the models that there are: `repeats` is 1 but where the user
    says so, and then every so many of the query and key heads are the same."""

    def __init__(self, definition: Definition, siblings: Mapping[str, Definition], repeats: int | None) -> None:
        self._definition, self._repeats = definition, repeats or 1

    def seen(self, call: Mapping[str, Any]) -> Seen:
        return seen(call)

    def serves(self, shape: Seen) -> bool:
        """Decode: one token each, from a state. Prefill: whatever is not that."""
        is_decode = shape.carried and all(length == 1 for length in shape.lengths)
        return is_decode == (self._definition.stage == "decode")

    def look(self, call: Mapping[str, Any], shape: Seen) -> Regrouped | None:
        """No value is looked at."""
        return None

    def line(self, shape: Seen) -> dict[str, Any]:
        if shape.key_heads % self._repeats:
            raise NotRecorded(f"{shape.key_heads} query and key heads are not repeated {self._repeats} times")
        heads = shape.key_heads // self._repeats
        data: dict[str, Any] = {"preset": f"heads-{heads}x{heads}x{shape.value_heads}-d{shape.size}"}
        if self._definition.stage == "decode":
            data["axes"] = {"batch_size": len(shape.lengths)}
        else:
            data["axes"] = {"total_seq_len": sum(shape.lengths), "num_seqs": len(shape.lengths)}
            data["sequence_lengths"] = list(shape.lengths)
            if not shape.carried:
                data["omit"] = ["initial_state"]
        scalars: dict[str, Any] = {} if shape.scale is None else {"scale": shape.scale}
        if self._definition.conventions.decay_gate == "raw":
            scalars["use_qk_l2norm"] = shape.normalised
            if shape.bound is not None:
                scalars[BOUND] = shape.bound
        return data | ({"scalars": scalars} if scalars else {})

    def tensors(self, call: Mapping[str, Any], shape: Seen) -> "dict[str, torch.Tensor]":
        from .call_tensors import inputs

        return inputs(self._definition, call, shape, self._repeats)

    def size(self, shape: Seen) -> int:
        """Bytes of q, k, v in bfloat16, of float32 gates and states."""
        tokens, states = sum(shape.lengths), len(shape.lengths) * shape.value_heads * shape.size * shape.size * 4
        rows = (2 * shape.key_heads // self._repeats + 3 * shape.value_heads) * shape.size
        return tokens * (rows * 2 + shape.value_heads * 4) + (states if shape.carried else 0)

    def told(self, recorded: Iterable[Seen]) -> list[str]:
        """Gates that a definition cannot have as they came."""
        raw = self._definition.conventions.decay_gate == "raw"
        if any(shape.raw_gates != raw for shape in recorded):
            have, want = ("finished", "raw") if raw else ("raw", "finished")
            return [f"gates came {have} and are recorded {want}, as {self._definition.name} has them"]
        return []


CALLS = Calls(
    named="Kimi Delta Attention",
    arguments=ARGUMENTS,
    needed=NEEDED,
    told={**dict.fromkeys(NEEDED, ""), "initial_state": "no state", "cu_seqlens": ""},
    usual={
        "prefill": f"{PACKAGE}:chunk_kimi_delta_attention", "decode": f"{PACKAGE}:recurrent_kimi_delta_attention",
    },
    regime="typical",
    records=records,
    served="prefill of whole tensors, or decode of one token, with q, k, v and states of their own",
    stages="a decode takes one token of each sequence, from a state; a prefill takes all other calls",
    reader=Reader,
)  # fmt: skip
