"""FLA's Kimi Delta Attention (Triton), through its public functions: decode with gates and norm inside, and prefill.

Decode gives its final state in float32 and in memory of its own.
"""

import os

os.environ.setdefault("FLA_DISABLE_BACKEND_DISPATCH", "1")
# For so many tensors of lengths it keeps where chunks lie, by default four: what it misses in a CUDA graph with more
# is launched anew there, and kept in memory that is the graph's.
os.environ.setdefault("FLA_TENSOR_CACHE_SIZE", "256")

import torch
from fla.ops.kda import chunk_kda, fused_recurrent_kda
from fla.ops.utils.index import prepare_chunk_indices, prepare_chunk_offsets


def decode_k_last(q, k, v, state, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm):
    """kda_decode_k_last. No lower bound is None there, and 0 is one."""
    normalised = use_qk_l2norm is None or bool(use_qk_l2norm)
    return fused_recurrent_kda(
        q, k, v, g=a, beta=b, A_log=A_log, dt_bias=dt_bias, scale=None if scale is None else float(scale),
        initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=normalised,
        use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True,
        lower_bound=float(lower_bound) if lower_bound else None, state_v_first=True,
    )  # fmt: skip


def prepare_prefill(cu_seqlens, **_):
    """Which chunk belongs to which sequence: FLA would ask the device for that, and wait. It keeps both by the tensor,
    so the call has to name this very copy."""
    bounds = cu_seqlens.clone()
    prepare_chunk_offsets(bounds, 64)
    prepare_chunk_indices(bounds, 64)
    return {"bounds": bounds, "on_host": bounds.cpu()}


def _prefill(q, k, v, g, beta, initial_state, scale, prepared, v_first):
    if g is None:
        g = torch.zeros(*v.shape[:2], q.shape[2], device=v.device)
    if beta is None:
        beta = torch.ones(v.shape[:2], device=v.device)
    with torch.no_grad():
        output, final_state = chunk_kda(
            q[None], k[None], v[None], g[None], beta[None], scale=None if scale is None else float(scale),
            initial_state=initial_state, output_final_state=True, cu_seqlens=prepared["bounds"],
            cu_seqlens_cpu=prepared["on_host"], state_v_first=v_first,
        )  # fmt: skip
    return output[0], final_state


def prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale, prepared):
    """kda_prefill_k_last."""
    return _prefill(q, k, v, g, beta, initial_state, scale, prepared, v_first=True)


def prefill_raw_gates(
    q, k, v, A_log, a, dt_bias, b, cu_seqlens, initial_state, lower_bound, scale, use_qk_l2norm, prepared
):  # fmt: skip
    """kda_prefill_raw_gates: gates and norm inside. From a lower bound of -5 on, FLA has a quicker way."""
    bound = float(lower_bound) if lower_bound else None
    with torch.no_grad():
        output, final_state = chunk_kda(
            q[None], k[None], v[None], a[None], b[None], scale=None if scale is None else float(scale),
            initial_state=initial_state, output_final_state=True, cu_seqlens=prepared["bounds"],
            cu_seqlens_cpu=prepared["on_host"], state_v_first=True,
            use_qk_l2norm_in_kernel=use_qk_l2norm is None or bool(use_qk_l2norm), use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True, A_log=A_log, dt_bias=dt_bias.flatten(), lower_bound=bound,
            safe_gate=bound is not None and bound >= -5.0,
        )  # fmt: skip
    return output[0], final_state


def prefill_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale, prepared):
    """kda_prefill_k_first."""
    return _prefill(q, k, v, g, beta, initial_state, scale, prepared, v_first=False)
