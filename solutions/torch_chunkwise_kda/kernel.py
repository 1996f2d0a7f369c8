"""Kimi Delta Attention in its chunkwise (WY) form, in plain PyTorch.

One chunk of one head; rows are tokens, S [V, K] is the state at its start. gamma_i is the decay of each key channel
from the start to token i, Gamma_ij from after token j to token i:

    KK_ij = sum_c k_ic Gamma_ijc k_jc,  QK the same of q_i and k_j,  A = strict_lower(diag(beta) KK)
    (I + A) U = diag(beta) (V - (gamma * K) S^T)
    O = scale ((gamma * Q) S^T + lower(QK) U)
    S <- S Diag(gamma_C) + U^T (Gamma_C,: * K)

No quotient of decays is formed. Two tokens of a chunk meet in one block of 2, 4, .. tokens, the earlier one in its
first half, the later one in its second. The later one decays from the middle, the earlier one up to it: both are
products of gates, at most 1, and nothing overflows at any gate. float32 throughout; outputs are rounded once.
"""

import torch
from torch import Tensor

CHUNK = 32  # tokens, a power of two


def decay_to_end(alpha: Tensor) -> Tensor:
    """The decay from after each token to the last one: [.., C, K] from [.., C, K]."""
    after = torch.cat([alpha[..., 1:, :], torch.ones_like(alpha[..., :1, :])], dim=-2)
    return after.flip(-2).cumprod(-2).flip(-2)


