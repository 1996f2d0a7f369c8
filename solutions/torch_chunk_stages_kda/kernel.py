"""The stages of the chunkwise form of Kimi Delta Attention in plain PyTorch: the chunks of all sequences are one batch.

Float32 throughout, what is written rounded once. No quotient of decays is formed. Two tokens of a chunk meet in one
block of 2, 4, .. tokens, the earlier one in its first half, the later one in its second. The later one decays from the
middle, the earlier one up to it: both are products of gates, at most 1, so nothing overflows and a reset is exact.
"""

import torch
from torch import Tensor

CHUNK = 64
AT_ONCE = 64  # chunks, where they do not wait for each other: in float32 a long batch does not fit on a GPU


class Rows:
    """Where the tokens of chunks stand: `rows` [n, 64], those that there are `inside`."""

    def __init__(self, rows: Tensor, inside: Tensor) -> None:
        self.rows, self.inside = rows, inside

    def parts(self):
        return map(Rows, self.rows.split(AT_ONCE), self.inside.split(AT_ONCE))

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


class Chunks(Rows):
    """Those of all sequences, side by side: how many each sequence has, whose each is, and which one of it."""

    def __init__(self, cu_seqlens: Tensor) -> None:
        device = cu_seqlens.device
        self.counts = (cu_seqlens.diff() + CHUNK - 1) // CHUNK
        self.owner = torch.repeat_interleave(torch.arange(len(self.counts), device=device), self.counts)
        before = self.counts.cumsum(0) - self.counts
        self.index = torch.arange(len(self.owner), device=device) - before[self.owner]
        first = cu_seqlens[self.owner] + CHUNK * self.index
        rows = first[:, None] + torch.arange(CHUNK, device=device)
        super().__init__(rows, rows < cu_seqlens[self.owner + 1][:, None])


def decay_to_end(alpha: Tensor) -> Tensor:
    """The decay from after each token to the last one: [.., C, K] from [.., C, K]."""
    after = torch.cat([alpha[..., 1:, :], torch.ones_like(alpha[..., :1, :])], dim=-2)
    return after.flip(-2).cumprod(-2).flip(-2)


def scores(X: Tensor, K: Tensor, alpha: Tensor) -> Tensor:
    """sum_c x_ic Gamma_ijc k_jc where j <= i, and 0 elsewhere: [n, H, 64, 64] from [n, H, 64, K]."""
    out = torch.diag_embed((X * K).sum(-1))
    width = 2
    while width <= CHUNK:
        half = width // 2
        x, k, a = (y.unflatten(2, (CHUNK // width, width)) for y in (X, K, alpha))
        later = x[..., half:, :] * a[..., half:, :].cumprod(-2)
        earlier = k[..., :half, :] * decay_to_end(a[..., :half, :])
        blocks = later @ earlier.mT
        for i in range(CHUNK // width):
            middle = i * width + half
            out[..., middle : middle + half, i * width : middle] = blocks[:, :, i]
        width *= 2
    return out


def chunk_wy(k, v, g, beta, cu_seqlens):
    """kda_chunk_wy."""
    u, w = torch.empty_like(v), torch.empty_like(v)
    for chunks in Chunks(cu_seqlens).parts():
        of_chunks(chunks, k, v, g, beta, u, w)
    return u, w


def of_chunks(chunks, k, v, g, beta, u_out, w_out):
    """Into the rows of some chunks."""
    H = v.shape[1]
    K, V, write = chunks.take(k, H), chunks.take(v, H), chunks.take(beta, H)[..., None]
    alpha = chunks.take(g, H).exp()
    gamma = alpha.cumprod(-2)  # from the start of the chunk
    A = write * scores(K, K, alpha).tril(-1)
    right = write * torch.cat([V, gamma * K], dim=-1)
    u, w = torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True).chunk(2, -1)
    chunks.put(u, u_out)
    chunks.put(w, w_out)


def chunk_state(k, w, u, g, cu_seqlens, chunk_cu_starts, initial_state):
    """kda_chunk_state: chunk c of all sequences that have one, then chunk c + 1."""
    chunks, H = Chunks(cu_seqlens), u.shape[1]
    K, W, U = (chunks.take(x, H) for x in (k, w, u))
    alpha = chunks.take(g, H).exp()
    gamma, added = alpha.cumprod(-2), decay_to_end(alpha) * K
    shape = (len(chunks.counts), H, u.shape[2], k.shape[2])
    S = torch.zeros(shape, device=u.device) if initial_state is None else initial_state.clone()
    states = torch.empty(len(chunks.owner), *shape[1:], dtype=u.dtype, device=u.device)
    for c in range(int(chunks.counts.max())):
        now = (chunks.index == c).nonzero()[:, 0]
        n = chunks.owner[now]
        states[now] = S[n].to(u.dtype)
        U[now] = U[now] - W[now] @ S[n].mT
        S[n] = gamma[now][:, :, -1, None] * S[n] + U[now].mT @ added[now]
    return states, chunks.put(U, torch.empty_like(u)), S


def chunk_output(q, k, u_new, states, g, cu_seqlens, chunk_cu_starts, scale):
    """kda_chunk_output."""
    chunks, H = Chunks(cu_seqlens), u_new.shape[1]
    Q, K, U = (chunks.take(x, H) for x in (q, k, u_new))
    alpha = chunks.take(g, H).exp()
    gamma = alpha.cumprod(-2)
    O = (gamma * Q) @ states.float().mT + scores(Q, K, alpha) @ U
    factor = q.shape[2] ** -0.5 if scale is None else float(scale)
    return chunks.put(factor * O, torch.empty_like(u_new))
