"""Wrong on purpose. One mean for all heads of a token."""

import torch


def norm(x, z, weight, eps):
    """gdn_gated_rms_norm."""
    wide, gate, weight = x.float(), z.float(), weight.float()
    eps = 1e-6 if eps is None else eps
    wide = wide * torch.rsqrt(wide.square().mean((-2, -1), keepdim=True) + eps)  # WRONG: of each head
    return (wide * weight * gate * torch.sigmoid(gate)).to(x.dtype)
