"""The gradients of prefill where the forward pass has left states: piece by piece between them, from the last.

A checkpoint is the state after a multiple of checkpoint_interval tokens of a sequence. It is where one piece ends and
the next begins: the next starts from it, and what its walk back ends with is the gradient of the state that the piece
before ends with. So no state before the last checkpoint is needed to find another one.

The gradients are those of the whole, because each checkpoint is the state that the piece before leaves. With states
that belong to other inputs they would be gradients of no function.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from . import backward, backward_chunkwise
from .backward import Gradients
from .backward_chunkwise import Stored, as_it_is
from .gated_delta_net import arithmetic_type


def prefill_backward_checkpoints(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
    do: Tensor | None,
    dht: Tensor | None,
    checkpoints: Tensor,
    checkpoint_cu_starts: Tensor,
    checkpoint_interval: int,
) -> Gradients:
    """As `backward.prefill_backward_k_last`, given the states [num_checkpoints, num_sab_heads, V, K] that
    `gated_delta_net.prefill_checkpoints` leaves; those of sequence n are rows checkpoint_cu_starts[n] to
    checkpoint_cu_starts[n + 1]."""
    return _by_pieces(
        backward.prefill_backward_k_last, q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, checkpoints,
        checkpoint_cu_starts, checkpoint_interval,
    )  # fmt: skip


def prefill_backward_checkpoints_in_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
    do: Tensor | None,
    dht: Tensor | None,
    checkpoints: Tensor,
    checkpoint_cu_starts: Tensor,
    checkpoint_interval: int,
    chunk_size: int = 64,
    stored: Stored = as_it_is,
) -> Gradients:
    """As `prefill_backward_checkpoints`, in chunks of `chunk_size` tokens, at most a piece."""
    return _by_pieces(
        partial(backward_chunkwise.prefill_backward_k_last, chunk_size=chunk_size, stored=stored), q, k, v, g, beta,
        cu_seqlens, initial_state, scale, do, dht, checkpoints, checkpoint_cu_starts, checkpoint_interval,
    )  # fmt: skip


def _by_pieces(
    gradients: Callable[..., Gradients], q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None,
    cu_seqlens: Tensor, initial_state: Tensor | None, scale: float | None, do: Tensor | None, dht: Tensor | None,
    checkpoints: Tensor, checkpoint_cu_starts: Tensor, checkpoint_interval: int,
) -> Gradients:  # fmt: skip
    """`gradients` of one piece between checkpoints after the other, from the last one of each sequence back."""
    dtype = arithmetic_type(q, k, v, g, beta, initial_state, do, dht, checkpoints)
    H, bounds, rows = max(q.shape[1], v.shape[1]), cu_seqlens.tolist(), checkpoint_cu_starts.tolist()
    gates, states = (len(q), H), (len(bounds) - 1, H, v.shape[-1], q.shape[-1])
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    dg, dbeta = (torch.zeros(gates, dtype=dtype, device=q.device) for _ in range(2))
    dh0 = torch.zeros(states, dtype=dtype, device=q.device) if dht is None else dht.to(dtype, copy=True)
    for n in range(len(bounds) - 1):
        length = bounds[n + 1] - bounds[n]
        for i in reversed(range(-(-length // checkpoint_interval))):
            start = bounds[n] + i * checkpoint_interval
            t = slice(start, min(start + checkpoint_interval, bounds[n + 1]))
            given = None if initial_state is None else initial_state[n : n + 1]
            before = checkpoints[rows[n] + i - 1][None] if i else given
            of_tokens = (None if x is None else x[t] for x in (g, beta))
            dq[t], dk[t], dv[t], dg[t], dbeta[t], dh0[n : n + 1] = gradients(
                q[t], k[t], v[t], *of_tokens, torch.tensor([0, t.stop - t.start]), before, scale,
                None if do is None else do[t], dh0[n : n + 1],
            )  # fmt: skip
    return dq, dk, dv, dg, dbeta, dh0
