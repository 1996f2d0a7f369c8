"""All between the projections and the rule over whole sequences: convolution, SiLU, L2 norm of q and k, gates."""

from typing import Any

import torch
from gdnspec.family import Asked, Backward, Grads, checks, register_pool
from torch import Tensor

from ..gated_delta_net import arithmetic_type, l2_normalise, split_channels
from ..kv_dims import update_gate_raw
from . import sizes
from .convolution import convolved
from .decode import forget_gate
from .pooled import Pooled, of_each

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
    slots: Tensor | None,
    has_initial_state: Tensor,
    head_dim: int,
) -> tuple[Tensor, ...]:
    """The outputs, and the states that go to the slots of sequences that are neither skipped nor empty."""
    fake(
        x, conv_weight, conv_bias, a, b, A_log, dt_bias, cu_seqlens, conv_states, slots, has_initial_state, head_dim
    )  # fmt: skip
    rows = len(x)  # those behind the last sequence do nothing: gates of 1, and zeros
    x, a, b = checks.of_sequences(NAME, "cu_seqlens", cu_seqlens, x, a, b)
    slots = of_each(slots, cu_seqlens)
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
    slots: Tensor | None,
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
    sizes.sequences(NAME, x, cu_seqlens, conv_states, slots, has_initial_state)
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
    slots: Tensor | None,
    has_initial_state: Tensor,
    head_dim: int,
) -> tuple[str, tuple[Any, ...], None]:
    gates, states = (a, b, A_log.float(), dt_bias), (conv_states, of_each(slots, cu_seqlens).int(), has_initial_state)
    return "gdn_conv_gates_prefill", (x, conv_weight, conv_bias, *gates, cu_seqlens.long(), *states, head_dim), None


# --- gradients --------------------------------------------------------------------------------------------------


def serves(
    x: Tensor, conv_weight: Tensor, conv_bias: Any, a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor,
    cu_seqlens: Tensor, conv_states: Tensor, *more: Any,
) -> bool:  # fmt: skip
    floats = (x, conv_weight, a, b, dt_bias, conv_states, *(() if conv_bias is None else (conv_bias,)))
    types = {t.dtype for t in floats} == {torch.bfloat16} and A_log.dtype in (torch.bfloat16, torch.float32)
    return types and len(cu_seqlens) > 1 and 2 <= conv_weight.shape[1] <= 4


def backward_asked(grads: Grads, args: tuple[Any, ...]) -> Asked:
    """As that of the convolution. Outputs whose gradient nobody has get zeros."""
    x, conv_weight, conv_bias, a, b, A_log, dt_bias, cu_seqlens, pool, slots, has_initial_state, D = args
    (T, C), H = x.shape, a.shape[1]
    heads = (C // D - H) // 2
    shapes, types = ((T, heads, D), (T, heads, D), (T, H, D), (T, H), (T, H)), (*[x.dtype] * 3, *[torch.float32] * 2)
    given = [
        x.new_zeros(shape, dtype=dtype) if dy is None else dy.to(dtype)
        for dy, shape, dtype in zip(grads[:5], shapes, types, strict=True)
    ]
    on = Pooled(cu_seqlens.long(), pool, slots, has_initial_state, grads[5])
    x, a, b, *given = on.owned(x, a, b, *given)

    def finish(outputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        *found, dh0 = outputs
        return (*found, None, on.before(dh0))

    inputs = (x, conv_weight, conv_bias, a, b, A_log.float(), dt_bias, on.cu_seqlens, on.initial_state, *given, on.dht)
    return "gdn_conv_gates_backward", inputs, finish


OPERATOR = register_pool(
    NAME,
    "Tensor x, Tensor conv_weight, Tensor? conv_bias, Tensor a, Tensor b, Tensor A_log, Tensor dt_bias, "
    "Tensor cu_seqlens, Tensor(a!) conv_states, Tensor? slots, Tensor has_initial_state, int head_dim",
    moved,
    fake,
    asked,
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    backward=Backward(serves, backward_asked),
)
