"""Checkpoints at absolute edges: the states that a prefix cache keeps when a call starts anywhere in a request.

An edge is a multiple of checkpoint_interval, counted from the first token of the request. A call on the L tokens after
the first s meets the edges in (s, s + L]: at most ceil(L / interval) of them, for which there are rows, and at times
one fewer. A row that no edge has is zero.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from . import chunkwise
from .convolution import conv1d_prefill
from .gated_delta_net import arithmetic_type, prefill_k_last


def edges(start: int, length: int, interval: int) -> range:
    """After how many tokens of a call each edge comes."""
    return range(interval - start % interval, length + 1, interval)


def _pieces(start: int, length: int, interval: int) -> Iterator[tuple[int, int]]:
    """A sequence cut at its edges: (first token, last token + 1) of each piece that has tokens."""
    return ((a, b) for a, b in pairwise([0, *edges(start, length, interval), length]) if a < b)


def prefill_checkpoints_absolute(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
    start_positions: Tensor,
    checkpoint_cu_starts: Tensor,
    checkpoint_interval: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """`prefill_k_last`, and the state at every edge.

    start_positions [num_seqs] are the tokens of each request before this call. The rows of sequence n are
    checkpoint_cu_starts[n] to checkpoint_cu_starts[n + 1], a tensor [num_seqs + 1]. Returns output, final_state and
    checkpoints [num_checkpoints, num_sab_heads, V, K], in initial_state's type.
    """
    return _at_edges(
        prefill_k_last, q, k, v, g, beta, cu_seqlens, initial_state, scale, start_positions, checkpoint_cu_starts,
        checkpoint_interval,
    )  # fmt: skip


def prefill_checkpoints_absolute_in_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
    start_positions: Tensor,
    checkpoint_cu_starts: Tensor,
    checkpoint_interval: int,
    chunk_size: int = 64,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `prefill_checkpoints_absolute`, in chunks of `chunk_size` tokens."""
    prefill = partial(chunkwise.prefill_k_last, chunk_size=chunk_size)
    return _at_edges(
        prefill, q, k, v, g, beta, cu_seqlens, initial_state, scale, start_positions, checkpoint_cu_starts,
        checkpoint_interval,
    )  # fmt: skip


def _at_edges(
    prefill: Callable[..., tuple[Tensor, Tensor]], q: Tensor, k: Tensor, v: Tensor, g: Tensor | None,
    beta: Tensor | None, cu_seqlens: Tensor, initial_state: Tensor | None, scale: float | None,
    start_positions: Tensor, checkpoint_cu_starts: Tensor, checkpoint_interval: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`prefill` of one piece between edges after the other."""
    dtype = arithmetic_type(q, k, v, g, beta, initial_state)
    H, bounds, rows = max(q.shape[1], v.shape[1]), cu_seqlens.tolist(), checkpoint_cu_starts.tolist()
    shape = (H, v.shape[-1], q.shape[-1])
    if initial_state is None:
        states = torch.zeros(len(bounds) - 1, *shape, dtype=dtype, device=q.device)
    else:
        states = initial_state.to(dtype, copy=True)
    checkpoints = torch.zeros(rows[-1], *shape, dtype=dtype, device=q.device)
    output = torch.zeros(q.shape[0], H, v.shape[-1], dtype=v.dtype, device=q.device)
    for n, (start, length) in enumerate(zip(start_positions.tolist(), cu_seqlens.diff().tolist(), strict=True)):
        known = {end: rows[n] + i for i, end in enumerate(edges(start, length, checkpoint_interval))}
        for first, end in _pieces(start, length, checkpoint_interval):
            piece = slice(bounds[n] + first, bounds[n] + end)
            output[piece], states[n : n + 1] = prefill(
                q[piece], k[piece], v[piece], None if g is None else g[piece], None if beta is None else beta[piece],
                torch.tensor([0, end - first]), states[n : n + 1], scale,
            )  # fmt: skip
            if end in known:
                checkpoints[known[end]] = states[n]
    state_type = dtype if initial_state is None else initial_state.dtype
    return output, states.to(state_type), checkpoints.to(state_type)


def conv1d_checkpoints_absolute(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cu_seqlens: Tensor,
    conv_states: Tensor,
    slots: Tensor,
    has_initial_state: Tensor,
    start_positions: Tensor,
    checkpoint_cu_starts: Tensor,
    checkpoint_interval: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """`conv1d_prefill`, and its state at every edge: what it would leave if the sequence ended there.

    Edges and rows as in `prefill_checkpoints_absolute`. Returns output, checkpoints [num_checkpoints, conv_dim, W - 1]
    in the type of the states, and the pool afterwards.
    """
    output, after = conv1d_prefill(x, weight, bias, cu_seqlens, conv_states, slots, has_initial_state)
    bounds, rows = cu_seqlens.tolist(), checkpoint_cu_starts.tolist()
    checkpoints = conv_states.new_zeros(rows[-1], *conv_states.shape[1:])
    for n, (start, length) in enumerate(zip(start_positions.tolist(), cu_seqlens.diff().tolist(), strict=True)):
        if slots[n] < 0:
            continue
        for i, end in enumerate(edges(start, length, checkpoint_interval)):
            _, kept = conv1d_prefill(
                x[bounds[n] : bounds[n] + end], weight, bias, torch.tensor([0, end]), conv_states, slots[n : n + 1],
                has_initial_state[n : n + 1],
            )  # fmt: skip
            checkpoints[rows[n] + i] = kept[int(slots[n])]
    return output, checkpoints, after
