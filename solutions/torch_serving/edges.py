"""Checkpoints at absolute edges: a prefill, or a convolution, that keeps its state at every multiple of an interval
that it meets, counted from the beginning of each request."""

import torch
from kernel import step, vectors


def edges_of(cu_seqlens, start_positions, rows, interval):
    """For each row of checkpoints its sequence, and after how many of the call's tokens its edge comes; an edge past
    the end of its sequence belongs to a row that stays zero. Both [num_checkpoints]."""
    counts = rows.diff()
    owner = torch.repeat_interleave(torch.arange(len(counts), device=rows.device), counts)
    number = torch.arange(len(owner), device=rows.device) - rows[:-1][owner]
    return owner, interval - start_positions[owner] % interval + number * interval


def prefill_checkpoints_absolute(
    q, k, v, g, beta, cu_seqlens, initial_state, scale, start_positions, checkpoint_cu_starts, checkpoint_interval
):  # fmt: skip
    """gdn_prefill_checkpoints_absolute."""
    H, size = max(q.shape[1], v.shape[1]), q.shape[-1]
    factor = size**-0.5 if scale is None else float(scale)
    Q, K, V = vectors(q, k, v, H, use_qk_l2norm=False)  # [T, H, D]
    alpha, write = (torch.ones(len(q), H, device=q.device) if x is None else x for x in (g, beta))
    output = torch.zeros(len(q), H, size, dtype=v.dtype, device=q.device)
    starts, lengths = cu_seqlens[:-1], cu_seqlens.diff()
    S = torch.zeros(len(starts), H, size, size, device=q.device) if initial_state is None else initial_state.clone()
    owner, edge = edges_of(cu_seqlens, start_positions, checkpoint_cu_starts, checkpoint_interval)
    checkpoints = torch.zeros(len(owner), H, size, size, device=q.device)
    for t in range(int(lengths.max())):
        there = (lengths > t).nonzero()[:, 0]
        rows = starts[there] + t
        o, S[there] = step(S[there], Q[rows], K[rows], V[rows], alpha[rows], write[rows])
        output[rows] = (factor * o).to(v.dtype)
        kept = ((edge == t + 1) & (edge <= lengths[owner])).nonzero()[:, 0]
        checkpoints[kept] = S[owner[kept]]
    return output, S, checkpoints


def conv1d_checkpoints_absolute(
    x, weight, bias, cu_seqlens, conv_states, slots, has_initial_state, start_positions, checkpoint_cu_starts,
    checkpoint_interval,
):  # fmt: skip
    """gdn_conv1d_checkpoints_absolute: conv_states [num_slots, C, W - 1] is updated in place."""
    W, starts, lengths = weight.shape[1], cu_seqlens[:-1], cu_seqlens.diff()
    slot = slots.long()
    live = slot >= 0
    begins = (live & has_initial_state)[:, None, None]  # chosen, not multiplied by: what is not read may hold NaN
    states = torch.where(begins, conv_states[slot.clamp(min=0)], 0.0).transpose(1, 2)  # [N, W - 1, C]
    # Every sequence behind its state, in one packed tensor: token t of sequence n is row t + (n + 1) (W - 1).
    packed = torch.cat(
        [part for n, state in enumerate(states) for part in (state, x[starts[n] : starts[n] + lengths[n]])]
    )
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=x.device), lengths)
    own = torch.arange(len(x), device=x.device) + (owner + 1) * (W - 1)
    y = sum(weight[:, j].float() * packed[own - (W - 1) + j].float() for j in range(W))
    y = y if bias is None else y + bias.float()
    output = torch.where(live[owner, None], y * torch.sigmoid(y), 0.0).to(x.dtype)

    back = torch.arange(W - 1, device=x.device)

    def window(n, tokens):
        """The last W - 1 inputs of sequences n after so many of their tokens, [.., C, W - 1]."""
        first = starts[n] + n * (W - 1) + tokens
        return packed[first[:, None] + back].transpose(1, 2)

    of, edge = edges_of(cu_seqlens, start_positions, checkpoint_cu_starts, checkpoint_interval)
    kept = (live[of] & (edge <= lengths[of])).nonzero()[:, 0]
    checkpoints = torch.zeros(len(of), *conv_states.shape[1:], dtype=conv_states.dtype, device=x.device)
    checkpoints[kept] = window(of[kept], edge[kept])
    written = (live & (lengths > 0)).nonzero()[:, 0]
    conv_states[slot[written]] = window(written, lengths[written])
    return output, checkpoints
