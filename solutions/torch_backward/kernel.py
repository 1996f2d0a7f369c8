"""The gradients of the gated delta rule in plain PyTorch, in chunks of tokens, without autograd.

One chunk of C tokens (rows) of one head; S [V, K] is the state at its start and D the gradient of the one at its end;
gamma_i = alpha_1 .. alpha_i and Gamma_ij = alpha_{j+1} .. alpha_i (i >= j, else 0). The forward pass writes the rows of

    U = M diag(beta) R,    R = V - diag(gamma) K S^T,    M = (I + strict_lower(diag(beta) (Gamma * K K^T)))^-1

First a walk over the chunks computes every S. Then a walk back computes, for each chunk, all gradients and the D of the
chunk before. The decay ratios are products of gates: alpha = 0 is exact, and nothing overflows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import torch
from checks import require, require_bounds, require_heads, without_rest
from torch import Tensor

CHUNK = 32
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Known = Callable[[int], dict[int, Tensor]]


@contextmanager
def true_float32() -> Iterator[None]:
    """Matrix products of float32 in float32: TensorFloat-32 has an error that the inverse amplifies."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Tokens(NamedTuple):
    """Some tokens of all heads: q, k [H, T, K]; v, do [H, T, V]; alpha, beta [H, T]. do is scaled."""

    q: Tensor
    k: Tensor
    v: Tensor
    alpha: Tensor
    beta: Tensor
    do: Tensor

    def part(self, start: int, stop: int) -> "Tokens":
        return Tokens(*(x[:, start:stop] for x in self))


class Forward(NamedTuple):
    """What the forward pass has in one chunk."""

    Gamma: Tensor  # [H, C, C]
    gamma: Tensor  # [H, C, 1]
    to_end: Tensor  # [H, C, 1]: from each token to the end of the chunk
    M: Tensor  # [H, C, C]
    R: Tensor  # [H, C, V]
    U: Tensor  # [H, C, V]


def forward(x: Tokens, S: Tensor) -> Forward:
    """The chunk again, from the state at its start."""
    C = x.alpha.shape[-1]
    below = torch.ones(C, C, dtype=torch.bool, device=S.device).tril(-1)
    Gamma = torch.where(below, x.alpha[..., None], 1.0).cumprod(-2).tril()
    gamma = x.alpha.cumprod(-1)[..., None]
    beta = x.beta[..., None]
    eye = torch.eye(C, device=S.device).expand_as(Gamma)
    A = (beta * Gamma * (x.k @ x.k.mT)).tril(-1)
    M = torch.linalg.solve_triangular(eye + A, eye, upper=False, unitriangular=True)
    R = x.v - gamma * (x.k @ S.mT)
    return Forward(Gamma, gamma, Gamma[:, -1, :, None], M, R, M @ (beta * R))


def next_state(x: Tokens, f: Forward, S: Tensor) -> Tensor:
    """The state at the end of a chunk."""
    return f.gamma[:, -1:] * S + (f.to_end * f.U).mT @ x.k


def backward(x: Tokens, f: Forward, S: Tensor, D: Tensor) -> Gradients:
    """dq, dk, dv, dalpha, dbeta of one chunk, and the gradient of the state at its start."""
    beta = x.beta[..., None]
    scores, keys = x.q @ x.k.mT, x.k @ x.k.mT

    # Through the output and the final state to what each token wrote, and through the triangular system.
    dU = (f.Gamma * scores).mT @ x.do + f.to_end * (x.k @ D.mT)
    X = f.M.mT @ dU
    dv = beta * X
    dscores = (x.do @ f.U.mT).tril()
    dA = -(X @ f.U.mT).tril(-1)

    # Queries and keys: in scores, in the system, and against the states at both ends.
    dkeys = beta * f.Gamma * dA
    dq = (f.Gamma * dscores) @ x.k + f.gamma * (x.do @ S)
    dk = (f.Gamma * dscores).mT @ x.q
    dk = dk + (dkeys + dkeys.mT) @ x.k
    dk = dk - f.gamma * (dv @ S)
    dk = dk + f.to_end * (f.U @ D)

    # The error that a token wrote, before its beta.
    error = f.R - (f.Gamma * keys).tril(-1) @ f.U
    dbeta = (X * error).sum(-1)

    # Gates: the gradients of Gamma and gamma, then of the factors of both.
    dGamma = dscores * scores + beta * dA * keys
    dGamma[:, -1] += (x.k * (f.U @ D)).sum(-1)
    dgamma = (x.do * (x.q @ S.mT)).sum(-1) - (dv * (x.k @ S.mT)).sum(-1)
    dgamma[:, -1] += (D * S).sum((-2, -1))
    dalpha = of_gates(x.alpha, f, dGamma, dgamma)

    before = f.gamma[:, -1:] * D
    before = before + (f.gamma * x.do).mT @ x.q - (f.gamma * dv).mT @ x.k
    return dq, dk, dv, dalpha, dbeta, before


