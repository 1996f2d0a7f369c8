"""Kimi Delta Attention, one token per sequence, on dense states."""

import torch
from gdnspec.family import Asked, checks, register
from torch import Tensor

from .. import kimi_delta_attention as spec
from ..kimi_delta_attention import arithmetic_type, default_scale, expand_heads, l2_normalise, softplus, step
from . import sizes

NAME = "kimi_delta_attention_step"


def log_gate(A_log: Tensor, a: Tensor, dt_bias: Tensor, lower_bound: float | None) -> Tensor:
    """The specification's, whose gradient is zero where a product overflows: PyTorch would multiply 0 by infinity."""
    x, logs = a + dt_bias, A_log[:, None].expand_as(a)
    with torch.no_grad():
        g = spec.log_gate(A_log, a, dt_bias, lower_bound)
        over = (torch.exp(logs) * (x if lower_bound else softplus(x))).isinf()
    logs, x = (torch.where(over, 0.0, y).flatten() for y in (logs, x))
    near = spec.log_gate(logs, x[:, None], torch.zeros_like(x[:1]), lower_bound)
    return torch.where(over, g, near.view_as(g))


def one_token(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    S: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    lower_bound: float | None,
    scale: float | None,
    use_qk_l2norm: bool | None,
) -> tuple[Tensor, Tensor]:
    """q, k [rows, heads, K], v [rows, H, V], S [rows, H, V, K], a [rows, H, K], b [rows, H]; the output [rows, H, V]
    and the state, in the type of S or a wider one."""
    dtype, H = arithmetic_type(q, k, v, S, A_log, a, dt_bias, b), S.shape[1]
    Q, K, V = (x.to(dtype) for x in (q, k, v))
    if use_qk_l2norm is None or use_qk_l2norm:
        Q, K = l2_normalise(Q), l2_normalise(K)
    Q, K, V = (expand_heads(x, H) for x in (Q, K, V))
    alpha = log_gate(A_log.to(dtype), a.to(dtype), dt_bias.to(dtype), lower_bound).exp()
    return step(S.to(dtype), Q, K, V, alpha, b.to(dtype).sigmoid(), default_scale(q.shape[-1], scale))


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    lower_bound: float | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
    state_layout: str = "k_last",
) -> tuple[Tensor, Tensor]:
    dense_fake(q, k, v, state, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm, state_layout)
    S = state.mT if state_layout == "k_first" else state
    o, S = one_token(
        q[:, 0], k[:, 0], v[:, 0], S, A_log, a[:, 0], dt_bias, b[:, 0], lower_bound, scale, use_qk_l2norm
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
    lower_bound: float | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
    state_layout: str = "k_last",
) -> tuple[Tensor, Tensor]:
    """Outputs without values, for a call that is served. Raises `ValueError` and `TypeError` for others."""
    output = sizes.tokens(NAME, q, k, v, "state", state, A_log, a, dt_bias, b, lower_bound, state_layout)
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
    lower_bound: float | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
    state_layout: str = "k_last",
) -> Asked:
    """The definition with this type of state, which lies [V, K]."""
    sizes.one_size(NAME, q, v)
    definition = f"kda_decode_k_last{checks.by_type(NAME, 'state', state, sizes.STATES)}"
    turned = state_layout == "k_first"
    S = state.mT.contiguous() if turned else state
    inputs = (q, k, v, S, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm)
    if not turned:
        return definition, inputs, None
    return definition, inputs, lambda outputs: (outputs[0], outputs[1].mT.contiguous())


ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor state, Tensor A_log, Tensor a, Tensor dt_bias, Tensor b, "
    "float? lower_bound=None, float? scale=None, bool? use_qk_l2norm=True, str state_layout='k_last'"
)
OPERATOR = register(NAME, ARGUMENTS, "(Tensor, Tensor)", dense, dense_fake, dense_asked)
