"""Gated delta rule in its chunkwise form, in plain PyTorch: matrix products over chunks, no loop over tokens.

For one chunk of C tokens (rows) of one head, S [V, K] the state at its start, gamma_i = alpha_1 .. alpha_i and
Gamma_ij = alpha_{j+1} .. alpha_i (i >= j, else 0), what each token writes solves a unit lower triangular system,

    (I + A) U = diag(beta) (V - diag(gamma) K S^T),    A = strict_lower(diag(beta) (Gamma * K K^T)),

whose solution is split in a part without S and a factor of S, so that both are had ahead for all chunks at once:

    U = U0 - W S^T,    (I + A) [U0, W] = diag(beta) [V, diag(gamma) K]
    O = scale (diag(gamma) Q S^T + (Gamma * Q K^T) U)
    S <- gamma_C S + (diag(Gamma_C,:) U)^T K

Only the last three lines are serial, over the chunks of a sequence, and all sequences take them together. The decay
ratios are products of gates, never quotients and never sums of logarithms: alpha = 0 is exact and nothing overflows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor

CHUNK = 64


@contextmanager
def true_float32() -> Iterator[None]:
    """Matrix products of float32 in float32. A process may have allowed TensorFloat-32 (10 bits of mantissa, 1e-3 of
    error), which the triangular system would amplify and which float32 states do not forgive."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# --- prefill ----------------------------------------------------------------------------------------------------


