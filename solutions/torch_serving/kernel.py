"""One token of the gated delta rule for any number of rows, and what its vectors and gates are made of.

States are [.., V, K]; arithmetic is float32. S x is a product and a sum, not a matrix product: those may round their
operands on a GPU.
"""

import torch
from torch import Tensor


def step(S: Tensor, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """One token of N rows. S [N, H, V, K]; q, k [N, H, K]; v [N, H, V]; alpha, beta [N, H]. Returns (S q, S)."""
    S = alpha[..., None, None] * S
    u = beta[..., None] * (v - (S * k[..., None, :]).sum(-1))  # the error, of the decayed state
    S = S + u[..., :, None] * k[..., None, :]
    return (S * q[..., None, :]).sum(-1), S


def raw_gates(A_log: Tensor, a: Tensor, dt_bias: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """alpha = exp(-exp(A_log) softplus(a + dt_bias)) and beta = sigmoid(b), [.., H]."""
    x = a.float() + dt_bias.float()
    softplus = x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))  # torch's own has a threshold
    return torch.exp(-torch.exp(A_log.float()) * softplus), 1 / (1 + torch.exp(-b.float()))


def vectors(q: Tensor, k: Tensor, v: Tensor, heads: int, use_qk_l2norm: bool | None) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v in float32, normalised where asked for, as many heads of each as there are states."""
    Q, K, V = q.float(), k.float(), v.float()
    if use_qk_l2norm is None or use_qk_l2norm:
        Q, K = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (Q, K))
    Q, K, V = (x.repeat_interleave(heads // x.shape[-2], dim=-2) for x in (Q, K, V))
    return Q, K, V
