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
    """alpha = exp(-A s) with s = softplus(x): its derivative is -alpha A (1 - exp(-s)) in x and -alpha A s in log A."""
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
    slope, of_rate = (torch.where(alpha > 0, -alpha * A * x, 0.0) for x in (-torch.expm1(-s), s))  # A may be infinite
    da = dalpha * slope
    dA_log = torch.einsum("th,th->h", dalpha, of_rate)
    ddt_bias = torch.einsum("th->h", da)
    db = dbeta * beta / (1.0 + torch.exp(logits))
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


def conv1d_backward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    do: Tensor | None,
    dht: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All states and all inputs are rows of one matrix, and `met` says which rows a token meets: a gather forwards, and
    the sum into the same rows backwards."""
    dtype = arithmetic_type(x, weight, bias, initial_state, do, dht)
    (C, W), N, device = weight.shape, cu_seqlens.numel() - 1, x.device
    kept, starts, lengths = W - 1, cu_seqlens[:-1], cu_seqlens.diff()
    zeros = torch.zeros(N, C, kept, dtype=dtype, device=device)
    states, after = (zeros if s is None else s.to(dtype) for s in (initial_state, dht))
    rows = torch.cat([states.mT.reshape(N * kept, C), x.to(dtype)])

    def row(sequence: Tensor, place: Tensor) -> Tensor:
        """Of the input at a place of a sequence; places before 0 are in its state."""
        return torch.where(place >= 0, N * kept + starts[sequence] + place, sequence * kept + kept + place)

    owner = torch.arange(N, device=device).repeat_interleave(lengths)
    place = torch.arange(len(owner), device=device) - starts[owner]
    met = row(owner[:, None], place[:, None] + torch.arange(-kept, 1, device=device))  # [T, W]
    last = row(torch.arange(N, device=device)[:, None], lengths[:, None] + torch.arange(-kept, 0, device=device))

    p = torch.einsum("twc,cw->tc", rows[met], weight.to(dtype)) + (0.0 if bias is None else bias.to(dtype))
    s = torch.sigmoid(p)
    dy = torch.zeros_like(p) if do is None else do[: len(owner)].to(dtype)
    dp = dy * (s + p * s * torch.sigmoid(-p))
    drows = torch.zeros_like(rows)
    drows.index_add_(0, met.flatten(), (dp[:, None] * weight.to(dtype).T).flatten(0, 1))
    drows.index_add_(0, last.flatten(), after.mT.reshape(N * kept, C))
    dweight, dbias = torch.einsum("tc,twc->cw", dp, rows[met]), torch.einsum("tc->c", dp)
    dh0 = drows[: N * kept].view(N, kept, C).mT.contiguous()
    return drows[N * kept :].to(x.dtype), dweight, dbias, dh0
