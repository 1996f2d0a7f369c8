"""The gradients of what stands around the rule, in plain PyTorch, without autograd.

All arithmetic is float32. A gradient of a tensor of tokens is rounded once, to the type of that tensor. A parameter
gets its gradient in float32.
"""

import torch
from checks import require, require_bounds, require_heads, without_rest
from kernel import gradients
from torch import Tensor

L2_EPSILON = 1e-6

# --- raw gates and the L2 norm ------------------------------------------------------------------------------------


def l2_norm(x: Tensor) -> tuple[Tensor, Tensor]:
    """x in unit norm, and what it was multiplied by."""
    rstd = torch.rsqrt((x * x).sum(-1, keepdim=True) + L2_EPSILON)
    return x * rstd, rstd


def through_l2_norm(y: Tensor, rstd: Tensor, dy: Tensor) -> Tensor:
    """The part of dy along y moves no norm."""
    along = (y * dy).sum(-1, keepdim=True)
    return rstd * (dy - y * along)


def raw_gates(q, k, v, a, b, A_log, dt_bias, cu_seqlens, initial_state, scale, use_qk_l2norm, do, dht):
    """gdn_prefill_backward_raw_gates: backward_k_last from a, b [T, H] and A_log, dt_bias [H], q and k of unit norm,
    alpha = exp(-exp(A_log) softplus(a + dt_bias)) and beta = sigmoid(b) (arXiv:2412.06464, section 3.4). Returns dq,
    dk, dv, da, db in the types of their inputs, and dA_log, ddt_bias [H] and dh0 in float32. Raises ValueError for
    shapes that do not fit."""
    H, norm = require_heads(q, k, v), use_qk_l2norm is None or use_qk_l2norm
    for name, x in (("a", a), ("b", b)):
        require(name, x, (len(q), H))
    for name, x in (("A_log", A_log), ("dt_bias", dt_bias)):
        require(name, x, (H,))
    _, total = require_bounds(cu_seqlens, len(q))
    q, k, a, b = (without_rest(x, total) for x in (q, k, a, b))
    queries, keys = q.float(), k.float()
    if norm:
        queries, rstd_q = l2_norm(queries)
        keys, rstd_k = l2_norm(keys)
    step = a.float() + dt_bias.float()
    rate = -A_log.float().exp()
    log_alpha = rate * (step.clamp(min=0) + torch.log1p(torch.exp(-step.abs())))  # a softplus without a threshold
    alpha, beta = log_alpha.exp(), torch.sigmoid(b.float())

    dq, dk, dv, dalpha, dbeta, dh0 = gradients(
        queries, keys, v.float(), alpha, beta, cu_seqlens, initial_state, scale, do, dht
    )  # fmt: skip
    if norm:
        dq = through_l2_norm(queries, rstd_q, dq)
        dk = through_l2_norm(keys, rstd_k, dk)
    dg = alpha * dalpha
    rate, log_alpha = (torch.where(alpha > 0, x, 0.0) for x in (rate, log_alpha))  # may be infinite where dg is 0
    da = dg * rate * torch.sigmoid(step)
    db = dbeta * beta * torch.sigmoid(-b.float())
    dA_log = (dg * log_alpha).sum(0)
    ddt_bias = da.sum(0)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), da.to(a.dtype), db.to(b.dtype), dA_log, ddt_bias, dh0


# --- the gated norm -----------------------------------------------------------------------------------------------


def silu_and_slope(x: Tensor) -> tuple[Tensor, Tensor]:
    """silu(x) = x sigmoid(x), and its derivative."""
    s = torch.sigmoid(x)
    return x * s, s * (1 + x * torch.sigmoid(-x))


def gated_norm(x, z, weight, eps, do):
    """gdn_gated_rms_norm_backward: y = x / rms(x) weight silu(z) over the last axis (Zhang and Sennrich,
    arXiv:1910.07467), x, z, do [.., V], weight [V]. Returns dx and dz in the types of x and z, dweight in float32.
    Raises ValueError for shapes that do not fit."""
    for name, given, shape in (("z", z, x.shape), ("weight", weight, x.shape[-1:]), ("do", do, x.shape)):
        require(name, given, shape)
    rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + (1e-6 if eps is None else eps))
    normed, dy = x.float() * rstd, do.float()
    gate, slope = silu_and_slope(z.float())
    dz = dy * normed * weight.float() * slope
    dweight = (dy * normed * gate).flatten(0, -2).sum(0)
    dn = dy * weight.float() * gate
    along = (normed * dn).mean(-1, keepdim=True)
    dx = rstd * (dn - normed * along)
    return dx.to(x.dtype), dz.to(z.dtype), dweight


# --- the convolution ----------------------------------------------------------------------------------------------


def convolution(x, weight, bias, cu_seqlens, initial_state, do, dht):
    """gdn_conv1d_backward: silu of the causal convolution (arXiv:2412.06464, section 3.4); x, do [T, C], weight [C, W],
    states and dht [num_seqs, C, W - 1]. Returns dx in the type of x, and dweight, dbias, dh0 in float32. Raises
    ValueError for shapes that do not fit.

    All sequences at once: each tap is a gather forwards, and a sum into the same rows back."""
    (C, W), N, device = weight.shape, require_bounds(cu_seqlens, len(x))[0], x.device
    kept, lengths = W - 1, cu_seqlens.diff()
    for name, given in (("x", x), ("do", do)):
        require(name, given, (len(x), C))
    for name, given in (("initial_state", initial_state), ("dht", dht)):
        require(name, given, (N, C, kept))
    require("bias", bias, (C,))
    zeros = torch.zeros(N, C, kept, device=device)
    state = zeros if initial_state is None else initial_state.float()
    after = zeros if dht is None else dht.float()
    # Row i of `inputs`: first the states of all sequences, oldest input first, then the tokens.
    inputs = torch.cat([state.transpose(1, 2).reshape(N * kept, C), x.float()])
    owner = torch.repeat_interleave(torch.arange(N, device=device), lengths)
    position = torch.arange(len(owner), device=device) - cu_seqlens[:-1][owner]
    token = N * kept + torch.arange(len(owner), device=device)

    def met(tap: int) -> Tensor:
        """The row that each token meets under a tap."""
        back = kept - tap
        return torch.where(position >= back, token - back, owner * kept + position + tap)

    p = torch.zeros(len(owner), C, device=device) if bias is None else bias.float().expand(len(owner), -1)
    for tap in range(W):
        p = p + weight[:, tap].float() * inputs[met(tap)]
    dp = silu_and_slope(p)[1] * (0.0 if do is None else do[: len(owner)].float())

    gradient = torch.zeros_like(inputs)
    dweight = torch.empty(C, W, device=device)
    for tap in range(W):
        gradient.index_add_(0, met(tap), weight[:, tap].float() * dp)
        dweight[:, tap] = (dp * inputs[met(tap)]).sum(0)
    # The state afterwards is the last inputs of a sequence; in a short one some are of the state before.
    sequence, i = torch.arange(N, device=device)[:, None], torch.arange(kept, device=device)
    at = lengths[:, None] + i
    last = torch.where(at >= kept, N * kept + cu_seqlens[:-1, None] + at - kept, sequence * kept + at)
    gradient.index_add_(0, last.flatten(), after.transpose(1, 2).reshape(N * kept, C))
    dh0 = gradient[: N * kept].view(N, kept, C).transpose(1, 2).contiguous()
    return gradient[N * kept :].to(x.dtype), dweight, dp.sum(0), dh0
