"""attn-gym's Kimi Delta Attention for prefill, through its public functions chunk_kda and recurrent_kda.

On a GPU these are its kernels in Triton; on a CPU, where it has none, its own reference in PyTorch, float32. Within the
call: key heads are repeated for value heads, which chunk_kda wants and released models do not need, and [K, V] states
are transposed before and after. Lengths in int32 are kept ready.
"""

import torch
from attn_gym.linear.kda import chunk_kda, recurrent_kda

FUNCTIONS = {"chunk": chunk_kda, "recurrent": recurrent_kda}


def prepare_prefill(cu_seqlens, **_):
    return {"bounds": cu_seqlens.int()}  # it refuses int64


def prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale, prepared, function="chunk"):
    """kda_prefill_k_last."""
    heads = v.shape[1]
    if function == "chunk" and q.shape[1] != heads:
        q, k = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (q, k))
    if g is None:
        g = torch.zeros_like(v, dtype=torch.float32)
    if beta is None:
        beta = torch.ones(v.shape[:2], device=v.device)
    with torch.no_grad():
        output, final_state = FUNCTIONS[function](
            q[None], k[None], v[None], g[None], beta[None], initial_state, cu_seqlens=prepared["bounds"],
            scale=None if scale is None else float(scale), output_final_state=True,
            impl="fused" if q.is_cuda else "reference",
        )  # fmt: skip
    return output[0], final_state


def prefill_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale, prepared, function="chunk"):
    """kda_prefill_k_first."""
    state = None if initial_state is None else initial_state.mT.contiguous()
    output, final_state = prefill_k_last(q, k, v, g, beta, cu_seqlens, state, scale, prepared, function)
    return output, final_state.mT.contiguous()
