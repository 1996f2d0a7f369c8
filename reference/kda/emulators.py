"""The family of prefill: chunks, bfloat16 operands and float32 sums, as honest kernels on tensor cores have them.

Notation of reference/kda/chunkwise.py, with T = (I + A)^-1 diag(beta). Eighteen members:

- chunks of 16, 64 and 128 tokens;
- "ahead": u = T V and w = T (gamma * K) are formed before the state is known, and w is stored in bfloat16; "stored": so
  is u, where one kernel leaves both to the next; "direct": T meets V - (gamma * K) S^T;
- T becomes an operand: rounded "after" diag(beta), or "before" it, diag(beta) going to the other operand.

In the strict family T and the operands of scores are sums of two bfloat16 terms. Its twelve members store no u.

In a short sequence all chunk sizes make the same chunk, so its scores would be rounded alike in every member. Kernels
differ there: some have a scale or a norm in a score when they round it. So where u is stored, scores, P and T are
multiplied before they are rounded, each member by a number of its own, and divided by it afterwards. Vectors that are
normalised there stay in float32 until they decay. Fresh lines have more members, which round every operand so.

Scores of two tokens have a border between them: the later one decays from the border, the earlier one up to it. Both
factors are at most 1, so nothing overflows at any gate, and both products are rounded to bfloat16. Sums are taken in
float64 and rounded to float32: a float32 sum whose order is nobody's, so that every machine measures the same error.
"""

from collections.abc import Iterator, Mapping
from itertools import cycle, pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from gdnspec.family import Definition, bfloat16_sum
from torch import Tensor

from .kimi_delta_attention import l2_normalise, log_gate

CHUNKS, ORDERS, ROUNDINGS = (16, 64, 128), ("ahead", "stored", "direct"), ("after", "before")
OF_MORE = 64  # the chunks of the members that fresh lines have besides
# Where u is stored: another one for each size of a chunk, which are all the same to a short sequence.
MULTIPLES = {"after": {16: 9 / 8, 64: 5 / 4, 128: 7 / 4}, "before": {16: 11 / 8, 64: 3 / 2, 128: 13 / 8}}


class Chunk(NamedTuple):
    """One chunk of one sequence, in float32: X [H, C, size], with decays taken in."""

    V: Tensor
    beta: Tensor  # [H, C, 1]
    from_start_k: Tensor  # gamma * K
    from_start_q: Tensor  # gamma * Q
    to_end: Tensor  # Gamma_C,: * K
    fall: Tensor  # gamma_C, [H, K]
    inverse: Tensor  # (I + A)^-1, [H, C, C]
    attention: Tensor  # lower(QK), [H, C, C]
    kept: list[tuple[Tensor, Tensor]]  # of each checkpoint after r tokens: Gamma_r,: * K [H, r, K] and gamma_r [H, K]
    multiple: float  # of themselves, as which scores, P and T are rounded
    of_others: float  # the same of other operands


