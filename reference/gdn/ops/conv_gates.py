"""All between the projections and the rule over whole sequences: convolution, SiLU, L2 norm of q and k, gates."""

from typing import Any

import torch
from gdnspec.family import checks, register_pool
from torch import Tensor

from ..gated_delta_net import arithmetic_type, l2_normalise, split_channels
from ..kv_dims import update_gate_raw
from . import sizes
from .convolution import convolved
from .decode import forget_gate

NAME = "causal_conv1d_gates"


def moved(
    x: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    cu_seqlens: Tensor,
    conv_states: Tensor,
    slots: Tensor,
    has_initial_state: Tensor,
    head_dim: int,
) -> tuple[Tensor, ...]:
    """The outputs, and the states that go to the slots of sequences that are neither skipped nor empty."""
    fake(
        x, conv_weight, conv_bias, a, b, A_log, dt_bias, cu_seqlens, conv_states, slots, has_initial_state, head_dim
    )  # fmt: skip
    rows = len(x)  # those behind the last sequence do nothing: gates of 1, and zeros
    x, a, b = checks.of_sequences(NAME, "cu_seqlens", cu_seqlens, x, a, b)
    checks.slots(NAME, "slots", slots, len(conv_states), once=True)
    dtype = arithmetic_type(x, conv_weight, conv_bias, a, b, A_log, dt_bias, conv_states)
    mixed, written, after = convolved(
        x.to(dtype), conv_weight, conv_bias, cu_seqlens.long(), conv_states, slots.long(), has_initial_state
    )  # fmt: skip
    q, k, v = split_channels(mixed, a.shape[1], head_dim, head_dim)
    live = (slots >= 0).repeat_interleave(cu_seqlens.diff())[:, None]
    a, b = (torch.where(live, x, 0.0) for x in (a, b))  # a gradient of zero times NaN would be NaN
    alpha = forget_gate(A_log.to(dtype), a.to(dtype), dt_bias.to(dtype))
    g = torch.where(live, alpha, 1.0)
    beta = torch.where(live, update_gate_raw(b.to(dtype), False), 0.0)
    heads = (checks.padded(y.to(x.dtype).contiguous(), rows) for y in (l2_normalise(q), l2_normalise(k), v))
    return (*heads, checks.padded(g, rows, 1.0), checks.padded(beta, rows), written, after)


def fake(
    x: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    cu_seqlens: Tensor,
    conv_states: Tensor,
    slots: Tensor,
    has_initial_state: Tensor,
    head_dim: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Outputs without values, for a call that is served. Raises `ValueError` and `TypeError` for others."""
    floats = {"conv_weight": conv_weight, "conv_bias": conv_bias, "a": a, "b": b, "A_log": A_log, "dt_bias": dt_bias}
    checks.tensors(
        NAME, {"x": x, **floats, "conv_states": conv_states}, {"cu_seqlens": cu_seqlens, "slots": slots}
    )  # fmt: skip
    sizes.convolution(NAME, "x", x, conv_weight, conv_bias, conv_states)
    sizes.gates(NAME, "T", x.shape[0], a, b, A_log, dt_bias)
    key_heads = sizes.channels(NAME, "x", x.shape[1], a.shape[1], head_dim, head_dim)
    sizes.sequences(NAME, x, cu_seqlens, slots, has_initial_state)
    g, beta = (a.new_empty(a.shape, dtype=arithmetic_type(x, *floats.values(), conv_states)) for _ in "gb")
    T = x.shape[0]
    q, k = (x.new_empty(T, key_heads, head_dim) for _ in "qk")
    return q, k, x.new_empty(T, a.shape[1], head_dim), g, beta


def asked(
    x: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    cu_seqlens: Tensor,
    conv_states: Tensor,
    slots: Tensor,
    has_initial_state: Tensor,
    head_dim: int,
) -> tuple[str, tuple[Any, ...], None]:
    gates, states = (a, b, A_log.float(), dt_bias), (conv_states, slots.int(), has_initial_state)
    return "gdn_conv_gates_prefill", (x, conv_weight, conv_bias, *gates, cu_seqlens.long(), *states, head_dim), None


OPERATOR = register_pool(
    NAME,
    "Tensor x, Tensor conv_weight, Tensor? conv_bias, Tensor a, Tensor b, Tensor A_log, Tensor dt_bias, "
    "Tensor cu_seqlens, Tensor(a!) conv_states, Tensor slots, Tensor has_initial_state, int head_dim",
    moved,
    fake,
    asked,
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
)
