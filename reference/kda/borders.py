"""The stages of the chunkwise form with a border between the two tokens of every pair: a second derivation.

chunk_stages.py forms a decay for each pair of tokens and each channel. Kernels cannot: they need a product of two
matrices. Two tokens of a chunk meet in exactly one block of 2, 4, .. tokens, the earlier one in its first half, the
later one in its second. The later one decays from the middle of the block, the earlier one up to it:

    x_i . (Gamma_ij * k_j) = (Gamma_i,m * x_i) . (Gamma_m,j * k_j),      j <= m < i

Both factors are products of gates and at most 1, so nothing overflows and a reset is exact. The decay from a token to
the end of its chunk is a product from behind. Here all chunks are one batch, filled up to 64 tokens: a token that fills
up does nothing, for alpha = 1 keeps the state and beta = 0 (u = w = 0) writes nothing.

Each function takes and returns what its namesake in chunk_stages.py does. What honest arithmetic on matrices loses is
measured by rounding the operands of their products.
"""

import torch
from torch import Tensor

from .chunk_stages import CHUNK, chunks
from .kimi_delta_attention import arithmetic_type, default_scale, expand_heads


class Chunked:
    """The chunks of a batch, and tensors cut into them and put together again."""

    def __init__(self, cu_seqlens: Tensor, num_v_heads: int, dtype: torch.dtype) -> None:
        self.found, self.H, self.dtype = list(chunks(cu_seqlens)), num_v_heads, dtype

    def cut(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """[T, heads, d] -> [N, H, 64, d]."""
        out = x.new_full((len(self.found), CHUNK, self.H, x.shape[2]), fill, dtype=self.dtype)
        for c, (_, t) in enumerate(self.found):
            out[c, : t.stop - t.start] = expand_heads(x[t].to(self.dtype), self.H)
        return out.transpose(1, 2)

    def joined(self, x: Tensor, like: Tensor) -> Tensor:
        """[N, H, 64, d] -> [T, H, d], in like's type."""
        out = like.new_zeros(*like.shape[:2], x.shape[3])
        for c, (_, t) in enumerate(self.found):
            out[t] = x[c, :, : t.stop - t.start].transpose(0, 1).to(like.dtype)
        return out


def from_behind(alpha: Tensor) -> Tensor:
    """The decay from after each token to the last one: [.., C, K] from [.., C, K]."""
    shifted = torch.cat([alpha[..., 1:, :], torch.ones_like(alpha[..., :1, :])], dim=-2)
    return shifted.flip(-2).cumprod(-2).flip(-2)


def scores(X: Tensor, K: Tensor, alpha: Tensor) -> Tensor:
    """sum_c x_ic Gamma_ijc k_jc where j <= i, and zero elsewhere: [N, H, 64, 64] from [N, H, 64, K]."""
    out = torch.diag_embed((X * K).sum(-1))
    size = 2
    while size <= CHUNK:
        half = size // 2
        x, k, a = (y.unflatten(2, (CHUNK // size, size)) for y in (X, K, alpha))  # [N, H, blocks, size, K]
        later = x[..., half:, :] * a[..., half:, :].cumprod(-2)
        earlier = k[..., :half, :] * from_behind(a[..., :half, :])
        met = later @ earlier.mT
        for i in range(CHUNK // size):
            middle = i * size + half
            out[..., middle : middle + half, i * size : middle] = met[:, :, i]
        size *= 2
    return out


# --- the stages -------------------------------------------------------------------------------------------------


def chunk_wy(k: Tensor, v: Tensor, g: Tensor, beta: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    dtype = arithmetic_type(k, v, g, beta)
    batch = Chunked(cu_seqlens, v.shape[1], dtype)
    K, V, write = batch.cut(k), batch.cut(v), batch.cut(beta[..., None])
    alpha = batch.cut(torch.exp(g.to(dtype)), 1.0)
    A = write * scores(K, K, alpha).tril(-1)
    eye = torch.eye(CHUNK, dtype=dtype, device=v.device).expand_as(A)
    T = torch.linalg.solve_triangular(A, eye, upper=False, unitriangular=True) * write.mT
    return batch.joined(T @ V, v), batch.joined(T @ (alpha.cumprod(-2) * K), v)


def chunk_state(
    k: Tensor,
    w: Tensor,
    u: Tensor,
    g: Tensor,
    cu_seqlens: Tensor,
    chunk_cu_starts: Tensor,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = arithmetic_type(k, w, u, g, initial_state)
    (_, H, V), size = u.shape, k.shape[2]
    batch = Chunked(cu_seqlens, H, dtype)
    K, W, U, alpha = batch.cut(k), batch.cut(w), batch.cut(u), batch.cut(torch.exp(g.to(dtype)), 1.0)
    to_end, fall = from_behind(alpha) * K, alpha.prod(-2)
    final = torch.zeros(chunk_cu_starts.numel() - 1, H, V, size, dtype=dtype, device=u.device)
    if initial_state is not None:
        final[:] = initial_state
    states = torch.zeros(len(batch.found), H, V, size, dtype=dtype, device=u.device)
    for c, (n, _) in enumerate(batch.found):
        states[c] = final[n]
        U[c] = U[c] - W[c] @ final[n].mT
        final[n] = final[n] * fall[c, :, None] + U[c].mT @ to_end[c]
    state_type = dtype if initial_state is None else initial_state.dtype
    return states.to(u.dtype), batch.joined(U, u), final.to(state_type)


def chunk_output(
    q: Tensor,
    k: Tensor,
    u_new: Tensor,
    states: Tensor,
    g: Tensor,
    cu_seqlens: Tensor,
    chunk_cu_starts: Tensor,
    scale: float | None,
) -> Tensor:
    dtype = arithmetic_type(q, k, u_new, states, g)
    batch = Chunked(cu_seqlens, u_new.shape[1], dtype)
    Q, K, U, alpha = batch.cut(q), batch.cut(k), batch.cut(u_new), batch.cut(torch.exp(g.to(dtype)), 1.0)
    read = (alpha.cumprod(-2) * Q) @ states.to(dtype).mT
    O = default_scale(q.shape[2], scale) * (read + scores(Q, K, alpha) @ U)
    return batch.joined(O, u_new)
