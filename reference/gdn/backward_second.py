"""The gradients of backward_around.py once more, from another derivation.

The rule comes from its chunkwise form. What stands around it comes from Jacobians written out: of a norm as a
multiple of the identity less an outer product, of a gate as the derivative of alpha itself instead of its logarithm.
Each function takes and returns what its namesake in backward_around.py does. In float64 the two agree to 1e-10.
"""

import torch
from torch import Tensor

from .backward_chunkwise import Stored, as_it_is, prefill_backward_k_last
from .gated_delta_net import L2_EPSILON, arithmetic_type, softplus
from .layer import RMS_EPSILON


def through_l2_norm(x: Tensor, dy: Tensor) -> Tensor:
    """J^T dy with the Jacobian J = r I - r^3 x x^T of x r, r = (|x|^2 + 1e-6)^-1/2."""
    r = (x.square().sum(dim=-1, keepdim=True) + L2_EPSILON) ** -0.5
    return r * dy - r**3 * x * (x * dy).sum(dim=-1, keepdim=True)


def through_gates(
    A_log: Tensor, a: Tensor, dt_bias: Tensor, b: Tensor, dalpha: Tensor, dbeta: Tensor
) -> tuple[Tensor, ...]:
    """alpha = exp(-A s) with s = softplus(x): its derivative is -alpha A (1 - exp(-s)) in x and -alpha A s in log A.
    Returns da, db, dA_log and ddt_bias."""
    A, s = A_log.exp(), softplus(a + dt_bias)
    alpha, beta = torch.exp(-A * s), 1.0 / (1.0 + torch.exp(-b))
    slope, of_rate = (torch.where(alpha > 0, -alpha * A * x, 0.0) for x in (-torch.expm1(-s), s))  # A may be infinite
    da, db = dalpha * slope, dbeta * beta / (1.0 + torch.exp(b))
    return da, db, torch.einsum("th,th->h", dalpha, of_rate), torch.einsum("th->h", da)


def prefill_backward_raw_gates(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
    use_qk_l2norm: bool,
    do: Tensor | None,
    dht: Tensor | None,
    chunk_size: int = 64,
    stored: Stored = as_it_is,
) -> tuple[Tensor, ...]:
    """The rule from its chunkwise form, between the norm and the gates."""
    dtype = arithmetic_type(q, k, v, a, b, A_log, dt_bias, initial_state, do, dht)
    Q, K, V, logits = (x.to(dtype) for x in (q, k, v, b))
    A, s = A_log.to(dtype).exp(), softplus(a.to(dtype) + dt_bias.to(dtype))
    alpha, beta = torch.exp(-A * s), 1.0 / (1.0 + torch.exp(-logits))
    r = [(x.square().sum(-1, keepdim=True) + L2_EPSILON) ** -0.5 if use_qk_l2norm else 1.0 for x in (Q, K)]

    normalised = [stored(factor * x) for factor, x in zip(r, (Q, K), strict=True)]
    dQ, dK, dv, dalpha, dbeta, dh0 = prefill_backward_k_last(
        *normalised, V, alpha, beta, cu_seqlens, initial_state, scale, do, dht, chunk_size, stored
    )  # fmt: skip
    if use_qk_l2norm:
        dQ, dK = through_l2_norm(Q, dQ), through_l2_norm(K, dK)
    da, db, dA_log, ddt_bias = through_gates(A_log.to(dtype), a.to(dtype), dt_bias.to(dtype), logits, dalpha, dbeta)
    of_tokens = (dx.to(x.dtype) for dx, x in ((dQ, q), (dK, k), (dv, v), (da, a), (db, b)))
    return (*of_tokens, dA_log, ddt_bias, dh0)