def scores(X: Tensor, K: Tensor, alpha: Tensor) -> Tensor:
    """sum_c x_ic Gamma_ijc k_jc where j <= i, and 0 elsewhere: [H, C, C] from [H, C, K]."""
    H, C, size = X.shape
    out = torch.diag_embed((X * K).sum(-1))
    width = 2
    while width <= C:
        half = width // 2
        x, k, a = (y.reshape(H, C // width, width, size) for y in (X, K, alpha))
        later = x[:, :, half:] * a[:, :, half:].cumprod(-2)
        earlier = k[:, :, :half] * decay_to_end(a[:, :, :half])
        blocks = later @ earlier.mT
        for i in range(C // width):
            middle = i * width + half
            out[:, middle : middle + half, i * width : middle] = blocks[:, i]
        width *= 2
    return out


def chunk(Q, K, V, alpha, beta, S):
    """Q, K, alpha [H, C, K]; V [H, C, V]; beta [H, C]; S [H, V, K]. Returns O [H, C, V], unscaled, and the new S."""
    gamma = alpha.cumprod(-2)
    A = beta[..., None] * scores(K, K, alpha).tril(-1)
    right = beta[..., None] * (V - (gamma * K) @ S.mT)
    U = torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True)
    O = (gamma * Q) @ S.mT + scores(Q, K, alpha) @ U
    S = gamma[:, -1, None, :] * S + U.mT @ (decay_to_end(alpha) * K)
    return O, S


def bounds_of(cu_seqlens: Tensor, total: int) -> list[int]:
    """Where sequences start and end. Rows behind the last may belong to none. Raises ValueError for others."""
    bounds = cu_seqlens.tolist()
    if bounds[0] != 0 or bounds[-1] > total or bounds != sorted(bounds):
        raise ValueError(f"cu_seqlens must rise from 0 and end within total_seq_len {total}; it is {bounds}")
    return bounds


def chunk_rows(x: Tensor, H: int, first: int, stop: int, fill: float) -> Tensor:
    """[T, heads, ..] -> [H, CHUNK, ..] in float32; tokens behind the last do nothing."""
    part = x[first:stop].float().repeat_interleave(H // x.shape[1], dim=1).transpose(0, 1)
    missing = CHUNK - (stop - first)
    return torch.cat([part, part.new_full((H, missing, *part.shape[2:]), fill)], dim=1)


def prefill(q, k, v, g, beta, cu_seqlens, S, scale, keep=None):
    """S: float32 [num_seqs, H, V, K], or None. `keep` is told of sequence n, its tokens so far and the state after
    them, chunk by chunk. Returns output [T, H, V] and the states."""
    (T, H), size = v.shape[:2], q.shape[-1]
    factor = size**-0.5 if scale is None else float(scale)
    alpha = torch.ones(T, H, size, device=q.device) if g is None else torch.exp(g)
    write = torch.ones(T, H, device=q.device) if beta is None else beta
    bounds = bounds_of(cu_seqlens, T)
    states = torch.zeros(len(bounds) - 1, H, size, size, device=q.device) if S is None else S.clone()
    output = torch.empty(T, H, size, device=q.device)

    for n in range(len(bounds) - 1):
        for first in range(bounds[n], bounds[n + 1], CHUNK):
            stop = min(first + CHUNK, bounds[n + 1])
            tokens = [
                chunk_rows(x, H, first, stop, fill) for x, fill in ((q, 0), (k, 0), (v, 0), (alpha, 1), (write, 0))
            ]
            O, states[n] = chunk(*tokens, states[n])
            output[first:stop] = factor * O[:, : stop - first].transpose(0, 1)
            if keep is not None:
                keep(n, stop - bounds[n], states[n])
    return output.to(v.dtype), states


def prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """kda_prefill_k_last: states [num_seqs, H, V, K]."""
    return prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale)


def prefill_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """kda_prefill_k_first: states [num_seqs, H, K, V]."""
    initial = None if initial_state is None else initial_state.mT.contiguous()
    output, S = prefill(q, k, v, g, beta, cu_seqlens, initial, scale)
    return output, S.mT.contiguous()


def prefill_checkpoints(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, checkpoint_cu_starts, checkpoint_interval
):  # fmt: skip
    """kda_prefill_checkpoints: the state after every checkpoint_interval tokens; an interval is a number of chunks."""
    (H, D), starts = v.shape[1:], checkpoint_cu_starts.tolist()
    checkpoints = torch.empty(starts[-1], H, D, D, device=q.device)

    def keep(n, tokens, state):
        if tokens % checkpoint_interval == 0:
            checkpoints[starts[n] + tokens // checkpoint_interval - 1] = state

    output, S = prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale, keep)
    return output, S, checkpoints


# --- raw gates --------------------------------------------------------------------------------------------------


def log_gate(A_log: Tensor, a: Tensor, dt_bias: Tensor, lower_bound: float | None) -> Tensor:
    """g [T, H, K] in log space. With a lower bound, that bound is a factor: it clamps nothing."""
    rate, x = torch.exp(A_log)[:, None], a.float() + dt_bias
    if lower_bound:
        return float(lower_bound) * torch.sigmoid(rate * x)
    return -rate * (x.clamp(min=0) + torch.log1p(torch.exp(-x.abs())))


def normalised(x: Tensor) -> Tensor:
    """x * rsqrt(sum(x^2) + 1e-6)."""
    square = (x * x).sum(-1, keepdim=True)
    return x * torch.rsqrt(square + 1e-6)


def prefill_raw_gates(q, k, v, A_log, a, dt_bias, b, cu_seqlens, initial_state, lower_bound, scale, use_qk_l2norm):
    """kda_prefill_raw_gates: states [num_seqs, H, V, K]."""
    Q, K = q.float(), k.float()
    if use_qk_l2norm is None or use_qk_l2norm:
        Q, K = normalised(Q), normalised(K)
    g, beta = log_gate(A_log, a, dt_bias, lower_bound), torch.sigmoid(b.float())
    return prefill(Q, K, v, g, beta, cu_seqlens, initial_state, scale)


# --- gradients --------------------------------------------------------------------------------------------------
#
# With G = scale dO, D the gradient of the state at the chunk's end, M = (I + A)^-1 and R = V - (gamma * K) S^T:
#
#     X = M^T (lower(QK)^T G + (Gamma_C,: * K) D^T),   dV = diag(beta) X
#     P = lower(G U^T),   B = -diag(beta) strict_lower(X U^T)          of the products of queries, and of keys
#     dg_t = sum over i >= t > j of Gamma_ij * dGamma_ij, and over i >= t of gamma_i * dgamma_i


def all_decays(alpha: Tensor) -> Tensor:
    """Gamma_ij [H, C, C, K], from after token j to token i, zero for i < j: products of gates, so a reset is exact."""
    C = alpha.shape[1]
    below = torch.ones(C, C, dtype=torch.bool, device=alpha.device).tril(-1)[..., None]
    Gamma = torch.where(below, alpha[:, :, None], 1.0).cumprod(1)
    return Gamma * (below | torch.eye(C, dtype=torch.bool, device=alpha.device)[..., None])


def chunk_forward(Q, K, V, alpha, beta, S):
    """M [H, C, C], R and U [H, C, V], and the state at the end."""
    gamma = alpha.cumprod(1)
    A = beta[..., None] * scores(K, K, alpha).tril(-1)
    eye = torch.eye(A.shape[1], device=A.device).expand_as(A)
    M = torch.linalg.solve_triangular(A, eye, upper=False, unitriangular=True)
    R = V - (gamma * K) @ S.mT
    U = M @ (beta[..., None] * R)
    return M, R, U, gamma[:, -1, None] * S + U.mT @ (decay_to_end(alpha) * K)


def chunk_backward(Q, K, V, alpha, beta, G, S, M, R, U, D):
    """dQ, dK, dV, dg, dbeta of a chunk and the gradient of the state at its start."""
    Gamma, gamma, to_end = all_decays(alpha), alpha.cumprod(1), decay_to_end(alpha)
    X = M.mT @ (scores(Q, K, alpha).mT @ G + (to_end * K) @ D.mT)
    dV = beta[..., None] * X
    P, B = (G @ U.mT).tril(), -beta[..., None] * (X @ U.mT).tril(-1)
    read_q, read_k, written = G @ S, dV @ S, U @ D
    dQ = gamma * read_q + torch.einsum("hij,hijc,hjc->hic", P, Gamma, K)
    dK = to_end * written - gamma * read_k + torch.einsum("hij,hijc,hjc->hic", B, Gamma, K)
    dK = dK + torch.einsum("hij,hijc,hic->hjc", P, Gamma, Q) + torch.einsum("hij,hijc,hic->hjc", B, Gamma, K)
    dbeta = (X * (R - scores(K, K, alpha).tril(-1) @ U)).sum(-1)
    dS = gamma[:, -1, None] * D + G.mT @ (gamma * Q) - dV.mT @ (gamma * K)

    pairs = Gamma * K[:, None] * (P[..., None] * Q[:, :, None] + B[..., None] * K[:, :, None])
    pairs[:, -1] += to_end * K * written
    start = gamma * (Q * read_q - K * read_k)
    start[:, -1] += gamma[:, -1] * (D * S).sum(-2)
    earlier = torch.ones_like(P[0]).tril(-1)[..., None]
    dg = (pairs.flip(1).cumsum(1).flip(1) * earlier).sum(2) + start.flip(1).cumsum(1).flip(1)
    return dQ, dK, dV, dg, dbeta, dS


def prefill_backward_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht):
    """kda_prefill_backward_k_last: forwards over the chunks of a sequence, and back."""
    (T, H), size = v.shape[:2], q.shape[-1]
    factor = size**-0.5 if scale is None else float(scale)
    alpha = torch.ones(T, H, size, device=q.device) if g is None else torch.exp(g)
    write = torch.ones(T, H, device=q.device) if beta is None else beta
    G = torch.zeros(T, H, size, device=q.device) if do is None else factor * do.float()
    bounds = bounds_of(cu_seqlens, T)
    zeros = torch.zeros(len(bounds) - 1, H, size, size, device=q.device)
    S, dh0 = (zeros.clone() if x is None else x.clone() for x in (initial_state, dht))
    made = [torch.zeros(T, H, size, device=q.device) for _ in range(4)] + [torch.zeros(T, H, device=q.device)]
    fills = (q, 0), (k, 0), (v, 0), (alpha, 1), (write, 0), (G, 0)
    for n in range(len(bounds) - 1):
        kept = []
        for first in range(bounds[n], bounds[n + 1], CHUNK):
            stop = min(first + CHUNK, bounds[n + 1])
            tokens = [chunk_rows(x, H, first, stop, fill) for x, fill in fills]
            before = S[n].clone()
            *inside, S[n] = chunk_forward(*tokens[:5], before)
            kept.append((first, stop, (*tokens, before, *inside)))
        for first, stop, forward in reversed(kept):
            *found, dh0[n] = chunk_backward(*forward, dh0[n].clone())
            for whole, part in zip(made, found, strict=True):
                whole[first:stop] = part[:, : stop - first].transpose(0, 1)
    dq, dk, dv, dg, dbeta = made
    folded = (x.unflatten(1, (of.shape[1], -1)).sum(2).to(of.dtype) for x, of in ((dq, q), (dk, k), (dv, v)))
    return *folded, dg, dbeta, dh0
