"""The gradients of FLA's Kimi Delta Attention (Triton), by the functions that its autograd calls.

A definition of gradients is given nothing of the forward pass, so a call runs that first, for what it keeps.
"""

import os

os.environ.setdefault("FLA_DISABLE_BACKEND_DISPATCH", "1")
os.environ.setdefault("FLA_TENSOR_CACHE_SIZE", "256")  # as in fla_kda

import torch
from fla.ops.kda.chunk_bwd import chunk_kda_bwd
from fla.ops.kda.chunk_fwd import chunk_kda_fwd
from fla.ops.utils.index import prepare_chunk_indices, prepare_chunk_offsets


def prepare_backward(cu_seqlens, **_):
    """Which chunk belongs to which sequence: FLA would ask the device for that, and wait."""
    bounds = cu_seqlens.clone()
    prepare_chunk_offsets(bounds, 64)
    return {"bounds": bounds, "indices": prepare_chunk_indices(bounds, 64, cu_seqlens_cpu=bounds.cpu())}


def backward_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, prepared):
    """kda_prefill_backward_k_last. Gradients come in the types of the library, and are cast as its autograd does."""
    H, size = v.shape[1:]
    if g is None:
        g = torch.zeros(*v.shape[:2], size, device=v.device)
    if beta is None:
        beta = torch.ones(v.shape[:2], device=v.device)
    if initial_state is None:
        initial_state = torch.zeros(cu_seqlens.shape[0] - 1, H, size, size, device=v.device)
    do = torch.zeros_like(v) if do is None else do
    dht = torch.zeros_like(initial_state) if dht is None else dht
    q, k, v, g, beta, do = (x.contiguous()[None] for x in (q, k, v, g, beta, do))
    common = {
        "scale": size**-0.5 if scale is None else float(scale), "initial_state": initial_state, "state_v_first": True,
        "cu_seqlens": prepared["bounds"], "chunk_indices": prepared["indices"],
    }  # fmt: skip
    with torch.no_grad():
        kept = chunk_kda_fwd(q, k, v, g, beta, output_final_state=True, **common)
        sums, Aqk, Akk = kept[2:5]
        dq, dk, dv, dbeta, dg, dh0, *_ = chunk_kda_bwd(q, k, v, beta, Aqk, Akk, do=do, dht=dht, g=sums, **common)
    return dq[0].to(q.dtype), dk[0].to(k.dtype), dv[0].to(v.dtype), dg[0].float(), dbeta[0].float(), dh0.float()
