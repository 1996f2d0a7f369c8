"""The stages of the chunkwise gated delta rule in plain PyTorch: the chunks of all sequences are one batch.

Float32 throughout, what is written rounded once. Decays are products of gates, never quotients: alpha = 0 is exact.
"""

import torch
from torch import Tensor

CHUNK = 64


class Chunks:
    """Where the tokens of every chunk stand: `rows` [n, 64], those that there are `inside`."""

    def __init__(self, cu_seqlens: Tensor) -> None:
        device = cu_seqlens.device
        self.counts = (cu_seqlens.diff() + CHUNK - 1) // CHUNK
        self.owner = torch.repeat_interleave(torch.arange(len(self.counts), device=device), self.counts)
        before = self.counts.cumsum(0) - self.counts
        self.index = torch.arange(len(self.owner), device=device) - before[self.owner]
        first = cu_seqlens[self.owner] + CHUNK * self.index
        self.rows = first[:, None] + torch.arange(CHUNK, device=device)
        self.inside = self.rows < cu_seqlens[self.owner + 1][:, None]

    def take(self, x: Tensor, heads: int, fill: float = 0.0) -> Tensor:
        """[T, h, ..] -> [n, H, 64, ..] in float32, key heads repeated."""
        taken = x[torch.where(self.inside, self.rows, 0)] if len(self.rows) else x.new_zeros(0, CHUNK, *x.shape[1:])
        taken = taken.float()
        taken[~self.inside] = fill
        return taken.repeat_interleave(heads // x.shape[1], dim=2).movedim(2, 1)

    def put(self, x: Tensor, out: Tensor) -> Tensor:
        """[n, H, 64, d] -> [T, H, d], into `out`."""
        out[self.rows[self.inside]] = x.movedim(1, 2)[self.inside].to(out.dtype)
        return out


def decays(alpha: Tensor) -> tuple[Tensor, Tensor]:
    """alpha [.., 64] -> Gamma [.., 64, 64], lower triangular, and gamma [.., 64]."""
    below = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=alpha.device).tril(-1)
    return torch.where(below, alpha[..., :, None], 1.0).cumprod(-2).tril(), alpha.cumprod(-1)


def chunk_wy(k, v, g, beta, cu_seqlens):
    """gdn_chunk_wy."""
    chunks, H = Chunks(cu_seqlens), v.shape[1]
    K, V, write = chunks.take(k, H), chunks.take(v, H), chunks.take(beta, H)[..., None]
    Gamma, gamma = decays(chunks.take(g, H).exp())
    A = write * (Gamma * (K @ K.mT)).tril(-1)
    right = write * torch.cat([V, gamma[..., None] * K], dim=-1)
    u, w = torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True).split([v.shape[2], k.shape[2]], -1)
    return chunks.put(u, torch.empty_like(v)), chunks.put(w, v.new_empty(*v.shape[:2], k.shape[2]))


def chunk_state(k, w, u, g, cu_seqlens, chunk_cu_starts, initial_state):
    """gdn_chunk_state: chunk c of all sequences that have one, then chunk c + 1."""
    chunks, H = Chunks(cu_seqlens), u.shape[1]
    K, W, U = (chunks.take(x, H) for x in (k, w, u))
    Gamma, gamma = decays(chunks.take(g, H).exp())
    added = Gamma[..., -1, :, None]  # the decay from each token to its chunk's end
    shape = (len(chunks.counts), H, u.shape[2], k.shape[2])
    S = torch.zeros(shape, device=u.device) if initial_state is None else initial_state.clone()
    states = torch.empty(len(chunks.owner), *shape[1:], dtype=u.dtype, device=u.device)
    for c in range(int(chunks.counts.max())):
        now = (chunks.index == c).nonzero()[:, 0]
        n = chunks.owner[now]
        states[now] = S[n].to(u.dtype)
        U[now] = U[now] - W[now] @ S[n].mT
        S[n] = gamma[now][..., -1:, None] * S[n] + (added[now] * U[now]).mT @ K[now]
    return states, chunks.put(U, torch.empty_like(u)), S


def chunk_output(q, k, u_new, states, g, cu_seqlens, chunk_cu_starts, scale):
    """gdn_chunk_output."""
    chunks, H = Chunks(cu_seqlens), u_new.shape[1]
    Q, K, U = (chunks.take(x, H) for x in (q, k, u_new))
    Gamma, gamma = decays(chunks.take(g, H).exp())
    O = gamma[..., None] * (Q @ states.float().mT) + (Gamma * (Q @ K.mT)) @ U
    factor = q.shape[2] ** -0.5 if scale is None else float(scale)
    return chunks.put(factor * O, torch.empty_like(u_new))
