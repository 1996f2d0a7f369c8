"""How the definitions of gated delta net serve the calls of a session, and the recurrence that is its truth.

A token has q, k, v and raw gates a, b; with a convolution, its row x takes the place of q, k and v, which are the
convolution's output, split. Without it q and k have unit norm; with it the rule takes their norm: inside a decode or a
verify, before a prefill. Prefill takes the gates computed, the others take them raw: the same token means the same
everywhere.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from gdnspec.family import MIXED, Emulated, Memory, SessionWords, Source
from torch import Tensor

from .convolution import convolve
from .gated_delta_net import (
    default_scale,
    expand_heads,
    forget_gate_raw,
    l2_normalise,
    split_channels,
    step,
)

Tensors = Mapping[str, Tensor]

PREFILL = {"before": "initial_state", "after": "final_state", "output": "output"}
CONVOLVE = {"pool": "conv_states", "write": "slots", "flags": "has_initial_state", "output": "output"}
EDGES = {"kept": "checkpoints", "interval": "checkpoint_interval", "starts": "start_positions"}
DRAFT = {
    "pool": "pool", "read": "slots", "steps": "step_states", "write": "step_slots", "counts": "drafts",
    "output": "output",
}  # fmt: skip
ROLES = {
    "prefill": PREFILL,
    "keep": {**PREFILL, "kept": "checkpoints", "interval": "checkpoint_interval"},
    "decode": {"pool": "pool", "read": "read_slots", "write": "write_slots", "output": "output"},
    "verify": {
        "pool": "pool", "read": "initial_slots", "write": "state_slots", "accepted": "accepted", "output": "output",
    },
    "convolve": CONVOLVE,
    "convolve_one": {"pool": "conv_states", "write": "slots", "output": "output"},
    "prefill_pool": {"pool": "pool", "write": "slots", "flags": "has_initial_state", "output": "output"},
    "keep_absolute": PREFILL | EDGES,
    "draft": DRAFT,
    "tree": {**DRAFT, "parents": "parents"},
    "settle": {
        "pool": "pool", "write": "slots", "steps": "step_states", "read": "step_slots", "accepted": "accepted",
    },
    "convolve_keep": CONVOLVE | EDGES,
    "convolve_drafts": {
        "pool": "conv_states", "write": "slots", "accepted": "accepted", "counts": "drafts", "output": "output",
    },
    "convolve_tree": {**DRAFT, "pool": "conv_states", "steps": "step_windows", "parents": "parents"},
}  # fmt: skip

# One row of as many drafts as there are tokens: keys of one regime are alike within a request.
RULE = Source("gdn_verify_k_last", ("q", "k", "v", "a", "b"), ("A_log", "dt_bias"), {"use_qk_l2norm": False})
GATES = Source("gdn_verify_k_last", ("a", "b"), ("A_log", "dt_bias"), {"use_qk_l2norm": True})
ROWS = Source("gdn_conv1d_prefill", ("x",), ("weight", "bias"), {})
OF_CONVOLUTION = ("convolve", "convolve_one", "convolve_keep")
OF_DRAFTS = ("convolve_drafts", "convolve_tree")  # rows of several tokens
OF_PREFILL = ("prefill", "keep", "prefill_pool", "keep_absolute")  # these take gates computed
OF_RAW_GATES = ("decode", "verify", "draft", "tree")


def sources(convolution: bool) -> Sequence[Source]:
    """What draws tokens."""
    return (GATES, ROWS) if convolution else (RULE,)


def scalars(kind: str, convolution: bool) -> Mapping[str, bool]:
    """Those that a call of this kind is given."""
    return {"use_qk_l2norm": convolution} if kind in OF_RAW_GATES else {}


def heads(tokens: Tensors, axes: Mapping[str, int]) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of tokens, [T, heads, size], as they come: their own, or the convolution's output split."""
    if MIXED not in tokens:
        return tokens["q"], tokens["k"], tokens["v"]
    return split_channels(tokens[MIXED], axes["num_v_heads"], axes["key_head_dim"], axes["value_head_dim"])