def emulate(
    definition: Definition, arguments: dict[str, Any], strict: bool, more: Mapping[str, float] = MappingProxyType({})
) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """(name, (output, final_state)) of each member, in the types of the definition; `arguments` as stored. A third one
    where the definition keeps checkpoints. `more`: multiples by the ending of a name, for members that round
    every operand so."""
    terms, ending = (2, "_two_terms") if strict else (1, "")
    raw = definition.conventions.decay_gate == "raw"
    of_stored = _activated(arguments, False) if raw else arguments
    arguments = _activated(arguments, True) if raw else arguments
    k_first = definition.conventions.state_layout == "k_first"
    v, bounds = arguments["v"], arguments["cu_seqlens"].tolist()
    size, given = v.shape[-1], arguments["scale"]
    scale = size**-0.5 if given is None else float(given)
    every: int | None = arguments.get("checkpoint_interval")
    for length in CHUNKS:
        pieces = {
            first: (slice(first, min(first + length, stop)), _inside(first - start, length, every))
            for start, stop in pairwise(bounds)
            for first in range(start, stop, length)
        }
        once = {first: _prepared(arguments, *piece, terms, 1.0) for first, piece in pieces.items()}
        orders = ("ahead", "direct") if strict else ORDERS
        ways = [(order, rounding, "", 1.0) for order in orders for rounding in ROUNDINGS]
        if length == OF_MORE:
            ways += [(order, rounding, *x) for (order, rounding, *_), x in zip(cycle(ways), more.items(), strict=False)]
        for order, rounding, name, of_all in ways:
            multiple = MULTIPLES[rounding][length] if order == "stored" and not name else of_all
            parts = once
            if order == "stored" or name:
                given = of_stored if order == "stored" else arguments
                parts = {first: _prepared(given, *x, terms, multiple, of_all) for first, x in pieces.items()}
            output, states = torch.zeros(v.shape, device=v.device), _states(arguments, k_first)
            kept: list[Tensor] = []
            for n in range(len(bounds) - 1):
                for first in range(bounds[n], bounds[n + 1], length):
                    O, states[n], inside = _step(parts[first], states[n], order, rounding, terms)
                    output[first : first + O.shape[1]] = scale * O.transpose(0, 1)
                    kept += inside
            found = [states.mT.contiguous() if k_first else states]
            if every is not None:
                found.append(torch.stack(kept) if kept else states[:0])
            yield f"chunk_{length}_{order}_{rounding}{name}{ending}", (output.to(v.dtype), *found)


def _inside(first: int, length: int, every: int | None) -> list[int]:
    """After how many tokens of the chunk that starts at token `first` of its sequence a state is kept."""
    return [] if every is None else [every - first % every + i for i in range(0, length, every)]


def _activated(arguments: dict[str, Any], apart: bool) -> dict[str, Any]:
    """Log gates, beta and normalised vectors from a call with raw gates: in float32, and with `apart` the vectors
    rounded, as a pass of its own before the chunks stores them."""
    norm, vectors = arguments["use_qk_l2norm"], {}
    for name in "qk" if norm is None or norm else "":
        unit = l2_normalise(arguments[name].float())
        vectors[name] = unit.to(arguments[name].dtype) if apart else unit
    a, bound = arguments["a"].float(), arguments["lower_bound"]
    g = log_gate(arguments["A_log"].float(), a, arguments["dt_bias"].float(), bound)
    return arguments | vectors | {"g": g, "beta": torch.sigmoid(arguments["b"].float())}


def _states(arguments: dict[str, Any], k_first: bool) -> Tensor:
    """[num_seqs, H, V, K], a copy."""
    S, (_, H, size) = arguments["initial_state"], arguments["v"].shape
    if S is None:
        count = arguments["cu_seqlens"].numel() - 1
        return torch.zeros(count, H, size, size, device=arguments["v"].device)
    return (S.mT if k_first else S).float().clone(memory_format=torch.contiguous_format)


