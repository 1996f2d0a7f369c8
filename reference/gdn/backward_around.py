"""The gradients of what stands around the rule: its gates, the L2 norm before it, the gated norm behind it, and the
convolution. Each is the derivative of the equation in its comment, and differentiates nothing by itself.

Let d x be the gradient of a loss with respect to x. A sum over tokens, which a parameter gets, is not rounded: it stays
in the type of the arithmetic, float32 at least. The gradient of a tensor of tokens has the type of that tensor.
"""

from itertools import pairwise

import torch
from torch import Tensor

from .backward import prefill_backward_k_last
from .convolution import silu
from .gated_delta_net import L2_EPSILON, arithmetic_type, forget_gate_raw, l2_normalise, softplus
from .layer import RMS_EPSILON

# --- pieces -----------------------------------------------------------------------------------------------------


def silu_slope(x: Tensor) -> Tensor:
    """The derivative of silu(x) = x sigmoid(x): sigmoid(x) (1 + x (1 - sigmoid(x)))."""
    s = torch.sigmoid(x)
    return s * (1.0 + x * (1.0 - s))


def l2_normalise_backward(x: Tensor, dy: Tensor) -> Tensor:
    """y = x rstd,  rstd = (|x|^2 + 1e-6)^-1/2:   dx = rstd (dy - y (y . dy)). The epsilon changes y alone."""
    rstd = torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + L2_EPSILON)
    y = x * rstd
    return rstd * (dy - y * (y * dy).sum(dim=-1, keepdim=True))


