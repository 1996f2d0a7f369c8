"""Wrong on purpose. The gate is left out."""

import torch


def norm(x, z, weight, eps):
    """gdn_gated_rms_norm."""
    wide, weight = x.float(), weight.float()
    eps = 1e-6 if eps is None else eps
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight).to(x.dtype)  # WRONG: * gate * torch.sigmoid(gate)
