"""FLA's gated delta rule (Triton), through its public functions: decode with gates and norm inside the kernel, prefill.

Decode always gives its final state in float32 and in memory of its own, and knows no slots: a bfloat16 state is rounded
afterwards, and a pool is gathered before and scattered after.
"""

import os

os.environ.setdefault("FLA_DISABLE_BACKEND_DISPATCH", "1")
# For so many tensors of lengths it keeps where chunks lie, by default four: what it misses in a CUDA graph with more
# is launched anew there, and kept in memory that is the graph's.
os.environ.setdefault("FLA_TENSOR_CACHE_SIZE", "256")

import torch
from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from fla.ops.utils.index import prepare_chunk_indices, prepare_chunk_offsets


def _run(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, v_first):
    return fused_recurrent_gated_delta_rule(
        q, k, v, g=a, beta=b, scale=None if scale is None else float(scale), initial_state=state,
        output_final_state=True, use_qk_l2norm_in_kernel=use_qk_l2norm is None or bool(use_qk_l2norm),
        use_gate_in_kernel=True, A_log=A_log, dt_bias=dt_bias, use_beta_sigmoid_in_kernel=True, state_v_first=v_first,
    )  # fmt: skip


def decode_k_last(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_k_last, gdn_decode_k_last_bf16_state."""
    output, new_state = _run(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, v_first=True)
    return output, new_state.to(state.dtype)


def decode_k_first(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_k_first, gdn_decode_k_first_bf16_state."""
    output, new_state = _run(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, v_first=False)
    return output, new_state.to(state.dtype)


def decode_packed_k_last(mixed_qkv, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    """gdn_decode_packed_k_last: the function copies q, k and v out of the packed rows."""
    H, D = state.shape[1], state.shape[-1]
    values = H * D
    keys = (mixed_qkv.shape[1] - values) // 2
    q, k, v = (x.unflatten(1, (-1, D)).unsqueeze(1) for x in mixed_qkv.split((keys, keys, values), dim=1))
    output, new_state = decode_k_last(
        q, k, v, state, A_log, a.unsqueeze(1), dt_bias, b.unsqueeze(1), scale, use_qk_l2norm
    )
    return output.squeeze(1), new_state


def prepare_pool(read_slots, write_slots, **_):
    # Rows, their slots with them, change places between calls: only what that leaves as it is may be kept.
    return {"all_live": bool(((read_slots >= 0) & (write_slots >= 0)).all())}


def decode_pool_k_last(
    q, k, v, pool, read_slots, write_slots, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, prepared
):
    """gdn_decode_pool_k_last, gdn_decode_pool_k_last_bf16_state."""
    live = None
    if not prepared["all_live"]:
        live = torch.nonzero((read_slots >= 0) & (write_slots >= 0)).flatten()
        output.zero_()
        if not live.numel():
            return
        q, k, v, a, b, read_slots, write_slots = (x[live] for x in (q, k, v, a, b, read_slots, write_slots))
    states = pool.index_select(0, read_slots)
    o, states = decode_k_last(q, k, v, states, A_log, a, dt_bias, b, scale, use_qk_l2norm)
    pool.index_copy_(0, write_slots.long(), states)
    if live is None:
        output.copy_(o)
    else:
        output[live] = o


# --- prefill ----------------------------------------------------------------------------------------------------


def prepare_prefill(cu_seqlens, **_):
    """Which chunk belongs to which sequence, and the first of each: FLA would ask the device for that, and wait.

    Of a copy, for FLA keeps both by the tensor and not by its values, and finds the second there again.
    """
    bounds = cu_seqlens.clone()
    prepare_chunk_offsets(bounds, 64)
    return {"bounds": bounds, "chunks": prepare_chunk_indices(bounds, 64)}


def _prefill(q, k, v, log_g, beta, initial_state, scale, prepared, v_first):
    if beta is None:
        beta = torch.ones(v.shape[:2], device=v.device)
    with torch.no_grad():
        output, final_state = chunk_gated_delta_rule(
            q[None], k[None], v[None], log_g[None], beta[None], scale=None if scale is None else float(scale),
            initial_state=initial_state, output_final_state=True, cu_seqlens=prepared["bounds"],
            chunk_indices=prepared["chunks"], state_v_first=v_first,
        )  # fmt: skip
    return output[0], final_state


def prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale, prepared):
    """gdn_prefill_k_last: its gates are logs, so that of alpha is taken first."""
    log_g = torch.zeros(v.shape[:2], device=v.device) if g is None else g.log()
    return _prefill(q, k, v, log_g, beta, initial_state, scale, prepared, v_first=True)


def prefill_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale, prepared):
    """gdn_prefill_k_first."""
    log_g = torch.zeros(v.shape[:2], device=v.device) if g is None else g
    return _prefill(q, k, v, log_g, beta, initial_state, scale, prepared, v_first=False)
