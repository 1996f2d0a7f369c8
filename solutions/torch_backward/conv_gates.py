"""The gradients of convolution, L2 norm and gates in one pass, in plain PyTorch, without autograd.

All arithmetic is float32. A gradient of a tensor of tokens is rounded once, to the type of that tensor. A parameter
gets its gradient in float32.
"""

import torch
from around import convolution, l2_norm, silu_and_slope, through_l2_norm
from checks import require, require_bounds, without_rest
from torch import Tensor


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, cu_seqlens: Tensor, state: Tensor | None) -> Tensor:
    """silu of the causal convolution, in float32, each sequence from its state: all sequences at once, tap by tap."""
    (C, W), N, device = weight.shape, len(cu_seqlens) - 1, x.device
    kept = W - 1
    before = torch.zeros(N, C, kept, device=device) if state is None else state.float()
    # First the inputs of all sequences, then their states, oldest input first.
    inputs = torch.cat([x.float(), before.transpose(1, 2).reshape(N * kept, C)])
    sequence = torch.repeat_interleave(torch.arange(N, device=device), cu_seqlens.diff())
    token = torch.arange(len(x), device=device)
    position = token - cu_seqlens[sequence]
    p = torch.zeros(len(x), C, device=device) if bias is None else bias.float().expand(len(x), -1)
    for tap in range(W):
        back = kept - tap
        in_state = len(x) + sequence * kept + position + tap
        p = p + weight[:, tap].float() * inputs[torch.where(position >= back, token - back, in_state)]
    return silu_and_slope(p)[0]


def conv_gates(x, conv_weight, conv_bias, a, b, A_log, dt_bias, cu_seqlens, initial_state, dq, dk, dv, dg, dbeta, dht):
    """gdn_conv_gates_backward: x [T, C] with C channels of queries, keys and values; a, b, dg, dbeta [T, HV]; dq, dk
    [T, HK, D], dv [T, HV, D]; q and k are l2(silu(conv(x))), alpha = exp(-exp(A_log) softplus(a + dt_bias)) and
    beta = sigmoid(b) (arXiv:2412.06464, section 3.4); dg is the gradient of alpha itself. Returns dx, dconv_weight,
    dconv_bias, da, db, dA_log, ddt_bias and dh0. Raises ValueError for shapes that do not fit."""
    for name, given in (("dq", dq), ("dv", dv), ("conv_weight", conv_weight)):
        if given.ndim != (2 if name == "conv_weight" else 3):
            raise ValueError(f"{name} has {given.ndim} dimensions")
    (C, W), T, (HK, D), HV = conv_weight.shape, len(x), dq.shape[1:], dv.shape[1]
    if C != (2 * HK + HV) * D:
        raise ValueError(f"{C} channels are not those of {HK} query and key and {HV} value heads of {D}")
    N, total = require_bounds(cu_seqlens, T)
    shapes = {"x": (x, (T, C)), "conv_weight": (conv_weight, (C, W)), "conv_bias": (conv_bias, (C,))}
    shapes |= {"dq": (dq, (T, HK, D)), "dk": (dk, (T, HK, D)), "dv": (dv, (T, HV, D))}
    shapes |= {name: (given, (T, HV)) for name, given in (("a", a), ("b", b), ("dg", dg), ("dbeta", dbeta))}
    shapes |= {"A_log": (A_log, (HV,)), "dt_bias": (dt_bias, (HV,))}
    shapes |= {"initial_state": (initial_state, (N, C, W - 1)), "dht": (dht, (N, C, W - 1))}
    for name, (given, shape) in shapes.items():
        require(name, given, shape)

    # The norm: the convolution's output is needed again, before it.
    y = convolved(x[:total], conv_weight, conv_bias, cu_seqlens, initial_state)
    y_q, y_k, _ = y.split([HK * D, HK * D, HV * D], dim=1)
    q, rstd_q = l2_norm(y_q.unflatten(1, (HK, D)))
    k, rstd_k = l2_norm(y_k.unflatten(1, (HK, D)))
    dy_q = through_l2_norm(q, rstd_q, dq[:total].float())
    dy_k = through_l2_norm(k, rstd_k, dk[:total].float())
    dy_v = dv[:total].float()

    # The convolution.
    dy = torch.zeros(T, C, device=x.device)
    dy[:total] = torch.cat([dy_q.flatten(1), dy_k.flatten(1), dy_v.flatten(1)], dim=1)
    dx, dconv_weight, dconv_bias, dh0 = convolution(
        x, conv_weight, conv_bias, cu_seqlens, initial_state, dy, dht
    )  # fmt: skip

    # The gates.
    dalpha, dbeta = without_rest(dg, total).float(), without_rest(dbeta, total).float()
    step = without_rest(a, total).float() + dt_bias.float()
    logits = without_rest(b, total).float()
    rate = -A_log.float().exp()
    log_alpha = rate * (step.clamp(min=0) + torch.log1p(torch.exp(-step.abs())))  # a softplus without a threshold
    alpha = log_alpha.exp()
    dlog_alpha = alpha * dalpha
    rate, log_alpha = (torch.where(alpha > 0, t, 0.0) for t in (rate, log_alpha))  # may be infinite where alpha is 0
    da = dlog_alpha * rate * torch.sigmoid(step)
    db = dbeta * torch.sigmoid(logits) * torch.sigmoid(-logits)
    dA_log = (dlog_alpha * log_alpha).sum(0)
    ddt_bias = da.sum(0)
    return dx, dconv_weight, dconv_bias, da.to(a.dtype), db.to(b.dtype), dA_log, ddt_bias, dh0
