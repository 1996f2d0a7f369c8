"""The gated delta rule, one token per sequence, on dense states."""

from collections.abc import Callable
from typing import Any

import torch
from gdnspec.family import checks, register
from torch import Tensor

from ..gated_delta_net import (
    arithmetic_type,
    default_scale,
    expand_heads,
    forget_gate_raw,
    l2_normalise,
    softplus,
    step,
)
from ..kv_dims import update_gate_raw
from . import sizes

NAME = "gated_delta_rule_step"


def forget_gate(A_log: Tensor, a: Tensor, dt_bias: Tensor) -> Tensor:
    """`forget_gate_raw`, whose gradient is zero where the exponent overflows: PyTorch would multiply the gate, 0, by
    infinity."""
    with torch.no_grad():
        over = torch.exp(A_log) * softplus(a + dt_bias) == torch.inf
    near = (torch.where(over, 0.0, x) for x in (A_log, a, dt_bias))
    return torch.where(over, 0.0, forget_gate_raw(*near))


def one_token(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    S: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    use_qk_l2norm: bool | None,
    allow_neg_eigval: bool | None,
) -> tuple[Tensor, Tensor]:
    """q, k [rows, heads, K], v [rows, heads, V], S [rows, H, V, K], a and b [rows, H]; the output [rows, H, V] and the
    state, in the type of S or a wider one."""
    dtype, H = arithmetic_type(q, k, v, S, A_log, a, dt_bias, b), S.shape[1]
    Q, K, V = (x.to(dtype) for x in (q, k, v))
    if use_qk_l2norm is None or use_qk_l2norm:
        Q, K = l2_normalise(Q), l2_normalise(K)
    Q, K, V = (expand_heads(x, H) for x in (Q, K, V))
    alpha = forget_gate(A_log.to(dtype), a.to(dtype), dt_bias.to(dtype))
    beta = update_gate_raw(b.to(dtype), bool(allow_neg_eigval))
    return step(S.to(dtype), Q, K, V, alpha, beta, default_scale(q.shape[-1], scale))


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
    allow_neg_eigval: bool | None = False,
    state_layout: str = "k_last",
) -> tuple[Tensor, Tensor]:
    dense_fake(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, allow_neg_eigval, state_layout)
    S = state.mT if state_layout == "k_first" else state
    o, S = one_token(
        q[:, 0], k[:, 0], v[:, 0], S, A_log, a[:, 0], dt_bias, b[:, 0], scale, use_qk_l2norm, allow_neg_eigval
    )  # fmt: skip
    S = S.mT if state_layout == "k_first" else S
    return o[:, None].to(v.dtype), S.to(state.dtype).contiguous()


def dense_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
    allow_neg_eigval: bool | None = False,
    state_layout: str = "k_last",
) -> tuple[Tensor, Tensor]:
    checks.choice(NAME, "state_layout", state_layout, ("k_last", "k_first"))
    output = sizes.tokens(NAME, q, k, v, "state", state, A_log, a, dt_bias, b, state_layout)
    checks.shape(NAME, "q", q, (q.shape[0], 1, *q.shape[2:]), "[B, 1, heads, K]")
    return output, torch.empty_like(state, memory_format=torch.contiguous_format)


def dense_asked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
    allow_neg_eigval: bool | None = False,
    state_layout: str = "k_last",
) -> tuple[str, tuple[Any, ...], Callable[..., Any] | None]:
    """The definition with this layout and state type, or the one for heads that differ in size."""
    inputs = (q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)
    if q.shape[-1] == v.shape[-1] and not allow_neg_eigval:
        return f"gdn_decode_{state_layout}{checks.by_type(NAME, 'state', state, sizes.STATES)}", inputs, None
    if state_layout == "k_last":
        return "gdn_decode_k_last_kv_dims", (*inputs, allow_neg_eigval), None
    turned = (q, k, v, state.mT.contiguous(), *inputs[4:], allow_neg_eigval)
    return "gdn_decode_k_last_kv_dims", turned, lambda outputs: (outputs[0], outputs[1].mT.contiguous())


ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor state, Tensor A_log, Tensor a, Tensor dt_bias, Tensor b, "
    "float? scale=None, bool? use_qk_l2norm=True, bool? allow_neg_eigval=False, str state_layout='k_last'"
)
OPERATOR = register(NAME, ARGUMENTS, "(Tensor, Tensor)", dense, dense_fake, dense_asked)
