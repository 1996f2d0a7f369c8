"""The gradients of the gated delta rule over whole sequences, in chunks of 64 tokens, in Triton.

One chunk of one head; rows are tokens; S [V, K] is the state at its start, dS the gradient of the one at its end;
gamma_i = alpha_1 .. alpha_i, and Gamma_ij = alpha_{j+1} .. alpha_i for i >= j, else 0. In the forward pass each token
makes an error r and writes U = diag(beta) r:

    N = strict_lower(Gamma * K K^T)      E = (I + N diag(beta))^-1      P = Gamma * Q K^T
    r = E (V - diag(gamma) K S^T)        O = scale (diag(gamma) Q S^T + P U)
    S <- gamma_C S + U^T diag(Gamma_C,:) K

With G = scale dO, x the gradient of what a token writes, and M = (I + diag(beta) N)^-1:

    x = M^T (P^T G + diag(Gamma_C,:) K dS^T)             dv = diag(beta) x            dbeta_i = x_i . r_i
    dv = E^T diag(beta) (P^T G + diag(Gamma_C,:) K dS^T)
    dS <- gamma_C dS + (diag(gamma) G)^T Q - (diag(gamma) dv)^T K
    dP = lower(G U^T)        dA = -strict_lower(dv U^T)                               (of A = diag(beta) N, times beta)
    dq = diag(gamma) G S + (dP * Gamma) K
    dk = (dP * Gamma)^T Q + (B + B^T) K - diag(gamma) dv S + diag(Gamma_C,:) U dS     B = dA * Gamma

prepare_kernel (prepare.py) makes E and P diag(beta), of all chunks at once. forward_kernel (walks.py) walks the chunks
for S and r, backward_kernel back for dS and dv; where pairs of sequence and head are few, in segments, between which
scan_kernel (scan.py) goes, or both at once, from either end (side_by_side, lanes.py). within_kernel (within.py) and
gradients_kernel (gradients.py) take many chunks at once again: the first has what passes between tokens, the second dq
and dk. gates_kernel (gates.py) has dg. decays.py knows gates.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from arguments import CHUNK, check, check_checkpoints, check_raw
from around import across, gates_of, through_gates, unit
from cut import (
    BESIDE,
    BESIDE_MOVES,
    EARLY,
    FORWARD_AHEAD,
    GATE_HEADS,
    INTERPRETED,
    SHORT,
    STEEP_CHANNELS,
    Blocking,
    ahead,
    beside,
    blocking,
    launch,
    long,
    outnumber,
    padded,
    segment_of,
)  # fmt: skip
from gates import gates_kernel, steep_kernel
from gradients import gradients_kernel, shared_kernel
from lanes import Step, run_steps
from prepare import prepare_kernel
from room import Problem, Way, Workspace, workspace
from scan import scan_kernel
from walks import backward_kernel, forward_kernel
from within import within_kernel


@dataclass(frozen=True)
class Call:
    """Tensors of a call, how it is cut, and the constants of kernels."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor | None
    beta: torch.Tensor | None
    cu_seqlens: torch.Tensor
    initial_state: torch.Tensor | None
    scale: float
    do: torch.Tensor
    dht: torch.Tensor | None
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    dg: torch.Tensor
    dbeta: torch.Tensor
    dh0: torch.Tensor
    size: Problem
    cut: Blocking
    way: Way
    work: Workspace
    k_first: bool
    between: tuple[torch.Tensor, torch.Tensor, int] | None  # checkpoints, first row of each sequence, chunks apart
    of_beta: bool  # within_kernel finds dbeta, so neither walk waits for the other
    gates: dict[str, Any]
    norm: dict[str, Any]
    common: dict[str, Any]

    @property
    def short(self) -> bool:
        """Two programs of the walk back per multiprocessor are better there than loads ahead."""
        return self.size.total <= SHORT * self.size.num_seqs

    @property
    def bounds_back(self) -> torch.Tensor:
        return self.work.bounds if self.work.bounds_back is None else self.work.bounds_back

    @property
    def crowded(self) -> bool:
        """Programs of both walks share multiprocessors."""
        return self.way.beside and self.size.num_seqs * self.size.H * self.size.value_slices > BESIDE[1]

    @property
    def lost(self) -> bool:
        """Whether walks leave out what comes to nothing."""
        return long(self.size.segment)

    def stages(self, most: int) -> int:
        return ahead(min(most, 2) if self.crowded else most, self.q.device)

    def stages_back(self, most: int) -> int:
        if not self.short:
            return self.stages(most)
        programs = self.size.num_seqs * self.size.H * self.size.value_slices
        return self.stages(1 if outnumber(programs, self.q.device) else min(most, 2))


