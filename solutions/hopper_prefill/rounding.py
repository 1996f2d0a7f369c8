"""What rounding T costs: this kernel's arithmetic in PyTorch, on a CPU, beside the recurrence in float64.

    python solutions/hopper_prefill/rounding.py [--tokens 512] [--draws 3]

Relative errors of output and final state, medians over draws: T as it is, as a sum of two bfloat16 terms
(hopper_prefill:strict), in one as it comes, and as the kernel has it (invert.cuh): where keys are alike with sums of
columns kept, else found by products of one term and rounded as it comes. All other operands are rounded as they are
there: S, X, V', P and V' decayed.
"""

import argparse
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

CHUNK, BLOCK, D, HEADS, ALIKE = 64, 16, 128, 8, 0.8
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # q, k, v [T, H, D], alpha and beta [T, H]; T a multiple of 64


def one(x: Tensor) -> Tensor:
    return x.bfloat16().to(x.dtype)


def two(x: Tensor) -> Tensor:
    return one(x) + one(x - one(x))


def keep_sums(T: Tensor) -> Tensor:
    """[H, 64, 64]. In a block on the diagonal from row i to i + 8, then to row 8 + j / 2 of column j; below, from one
    pair of rows to the next, in four parts, as many lanes share a column."""
    T = T.float()
    out = torch.zeros_like(T)
    carried = torch.zeros(T.shape[0], 3, BLOCK, 4)
    for r in range(4):
        at = slice(BLOCK * r, BLOCK * (r + 1))
        upper, lower = T[:, at, at].tril().split(8, 1)
        rounded = one(upper)
        lower = lower + (upper - rounded)
        kept = one(lower)
        left = (lower - kept).sum(1)
        for j in range(BLOCK):
            number = kept[:, j // 2, j] + left[:, j]
            kept[:, j // 2, j] = one(number)
            left[:, j] = number - one(number)
        out[:, at, at] = torch.cat([rounded, kept], 1)
        if r < 3:
            carried[:, r] = left[:, :, None] / 4
    for r in range(1, 4):
        for w in range(r):
            block = T[:, BLOCK * r : BLOCK * (r + 1), BLOCK * w : BLOCK * (w + 1)]
            for half in range(2):
                rows = 2 * torch.arange(4) + 8 * half
                first = block[:, rows].mT + carried[:, w]
                second = block[:, rows + 1].mT + (first - one(first))
                if r == 3 and half == 1:  # the last lane takes what the others have left
                    over = second - one(second)
                    second[:, :, 3] += over[:, :, :3].sum(-1)
                carried[:, w] = second - one(second)
                for rows_of, numbers in ((rows, first), (rows + 1, second)):
                    out[:, BLOCK * r + rows_of, BLOCK * w : BLOCK * (w + 1)] = one(numbers).mT
    return out.to(torch.float64)


def merge(A: Tensor) -> Tensor:
    """(I + A)^-1 of A [H, 64, 64]: blocks on the diagonal in float32, those left of them by products of one term."""
    A = A.float()
    block = lambda x, r, w: x[:, BLOCK * r : BLOCK * (r + 1), BLOCK * w : BLOCK * (w + 1)]  # noqa: E731
    found = torch.zeros_like(A)
    for r in range(4):
        own = torch.linalg.solve_triangular(torch.eye(BLOCK) + block(A, r, r), torch.eye(BLOCK), upper=False)
        block(found, r, r).copy_(own)
        for w in range(r):
            left = sum((one(block(A, r, m)) @ one(block(found, m, w)) for m in range(w, r)), torch.zeros(BLOCK, BLOCK))
            block(found, r, w).copy_(-one(own) @ one(left))
    return found.double()


def kernel(T: Tensor, products: Tensor, beta: Tensor) -> Tensor:
    """`products` [H, 64, 64]: K K^T, decayed; `beta` [H, 64]."""
    inside = torch.arange(1, CHUNK) % BLOCK != 0
    alike = ((products.diagonal(-1, -2, -1) >= ALIKE) | ~inside).all(-1)
    merged = merge((beta[:, :, None] * products).tril(-1)) * beta[:, None, :]
    return torch.where(alike[:, None, None], keep_sums(T), one(merged))


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "exact": lambda T, *_: T,
    "two terms": lambda T, *_: two(T),
    "one term": lambda T, *_: one(T),
    "kernel": kernel,
}


def prefill(given: Inputs, way: str) -> tuple[Tensor, Tensor]:
    S, outputs = torch.zeros(HEADS, D, D), []
    for Q, K, V, a, b in zip(*(x.split(CHUNK) for x in given), strict=True):
        Q, K, V = (x.permute(1, 0, 2) for x in (Q, K, V))
        logs = a.T.double().log2().cumsum(-1)
        gamma, rest = logs.exp2().float(), (logs[:, -1:] - logs).exp2().float()
        ratio = (logs[:, :, None] - logs[:, None, :]).clamp(max=0).exp2().tril()
        products = ratio * (K.double() @ K.double().mT)
        A = (b.T[:, :, None] * products).tril(-1)
        T = torch.linalg.solve_triangular(torch.eye(CHUNK) + A, torch.diag_embed(b.T.double()), upper=False)
        bits = one(S)
        X = one(V - gamma[:, :, None] * (K @ bits.mT))
        new = WAYS[way](T, products, b.T).float() @ X
        P = one((ratio * (Q.double() @ K.double().mT)).float() * D**-0.5)
        output = D**-0.5 * gamma[:, :, None] * (Q @ bits.mT) + P @ one(new)
        S = gamma[:, -1, None, None] * S + one(rest[:, :, None] * new).mT @ K
        outputs.append(output.permute(1, 0, 2))
    return one(torch.cat(outputs)), S


def recur(given: Inputs) -> tuple[Tensor, Tensor]:
    q, k, v, g, beta = (x.double() for x in given)
    S, outputs = torch.zeros(HEADS, D, D, dtype=torch.float64), []
    for t in range(len(q)):
        S = S * g[t, :, None, None]
        change = beta[t, :, None] * (v[t] - torch.einsum("hvk,hk->hv", S, k[t]))
        S = S + change[:, :, None] * k[t, :, None, :]
        outputs.append(torch.einsum("hvk,hk->hv", S, q[t]) * D**-0.5)
    return torch.stack(outputs), S


def draw(tokens: int, beta: float | None, spread: float, keys: int) -> Inputs:
    """So many keys in turns, each with noise of `spread` added; beta from 0 to 1 if it is not given."""
    normal = torch.randn
    noisy = normal(keys, HEADS, D).repeat(tokens // keys, 1, 1) + spread * normal(tokens, HEADS, D)
    q, k = (one(torch.nn.functional.normalize(x, dim=-1)) for x in (normal(tokens, HEADS, D), noisy))
    betas = torch.rand(tokens, HEADS) if beta is None else torch.full((tokens, HEADS), beta)
    return q, k, one(normal(tokens, HEADS, D)), torch.full((tokens, HEADS), 0.999), betas


CASES: dict[str, tuple[float | None, float, int]] = {
    "typical": (None, 9.0, 1),
    **{f"one key, beta {beta}": (beta, 0.0, 1) for beta in (0.5, 1.0, 1.4, 1.9, 1.99)},
    "two in turns, beta 1.9": (1.9, 0.0, 2),
    "nearly parallel, beta 0.99": (0.99, 0.02, 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=512, help="a multiple of 64")
    parser.add_argument("--draws", type=int, default=3)
    options = parser.parse_args()
    if options.tokens < CHUNK or options.tokens % CHUNK or options.draws < 1:
        raise SystemExit(f"rounding.py: --tokens is a multiple of {CHUNK}, --draws at least 1")
    print(f"{'':28}" + "".join(f"{way:>20}" for way in WAYS))
    for name, case in CASES.items():
        errors: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for seed in range(options.draws):
            torch.manual_seed(seed)
            given = draw(options.tokens, *case)
            expected = recur(given)
            for way, found in errors.items():
                got = prefill(given, way)
                apart = (float((x - y).norm() / y.norm()) for x, y in zip(got, expected, strict=True))
                found.append((next(apart), next(apart)))
        medians = ([statistics.median(x) for x in zip(*found, strict=True)] for found in errors.values())
        print(f"{name:28}" + "".join(f"{f'{output:.1e} {state:.1e}':>20}" for output, state in medians), flush=True)


if __name__ == "__main__":
    main()
