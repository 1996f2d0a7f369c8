"""The gated delta rule of the `transformers` package in plain PyTorch, as its Qwen3-Next runs it by itself.

Its chunk rule for prefill, a sequence at a time, as it takes padded batches alone; its recurrent rule for decode. Both
want a forget gate in log space, states [K, V], and key heads repeated for value heads. All that is done in the call:
the logarithm of a linear gate and the repeated heads cost time that a user of the package has paid already, states are
turned by a view, and lengths are read on the host, which waits for them.
"""

import inspect

import torch
from transformers.models.qwen3_next import modeling_qwen3_next as package

# From under the wrappers that would take another package's kernels where there are any.
CHUNK = inspect.unwrap(package.torch_chunk_gated_delta_rule)
RECURRENT = inspect.unwrap(package.torch_recurrent_gated_delta_rule)


def _heads(x, count):
    """[.., heads, d] or [.., heads] -> `count` heads."""
    dim = -2 if x.ndim == 4 else -1
    return x if x.shape[dim] == count else x.repeat_interleave(count // x.shape[dim], dim=dim)


def _scaled(q, scale):
    """The rules divide by the root of the head size, whatever the scale."""
    return q if scale is None else q.float() * (float(scale) * q.shape[-1] ** 0.5)


# --- prefill ----------------------------------------------------------------------------------------------------


def prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """gdn_prefill_k_last: alpha itself, states [V, K]."""
    state = None if initial_state is None else initial_state.transpose(-1, -2)
    output, states = prefill_k_first(q, k, v, None if g is None else g.log(), beta, cu_seqlens, state, scale)
    return output, states.transpose(-1, -2)


def prefill_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """gdn_prefill_k_first."""
    T, H, D = q.shape[0], max(q.shape[1], v.shape[1]), q.shape[-1]
    g = torch.zeros(T, H, device=q.device) if g is None else g
    beta = torch.ones(T, H, device=q.device) if beta is None else beta
    output = torch.empty(T, H, D, dtype=v.dtype, device=q.device)
    bounds = cu_seqlens.tolist()
    states = torch.zeros(len(bounds) - 1, H, D, D, device=q.device)
    q = _scaled(q, scale)
    for n, (start, stop) in enumerate(zip(bounds, bounds[1:])):  # noqa: B905, RUF007
        state = None if initial_state is None else initial_state[n : n + 1]
        if start == stop:
            if state is not None:
                states[n] = state[0]
            continue
        Q, K, V = (_heads(x[None, start:stop], H) for x in (q, k, v))
        o, S = CHUNK(Q, K, V, g=g[None, start:stop], beta=beta[None, start:stop], initial_state=state,
                     output_final_state=True, use_qk_l2norm_in_kernel=False)  # fmt: skip
        output[start:stop] = o[0]
        states[n] = S[0]
    return output, states


# --- decode -----------------------------------------------------------------------------------------------------


def decode_k_last(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_k_last, gdn_decode_k_last_bf16_state."""
    output, new = decode_k_first(q, k, v, state.transpose(-1, -2), A_log, a, dt_bias, b, scale, use_qk_l2norm)
    return output, new.transpose(-1, -2)


def decode_k_first(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_k_first, gdn_decode_k_first_bf16_state. The norm undoes a scale of q: it is put on the output."""
    H = state.shape[1]
    Q, K, V = (_heads(x, H) for x in (q, k, v))
    beta = b.float().sigmoid()
    g = -A_log.float().exp() * torch.nn.functional.softplus(a.float() + dt_bias)
    Q = Q.float() if scale is not None else Q
    o, S = RECURRENT(Q, K, V, g=g, beta=beta, initial_state=state, output_final_state=True,
                     use_qk_l2norm_in_kernel=use_qk_l2norm is None or bool(use_qk_l2norm))  # fmt: skip
    if scale is not None:
        o = o * (float(scale) * q.shape[-1] ** 0.5)
    return o.to(v.dtype), S.to(state.dtype)


def decode_packed_k_last(mixed_qkv, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_packed_k_last."""
    H, D = state.shape[1], state.shape[-1]
    keys = (mixed_qkv.shape[1] - H * D) // 2
    q, k, v = (x.unflatten(1, (-1, D)).unsqueeze(1) for x in mixed_qkv.split((keys, keys, H * D), dim=1))
    o, new = decode_k_last(q, k, v, state, A_log, a.unsqueeze(1), dt_bias, b.unsqueeze(1), scale, use_qk_l2norm)
    return o.squeeze(1), new
