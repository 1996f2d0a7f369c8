"""Kimi Delta Attention in its chunkwise (WY) form, derived independently of the recurrence.

One chunk of C tokens of one head; rows are tokens, S [V, K] is the state at its start. Write u_i for what token i adds
to the state (S_i = S_{i-1} Diag(alpha_i) + u_i k_i^T). Unrolled inside the chunk, with gamma_i = alpha_1 * .. * alpha_i
and Gamma_ij = alpha_{j+1} * .. * alpha_i for i >= j, all of them vectors of key channels,

    S_i = S Diag(gamma_i) + sum_{j<=i} u_j (Gamma_ij * k_j)^T
    u_i = beta_i (v_i - S (gamma_i * k_i) - sum_{j<i} (k_i . (Gamma_ij * k_j)) u_j)

The second line is a unit lower triangular system in the rows of U. With KK_ij = sum_c k_ic Gamma_ijc k_jc, QK the same
of q_i and k_j, and A = strict_lower(diag(beta) KK),

    (I + A) U = diag(beta) (V - (gamma * K) S^T)
    O  = scale ((gamma * Q) S^T + lower(QK) U)
    S <- S Diag(gamma_C) + U^T (Gamma_C,: * K)

A decay of its own for each channel cannot be taken out of the product of two keys, as gated delta net takes out its
one. Kernels write Gamma_ij as exp(G_i) exp(-G_j), whose second factor overflows. Here Gamma is formed by multiplication
alone, never as a quotient and never through a sum of logarithms, so an exact reset (alpha = 0) is exact.

The functions take and return what their namesakes in kimi_delta_attention.py do. In float64 the two agree to 1e-12.
"""

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from .kimi_delta_attention import L2_EPSILON, arithmetic_type, default_scale, expand_heads, transposed
from .layer import block


def decay_ratios(alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Gamma [..., C, C, K], zero for i < j, and gamma [..., C, K], from alpha [..., C, K], by products alone."""
    C = alpha.shape[-2]
    below = torch.ones(C, C, dtype=torch.bool, device=alpha.device).tril(-1)[..., None]
    factors = torch.where(below, alpha[..., :, None, :], torch.ones_like(alpha[..., :, None, :]))
    Gamma = torch.cumprod(factors, dim=-3)
    upper = torch.ones(C, C, dtype=torch.bool, device=alpha.device).triu(1)[..., None]
    return Gamma.masked_fill(upper, 0.0), torch.cumprod(alpha, dim=-2)


def chunk(
    Q: Tensor, K: Tensor, V: Tensor, alpha: Tensor, beta: Tensor, S: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Q, K, alpha [H, C, K]; V [H, C, V]; beta [H, C]; S [H, V, K]. Returns O [H, C, V] and the new S."""
    Gamma, gamma = decay_ratios(alpha)
    decayed = Gamma * K[:, None]  # [H, i, j, K]: key j as token i meets it
    KK = (decayed @ K[..., None])[..., 0]  # [H, i, j]
    QK = (decayed @ Q[..., None])[..., 0]  # Gamma is zero above the diagonal: causal
    A = beta[..., None] * KK.tril(-1)
    right = beta[..., None] * (V - (gamma * K) @ S.mT)
    U = torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True)
    O = scale * ((gamma * Q) @ S.mT + QK @ U)
    return O, S * gamma[:, -1, None, :] + U.mT @ decayed[:, -1]


