"""Kimi Delta Attention over whole sequences, with the states on the way that a prefix cache keeps."""

from itertools import pairwise
from typing import Any

import torch
from gdnspec.family import Asked, checks, register
from torch import Tensor

from ..kimi_delta_attention import arithmetic_type
from . import sizes
from .rule import computed

NAME = "kimi_delta_attention_checkpoints"


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor,
    checkpoint_cu_starts: Tensor,
    num_checkpoints: int,
    checkpoint_interval: int = 64,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Each interval of a sequence starts from the state of the one before. All that have the same place in their
    sequences are computed together."""
    output, final, kept = fake(
        q, k, v, g, beta, initial_state, cu_seqlens, checkpoint_cu_starts, num_checkpoints, checkpoint_interval, scale
    )
    bounds = checks.starts(NAME, "cu_seqlens", cu_seqlens, q.shape[0])
    counts = [(stop - start) // checkpoint_interval for start, stop in pairwise(bounds)]
    expected = torch.tensor([0, *counts]).cumsum(0).tolist()
    if checkpoint_cu_starts.tolist() != expected or expected[-1] != num_checkpoints:
        said = f"checkpoint_cu_starts must be {expected}, as many as whole intervals fit, and end at num_checkpoints"
        raise ValueError(f"{NAME}: {said}, {num_checkpoints}")
    dtype = arithmetic_type(q, k, v, g, beta, initial_state)
    S = torch.zeros(final.shape, dtype=dtype, device=q.device) if initial_state is None else initial_state.to(dtype)
    states, pieces, tokens, found, rows = list(S), [], [], [], []
    for first in range(0, max((stop - start for start, stop in pairwise(bounds)), default=0), checkpoint_interval):
        going = [n for n, (start, stop) in enumerate(pairwise(bounds)) if stop - start > first]
        stops = [min(bounds[n] + first + checkpoint_interval, bounds[n + 1]) for n in going]
        parts = [torch.arange(bounds[n] + first, stop) for n, stop in zip(going, stops, strict=True)]
        token = torch.cat(parts).to(q.device)
        starts = torch.tensor([0, *map(len, parts)], device=q.device).cumsum(0)
        gates = [None if x is None else x[token] for x in (g, beta)]
        before = torch.stack([states[n] for n in going])
        O, after = computed(q[token], k[token], v[token], gates[0], gates[1], before, starts, scale, "k_last")
        pieces.append(O)
        tokens.append(token)
        for n, part, state in zip(going, parts, after, strict=True):
            states[n] = state
            if len(part) == checkpoint_interval:
                found.append(state)
                rows.append(expected[n] + first // checkpoint_interval)
    done = torch.cat(pieces)[torch.cat(tokens).argsort()].to(output.dtype) if pieces else output[:0]
    if found:
        kept = torch.stack(found)[torch.tensor(rows).argsort().to(q.device)].to(kept.dtype)
    return checks.padded(done, len(output)), torch.stack(states).to(final.dtype) if states else final, kept


def fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor,
    checkpoint_cu_starts: Tensor,
    num_checkpoints: int,
    checkpoint_interval: int = 64,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs without values, for a call that is served. Raises `ValueError` and `TypeError` for others."""
    floats = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_state": initial_state}
    checks.tensors(NAME, floats, {"cu_seqlens": cu_seqlens, "checkpoint_cu_starts": checkpoint_cu_starts})
    of_output, of_states = sizes.sequences(NAME, q, k, v, initial_state, cu_seqlens)
    sizes.log_gates(NAME, q, v, g, beta)
    checks.shape(NAME, "checkpoint_cu_starts", checkpoint_cu_starts, (of_states[0] + 1,), "[sequences + 1]")
    if checkpoint_interval < 1 or checkpoint_interval % 64:
        said = "positive multiples of 64 are served"
        raise ValueError(f"{NAME}: checkpoint_interval={checkpoint_interval}: {said}")
    told = f"{NAME}: num_checkpoints={num_checkpoints}: 0 and positive numbers are served"
    torch._check_value(num_checkpoints >= 0, lambda: told)
    state_type = arithmetic_type(q, k, v, g, beta) if initial_state is None else initial_state.dtype
    final = v.new_empty(of_states, dtype=state_type)
    return v.new_empty(of_output), final, v.new_empty((num_checkpoints, *of_states[1:]), dtype=state_type)


def asked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor,
    checkpoint_cu_starts: Tensor,
    num_checkpoints: int,
    checkpoint_interval: int = 64,
    scale: float | None = None,
) -> Asked:
    """The definition has float32 states."""
    sizes.one_size(NAME, q, v)
    given = None if initial_state is None else initial_state.dtype
    g, beta, S = (None if x is None else x.float() for x in (g, beta, initial_state))
    starts = (cu_seqlens.long(), checkpoint_cu_starts.long())
    inputs = (q, k, v, g, beta, starts[0], S, scale, starts[1], checkpoint_interval)
    if given in (None, torch.float32):
        return "kda_prefill_checkpoints", inputs, None

    def finish(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        output, *states = outputs
        return (output, *(x.to(given) for x in states))

    return "kda_prefill_checkpoints", inputs, finish


ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? beta, Tensor? initial_state, Tensor cu_seqlens, "
    "Tensor checkpoint_cu_starts, SymInt num_checkpoints, int checkpoint_interval=64, float? scale=None"
)
PLACE = [part.split()[1].partition("=")[0] for part in ARGUMENTS.split(", ")].index("num_checkpoints")


def axes(*args: Any) -> dict[str, int]:
    """How many checkpoints there are, before anybody reads their starts: so a CUDA graph can record the call."""
    return {"num_checkpoints": args[PLACE]}


OPERATOR = register(NAME, ARGUMENTS, "(Tensor, Tensor, Tensor)", plain, fake, asked, axes=axes)