def prepare(x: Call) -> None:
    warps, registers, BD = x.cut.prepare
    prepare_kernel[(x.size.slots * x.size.H,)](
        x.q, x.k, x.g, x.beta, x.cu_seqlens, x.work.inverse, x.work.P, x.work.decay, x.work.later, x.scale,
        x.size.num_seqs, x.size.total, lost_ptr=x.work.between, HQ=x.q.shape[1], BK=BD, LOST=x.lost,
        **launch(warps, registers), **x.gates, **x.norm, **x.common,
    )  # fmt: skip


def forward(
    x: Call, name: str, programs: int, segment: int, part: int = 0, many: int = 1, sums: bool = False
) -> None:  # fmt: skip
    """sums: for dbeta, of chunks for which the walk back has left dv."""
    (warps, registers, BV, stages), D = x.cut.forward, x.size.D
    checkpoints, first, _ = x.between or (None, None, 0)
    if name == "moves" or not x.size.segment:
        stages = min(stages, FORWARD_AHEAD)
    forward_kernel[(programs * x.size.H * triton.cdiv(D, BV),)](
        x.k, x.v, x.cu_seqlens, x.size.total, x.size.num_seqs, x.work.inverse, x.work.r, x.work.dv, x.work.decay,
        x.initial_state, x.work.starts, x.work.bounds, x.work.moves, x.work.diagonals, x.work.of_walk, checkpoints,
        first, 0 if checkpoints is None else len(checkpoints), part, many, x.work.between, HV=x.v.shape[1],
        HAS_INITIAL=x.initial_state is not None, K_FIRST=x.k_first, BK=padded(D), BV=BV, STAGES=x.stages(stages),
        PASS=name, SEGMENT=segment, PARTS=x.way.parts if x.way.beside else 1, SUMS=sums, LOST=x.lost,
        **launch(warps, registers), **x.common,
    )  # fmt: skip


def walk_back(
    x: Call, name: str, part: int, many: int = 1, sums: bool = True, at: int = 0, walks: str = "all"
) -> None:  # fmt: skip
    """at: the first of the parts for whose gradients of states there is room, if that is not for all. walks: those of
    "moves" that take at most half of a segment are "short"; others are "long"."""
    (warps, registers, BV, stages), D, whole = x.cut.backward, x.size.D, name == "whole"
    dht = x.dh0 if whole and part else x.dht  # a launch goes on from there
    places = x.size.places(x.way.parts)
    ends = x.work.ends if x.way.all_kept else x.work.ends[at * places :]
    stages = min(stages, BESIDE_MOVES) if walks == "short" else stages
    backward_kernel[((x.size.segments or x.size.num_seqs) * x.size.H * x.size.value_slices,)](
        x.q, x.k, x.do, x.cu_seqlens, x.size.total, x.size.num_seqs, x.work.r, x.work.inverse, x.work.P, x.work.dv,
        x.work.decay, dht, ends, x.dh0, x.bounds_back, x.work.of_walk, x.scale, part, many, places, HQ=x.q.shape[1],
        lost_ptr=x.work.between, HAS_DHT=dht is not None, K_FIRST=x.k_first, BK=padded(D), BV=BV,
        STAGES=x.stages_back(stages), PASS=name, LOST=x.lost, WALKS=walks, SEGMENT=x.size.segment,
        PARTS=1 if name == "moves" else x.way.parts, ALL=x.way.all_kept, SUMS=sums, LATE=x.way.beside,
        **launch(warps, registers), **x.norm, **x.common,
    )  # fmt: skip