def gated_rms_norm_backward(
    x: Tensor, z: Tensor, weight: Tensor, eps: float | None, do: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """J^T applied to the rows, with the Jacobian J = r I - r^3 x x^T / V of x r, r = (mean(x^2) + eps)^-1/2."""
    dtype = arithmetic_type(x, z, weight, do)
    X, Z, w, dy = (t.to(dtype) for t in (x, z, weight, do))
    V = X.shape[-1]
    r = (X.square().sum(-1, keepdim=True) / V + (RMS_EPSILON if eps is None else eps)) ** -0.5
    gate, below = Z / (1.0 + torch.exp(-Z)), 1.0 / (1.0 + torch.exp(Z))  # silu(z), 1 - sigmoid(z)
    slope = torch.sigmoid(Z) + gate * below
    eye = torch.eye(V, dtype=dtype, device=x.device)
    J = r[..., None] * eye - r[..., None] ** 3 * X[..., :, None] * X[..., None, :] / V  # symmetric
    dx = (J @ (dy * w * gate)[..., None])[..., 0]
    dz = r * X * dy * w * slope
    return dx.to(x.dtype), dz.to(z.dtype), torch.einsum("rv,rv,rv->v", *(t.flatten(0, -2) for t in (r * X, dy, gate)))


def met_by(cu_seqlens: Tensor, W: int) -> tuple[Tensor, Tensor]:
    """All states, of W - 1 inputs each, and then all inputs are rows of one matrix. Which rows each token meets [T, W],
    and which are the state of each sequence after the call [N, W - 1]."""
    N, kept, device = cu_seqlens.numel() - 1, W - 1, cu_seqlens.device
    starts, lengths, sequences = cu_seqlens[:-1], cu_seqlens.diff(), torch.arange(N, device=device)

    def row(sequence: Tensor, place: Tensor) -> Tensor:
        """Of the input at a place of a sequence; places before 0 are in its state."""
        return torch.where(place >= 0, N * kept + starts[sequence] + place, sequence * kept + kept + place)

    owner = sequences.repeat_interleave(lengths)
    place = torch.arange(len(owner), device=device) - starts[owner]
    met = row(owner[:, None], place[:, None] + torch.arange(-kept, 1, device=device))
    return met, row(sequences[:, None], lengths[:, None] + torch.arange(-kept, 0, device=device))


def before_silu(rows: Tensor, met: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.einsum("twc,cw->tc", rows[met], weight.to(rows.dtype)) + (0.0 if bias is None else bias.to(rows.dtype))


def conv1d_backward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    do: Tensor | None,
    dht: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A gather of the rows that a token meets forwards, and the sum into the same rows backwards."""
    dtype = arithmetic_type(x, weight, bias, initial_state, do, dht)
    (C, W), N = weight.shape, cu_seqlens.numel() - 1
    zeros = torch.zeros(N, C, W - 1, dtype=dtype, device=x.device)
    states, after = (zeros if s is None else s.to(dtype) for s in (initial_state, dht))
    of_states = N * (W - 1)
    rows = torch.cat([states.mT.reshape(of_states, C), x.to(dtype)])
    met, last = met_by(cu_seqlens, W)

    p = before_silu(rows, met, weight, bias)
    s = torch.sigmoid(p)
    dy = torch.zeros_like(p) if do is None else do[: len(p)].to(dtype)
    dp = dy * (s + p * s * torch.sigmoid(-p))
    drows = torch.zeros_like(rows)
    drows.index_add_(0, met.flatten(), (dp[:, None] * weight.to(dtype).T).flatten(0, 1))
    drows.index_add_(0, last.flatten(), after.mT.reshape(of_states, C))
    dweight, dbias = torch.einsum("tc,twc->cw", dp, rows[met]), torch.einsum("tc->c", dp)
    dh0 = drows[:of_states].view(N, W - 1, C).mT.contiguous()
    return drows[of_states:].to(x.dtype), dweight, dbias, dh0


def conv_gates_backward(
    x: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dg: Tensor,
    dbeta: Tensor,
    dht: Tensor | None,
) -> tuple[Tensor, ...]:
    """The Jacobian of the norm applied to all heads of queries and keys at once, which are its first 2 HK."""
    dtype = arithmetic_type(x, conv_weight, conv_bias, a, b, A_log, dt_bias, initial_state, dq, dk, dv, dg, dbeta, dht)
    (C, W), N, total, D = conv_weight.shape, cu_seqlens.numel() - 1, int(cu_seqlens[-1]), dq.shape[2]
    X, w, steps, logits = (t.to(dtype) for t in (x, conv_weight, a, b))
    states = X.new_zeros(N, C, W - 1) if initial_state is None else initial_state.to(dtype)
    p = before_silu(torch.cat([states.mT.reshape(-1, C), X]), met_by(cu_seqlens, W)[0], w, conv_bias)
    y = (p / (1.0 + torch.exp(-p))).view(total, -1, D)

    dy = torch.zeros(len(x), C // D, D, dtype=dtype, device=x.device)
    normed = 2 * dq.shape[1]
    dy[:total, :normed] = through_l2_norm(y[:, :normed], torch.cat([dq, dk], 1)[:total].to(dtype))
    dy[:total, normed:] = dv[:total]
    dx, dweight, dbias, dh0 = conv1d_backward(X, w, conv_bias, cu_seqlens, initial_state, dy.flatten(1), dht)

    da, db = torch.zeros_like(steps), torch.zeros_like(logits)
    of_tokens = (steps[:total], dt_bias.to(dtype), logits[:total], dg[:total].to(dtype), dbeta[:total].to(dtype))
    da[:total], db[:total], dA_log, ddt_bias = through_gates(A_log.to(dtype), *of_tokens)
    return dx.to(x.dtype), dweight, dbias, da.to(a.dtype), db.to(b.dtype), dA_log, ddt_bias, dh0
