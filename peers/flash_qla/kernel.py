"""FlashQLA's chunked gated delta rule (TileLang), through its public function.

It decides on the host, from the gates and lengths, whether to cut sequences, and drops history where it does.
"""

import torch
from flash_qla import chunk_gated_delta_rule


def _prefill(q, k, v, log_g, beta, cu_seqlens, initial_state, scale, v_first):
    if beta is None:
        beta = torch.ones(v.shape[:2], device=v.device)
    with torch.no_grad():
        output, final_state = chunk_gated_delta_rule(
            q[None], k[None], v[None], log_g[None], beta[None], scale=None if scale is None else float(scale),
            initial_state=initial_state, output_final_state=True, cu_seqlens=cu_seqlens, state_v_first=v_first,
        )  # fmt: skip
    return output[0], final_state


def prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """gdn_prefill_k_last: its gates are logs, so that of alpha is taken first."""
    log_g = torch.zeros(v.shape[:2], device=v.device) if g is None else g.log()
    return _prefill(q, k, v, log_g, beta, cu_seqlens, initial_state, scale, v_first=True)


def prefill_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    """gdn_prefill_k_first."""
    log_g = torch.zeros(v.shape[:2], device=v.device) if g is None else g
    return _prefill(q, k, v, log_g, beta, cu_seqlens, initial_state, scale, v_first=False)
