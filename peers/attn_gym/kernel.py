"""attn-gym's gated delta rule for prefill (Triton), through its public function chunk_gdn.

Within the call: linear gates become logarithms, and [K, V] states are transposed before and after. Lengths in int32 are
kept ready.
"""

import torch
from attn_gym.linear.gdn import chunk_gdn


def prepare_prefill(cu_seqlens, **_):
    return {"bounds": cu_seqlens.int()}  # it refuses int64


def _prefill(q, k, v, log_g, beta, initial_state, scale, prepared):
    if log_g is None:
        log_g = torch.zeros(v.shape[:2], device=v.device)
    if beta is None:
        beta = torch.ones(v.shape[:2], device=v.device)
    with torch.no_grad():
        output, final_state = chunk_gdn(
            q[None], k[None], v[None], log_g[None], beta[None], initial_state, cu_seqlens=prepared["bounds"],
            scale=None if scale is None else float(scale), output_final_state=True,
        )  # fmt: skip
    return output[0], final_state


def prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale, prepared):
    """gdn_prefill_k_last."""
    return _prefill(q, k, v, None if g is None else g.log(), beta, initial_state, scale, prepared)


def prefill_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale, prepared):
    """gdn_prefill_k_first."""
    state = None if initial_state is None else initial_state.mT.contiguous()
    output, final_state = _prefill(q, k, v, g, beta, state, scale, prepared)
    return output, final_state.mT.contiguous()