def of_gates(alpha: Tensor, f: Forward, dGamma: Tensor, dgamma: Tensor) -> Tensor:
    """dalpha_t: all that decays from a token j < t, or from the state, to a token i >= t, without the factor alpha_t.

    `rows` [H, 1 + C] sums over i, from the last token on; its first entry is that of the state.
    """
    decays = torch.cat([f.gamma, f.Gamma], -1)  # [H, C, 1 + C], to each token
    gradient = torch.cat([dgamma[..., None], dGamma], -1)
    dalpha = torch.zeros_like(alpha)
    rows = torch.zeros_like(gradient[:, 0])
    for t in reversed(range(alpha.shape[-1])):
        rows = rows + gradient[:, t]
        if t > 0:
            dalpha[:, t] = (rows * decays[:, t - 1]).sum(-1)
        else:
            dalpha[:, t] = rows[:, 0]
        rows = alpha[:, t, None] * rows
    return dalpha


def sequence(x: Tokens, S: Tensor, D: Tensor, known: dict[int, Tensor]) -> Gradients:
    """The gradients of one sequence: S is the state before it, D the gradient of the state after it. `known` has states
    [H, V, K] after so many tokens, whole chunks of them."""
    length = x.alpha.shape[-1]
    chunks = [x.part(start, min(start + CHUNK, length)) for start in range(0, length, CHUNK)]
    states = [S]
    for chunk in chunks[:-1]:
        state = known.get(len(states) * CHUNK)
        states.append(next_state(chunk, forward(chunk, states[-1]), states[-1]) if state is None else state)
    found = []
    for chunk, state in zip(reversed(chunks), reversed(states), strict=True):
        *of_tokens, D = backward(chunk, forward(chunk, state), state, D)
        found.append(of_tokens)
    dq, dk, dv, dalpha, dbeta = (torch.cat(parts, 1) for parts in zip(*reversed(found), strict=True))
    return dq, dk, dv, dalpha, dbeta, D


