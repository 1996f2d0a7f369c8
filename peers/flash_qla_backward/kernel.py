"""The gradients of FlashQLA's chunked gated delta rule (TileLang), by the functions that its autograd calls.

A definition is given nothing of the forward pass, so a call runs that first, for what it keeps. The library decides on
the host, from the lengths, whether to cut sequences, and drops history where it does.
"""

import torch
from flash_qla.ops.gated_delta_rule.chunk import (
    CHUNK_SIZE,
    build_cp_context,
    chunk_gated_delta_rule_bwd,
    chunk_gated_delta_rule_fwd,
)
from flash_qla.utils.index import prepare_varlen_metadata


def prepare_backward(v, cu_seqlens, **_):
    """How sequences are cut, and where chunks lie, by lengths on the host: a model has them once for all of its layers.

    By itself the library keeps these for the four tensors seen last, and no CUDA graph may miss them. From a copy, for
    what it keeps goes by the tensor and not by its values.
    """
    context = build_cp_context(
        cu_seqlens.clone(), enable_intra=True, num_v_heads=v.shape[1], chunk_size=CHUNK_SIZE, is_train=True
    )
    for bounds in (context.cu_seqlens, context.intra_cp_cu_seqlens):
        if bounds is not None:
            prepare_varlen_metadata(bounds, bounds.cpu())
    return {"context": context}


def _backward(q, k, v, log_g, beta, cu_seqlens, initial_state, scale, do, dht, prepared, v_first):
    """The gradient of gates is that of their logarithms."""
    H, sequences = v.shape[1], cu_seqlens.shape[0] - 1
    if log_g is None:
        log_g = torch.zeros(v.shape[:2], device=v.device)
    if beta is None:
        beta = torch.ones(v.shape[:2], device=v.device)
    if initial_state is None:
        initial_state = torch.zeros(sequences, H, v.shape[-1], k.shape[-1], device=v.device)
    do = torch.zeros_like(v) if do is None else do
    common = {
        "initial_state": initial_state, "cu_seqlens": prepared["context"].cu_seqlens, "state_v_first": v_first,
        "cp_context": prepared["context"], "scale": q.shape[-1] ** -0.5 if scale is None else float(scale),
    }  # fmt: skip
    with torch.no_grad():
        sums, inverses, *_, kept = chunk_gated_delta_rule_fwd(
            q[None], k[None], v[None], log_g[None], beta[None], enable_fwd_cp_cache=True, is_train=True, **common
        )
        dq, dk, dv, dbeta, dg, dh0 = chunk_gated_delta_rule_bwd(
            q[None], k[None], v[None], sums, beta[None], inverses, do[None], dht=dht, cp_cache=kept, **common
        )
    return dq[0].to(q.dtype), dk[0].to(k.dtype), dv[0].to(v.dtype), dg[0].float(), dbeta[0].float(), dh0.float()


def backward_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, prepared):
    """gdn_prefill_backward_k_last: the gradient of alpha is that of its logarithm over alpha, which is NaN at 0."""
    log_g = None if g is None else g.log()
    inputs = (q, k, v, log_g, beta, cu_seqlens, initial_state, scale, do, dht, prepared)
    *found, dlog, dbeta, dh0 = _backward(*inputs, v_first=True)
    return (*found, dlog if g is None else dlog / g, dbeta, dh0)


def backward_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, prepared):
    """gdn_prefill_backward_k_first."""
    return _backward(q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, prepared, v_first=False)