def scan(x: Call, given, found, reverse: bool) -> None:
    D = x.size.D
    scan_kernel[(x.size.num_seqs * x.size.H * triton.cdiv(D, 64),)](
        x.cu_seqlens, x.size.total, x.size.num_seqs, given, x.bounds_back if reverse else x.work.bounds,
        x.work.moves, x.work.diagonals, found, H=x.size.H, D=D, HAS_GIVEN=given is not None, K_FIRST=x.k_first,
        OPERAND=x.common["OPERAND"], PRECISION=x.common["PRECISION"], C=CHUNK, BK=padded(D), BV=64,
        STAGES=ahead(2, x.q.device), SEGMENT=x.size.segment, REVERSE=reverse, **launch(4, 0),
    )  # fmt: skip


def gradients(x: Call, part: int, many: int = 1, at: int = 0) -> None:
    """Of the chunks of some parts, for which a walk has left gradients of states (`at`: as there)."""
    HQ, HK, D, places = x.q.shape[1], x.k.shape[1], x.size.D, x.size.places(x.way.parts)
    parts = {"SEGMENT": x.size.segment, "PARTS": x.way.parts}
    warps, registers, BD = x.cut.within
    within_kernel[(places * many * x.size.H,)](
        x.k, x.do, x.cu_seqlens, x.work.r, x.work.dv, x.work.decay, x.work.later, x.work.inverse, x.work.P,
        x.work.between, x.work.of_walk, x.scale, x.size.num_seqs, x.size.total, part, places, HQ=HQ, BD=BD,
        OF_BETA=x.of_beta, **parts,
        **launch(warps, registers), **x.norm, **x.common,
    )  # fmt: skip
    warps, registers, BK, BV, stages = x.cut.gradients
    of_gradients = {name: value for name, value in x.common.items() if name != "TERMS"}
    ends = x.work.ends if x.way.all_kept else x.work.ends[at * places :]
    gradients_kernel[(places * many * HK * triton.cdiv(D, BK),)](
        x.q, x.k, x.do, x.cu_seqlens, x.initial_state, x.dht, x.work.r, x.work.dv, x.work.starts, ends,
        x.work.decay, x.work.P, x.work.inverse, x.dq, x.dk, x.dv, x.work.of_gradients, x.scale, x.size.num_seqs,
        x.size.total, part, places, HQ=HQ, HV=x.v.shape[1], BK=BK, BV=BV, STAGES=ahead(stages, x.q.device),
        HAS_INITIAL=x.initial_state is not None, HAS_DHT=x.dht is not None, K_FIRST=x.k_first, ALL=x.way.all_kept,
        **parts, **launch(warps, registers), **x.norm, **of_gradients,
    )  # fmt: skip