def gradients(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, beta: Tensor | None, cu_seqlens: Tensor,
    initial_state: Tensor | None, scale: float | None, do: Tensor | None, dht: Tensor | None,
    known: Known = lambda n: {},
) -> Gradients:  # fmt: skip
    """All gradients, with states [V, K] and a linear gate. `known`: the states of a sequence (`sequence`)."""
    H, T, K, V = require_heads(q, k, v), len(q), q.shape[-1], v.shape[-1]
    factor = K**-0.5 if scale is None else float(scale)
    states = (require_bounds(cu_seqlens, T)[0], H, V, K)
    for name, x in (("g", alpha), ("beta", beta)):
        require(name, x, (T, H))
    require("do", do, (T, H, V))
    for name, x in (("initial_state", initial_state), ("dht", dht)):
        require(name, x, states)

    def of_heads(x: Tensor) -> Tensor:  # [T, heads, d] -> [H, T, d]
        return x.float().repeat_interleave(H // x.shape[1], dim=1).transpose(0, 1)

    def given(x: Tensor | None, shape: tuple[int, ...], otherwise: float) -> Tensor:
        return torch.full(shape, otherwise, device=q.device) if x is None else x.float()

    tokens = Tokens(
        of_heads(q), of_heads(k), of_heads(v), given(alpha, (T, H), 1.0).T, given(beta, (T, H), 1.0).T,
        factor * given(do, (T, H, V), 0.0).transpose(0, 1),
    )  # fmt: skip
    S, D = given(initial_state, states, 0.0), given(dht, states, 0.0)
    dh0 = D.clone()  # of an empty sequence
    made = [torch.zeros_like(x) for x in (tokens.q, tokens.k, tokens.v, tokens.alpha, tokens.beta)]
    with true_float32():
        for n, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
            if start < stop:
                *of_tokens, dh0[n] = sequence(tokens.part(start, stop), S[n], D[n], known(n))
                for whole, part in zip(made, of_tokens, strict=True):
                    whole[:, start:stop] = part
    dq, dk, dv, dalpha, dbeta = made

    def folded(dx: Tensor, x: Tensor) -> Tensor:  # [H, T, d] -> [T, heads, d]: what shares a head is added
        return dx.transpose(0, 1).unflatten(1, (x.shape[1], -1)).sum(2).to(x.dtype)

    return folded(dq, q), folded(dk, k), folded(dv, v), dalpha.T.contiguous(), dbeta.T.contiguous(), dh0


def backward_k_last(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, cu_seqlens: Tensor,
    initial_state: Tensor | None, scale: float | None, do: Tensor | None, dht: Tensor | None,
) -> Gradients:  # fmt: skip
    """gdn_prefill_backward_k_last: q, k [T, heads, K], v, do [T, heads, V], g (alpha itself) and beta [T, H], states
    and dht [num_seqs, H, V, K]. Returns dq, dk, dv in the types of q, k, v, and dg, dbeta, dh0 in float32.

    Source: the gated delta rule (arXiv:2412.06464, equation 10), differentiated; reference/gdn/backward.py. Raises
    ValueError for shapes and cu_seqlens that do not fit."""
    return gradients(q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht)


def backward_checkpoints(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, cu_seqlens: Tensor,
    initial_state: Tensor | None, scale: float | None, do: Tensor | None, dht: Tensor | None, checkpoints: Tensor,
    checkpoint_cu_starts: Tensor, checkpoint_interval: int,
) -> Gradients:  # fmt: skip
    """gdn_prefill_backward_checkpoints: backward_k_last, but states that the forward pass has left are not computed
    again: checkpoints [rows, H, V, K], that of each whole interval of checkpoint_interval tokens, those of sequence n
    from row checkpoint_cu_starts[n] on. Raises ValueError where their number is not that of the lengths."""
    H, _ = require_heads(q, k, v), require_bounds(cu_seqlens, len(q))
    first = checkpoint_cu_starts.tolist()
    if checkpoint_interval <= 0 or checkpoint_interval % 64:
        raise ValueError(f"checkpoint_interval must be a positive multiple of 64; it is {checkpoint_interval}")
    require("checkpoints", checkpoints, (len(checkpoints), H, v.shape[-1], q.shape[-1]))
    counts = [length // checkpoint_interval for length in cu_seqlens.diff().tolist()]
    if first[0] != 0 or checkpoint_cu_starts.diff().tolist() != counts or first[-1] != len(checkpoints):
        raise ValueError(f"checkpoint_cu_starts must count {counts}, in all {len(checkpoints)}; it is {first}")

    def known(n: int) -> dict[int, Tensor]:
        rows = checkpoints[first[n] : first[n + 1]]
        return {(i + 1) * checkpoint_interval: S for i, S in enumerate(rows)}

    return gradients(q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, known)


def backward_k_first(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, cu_seqlens: Tensor,
    initial_state: Tensor | None, scale: float | None, do: Tensor | None, dht: Tensor | None,
) -> Gradients:  # fmt: skip
    """gdn_prefill_backward_k_first: backward_k_last with g = log alpha, states, dht and dh0 [num_seqs, H, K, V], and
    dg = alpha dalpha."""
    require_heads(q, k, v)
    _, total = require_bounds(cu_seqlens, len(q))
    alpha = None if g is None else without_rest(g.float().exp(), total)
    S, D = (None if x is None else x.mT for x in (initial_state, dht))
    *others, dalpha, dbeta, dh0 = gradients(q, k, v, alpha, beta, cu_seqlens, S, scale, do, D)
    dq, dk, dv = others
    return dq, dk, dv, dalpha if alpha is None else alpha * dalpha, dbeta, dh0.mT.contiguous()