def forget_gate_backward(A_log: Tensor, a: Tensor, dt_bias: Tensor, dg: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """g = -exp(A_log) softplus(a + dt_bias), the logarithm of alpha; dg is its gradient, alpha times that of alpha.

    da = dg (-exp(A_log)) sigmoid(a + dt_bias),   dA_log = sum of dg g,   ddt_bias = sum of da, over the tokens.
    Where alpha is 0, dg is 0 and so is what it is multiplied by: exp(A_log) may be infinite.
    """
    rate = -torch.exp(A_log)
    da, dA_log = (torch.where(dg == 0, dg, dg * rate * f(a + dt_bias)) for f in (torch.sigmoid, softplus))
    return da, dA_log.sum(0), da.sum(0)


def update_gate_backward(b: Tensor, dbeta: Tensor) -> Tensor:
    """beta = sigmoid(b):   db = dbeta beta (1 - beta). sigmoid(-b) is 1 - beta where beta is nearly 1 as well."""
    return dbeta * torch.sigmoid(b) * torch.sigmoid(-b)


# --- prefill from raw gates -------------------------------------------------------------------------------------


def prefill_backward_raw_gates(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
    use_qk_l2norm: bool,
    do: Tensor | None,
    dht: Tensor | None,
) -> tuple[Tensor, ...]:
    """The gradients of the rule as a model calls it: its gates raw, the L2 norm of q and k inside.

        y_q, y_k = l2(q), l2(k)                   where use_qk_l2norm, else q and k themselves
        alpha = exp(-exp(A_log) softplus(a + dt_bias)),   beta = sigmoid(b)
        output, final_state = prefill_k_last(y_q, y_k, v, alpha, beta, ..)

    a, b [total_seq_len, num_sab_heads]; A_log, dt_bias [num_sab_heads]; the rest as `prefill_backward_k_last` has it.
    Returns dq, dk, dv, da and db in the types of q, k, v, a and b; dA_log, ddt_bias and dh0 in that of the arithmetic.
    Tokens behind the last sequence have zero gradients, and no part in dA_log and ddt_bias.
    """
    dtype = arithmetic_type(q, k, v, a, b, A_log, dt_bias, initial_state, do, dht)
    Q, K, V, A, B = (x.to(dtype) for x in (q, k, v, a, b))
    rate, bias = A_log.to(dtype), dt_bias.to(dtype)
    keys = (l2_normalise(Q), l2_normalise(K)) if use_qk_l2norm else (Q, K)
    alpha, beta = forget_gate_raw(rate, A, bias), torch.sigmoid(B)

    dQ, dK, dv, dalpha, dbeta, dh0 = prefill_backward_k_last(
        *keys, V, alpha, beta, cu_seqlens, initial_state, scale, do, dht
    )  # fmt: skip
    if use_qk_l2norm:
        dQ, dK = l2_normalise_backward(Q, dQ), l2_normalise_backward(K, dK)
    da, dA_log, ddt_bias = forget_gate_backward(rate, A, bias, alpha * dalpha)
    db = update_gate_backward(B, dbeta)
    of_tokens = (dx.to(x.dtype) for dx, x in ((dQ, q), (dK, k), (dv, v), (da, a), (db, b)))
    return (*of_tokens, dA_log, ddt_bias, dh0)


# --- the gated norm ---------------------------------------------------------------------------------------------


def gated_rms_norm_backward(
    x: Tensor, z: Tensor, weight: Tensor, eps: float | None, do: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `layer.gated_rms_norm`:  y = n weight silu(z),  n = x rstd,  rstd = (mean(x^2) + eps)^-1/2.

        dz = do n weight silu'(z),      dweight = sum of do n silu(z), over the rows and heads
        dn = do weight silu(z),         dx = rstd (dn - n mean(n dn))

    x, z, do [.., V]; weight [V]. Returns dx and dz in the types of x and z, dweight in that of the arithmetic.
    """
    dtype = arithmetic_type(x, z, weight, do)
    X, Z, w, dy = (t.to(dtype) for t in (x, z, weight, do))
    rstd = torch.rsqrt((X * X).mean(dim=-1, keepdim=True) + (RMS_EPSILON if eps is None else eps))
    n = X * rstd
    dz = dy * n * w * silu_slope(Z)
    dweight = (dy * n * silu(Z)).flatten(0, -2).sum(0)
    dn = dy * w * silu(Z)
    dx = rstd * (dn - n * (n * dn).mean(dim=-1, keepdim=True))
    return dx.to(x.dtype), dz.to(z.dtype), dweight


# --- the convolution --------------------------------------------------------------------------------------------


def conv1d_backward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cu_seqlens: Tensor,
    initial_state: Tensor | None,
    do: Tensor | None,
    dht: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the causal convolution and its silu, each sequence from a state of its own. For one sequence,
    window [W - 1 + T, C] its state and then its inputs,

        p[t] = bias + sum_j weight[:, j] window[t + j],   y = silu(p),   the state afterwards: window's last W - 1 rows
        dp = do silu'(p),                dweight[:, j] = sum_t dp[t] window[t + j],   dbias = sum_t dp[t]
        dwindow[t + j] = sum of weight[:, j] dp[t], and of dht in the last W - 1 rows;   dh0 and dx are its two parts

    x, do [total_seq_len, C]; weight [C, W]; bias [C]; initial_state, dht [num_seqs, C, W - 1], oldest input first; what
    is absent counts as zeros. Returns dx in x's type, dweight, dbias and dh0 in that of the arithmetic. Of an empty
    sequence dh0 is dht; rows behind the last sequence have zero gradients.
    """
    dtype = arithmetic_type(x, weight, bias, initial_state, do, dht)
    (C, W), N = weight.shape, cu_seqlens.numel() - 1
    X, w = x.to(dtype), weight.to(dtype)
    b = torch.zeros(C, dtype=dtype, device=x.device) if bias is None else bias.to(dtype)
    dy = torch.zeros_like(X) if do is None else do.to(dtype)
    zeros = torch.zeros(N, C, W - 1, dtype=dtype, device=x.device)
    states, after = (zeros if s is None else s.to(dtype) for s in (initial_state, dht))

    dx, dweight, dbias, dh0 = torch.zeros_like(X), torch.zeros_like(w), torch.zeros_like(b), torch.zeros_like(states)
    for n, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        T = stop - start
        window = torch.cat([states[n].T, X[start:stop]])
        p = b.expand(T, -1)
        for j in range(W):
            p = p + w[:, j] * window[j : j + T]
        dp = dy[start:stop] * silu_slope(p)
        dwindow = torch.zeros_like(window)
        dwindow[T:] += after[n].T
        for j in range(W):
            dwindow[j : j + T] += w[:, j] * dp
            dweight[:, j] += (dp * window[j : j + T]).sum(0)
        dbias += dp.sum(0)
        dh0[n], dx[start:stop] = dwindow[: W - 1].T, dwindow[W - 1 :]
    return dx.to(x.dtype), dweight, dbias, dh0
