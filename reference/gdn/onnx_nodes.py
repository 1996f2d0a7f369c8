"""What ONNX's operators LinearAttention and CausalConvWithState, new in opset 27, can say of these definitions.

A node is computed in float32: bfloat16 and the logarithm of a gate fit into it, and the operator has one type for both.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gdnspec.family import Definition, NotExpressed, OnnxNode, OnnxWords

if TYPE_CHECKING:
    from torch import Tensor

LINEAR, CONVOLUTION = "LinearAttention", "CausalConvWithState"
# What a program does around a node, in words.
RAGGED = "one node call per sequence: the operator takes padded batches alone, and empty sequences are left out"
REPEATED = "query and key heads are repeated: there is one state per key head, and never fewer query heads"
TURNED = "states are transposed: the operator has [K, V] alone"
LOGARITHM = "the gate becomes its logarithm"
RAW = "both gates are computed before: the operator takes the logarithm of alpha, and beta"
NORM = "q and k are normalised before: the operator has no norm"
POOL = "states are taken out of the pool and put back: the operator has no slots"
SCALE = "a scale of 0.0 cannot be said: it stands for the default"
ONES = "an absent beta becomes ones, because only a rule without correction has none"
CHANNELS = "tokens and channels are transposed: the operator has channels first"
RULES = {
    "gdn_prefill_k_first": (RAGGED, REPEATED, ONES, SCALE),
    "gdn_prefill_k_last": (RAGGED, REPEATED, TURNED, LOGARITHM, ONES, SCALE),
    "gdn_prefill_from_conv": (RAGGED, REPEATED, LOGARITHM, NORM, POOL),
    "gdn_decode_k_first": (REPEATED, RAW, NORM, SCALE),
    "gdn_decode_k_last": (REPEATED, TURNED, RAW, NORM, SCALE),
    "gdn_decode_packed_k_last": (REPEATED, TURNED, RAW, NORM, SCALE),
    "gdn_decode_pool_k_last": (REPEATED, TURNED, RAW, NORM, POOL, SCALE),
}
CONVOLUTIONS = {
    "gdn_conv1d_prefill": (RAGGED, CHANNELS, POOL),
    "gdn_conv1d_decode": (CHANNELS, POOL),
}
LACKING = {
    "gdn_prefill_checkpoints": "the operator returns the last state alone: states inside sequences are outputs here",
    "gdn_prefill_checkpoints_absolute": "the operator returns the last state alone: those inside sequences are outputs",
    "gdn_conv1d_checkpoints_absolute": "the operator returns the last inputs alone: those inside sequences are outputs",
    "gdn_prefill_padded_k_first": "the operator has no mask: export gdn_prefill_k_first, one call per row",
    "gdn_verify_k_last": "the operator returns the last state alone: here the state after every draft is kept",
    "gdn_verify_drafts_k_last": "the operator returns the last state alone: here the state after every draft is kept",
    "gdn_verify_tree_k_last": "the operator has one sequence of tokens: here they are a tree",
    "gdn_commit_states_k_last": "nothing is computed: a program moves states with ScatterND and the like",
    "gdn_prefill_pool_k_last": "one node call per sequence of gdn_prefill_k_last, its state taken out of the pool and "
    "put back: export that",
    "gdn_conv1d_verify": "the operator returns the last inputs alone: here those of the whole step are kept",
    "gdn_conv1d_verify_tree": "the operator has one sequence of tokens: here they are a tree",
    "gdn_conv_gates_prefill": "no operator has the gates: only the convolution is one, CausalConvWithState",
    "gdn_gated_rms_norm": "no operator has the gate of the norm: RMSNormalization and others would make up a graph",
}
CODES = "states are codes with a scale for each row: the operator has states of one float type"
STAGES = {
    "backward": "gradients: an operator of ONNX has none",
    "chunk_stage": "a stage of the chunkwise algorithm: the operator has it inside",
    "layer": "several operators: projections, the convolution, the rule and the norm make up a graph",
}
VARIANTS = ("_slot_zero", "_kv_dims", "_f32_qkv_bf16_state", "_f32_qkv", "_bf16_state")


def words(definition: Definition) -> OnnxWords:
    """See `gdnspec.family.Onnx`. Variants differ in sizes and types, which the operators leave open."""
    name = _plain(definition)
    if name in RULES:
        return OnnxWords(LINEAR, RULES[name])
    if name in CONVOLUTIONS:
        return OnnxWords(CONVOLUTION, CONVOLUTIONS[name])
    if definition.conventions.state_scale != "none":
        return OnnxWords(lacking=CODES)
    return OnnxWords(lacking=LACKING.get(name) or STAGES[definition.stage])


def _plain(definition: Definition) -> str:
    """The name without the ending of a variant."""
    return next(
        (definition.name.removesuffix(end) for end in VARIANTS if definition.name.endswith(end)), definition.name
    )


def nodes(definition: Definition, arguments: Mapping[str, Any]) -> Iterator[OnnxNode]:
    """See `gdnspec.family.Onnx`."""
    of: dict[str, Callable[..., Iterator[OnnxNode]]] = {
        "gdn_prefill_k_first": _prefill, "gdn_prefill_k_last": _prefill, "gdn_prefill_from_conv": _from_conv,
        "gdn_decode_k_first": _decode, "gdn_decode_k_last": _decode, "gdn_decode_packed_k_last": _decode_packed,
        "gdn_decode_pool_k_last": _decode_pool, "gdn_conv1d_prefill": _conv1d_prefill,
        "gdn_conv1d_decode": _conv1d_decode,
    }  # fmt: skip
    k_last = definition.conventions.state_layout == "k_last"
    given = {name: x.float() if _is_float(x) else x for name, x in arguments.items()}
    return of[_plain(definition)](given, k_last)


def _is_float(x: Any) -> bool:
    return bool(getattr(x, "is_floating_point", bool)())


# --- the rule -------------------------------------------------------------------------------------------------------


def _rule(
    q: "Tensor", k: "Tensor", v: "Tensor", g: "Tensor | None", beta: "Tensor | None", state: "Tensor | None",
    scale: float | None,
) -> OnnxNode:  # fmt: skip
    """q, k [B, T, heads, K], v [B, T, heads, V], g (a logarithm), beta [B, T, H] and state [B, H, K, V], in float32."""
    from .gated_delta_net import expand_heads

    if scale is not None and scale == 0:
        raise NotExpressed(SCALE)
    H = max(q.shape[2], v.shape[2])
    query, key, value = (expand_heads(x, H).flatten(2) for x in (q, k, v))
    inputs = {
        "query": query, "key": key, "value": value, "past_state": state, "decay": g,
        "beta": query.new_ones(*q.shape[:2], H) if beta is None else beta,
    }  # fmt: skip
    attributes: dict[str, Any] = {
        "q_num_heads": H,
        "kv_num_heads": H,
        "update_rule": "delta" if g is None else "gated_delta",
    }
    if scale is not None:
        attributes["scale"] = float(scale)
    return OnnxNode(LINEAR, attributes, inputs, ("output", "present_state"), _recurrence)


def _recurrence(attributes: Mapping[str, Any], inputs: "Mapping[str, Tensor | None]") -> "tuple[Tensor, ...]":
    """LinearAttention by the executable specification, in the type of the inputs."""
    import torch

    from .gated_delta_net import prefill_k_first

    query, past, H = inputs["query"], inputs["past_state"], attributes["kv_num_heads"]
    assert query is not None
    B, T, _ = query.shape
    q, k, v, g, beta = (
        None if x is None else x.reshape(B * T, H, -1)
        for x in (inputs[name] for name in ("query", "key", "value", "decay", "beta"))
    )
    assert q is not None and k is not None and v is not None and beta is not None
    if past is None:
        past = q.new_zeros(B, H, q.shape[-1], v.shape[-1])
    bounds = torch.arange(B + 1) * T
    gate = None if g is None else g[..., 0]
    output, state = prefill_k_first(q, k, v, gate, beta[..., 0], bounds, past, attributes.get("scale"))
    return output.reshape(B, T, -1), state


def _turned(state: "Tensor | None", k_last: bool) -> "Tensor | None":
    return state.mT.contiguous() if k_last and state is not None else state


def _prefill(given: Mapping[str, Any], k_last: bool) -> Iterator[OnnxNode]:
    q, k, v, g, beta, states = (given[name] for name in ("q", "k", "v", "g", "beta", "initial_state"))
    g = g.log() if k_last and g is not None else g
    bounds = given["cu_seqlens"].tolist()
    for n in range(len(bounds) - 1):
        rows = slice(bounds[n], bounds[n + 1])
        if rows.start == rows.stop:
            continue
        one = [None if x is None else x[None, rows] for x in (q, k, v, g, beta)]
        state = None if states is None else _turned(states[n : n + 1], k_last)
        yield _rule(*one, state, given["scale"])


def _from_conv(given: Mapping[str, Any], k_last: bool) -> Iterator[OnnxNode]:
    from .gated_delta_net import l2_normalise, split_channels

    pool, bounds = given["recurrent_state"], given["row_offsets"].tolist()
    q, k, v = split_channels(given["qkv"], pool.shape[1], pool.shape[2], pool.shape[3])
    each = (l2_normalise(q), l2_normalise(k), v, given["decay"].log(), given["beta"])
    for n, slot in enumerate(given["slots"].tolist()):
        rows = slice(bounds[n], bounds[n + 1])
        if slot >= 0 and rows.start < rows.stop:
            yield _rule(*(x[None, rows] for x in each), pool[slot : slot + 1], None)


def _decode(given: Mapping[str, Any], k_last: bool) -> Iterator[OnnxNode]:
    import torch

    from .gated_delta_net import l2_normalise, softplus

    q, k = given["q"], given["k"]
    if given["use_qk_l2norm"]:
        q, k = l2_normalise(q), l2_normalise(k)
    wide = (given[name].double() for name in ("A_log", "a", "dt_bias", "b"))
    A_log, a, dt_bias, b = wide
    g = (-torch.exp(A_log) * softplus(a + dt_bias)).float()
    beta = (torch.sigmoid(b) * (2 if given.get("allow_neg_eigval") else 1)).float()
    if len(q):
        yield _rule(q, k, given["v"], g, beta, _turned(given["state"], k_last), given["scale"])


def _decode_packed(given: Mapping[str, Any], k_last: bool) -> Iterator[OnnxNode]:
    from .gated_delta_net import split_channels

    _, H, size, _ = given["state"].shape
    parts = dict(zip("qkv", split_channels(given["mixed_qkv"][:, None], H, size, size), strict=True))
    yield from _decode({**given, **parts, "a": given["a"][:, None], "b": given["b"][:, None]}, k_last)


def _decode_pool(given: Mapping[str, Any], k_last: bool) -> Iterator[OnnxNode]:
    rows = (given["read_slots"] >= 0).nonzero()[:, 0]
    taken = {name: given[name][rows] for name in ("q", "k", "v", "a", "b")}
    yield from _decode({**given, **taken, "state": given["pool"][given["read_slots"][rows].long()]}, k_last)


# --- the convolution ------------------------------------------------------------------------------------------------


def _convolution(x: "Tensor", weight: "Tensor", bias: "Tensor | None", state: "Tensor") -> OnnxNode:
    """x [B, C, T], weight [C, W], bias [C], state [B, C, W - 1], in float32."""
    inputs = {"input": x, "weight": weight[:, None], "bias": bias, "past_state": state}
    return OnnxNode(CONVOLUTION, {"activation": "silu"}, inputs, ("output", "present_state"), _convolved)


def _convolved(attributes: Mapping[str, Any], inputs: "Mapping[str, Tensor | None]") -> "tuple[Tensor, ...]":
    """CausalConvWithState by the executable specification, in the type of the inputs."""
    import torch

    from .convolution import convolve

    x, weight, bias, past = inputs["input"], inputs["weight"], inputs["bias"], inputs["past_state"]
    assert x is not None and weight is not None and past is not None
    window = torch.cat([past, x], dim=2)  # [B, C, W - 1 + T]
    output = torch.stack([convolve(one.T, weight[:, 0], bias).T for one in window])
    return output, window[:, :, x.shape[2] :]


def _conv1d_prefill(given: Mapping[str, Any], k_last: bool) -> Iterator[OnnxNode]:
    states, bounds = given["conv_states"], given["cu_seqlens"].tolist()
    for n, slot in enumerate(given["slots"].tolist()):
        rows = slice(bounds[n], bounds[n + 1])
        if slot >= 0 and rows.start < rows.stop:
            state = states[slot : slot + 1]
            state = state if given["has_initial_state"][n] else state.new_zeros(state.shape)
            yield _convolution(given["x"][rows].T[None], given["weight"], given["bias"], state)


def _conv1d_decode(given: Mapping[str, Any], k_last: bool) -> Iterator[OnnxNode]:
    rows = (given["slots"] >= 0).nonzero()[:, 0]
    if len(rows):
        states = given["conv_states"][given["slots"][rows].long()]
        yield _convolution(given["x"][rows][:, :, None], given["weight"], given["bias"], states)
