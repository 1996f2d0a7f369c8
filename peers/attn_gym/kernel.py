"""attn-gym's gated delta rule for prefill and its gradients (Triton), through its public function chunk_gdn.

Within the call: linear gates become logarithms, and [K, V] states are transposed before and after. Lengths in int32 are
kept ready. A call for gradients runs the forward pass first, for what the library keeps.
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


def prepare_backward(cu_seqlens, **_):
    return prepare_prefill(cu_seqlens)


def _backward(q, k, v, log_g, beta, cu_seqlens, initial_state, scale, do, dht, prepared):
    heads = (v.shape[0], max(q.shape[1], v.shape[1]))
    if log_g is None:
        log_g = torch.zeros(heads, device=v.device)
    if beta is None:
        beta = torch.ones(heads, device=v.device)
    if initial_state is None:
        states = (cu_seqlens.shape[0] - 1, heads[1], v.shape[-1], k.shape[-1])
        initial_state = torch.zeros(states, device=v.device)
    inputs = [x.detach() for x in (q[None], k[None], v[None], log_g[None], beta[None], initial_state)]
    for x in inputs:
        x.requires_grad_()
    with torch.enable_grad():
        outputs = chunk_gdn(
            *inputs, cu_seqlens=prepared["bounds"], scale=None if scale is None else float(scale),
            output_final_state=True,
        )  # fmt: skip
    given = [None if do is None else do[None], dht]
    pairs = [(x, y) for x, y in zip(outputs, given, strict=True) if y is not None]
    if not pairs:
        return tuple(torch.zeros_like(x) for x in (q, k, v, log_g, beta, initial_state))
    reached, given = zip(*pairs, strict=True)
    found = torch.autograd.grad(reached, inputs, given, allow_unused=True, materialize_grads=True)
    *of_tokens, dh0 = found
    return (*(x[0] for x in of_tokens), dh0)


def backward_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, prepared):
    """gdn_prefill_backward_k_last: the gradient of alpha is that of its logarithm over alpha, which is NaN at 0."""
    log_g = None if g is None else g.log()
    *found, dlog, dbeta, dh0 = _backward(q, k, v, log_g, beta, cu_seqlens, initial_state, scale, do, dht, prepared)
    return (*found, dlog if g is None else dlog / g, dbeta, dh0)


def backward_k_first(q, k, v, g, beta, cu_seqlens, initial_state, scale, do, dht, prepared):
    """gdn_prefill_backward_k_first."""
    state, dht = (None if x is None else x.mT.contiguous() for x in (initial_state, dht))
    *found, dh0 = _backward(q, k, v, g, beta, cu_seqlens, state, scale, do, dht, prepared)
    return (*found, dh0.mT.contiguous())