def prefill_k_last(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
    chunk_size: int = 16,
) -> tuple[Tensor, Tensor]:
    """As `kimi_delta_attention.prefill_k_last`, in chunks of `chunk_size` tokens. Gamma has chunk_size^2 K numbers for
    each head: small chunks are the quick ones here."""
    dtype = arithmetic_type(q, k, v, g, beta, initial_state)
    T, H = v.shape[:2]
    num_seqs, key_size, value_size = cu_seqlens.numel() - 1, q.shape[-1], v.shape[-1]
    gates = torch.zeros(T, H, key_size, dtype=dtype, device=q.device) if g is None else g.to(dtype)
    write = torch.ones(T, H, dtype=dtype, device=q.device) if beta is None else beta.to(dtype)
    if initial_state is None:
        states = torch.zeros(num_seqs, H, value_size, key_size, dtype=dtype, device=q.device)
    else:
        states = initial_state.to(dtype, copy=True)
    factor = default_scale(key_size, scale)

    output = torch.zeros(T, H, value_size, dtype=dtype, device=q.device)
    for n, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        for first in range(start, stop, chunk_size):
            rows = slice(first, min(first + chunk_size, stop))
            Q, K, V = (expand_heads(x[rows].to(dtype), H).transpose(0, 1) for x in (q, k, v))
            alpha = torch.exp(gates[rows]).transpose(0, 1)
            O, states[n] = chunk(Q, K, V, alpha, write[rows].T, states[n], factor)
            output[rows] = O.transpose(0, 1)
    state_type = dtype if initial_state is None else initial_state.dtype
    return output.to(v.dtype), states.to(state_type)


def prefill_k_first(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
    chunk_size: int = 16,
) -> tuple[Tensor, Tensor]:
    """As `kimi_delta_attention.prefill_k_first`, in chunks of `chunk_size` tokens."""
    output, S = prefill_k_last(q, k, v, g, beta, cu_seqlens, transposed(initial_state), scale, chunk_size)
    return output, S.transpose(-1, -2).contiguous()


def prefill_raw_gates(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    lower_bound: float | None,
    scale: float | None,
    use_qk_l2norm: bool | None,
    chunk_size: int = 16,
) -> tuple[Tensor, Tensor]:
    """As `kimi_delta_attention.prefill_raw_gates`, in chunks of `chunk_size` tokens, the gates and the norm from other
    forms of their equations: softplus(x) = log(e^x + e^0), and a quotient by the root of the sum of squares."""
    dtype = arithmetic_type(q, k, v, A_log, a, dt_bias, b, initial_state)
    Q, K, logits, x, rate = (t.to(dtype) for t in (q, k, b, a.to(dtype) + dt_bias.to(dtype), A_log.to(dtype).exp()))
    if use_qk_l2norm is None or use_qk_l2norm:
        Q, K = (t / (t.square().sum(-1, keepdim=True) + L2_EPSILON).sqrt() for t in (Q, K))
    if lower_bound:
        g = float(lower_bound) / (1.0 + torch.exp(-rate[:, None] * x))
    else:
        g = -rate[:, None] * torch.logaddexp(x, torch.zeros_like(x))
    beta = 1.0 / (1.0 + torch.exp(-logits))
    return prefill_k_last(Q, K, v, g, beta, cu_seqlens, initial_state, scale, chunk_size)


def prefill_checkpoints(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
    checkpoint_cu_starts: Tensor,
    checkpoint_interval: int,
    chunk_size: int = 16,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `serving.prefill_checkpoints`: a checkpoint is the final state of a prefill that starts with the sequence."""
    call = q, k, v, g, beta
    lengths, kept = cu_seqlens.diff().tolist(), checkpoint_cu_starts.tolist()
    output, states = prefill_k_last(*call, cu_seqlens, initial_state, scale, chunk_size)
    checkpoints = states.new_zeros(kept[-1], *states.shape[1:])
    for n, start in enumerate(cu_seqlens[:-1].tolist()):
        first = None if initial_state is None else initial_state[n : n + 1]
        for i in range(lengths[n] // checkpoint_interval):
            count = (i + 1) * checkpoint_interval
            part = (None if x is None else x[start : start + count] for x in call)
            _, S = prefill_k_last(*part, torch.tensor([0, count]), first, scale, chunk_size)
            checkpoints[kept[n] + i] = S[0]
    return output, states, checkpoints


def layer_prefill(*, chunk_size: int = 16, **inputs: Tensor | float | None) -> tuple[Tensor, Tensor, Tensor]:
    """As `layer.layer_prefill`, the rule in chunks of `chunk_size` tokens; its inputs by keyword."""
    return block(**inputs, rule=partial(prefill_k_last, chunk_size=chunk_size))