def inputs(kind: str, tokens: Tensors, weights: Tensors, axes: Mapping[str, int], each: int) -> dict[str, Tensor]:
    """The tensors of a call that are made of tokens, in the types of the definition."""
    if kind == "settle":
        return {}
    if kind in OF_CONVOLUTION or kind in OF_DRAFTS:
        x = tokens["x"].unflatten(0, (-1, each)) if kind in OF_DRAFTS else tokens["x"]
        return {"x": x, "weight": weights["weight"], "bias": weights["bias"]}
    q, k, v = (x.contiguous() for x in heads(tokens, axes))
    a, b = tokens["a"], tokens["b"]
    if kind in OF_PREFILL:
        if MIXED in tokens:
            q, k = (l2_normalise(x.double()).to(x.dtype) for x in (q, k))
        alpha, beta = gates(tokens, weights)
        return {"q": q, "k": k, "v": v, "g": alpha.float(), "beta": beta.float()}
    q, k, v, a, b = (x.unflatten(0, (-1, each)) for x in (q, k, v, a, b))
    return {"q": q, "k": k, "v": v, "a": a, "b": b, "A_log": weights["A_log"], "dt_bias": weights["dt_bias"]}


def gates(tokens: Tensors, weights: Tensors) -> tuple[Tensor, Tensor]:
    """alpha and beta [T, H] in float64."""
    a, b, A_log, dt_bias = (x.double() for x in (tokens["a"], tokens["b"], weights["A_log"], weights["dt_bias"]))
    return forget_gate_raw(A_log, a, dt_bias), torch.sigmoid(b)


def recent(before: Tensor | None, tokens: Tensors, weights: Tensors) -> Tensor:
    """The convolution's state [C, W - 1] after these tokens: the last W - 1 of the state before them and their rows."""
    x, kept = tokens["x"], weights["weight"].shape[1] - 1
    state = x.new_zeros(kept, x.shape[1]) if before is None else before.mT.to(x.dtype)
    window = torch.cat([state, x])
    return window[len(window) - kept :].mT.contiguous()


def advance(
    tokens: Tensors, weights: Tensors, axes: Mapping[str, int], before: Memory | None, keep: Sequence[int]
) -> tuple[Tensor, Tensor | None, dict[int, Memory]]:
    """The recurrence in float64 over tokens, one after the other. Returns o [T, H, V], the convolution's outputs [T, C]
    or None, and the memories after the numbers of tokens in `keep`."""
    tokens, weights = ({name: x.double() for name, x in given.items()} for given in (tokens, weights))
    alpha, beta = gates(tokens, weights)
    mixed, past = None, None
    if "x" in tokens:
        x, W = tokens["x"], weights["weight"].shape[1]
        past = x.new_zeros(x.shape[1], W - 1) if before is None or before.past is None else before.past
        mixed = convolve(torch.cat([past.mT, x]), weights["weight"], weights["bias"])
        tokens = {**tokens, MIXED: mixed}
    q, k, v = heads(tokens, axes)
    if mixed is not None:
        q, k = l2_normalise(q), l2_normalise(k)
    H, scale = alpha.shape[1], default_scale(q.shape[-1], None)
    q, k, v = (expand_heads(x, H) for x in (q, k, v))
    S = q.new_zeros(H, v.shape[-1], q.shape[-1]) if before is None else before.state
    output, memories = q.new_zeros(len(q), H, v.shape[-1]), {}
    for t in range(len(q) + 1):
        if t in keep:
            first = {name: x[:t] for name, x in tokens.items()}
            memories[t] = Memory(S, None if mixed is None else recent(past, first, weights))
        if t < len(q):
            output[t], S = step(S, q[t], k[t], v[t], alpha[t], beta[t], scale)
    return output, mixed, memories


def emulate(call: Emulated, name: str) -> Any:
    """One emulator on one call. Those of prefill have names of their own; no other call has more than one."""
    from .emulators import emulate as emulated
    from .emulators import emulate_pool, family
    from .family import without_products

    if without_products(call.definition) is not None:
        return call.oracle(**call.arguments)  # in float32, rounded once
    (member,) = (one for one in family(call.strict) if one.name == name)
    run = emulate_pool if "pool" in call.arguments else emulated
    ((_, values),) = run(call.definition, call.arguments, [member])
    return values


WORDS = SessionWords(ROLES, sources, inputs, scalars, recent, advance, emulate)