def of_values_and_gates(x: Call) -> None:
    """What is left once all rounds are done."""
    HV, H, D, slots = x.v.shape[1], x.size.H, x.size.D, x.size.slots
    heads = min(GATE_HEADS, H & -H)  # a power of two that divides H
    of_gates = {"H": H, "C": CHUNK, "KEY_SLICES": x.size.key_slices, "HEADS": heads}
    gates_kernel[(slots * (H // heads),)](
        x.g, x.cu_seqlens, x.work.decay, x.work.between, x.work.of_gradients, x.work.of_walk, x.dg, x.dbeta,
        x.size.num_seqs, x.size.total, GATE=x.gates["GATE"], VALUE_SLICES=1 if x.of_beta else x.size.value_slices,
        **launch(1, 0), **of_gates,
    )  # fmt: skip
    if x.work.dv is not x.dv:
        warps, _, _, BV, _ = x.cut.gradients
        shared_kernel[(slots * HV,)](
            x.cu_seqlens, x.work.dv, x.dv, x.size.num_seqs, x.size.total, HV=HV, H=H, D=D, C=CHUNK, BD=BV,
            **launch(warps, 0),
        )  # fmt: skip
    if x.gates["GATE"] == "linear":
        steep_kernel[(slots * (H // heads),)](
            x.q, x.k, x.g, x.beta, x.do, x.cu_seqlens, x.work.r, x.work.dv, x.work.of_gradients, x.dg, x.scale,
            x.size.num_seqs, x.size.total, HQ=x.q.shape[1], HK=x.k.shape[1], D=D, HAS_BETA=x.gates["HAS_BETA"],
            OPERAND=x.common["OPERAND"], PRECISION=x.common["PRECISION"], BD=STEEP_CHANNELS,
            **launch(4, 0), **of_gates,
        )  # fmt: skip


def walk_forward(x: Call) -> None:
    """Over all chunks, once it is known what segments make of a state."""
    segment = x.size.segment
    if x.between:
        apart = x.between[2]
        forward(x, "given", triton.cdiv(x.size.total, CHUNK * apart) + x.size.num_seqs - 1, apart)
    elif segment:
        scan(x, x.initial_state, None, False)
        forward(x, "parts", x.size.segments, segment)
    else:
        forward(x, "whole", x.size.num_seqs, 0)


def of_walk_forward(x: Call) -> list[Step]:
    """All that comes before the walk back. What segments make of gradients is found beside what they make of states, if
    there is room: walks that are short load less far ahead, so a multiprocessor has a program of either. Long ones come
    behind, with one program per multiprocessor: two would gain nothing."""
    first = Step(0, lambda: prepare(x))
    if not x.size.segment:
        return [first, Step(0, lambda: walk_forward(x))]
    moves = Step(0, lambda: forward(x, "moves", 2 * x.size.segments, x.size.segment))
    forth = Step(0, lambda: walk_forward(x))
    if not x.way.aside:
        back = Step(0, lambda: walk_back(x, "moves", 0))
        return [first, moves, forth, back, Step(0, lambda: scan(x, x.dht, x.dh0, True))]
    short = Step(1, lambda: walk_back(x, "moves", 0, walks="short"), (first,))
    others = Step(1, lambda: walk_back(x, "moves", 0, walks="long"))
    return [first, short, others, moves, Step(1, lambda: scan(x, x.dht, x.dh0, True), (moves,)), forth]


def side_by_side(x: Call) -> list[Step]:
    """Both walks begin at once, from either end. Where they meet, each knows what it needs of the other for dbeta, if
    within_kernel does not find that. The gradients of the chunks behind that place are found beside the rest of the
    walk back. Where there is no room for all gradients of states, the last parts of the walk back take the places of
    the first ones: these go forward in two halves, so that the later one is done early."""
    count, parts, kept = x.size.num_seqs, x.way.parts, x.way.kept
    early = max(EARLY, parts - kept)
    half, sums = early // 2, not x.of_beta
    first = Step(0, lambda: prepare(x))
    back = Step(2, lambda: walk_back(x, "whole", 0, early, False), (first,))
    forth = Step(1, lambda: forward(x, "whole", count, 0, early, parts - early), (first,))
    steps = [first, back, forth]
    done = {}  # by the first part of a stretch: its gradients
    for begin, end in [(0, early)] if kept == parts else [(half, early), (0, half)]:
        of = (begin, end - begin)
        steps.append(Step(1, lambda of=of: forward(x, "parts", count, 0, *of, sums), (back,) if sums else ()))
        done[begin] = Step(0, lambda of=of: gradients(x, *of, of[0]), (steps[-1], back))
        steps.append(done[begin])
    again = min(kept + early - half, parts)
    stretches = [(early, kept, early), (kept, again, half), (again, parts, 0)]
    if kept == parts:
        stretches = [(early, parts, early)]
    for begin, end, at in stretches:
        if begin == end:
            continue
        before = (done[at],) if begin >= kept else (forth,) if sums else ()
        of, last = (begin, end - begin), end == parts
        steps.append(Step(2, lambda of=of, at=at: walk_back(x, "whole", *of, sums, at), before))
        steps.append(Step(3 if last else 0, lambda of=of, at=at: gradients(x, *of, at), (steps[-1], forth)))
    return [*steps, Step(0, lambda: of_values_and_gates(x), (steps[-1],))]


def run(x: Call) -> None:
    """All launches. Without tokens there is one, which hands dht on as dh0."""
    if x.size.total == 0:
        walk_back(x, "whole", 0)
        return
    if x.way.beside:
        run_steps(side_by_side(x), x.q.device)
        return
    run_steps(of_walk_forward(x), x.q.device)
    for nth in range(x.way.parts):
        walk_back(x, "parts" if x.size.segment else "whole", nth)
        gradients(x, nth)
    of_values_and_gates(x)


def backward(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, dq, dk, dv, dg, dbeta, dh0, gate, k_first, strict,
    rstd_q=None, between=None, raw=False,
):  # fmt: skip
    """rstd_q [total, HQ]: factors of the queries; dq is then that of a query with its factor held. between: states that
    the forward pass has left (Call). raw: dbeta goes on to b, for which a product of rounded factors is too coarse."""
    (total, _, D), (num_seqs, H) = q.shape, dh0.shape[:2]
    given = (q, k, v, g, beta, cu_seqlens, initial_state, do, dht, *(between or ())[:2])
    inputs = sum(x.nbytes for x in given if x is not None)
    if do is None:
        do = q.new_zeros((total, H, D))

    # bfloat16 is multiplied as it is. Anything else is widened, and multiplied as float32; so is all if it is `strict`.
    bf16 = q.dtype == torch.bfloat16 and not strict
    operand, terms, precision = (torch.bfloat16, 2, "tf32") if bf16 else (torch.float32, 1, "ieee")
    if torch.version.hip or INTERPRETED:
        precision = "ieee"  # the one that they know
    cut = blocking(D, operand)
    (_, _, of_values, _), (_, _, BK, BV, _) = cut.backward, cut.gradients
    both = not between and beside(num_seqs, H, total, triton.cdiv(D, of_values))
    size = Problem(
        total, num_seqs, H, D, 0 if both else segment_of(num_seqs, H, total, D, operand), triton.cdiv(D, of_values),
        triton.cdiv(D, BK) * triton.cdiv(D, BV), both,
    )  # fmt: skip
    way, work = workspace(size, inputs, dv, operand)
    common = {"HK": k.shape[1], "H": H, "D": D, "C": CHUNK, "OPERAND": tl.bfloat16 if bf16 else tl.float32}
    common |= {"TERMS": terms, "PRECISION": precision}
    run(Call(
        q, k, v, g, beta, cu_seqlens, initial_state, D**-0.5 if scale is None else float(scale), do, dht, dq, dk, dv,
        dg, dbeta, dh0, size, cut, way, work, k_first, between,
        of_beta=way.beside and not raw,
        gates={"GATE": "none" if g is None else gate, "HAS_BETA": beta is not None},
        norm={"norm_ptr": rstd_q, "NORMED": rstd_q is not None}, common=common,
    ))  # fmt: skip


def backward_k_last(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, dq, dk, dv, dg, dbeta, dh0, strict=False
):  # fmt: skip
    """gdn_prefill_backward_k_last: states [num_seqs, H, V, K]; g is alpha itself, and dg its gradient."""
    check(q, k, v, g, beta, cu_seqlens, initial_state, do, dht, dq, dk, dv, dg, dbeta, dh0)
    backward(
        q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, dq, dk, dv, dg, dbeta, dh0, "linear",
        k_first=False, strict=strict,
    )  # fmt: skip


def backward_k_first(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, dq, dk, dv, dg, dbeta, dh0, strict=False
):  # fmt: skip
    """gdn_prefill_backward_k_first: states [num_seqs, H, K, V]; alpha = exp(g), and dg = alpha dalpha."""
    check(q, k, v, g, beta, cu_seqlens, initial_state, do, dht, dq, dk, dv, dg, dbeta, dh0)
    backward(
        q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, dq, dk, dv, dg, dbeta, dh0, "log",
        k_first=True, strict=strict,
    )  # fmt: skip


def backward_checkpoints(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, checkpoints, checkpoint_cu_starts, checkpoint_interval,
    dq, dk, dv, dg, dbeta, dh0, strict=False,
):  # fmt: skip
    """gdn_prefill_backward_checkpoints: backward_k_last, whose walk over the states is cut where some are given."""
    check(q, k, v, g, beta, cu_seqlens, initial_state, do, dht, dq, dk, dv, dg, dbeta, dh0)
    check_checkpoints(q, dh0, cu_seqlens, checkpoints, checkpoint_cu_starts, checkpoint_interval)
    backward(
        q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, dq, dk, dv, dg, dbeta, dh0, "linear",
        k_first=False, strict=strict, between=(checkpoints, checkpoint_cu_starts, checkpoint_interval // CHUNK),
    )  # fmt: skip


def backward_raw_gates(
    q, k, v, a, b, A_log, dt_bias, cu_seqlens, initial_state, scale, use_qk_l2norm, do, dht,
    dq, dk, dv, da, db, dA_log, ddt_bias, dh0, strict=False,
):  # fmt: skip
    """gdn_prefill_backward_raw_gates: states [num_seqs, H, V, K]; the norm is taken unless it is False."""
    check(q, k, v, None, None, cu_seqlens, initial_state, do, dht, dq, dk, dv, None, None, dh0)
    check_raw(q, dh0.shape[1], a, b, A_log, dt_bias, da, db, dA_log, ddt_bias)
    normed = use_qk_l2norm is None or bool(use_qk_l2norm)
    log_alpha, beta, to_a, to_b = gates_of(a, b, A_log, dt_bias)
    dg, dbeta = torch.empty_like(log_alpha), torch.empty_like(beta)
    # A query's norm is a factor of its products: so q is not rounded again. dq and dk go on in float32, and are rounded
    # once.
    (Q, rstd_q), (K, rstd_k) = (unit(q), unit(k)) if normed else ((q, None), (k, None))
    dQ, dK = (torch.empty_like(x) if normed else dx for x, dx in ((Q, dq), (K, dk)))
    rows = torch.float32 if strict else q.dtype
    dV = dv.float() if strict else dv
    backward(
        q.to(rows), K.to(rows), v.to(rows), log_alpha, beta, cu_seqlens, initial_state, scale,
        None if do is None else do.to(rows), dht, dQ, dK, dV, dg, dbeta, dh0, "log", k_first=False, strict=strict,
        rstd_q=rstd_q, raw=True,
    )  # fmt: skip
    if strict:
        dv.copy_(dV)
    inside = (torch.arange(q.shape[0], device=q.device) < cu_seqlens[-1])[:, None]
    if normed:
        for dx, y, dy in ((dq, Q, dQ), (dk, K, dK * rstd_k)):
            dx.copy_(torch.where(inside[..., None], across(y, dy), 0.0))
    through_gates(inside, dg, dbeta, log_alpha, to_a, to_b, da, db, dA_log, ddt_bias)
