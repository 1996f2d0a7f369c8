"""The causal convolution between the projections and the rule: the executable specification.

Every channel of q, k and v is mixed with its own last few tokens before it enters the gated delta rule (Yang, Kautz and
Hatamizadeh, arXiv:2412.06464, section 3.4). For one sequence x [T, C], weights w [C, W] and a bias b [C],

    y[t, c] = silu(b[c] + sum_{j=0}^{W-1} w[c, j] x[t - (W - 1) + j, c]),      silu(x) = x sigmoid(x),

so that w[:, W - 1] meets the token itself. What comes before the first token is the sequence's state [C, W - 1], the
last W - 1 inputs, oldest first; or zeros. The state afterwards is the last W - 1 of state and inputs together, which in
a sequence shorter than W - 1 holds a part of the old state, moved.

Arithmetic is done in the widest float type among the inputs, float32 at least, and rounded once at the end.
"""

import torch
from torch import Tensor

from .gated_delta_net import arithmetic_type, forget_gate_raw, l2_normalise, split_channels


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return x * torch.sigmoid(x)


def convolve(window: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The equation above for T tokens: window [W - 1 + T, C], the state first, weight [C, W], bias [C]; y [T, C]."""
    W = weight.shape[1]
    T = window.shape[0] - (W - 1)
    y = torch.zeros_like(window[:T]) if bias is None else bias.expand(T, -1)
    for j in range(W):
        y = y + weight[:, j] * window[j : j + T]
    return silu(y)


def conv1d_prefill(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cu_seqlens: Tensor,
    conv_states: Tensor,
    slots: Tensor,
    has_initial_state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Ragged batch of whole sequences, their states in a pool.

    x [total_seq_len, conv_dim]: the channels of all query heads, then of all key heads, then of all value heads; weight
    [conv_dim, kernel_width], bias [conv_dim] or None, cu_seqlens [num_seqs + 1], conv_states [num_slots, conv_dim,
    kernel_width - 1]. Sequence n starts from conv_states[slots[n]], or from zeros where has_initial_state[n] is false,
    and leaves its state there. An empty sequence leaves its slot as it is, whatever has_initial_state says; where
    slots[n] is -1 the output is zero. Returns output, in x's type, and the pool afterwards; the pool given stays as it
    was.
    """
    dtype = arithmetic_type(x, weight, bias, conv_states)
    kept = weight.shape[1] - 1
    output, after = torch.zeros_like(x), conv_states.clone()
    bounds = cu_seqlens.tolist()
    for n, slot in enumerate(slots.tolist()):
        start, stop = bounds[n], bounds[n + 1]
        if slot < 0 or start == stop:
            continue
        state = conv_states[slot].T.to(dtype)  # [W - 1, C]
        before = state if has_initial_state[n] else torch.zeros_like(state)
        window = torch.cat([before, x[start:stop].to(dtype)])
        output[start:stop] = convolve(window, weight.to(dtype), None if bias is None else bias.to(dtype)).to(x.dtype)
        after[slot] = window[window.shape[0] - kept :].T.to(after.dtype)
    return output, after


def conv1d_decode(
    x: Tensor, weight: Tensor, bias: Tensor | None, conv_states: Tensor, slots: Tensor
) -> tuple[Tensor, Tensor]:
    """One token a sequence: `conv1d_prefill` of sequences of one token that all go on from their state.

    x [batch_size, conv_dim]; slots [batch_size]. Returns output and the pool afterwards.
    """
    each = torch.arange(x.shape[0] + 1)
    return conv1d_prefill(x, weight, bias, each, conv_states, slots, torch.ones(x.shape[0], dtype=torch.bool))


def conv1d_verify(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor,
    slots: Tensor,
    accepted: Tensor,
    drafts: Tensor,
) -> tuple[Tensor, Tensor]:
    """The tokens of a verify, drafts[n] of T, whose inputs stay in the state until it is known which of them count.

    x [batch_size, T, conv_dim]; conv_states [num_slots, conv_dim, W - 2 + T]: W - 2 inputs before the last step, then
    those of the step. Of these accepted[n] >= 1 count, so the window before the first token begins at accepted[n] - 1.
    The state afterwards: the last W - 2 of that window, then the tokens; what stands behind them stays. A row without
    tokens, or whose slot is -1, leaves its slot as it is. Returns output, zero for tokens that are not there, and the
    pool afterwards.
    """
    dtype = arithmetic_type(x, weight, bias, conv_states)
    before = weight.shape[1] - 1
    output, after = torch.zeros_like(x), conv_states.clone()
    for n, slot in enumerate(slots.tolist()):
        tokens, first = int(drafts[n]), int(accepted[n]) - 1
        if slot < 0 or tokens == 0:
            continue
        state = conv_states[slot, :, first : first + before].T.to(dtype)  # [W - 1, C]
        window = torch.cat([state, x[n, :tokens].to(dtype)])
        output[n, :tokens] = convolve(window, weight.to(dtype), None if bias is None else bias.to(dtype)).to(x.dtype)
        after[slot, :, : before - 1 + tokens] = window[1:].T.to(after.dtype)
    return output, after


def conv1d_verify_tree(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor,
    slots: Tensor,
    step_windows: Tensor,
    step_slots: Tensor,
    drafts: Tensor,
    parents: Tensor,
) -> tuple[Tensor, Tensor]:
    """The tokens of a verify, drafts[n] of T, that are a tree: token t of row n follows token parents[n, t] < t, or,
    where that is -1, the window of its slot.

    x [batch_size, T, conv_dim]; conv_states [num_slots, conv_dim, W - 1], which stay as they are. The window after
    token t, the last W - 1 inputs on its path, goes to step_windows[step_slots[n], t], of [.., T, conv_dim, W - 1].
    Tokens that are not there and skipped rows as in `verify_tree_k_last`. Returns output and step_windows afterwards.
    """
    dtype = arithmetic_type(x, weight, bias, conv_states)
    output, after = torch.zeros_like(x), step_windows.clone()
    w, b = weight.to(dtype), None if bias is None else bias.to(dtype)
    for n in (slots >= 0).nonzero()[:, 0].tolist():
        windows = {-1: conv_states[slots[n]].T.to(dtype)}  # after each token, [W - 1, C]
        for t in range(int(drafts[n])):
            inputs = torch.cat([windows[int(parents[n, t])], x[n, t : t + 1].to(dtype)])
            output[n, t] = convolve(inputs, w, b)[0].to(x.dtype)
            windows[t] = inputs[1:]
            after[int(step_slots[n]), t] = windows[t].T.to(after.dtype)
    return output, after


# --- everything between the projections and the rule ------------------------------------------------------------


def conv_gates_prefill(
    x: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    cu_seqlens: Tensor,
    conv_states: Tensor,
    slots: Tensor,
    has_initial_state: Tensor,
    head_dim: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`conv1d_prefill`, then what `prefill_k_last` takes of it: heads apart, q and k normalised, and both gates.

        q, k, v = silu(conv(x))         q = l2(q)         k = l2(k)
        g = exp(-exp(A_log) softplus(a + dt_bias))        beta = sigmoid(b)

    a, b [total_seq_len, num_v_heads]; A_log, dt_bias [num_v_heads]; head_dim divides the channels into heads. Tokens of
    a sequence whose slot is -1 do nothing to a state: q, k and v are zero, g is 1, beta 0. Returns q, k [total_seq_len,
    num_k_heads, head_dim] and v [.., num_v_heads, head_dim] in x's type, g and beta [.., num_v_heads] in float32 at
    least, and the pool afterwards.
    """
    dtype = arithmetic_type(x, conv_weight, conv_bias, a, b, A_log, dt_bias, conv_states)
    mixed, after = conv1d_prefill(
        x.to(dtype), conv_weight, conv_bias, cu_seqlens, conv_states, slots, has_initial_state
    )  # fmt: skip
    q, k, v = split_channels(mixed, a.shape[1], head_dim, head_dim)
    q, k = l2_normalise(q), l2_normalise(k)
    skipped = torch.repeat_interleave(slots < 0, cu_seqlens.diff())[:, None]
    g = torch.where(skipped, 1.0, forget_gate_raw(A_log.to(dtype), a.to(dtype), dt_bias.to(dtype)))
    beta = torch.where(skipped, 0.0, 1.0 / (1.0 + torch.exp(-b.to(dtype))))
    return q.to(x.dtype), k.to(x.dtype), v.to(x.dtype), g, beta, after
