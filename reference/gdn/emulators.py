"""The family of prefill: chunks, bfloat16 operands and float32 sums, as kernels on tensor cores have them.

Notation of reference/gdn/chunkwise.py: (I + A) U = diag(beta) (V - diag(gamma) K S^T). With T = (I + A)^-1 diag(beta),

- chunks of 16, 64 and 128 tokens;
- "ahead": u = T V and w = T diag(gamma) K are formed before the state is known, and w is stored in bfloat16;
  "direct": T meets V - diag(gamma) K S^T;
- T becomes an operand: rounded "after" diag(beta), or "before" it, diag(beta) going to the other operand;
- `terms`: T is one bfloat16 operand; in the strict family it is a sum of two.

Sums are taken in float64 and rounded to float32: a float32 sum whose order is nobody's, so that every machine measures
the same error to about a hundredth.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, groupby
from types import MappingProxyType
from typing import Any, Literal

import torch
from gdnspec.family import Definition, Emulated, bfloat16_sum
from torch import Tensor


@dataclass(frozen=True)
class Emulator:
    """One member of the family."""

    chunk: int
    order: Literal["ahead", "direct"]
    rounding: Literal["after", "before"]
    terms: int  # bfloat16 terms that T is carried in
    multiple: float = 1.0  # of themselves, as which operands are rounded
    ending: str = ""

    @property
    def name(self) -> str:
        terms = "_two_terms" if self.terms == 2 else ""
        return f"chunk_{self.chunk}_{self.order}_{self.rounding}{self.ending}{terms}"

    def rounded(self, x: Tensor, terms: int = 1) -> Tensor:
        """As an operand of a matrix product whose sums are float32."""
        return bfloat16_sum(x * self.multiple, terms) / self.multiple


ORDERS: tuple[Literal["ahead", "direct"], ...] = ("ahead", "direct")
ROUNDINGS: tuple[Literal["after", "before"], ...] = ("after", "before")


def family(strict: bool, more: Mapping[str, float] = MappingProxyType({})) -> list[Emulator]:
    """The twelve emulators of an ordinary workload, or of a strict one; those of one chunk size together. Then one for
    each of `more`: multiples by the ending of a name, in each order and rounding in turn."""
    terms = 2 if strict else 1
    each = [(order, rounding) for order in ORDERS for rounding in ROUNDINGS]
    twelve = [Emulator(chunk, *how, terms) for chunk in (16, 64, 128) for how in each]
    return twelve + [
        Emulator(64, *how, terms, multiple, ending)
        for how, (ending, multiple) in zip(cycle(each), more.items(), strict=False)
    ]


def emulate(
    definition: Definition, arguments: dict[str, Any], members: Iterable[Emulator]
) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """(name, (output, final_state)) of each member, in the types of the definition; `arguments` as stored. A third one
    where the definition keeps checkpoints."""
    heads = _Heads(definition, arguments)
    for chunk, same in groupby(members, key=lambda e: e.chunk):
        sequences = [_Chunks(heads, n, chunk) for n in range(len(heads.bounds) - 1)]
        for e in same:
            output = torch.zeros(heads.H, heads.T, heads.value_size, device=heads.Q.device)
            states = heads.states.clone()
            kept: list[Tensor] = []
            for n, sequence in enumerate(sequences):
                if len(sequence):
                    start, stop = heads.bounds[n], heads.bounds[n + 1]
                    output[:, start:stop], states[n], checkpoints = _run(e, sequence, states[n], heads)
                    kept += checkpoints
            found = [states]
            if heads.interval is not None:
                found.append(_in_rows(kept, heads, states))
            found = [S.mT.contiguous() for S in found] if heads.k_first else found
            yield e.name, (output.transpose(0, 1).contiguous().to(arguments["v"].dtype), *found)


def emulate_pool(
    definition: Definition, arguments: dict[str, Any], members: Iterable[Emulator]
) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """As `emulate`, on states in a pool: they are taken out before, in float32, and put back afterwards."""
    pool, slots, bounds = arguments["pool"], arguments["slots"], arguments["cu_seqlens"]
    first = 1 if definition.conventions.padding_slot == "zero" else 0
    held = (slots >= first) & (bounds[1:] > bounds[:-1])  # sequences that have a slot and tokens
    place = slots[held].long()
    states = torch.zeros(len(slots), *pool.shape[1:], device=pool.device)
    states[held] = torch.where(arguments["has_initial_state"][held][:, None, None, None], pool[place].float(), 0.0)
    lengths = (bounds[1:] - bounds[:-1]).tolist()
    skipped = (slots < first).repeat_interleave(torch.tensor(lengths, device=slots.device))
    for name, (output, final) in emulate(definition, {**arguments, "initial_state": states}, members):
        output[: len(skipped)][skipped] = 0
        after = pool.clone()
        after[place] = final[held].to(pool.dtype)
        yield name, (output, after)


def emulate_padded(
    definition: Definition, arguments: dict[str, Any], members: Iterable[Emulator]
) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """As `emulate`, on rows of one length. Padding is a token of a chunk that does nothing: alpha = 1, beta = 0."""
    there = arguments["attention_mask"] != 0
    B, T = there.shape
    bounds = torch.arange(B + 1, device=there.device) * T
    packed = {name: None if arguments[name] is None else arguments[name].flatten(0, 1) for name in ("q", "k", "v")}
    heads = max(arguments["q"].shape[2], arguments["v"].shape[2])
    given = arguments | packed | {"cu_seqlens": bounds}
    for name, nothing, absent in (("g", 0.0, 0.0), ("beta", 0.0, 1.0)):
        x = arguments[name]
        x = torch.full((B, T, heads), absent, device=there.device) if x is None else x
        given[name] = torch.where(there[..., None], x, nothing).flatten(0, 1)
    for name, (output, final) in emulate(definition, given, members):
        yield name, (torch.where(there[..., None, None], output.unflatten(0, (B, T)), 0.0).to(output.dtype), final)


def on_codes(call: Emulated) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """The reference on quantised states in float32, with other roundings on the way: each puts other numbers on the far
    side of a boundary between two codes. Key channels in reverse order, or values and scales times 5/4."""
    arguments = call.arguments
    order = torch.arange(arguments["pool"].shape[-1] - 1, -1, -1, device=arguments["pool"].device)
    back = {name: arguments[name][..., order] for name in ("q", "k", "pool")}
    output, codes, scales = call.oracle(**{**arguments, **back})
    yield "float32_keys_reversed", (output, codes[..., order], scales)
    v = arguments["v"]
    larger = {"v": v.float() * 1.25, "pool_scales": arguments["pool_scales"] * 1.25}
    output, codes, scales = call.oracle(**{**arguments, **larger})
    yield "float32_larger_values", ((output / 1.25).to(v.dtype), codes, scales / 1.25)


class _Heads:
    """A call's arguments in float32 with all heads, [H, T, ..], alpha linear and states [V, K]."""

    def __init__(self, definition: Definition, arguments: dict[str, Any]) -> None:
        q, v, g, beta = (arguments[name] for name in ("q", "v", "g", "beta"))
        self.T, key_size, self.value_size = q.shape[0], q.shape[-1], v.shape[-1]
        self.H = max(q.shape[1], v.shape[1])
        self.Q, self.K, self.V = (
            x.float().repeat_interleave(self.H // x.shape[1], dim=1).transpose(0, 1) for x in (q, arguments["k"], v)
        )
        ones = torch.ones(self.T, self.H, device=q.device)
        log = definition.conventions.decay_gate == "log"
        self.alpha = (ones if g is None else torch.exp(g.double()).float() if log else g).T
        self.beta = (ones if beta is None else beta).T
        self.bounds: list[int] = arguments["cu_seqlens"].tolist()
        self.k_first = definition.conventions.state_layout == "k_first"
        S = arguments["initial_state"]
        if S is None:
            S = torch.zeros(len(self.bounds) - 1, self.H, self.value_size, key_size, device=q.device)
        self.states: Tensor = S.mT.contiguous() if self.k_first else S
        given = arguments["scale"]
        self.scale = key_size**-0.5 if given is None else float(given)
        self.interval: int | None = arguments.get("checkpoint_interval")
        self.rows: list[int] | None = None  # where the checkpoints of each sequence begin, if edges are absolute
        self.positions = [0] * (len(self.bounds) - 1)
        if "start_positions" in arguments:
            self.positions = arguments["start_positions"].tolist()
            self.rows = arguments["checkpoint_cu_starts"].tolist()

    def edges(self, n: int) -> range:
        """The tokens of a sequence after which a state is kept."""
        length = self.bounds[n + 1] - self.bounds[n]
        if not self.interval:
            return range(0)
        return range(self.interval - 1 - self.positions[n] % self.interval, length, self.interval)


class _Chunks:
    """What all members of one chunk size share, for one sequence: [H, n, C, ..]."""

    def __init__(self, heads: _Heads, n: int, chunk: int) -> None:
        self.rows = slice(heads.bounds[n], heads.bounds[n + 1])
        self.length = heads.bounds[n + 1] - heads.bounds[n]
        self.chunk = max(1, min(chunk, self.length))
        # A token that pads the last chunk does nothing: alpha = 1 keeps the state, beta = 0 writes nothing.
        self.Q, self.K, self.V = (self._cut(x, 0.0) for x in (heads.Q, heads.K, heads.V))
        alpha, self.beta = self._cut(heads.alpha, 1.0), self._cut(heads.beta, 0.0)
        below = torch.ones(self.chunk, self.chunk, dtype=torch.bool, device=alpha.device).tril(-1)
        # Ratios as products of gates: alpha = 0 is exact.
        Gamma = torch.where(below, alpha[..., :, None].double(), 1.0).cumprod(-2).tril().float()
        self.gamma = alpha.double().cumprod(-1)[..., None].float()
        A = self.beta[..., None] * (Gamma * product(self.K, self.K.mT)).tril(-1)
        eye = torch.eye(self.chunk, dtype=torch.float64, device=A.device).expand_as(A)
        self.inverse = torch.linalg.solve_triangular(A.double(), eye, upper=False, unitriangular=True).float()
        self.attention = Gamma * product(self.Q, self.K.mT)
        self.to_end = Gamma[..., -1, :, None]
        # After which tokens of a chunk a state is kept, by chunk, and the decay to there of all tokens before.
        self.kept: dict[int, list[tuple[int, Tensor]]] = {}
        for token in heads.edges(n):
            at, row = divmod(token, self.chunk)
            self.kept.setdefault(at, []).append((row, Gamma[:, at, row, :, None].clone()))

    def __len__(self) -> int:
        return self.length

    def _cut(self, x: Tensor, fill: float) -> Tensor:
        """[H, T, ..] -> [H, n, C, ..]."""
        part = x[:, self.rows]
        missing = -self.length % self.chunk
        if missing:
            part = torch.cat([part, part.new_full((part.shape[0], missing, *part.shape[2:]), fill)], dim=1)
        return part.reshape(part.shape[0], -1, self.chunk, *part.shape[2:])


def _run(e: Emulator, c: _Chunks, S: Tensor, heads: _Heads) -> tuple[Tensor, Tensor, list[Tensor]]:
    """O [H, T, V], the new S [H, V, K] and the checkpoints [H, V, K] of one sequence."""
    if e.rounding == "after":
        T, right = e.rounded(c.inverse * c.beta[..., None, :], e.terms), torch.ones_like(c.beta)[..., None]
    else:
        T, right = e.rounded(c.inverse, e.terms), c.beta[..., None]
    if e.order == "ahead":
        u, w = product(T, e.rounded(right * c.V)), e.rounded(product(T, e.rounded(right * c.gamma * c.K)))
    attention = e.rounded(c.attention)
    O = torch.empty_like(c.V)
    checkpoints: list[Tensor] = []
    for n in range(c.V.shape[1]):
        Q, K, gamma = c.Q[:, n], c.K[:, n], c.gamma[:, n]
        held = e.rounded(S).mT
        if e.order == "ahead":
            U = u[:, n] - product(w[:, n], held)
        else:
            U = product(T[:, n], e.rounded(right[:, n] * (c.V[:, n] - gamma * product(K, held))))
        O[:, n] = gamma * product(Q, held) + product(attention[:, n], e.rounded(U))
        for row, to_row in c.kept.get(n, ()):  # within a chunk, a state is had as at its end
            checkpoints.append(gamma[:, row, None] * S + product(e.rounded(to_row * U).mT, K))
        S = gamma[:, -1:] * S + product(e.rounded(c.to_end[:, n] * U).mT, K)
    return heads.scale * O.flatten(1, 2)[:, : c.length], S, checkpoints


def _in_rows(kept: list[Tensor], heads: _Heads, states: Tensor) -> Tensor:
    """The checkpoints of all sequences; where edges are absolute a row may have none, and is zero."""
    if heads.rows is None:
        return torch.stack(kept) if kept else states[:0]
    out, each = states.new_zeros(heads.rows[-1], *states.shape[1:]), iter(kept)
    for n, first in enumerate(heads.rows[:-1]):
        for i in range(len(heads.edges(n))):
            out[first + i] = next(each)
    return out


def product(x: Tensor, y: Tensor) -> Tensor:
    """Matrix product, summed in float64 and rounded once to float32."""
    return (x.double() @ y.double()).float()
