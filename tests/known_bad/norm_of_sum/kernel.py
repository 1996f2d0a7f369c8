"""Wrong on purpose. Squares are added up, as for keys, and no mean is taken."""

import torch


def norm(x, z, weight, eps):
    """gdn_gated_rms_norm."""
    wide, gate, weight = x.float(), z.float(), weight.float()
    eps = 1e-6 if eps is None else eps
    wide = wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)  # WRONG: mean
    return (wide * weight * gate * torch.sigmoid(gate)).to(x.dtype)
