"""Kimi Delta Attention of the `transformers` package in plain PyTorch, as its Kimi Linear runs it by itself.

Its chunk rule for prefill, a sequence at a time, as it takes padded batches alone; its recurrent rule for decode. Both
want finished gates in log space, states [K, V], and as many key as value heads. Raw gates go through the package's own
forget gates: Kimi Linear's, and GLM's where there is a lower bound. All that is done in the call: repeated heads cost
time that a user of the package does not pay, states are turned by a view, and lengths are read on the host, which waits
for them.
"""

import inspect
from types import SimpleNamespace

import torch
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextForgetGate as Bounded
from transformers.models.kimi_linear import modeling_kimi_linear as package

# From under the wrappers that would take another package's kernels where there are any.
CHUNK = inspect.unwrap(package.chunk_kimi_delta_attention)
RECURRENT = inspect.unwrap(package.recurrent_kimi_delta_attention)


def _heads(x, count):
    """[.., heads, d] -> `count` heads."""
    return x if x.shape[-2] == count else x.repeat_interleave(count // x.shape[-2], dim=-2)


def _log_gate(A_log, a, dt_bias, lower_bound):
    """a [B, T, H, K] as the output of the projections of a forget gate, which then computes g."""
    same = torch.nn.Identity()
    gate = SimpleNamespace(
        head_dim=a.shape[-1], num_heads=a.shape[-2], f_a_proj=same, f_b_proj=same, dt_bias=dt_bias.flatten(),
        A_log=A_log.view(1, 1, -1, 1), safe_gate_lower_bound=float(lower_bound) if lower_bound else None,
    )  # fmt: skip
    kind = Bounded if lower_bound else package.KimiLinearForgetGate
    return kind.forward(gate, a.flatten(-2))


# --- prefill ----------------------------------------------------------------------------------------------------


def prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """kda_prefill_k_last: states [V, K]."""
    state = None if initial_state is None else initial_state.transpose(-1, -2)
    output, states = prefill_k_first(q, k, v, g, beta, cu_seqlens, state, scale)
    return output, states.transpose(-1, -2)


def prefill_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale, normalised=False):
    """kda_prefill_k_first. The rule divides by the root of the head size, whatever the scale: it is put on the
    output."""
    (T, H, D), bounds = v.shape, cu_seqlens.tolist()
    g = torch.zeros(T, H, D, device=q.device) if g is None else g
    beta = torch.ones(T, H, device=q.device) if beta is None else beta
    factor = 1.0 if scale is None else float(scale) * D**0.5
    output = torch.empty(T, H, D, dtype=v.dtype, device=q.device)
    states = torch.zeros(len(bounds) - 1, H, D, D, device=q.device)
    q = q if scale is None else q.float()  # so that the output comes back unrounded
    for n, (start, stop) in enumerate(zip(bounds, bounds[1:])):  # noqa: B905, RUF007
        state = None if initial_state is None else initial_state[n : n + 1]
        if start == stop:
            if state is not None:
                states[n] = state[0]
            continue
        Q, K, V = (_heads(x[None, start:stop], H) for x in (q, k, v))
        o, S = CHUNK(Q, K, V, g=g[None, start:stop], beta=beta[None, start:stop], initial_state=state,
                     output_final_state=True, use_qk_l2norm_in_kernel=normalised)  # fmt: skip
        output[start:stop] = o[0] if scale is None else o[0] * factor
        states[n] = S[0]
    return output, states


def prefill_raw_gates(
    q, k, v, A_log, a, dt_bias, b, cu_seqlens, initial_state, lower_bound, scale, use_qk_l2norm
):  # fmt: skip
    """kda_prefill_raw_gates."""
    g = _log_gate(A_log, a[None], dt_bias, lower_bound)[0]
    state = None if initial_state is None else initial_state.transpose(-1, -2)
    normalised = use_qk_l2norm is None or bool(use_qk_l2norm)
    output, states = prefill_k_first(q, k, v, g, b.float().sigmoid(), cu_seqlens, state, scale, normalised)
    return output, states.transpose(-1, -2)


# --- decode -----------------------------------------------------------------------------------------------------


def decode_k_last(q, k, v, state, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm):
    """kda_decode_k_last, kda_decode_k_last_bf16_state."""
    H, D = state.shape[1], q.shape[-1]
    Q, K, V = (_heads(x, H) for x in (q, k, v))
    Q = Q if scale is None else Q.float()
    g = _log_gate(A_log, a, dt_bias, lower_bound)
    o, S = RECURRENT(Q, K, V, g=g, beta=b.float().sigmoid(), initial_state=state.transpose(-1, -2),
                     output_final_state=True,
                     use_qk_l2norm_in_kernel=use_qk_l2norm is None or bool(use_qk_l2norm))  # fmt: skip
    o = o if scale is None else o * (float(scale) * D**0.5)
    return o.to(v.dtype), S.transpose(-1, -2).to(state.dtype)