class Chunks:
    """The chunks of all sequences, those of equal index together: the first of every sequence, then the second, ..

    Sequences are taken longest first, so that chunk n of those that have one is a slice of the chunks, and belongs to
    a slice of the sequences from the start.
    """

    def __init__(self, cu_seqlens: Tensor) -> None:
        bounds = cu_seqlens.tolist()
        lengths = [stop - start for start, stop in pairwise(bounds)]
        self.order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
        self.size = max(1, min(CHUNK, max(lengths, default=1)))
        counts = [-(-lengths[n] // self.size) for n in self.order]
        # How many sequences have a chunk n: `counts` falls, so it is the place of the first too short.
        self.alive = [sum(count > n for count in counts) for n in range(max(counts, default=0))]
        # And how many fill it: lengths fall as well.
        self.filled = [sum(lengths[s] >= (n + 1) * self.size for s in self.order) for n in range(len(self.alive))]
        firsts = [bounds[n] for n in self.order]
        stops = [bounds[n + 1] for n in self.order]
        starts = [firsts[s] + n * self.size for n, alive in enumerate(self.alive) for s in range(alive)]
        ends = [stops[s] for alive in self.alive for s in range(alive)]
        device = cu_seqlens.device
        within = torch.arange(self.size, device=device)
        token = torch.tensor(starts, dtype=torch.int64, device=device)[:, None] + within  # [M, C]
        self.valid = token < torch.tensor(ends, dtype=torch.int64, device=device)[:, None]
        self.token = torch.where(self.valid, token, 0)

    def take(self, x: Tensor, fill: float) -> Tensor:
        """[T, H, ..] -> [M, H, C, ..], `fill` where a sequence ends within its last chunk."""
        rows = x[self.token]  # [M, C, H, ..]
        valid = self.valid.reshape(*self.valid.shape, *[1] * (x.dim() - 1))
        return torch.where(valid, rows, fill).transpose(1, 2)


def decay_ratios(alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Gamma [.., C, C] (zero above the diagonal) and gamma [.., C] from alpha [.., C]."""
    C = alpha.shape[-1]
    below = torch.ones(C, C, dtype=torch.bool, device=alpha.device).tril(-1)
    # Down column j, the gates of the rows below j; ones up to there.
    factors = torch.where(below, alpha[..., :, None], 1.0)
    return factors.cumprod(-2).tril(), alpha.cumprod(-1)


def prefill(q, k, v, alpha, beta, cu_seqlens, S, scale, keep=None):
    """S: float32 [num_seqs, H, V, K], or None. alpha, beta: [T, H], or None for ones. `keep`, with states and the
    sequences that they are of after t tokens, is told of every whole chunk. Returns output, S."""
    T, D = q.shape[0], q.shape[-1]
    H = max(q.shape[1], v.shape[1])
    factor = D**-0.5 if scale is None else float(scale)
    chunks = Chunks(cu_seqlens)
    S = torch.zeros(len(chunks.order), H, D, D, device=q.device) if S is None else S.clone()
    if T == 0:
        return torch.empty(0, H, D, dtype=v.dtype, device=q.device), S

    # A padding token does nothing: alpha = 1 keeps the state, beta = 0 writes nothing.
    Q, K, V = (chunks.take(expand_heads(x.float(), H), 0.0) for x in (q, k, v))  # [M, H, C, D]
    ones = torch.ones(T, H, device=q.device)
    alpha = chunks.take(ones if alpha is None else alpha.float(), 1.0)  # [M, H, C]
    beta = chunks.take(ones if beta is None else beta.float(), 0.0)

    Gamma, gamma = decay_ratios(alpha)
    gamma = gamma[..., None]  # [M, H, C, 1]
    A = beta[..., None] * (Gamma * (K @ K.mT)).tril(-1)
    right = beta[..., None] * torch.cat([V, gamma * K], dim=-1)
    solved = torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True)  # the ones are implied
    U0, W = solved.split(D, dim=-1)
    attention = Gamma * (Q @ K.mT)
    K_end = Gamma[..., -1, :, None] * K  # each key with its decay to the end of the chunk
    Q = gamma * Q

    order = torch.tensor(chunks.order, dtype=torch.int64, device=q.device)
    S = S[order]
    O = torch.empty_like(V)
    first = tokens = 0
    for alive, filled in zip(chunks.alive, chunks.filled, strict=True):
        n = slice(first, first + alive)
        state = S[:alive]
        U = U0[n] - W[n] @ state.mT  # [alive, H, C, V]
        O[n] = Q[n] @ state.mT + attention[n] @ U
        S[:alive] = gamma[n, :, -1:] * state + U.mT @ K_end[n]
        first += alive
        tokens += chunks.size
        if keep is not None:
            keep(tokens, order[:filled], S[:filled])

    output = torch.empty(T, H, D, dtype=v.dtype, device=q.device)
    output[chunks.token[chunks.valid]] = (factor * O).transpose(1, 2)[chunks.valid].to(v.dtype)
    return output, S[torch.argsort(order)]


def prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """gdn_prefill_k_last: states [num_seqs, H, V, K]; g is alpha itself."""
    with true_float32():
        return prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale)


def prefill_checkpoints(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, checkpoint_cu_starts, checkpoint_interval
):  # fmt: skip
    """gdn_prefill_checkpoints: as gdn_prefill_k_last, with the state after every checkpoint_interval tokens: an
    interval is a number of chunks, and who has one has chunks of `CHUNK` tokens."""
    H, D = max(q.shape[1], v.shape[1]), q.shape[-1]
    checkpoints = torch.empty(int(checkpoint_cu_starts[-1]), H, D, D, device=q.device)

    def keep(tokens, sequences, S):
        if tokens % checkpoint_interval == 0:
            checkpoints[checkpoint_cu_starts[sequences] + tokens // checkpoint_interval - 1] = S

    with true_float32():
        output, S = prefill(q, k, v, g, beta, cu_seqlens, initial_state, scale, keep)
    return output, S, checkpoints


def prefill_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """gdn_prefill_k_first: states [num_seqs, H, K, V]; alpha = exp(g)."""
    alpha = None if g is None else torch.exp(g.float())
    initial = None if initial_state is None else initial_state.mT.contiguous()
    with true_float32():
        output, S = prefill(q, k, v, alpha, beta, cu_seqlens, initial, scale)
    return output, S.mT.contiguous()


# --- decode: a chunk of one token, without a system to solve ----------------------------------------------------


def decode(q, k, v, S, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """S [batch_size, H, V, K]."""
    H, D = S.shape[1], q.shape[-1]
    Q, K, V = (x.transpose(1, 2).float() for x in (q, k, v))  # [B, heads, 1, D]
    if use_qk_l2norm is None or use_qk_l2norm:
        Q, K = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (Q, K))
    Q, K, V = (x.repeat_interleave(H // x.shape[1], dim=1) for x in (Q, K, V))
    x = a.float() + dt_bias.float()
    softplus = x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))  # torch's own has a threshold
    alpha = torch.exp(-torch.exp(A_log.float()) * softplus).transpose(1, 2)[..., None]  # [B, H, 1, 1]
    beta = torch.sigmoid(b.float()).transpose(1, 2)[..., None]
    factor = D**-0.5 if scale is None else float(scale)
    with true_float32():
        S = alpha * S
        U = beta * (V - K @ S.mT)
        S = S + U.mT @ K
        output = factor * (Q @ S.mT)  # [B, H, 1, V]
    return output.transpose(1, 2).contiguous().to(v.dtype), S


def decode_k_last(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_k_last: state [batch_size, H, V, K]."""
    return decode(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)


def decode_k_first(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_k_first: state [batch_size, H, K, V]."""
    output, S = decode(q, k, v, state.mT, A_log, a, dt_bias, b, scale, use_qk_l2norm)
    return output, S.mT.contiguous()


def expand_heads(x: Tensor, heads: int) -> Tensor:
    """[.., n, D] -> [.., heads, D]: head h of the result is head h // (heads / n)."""
    return x.repeat_interleave(heads // x.shape[-2], dim=-2)
