"""FlashQLA's chunked gated delta rule (TileLang), through its public function.

It decides on the host, from the lengths, whether to cut sequences, and drops history where it does.
"""

import torch
from flash_qla import chunk_gated_delta_rule
from flash_qla.ops.gated_delta_rule.chunk import CHUNK_SIZE, build_cp_context
from flash_qla.utils.index import prepare_varlen_metadata


def prepare_prefill(v, cu_seqlens, **_):
    """How sequences are cut, and where chunks lie, by lengths on the host: a model has them once for all of its layers.

    By itself the library keeps these for the four tensors seen last, and no CUDA graph may miss them. From a copy, for
    what it keeps goes by the tensor and not by its values.
    """
    context = build_cp_context(
        cu_seqlens.clone(), enable_intra=True, num_v_heads=v.shape[1], chunk_size=CHUNK_SIZE, is_train=False
    )
    for bounds in (context.cu_seqlens, context.intra_cp_cu_seqlens):
        if bounds is not None:
            prepare_varlen_metadata(bounds, bounds.cpu())
    return {"context": context}


def _prefill(q, k, v, log_g, beta, initial_state, scale, prepared, v_first):
    if beta is None:
        beta = torch.ones(v.shape[:2], device=v.device)
    with torch.no_grad():
        output, final_state = chunk_gated_delta_rule(
            q[None], k[None], v[None], log_g[None], beta[None], scale=None if scale is None else float(scale),
            initial_state=initial_state, output_final_state=True, cu_seqlens=prepared["context"].cu_seqlens,
            cp_context=prepared["context"], state_v_first=v_first,
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