def _prepared(
    arguments: dict[str, Any], rows: slice, kept: list[int], terms: int, multiple: float, of_others: float = 1.0
) -> Chunk:
    v, g, beta = arguments["v"], arguments["g"], arguments["beta"]
    H, count = v.shape[1], rows.stop - rows.start
    full = 1 << (count - 1).bit_length()  # scores are made by halves

    def padded(x: Tensor, fill: float) -> Tensor:  # [T, H, ..] -> [H, C, ..]; a token behind the last does nothing
        x = x[rows].transpose(0, 1)
        return torch.cat([x, x.new_full((H, full - count, *x.shape[2:]), fill)], dim=1)

    Q, K = (padded(arguments[x].float().repeat_interleave(H // arguments[x].shape[1], dim=1), 0.0) for x in "qk")
    alpha = torch.ones_like(K).double() if g is None else padded(torch.exp(g.double()), 1.0)
    write = torch.ones(H, full, device=v.device) if beta is None else padded(beta.float(), 0.0)
    gamma = alpha.cumprod(-2)
    A = write[..., None] * _scores(K, K, alpha, terms, multiple).tril(-1)
    eye = torch.eye(full, dtype=torch.float64, device=A.device).expand_as(A)
    inverse = torch.linalg.solve_triangular(A.double(), eye, upper=False, unitriangular=True).float()
    c = slice(0, count)
    to_end = (K * _from_behind(alpha)).float()
    states = [((K[:, :r] * _from_behind(alpha[:, :r])).float(), gamma[:, r - 1].float()) for r in kept if r <= count]
    return Chunk(
        padded(v.float(), 0.0)[:, c], write[:, c, None], (gamma * K).float()[:, c], (gamma * Q).float()[:, c],
        to_end[:, c], gamma[:, -1].float(), inverse[:, c, c], _scores(Q, K, alpha, terms, multiple)[:, c, c], states,
        multiple, of_others,
    )  # fmt: skip


def _from_behind(alpha: Tensor) -> Tensor:
    """The decay from after each token to the last one, [.., C, K], from alpha [.., C, K]."""
    shifted = torch.cat([alpha[..., 1:, :], torch.ones_like(alpha[..., :1, :])], dim=-2)
    return shifted.flip(-2).cumprod(-2).flip(-2)


def _scores(X: Tensor, K: Tensor, alpha: Tensor, terms: int, multiple: float) -> Tensor:
    """sum_c x_ic Gamma_ijc k_jc for j <= i, zero elsewhere: [H, C, C] from [H, C, K]."""
    C = X.shape[1]
    out = torch.diag_embed((X.double() * K.double()).sum(-1).float())
    size = 2
    while size <= C:
        half = size // 2
        x, k, a = (y.unflatten(1, (C // size, size)) for y in (X, K, alpha))
        later = _rounded((x[:, :, half:] * a[:, :, half:].cumprod(-2)).float(), terms, multiple)
        earlier = _rounded((k[:, :, :half] * _from_behind(a[:, :, :half])).float(), terms, multiple)
        block = product(later, earlier.mT)  # [H, C / size, half, half]
        for i in range(C // size):
            out[:, i * size + half : (i + 1) * size, i * size : i * size + half] = block[:, i]
        size *= 2
    return out


def _step(c: Chunk, S: Tensor, order: str, rounding: str, terms: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """O [H, C, V], unscaled, the new S [H, V, K], and the checkpoints [H, V, K] inside the chunk."""
    if rounding == "after":
        T, right = _rounded(c.inverse * c.beta.mT, terms, c.multiple), torch.ones_like(c.beta)
    else:
        T, right = _rounded(c.inverse, terms, c.multiple), c.beta

    def bfloat16(x: Tensor) -> Tensor:
        return _rounded(x, 1, c.of_others)

    held = bfloat16(S).mT
    if order == "direct":
        U = product(T, bfloat16(right * (c.V - product(bfloat16(c.from_start_k), held))))
    else:
        u, w = product(T, bfloat16(right * c.V)), bfloat16(product(T, bfloat16(right * c.from_start_k)))
        U = (bfloat16(u) if order == "stored" else u) - product(w, held)
    O = product(bfloat16(c.from_start_q), held) + product(_rounded(c.attention, 1, c.multiple), bfloat16(U))
    kept = [S * fall[:, None] + product(bfloat16(U[:, : K.shape[1]]).mT, bfloat16(K)) for K, fall in c.kept]
    return O, S * c.fall[:, None] + product(bfloat16(U).mT, bfloat16(c.to_end)), kept


def product(x: Tensor, y: Tensor) -> Tensor:
    """Matrix product, summed in float64 and rounded once to float32."""
    return (x.double() @ y.double()).float()


def _rounded(x: Tensor, terms: int, multiple: float) -> Tensor:
    """As a sum of bfloat16 terms, of so many times x."""
    return bfloat16_sum(x * multiple, terms) / multiple
