"""Wrong on purpose. The gate is multiplied in before the norm is taken."""

import torch


def norm(x, z, weight, eps):
    """gdn_gated_rms_norm."""
    wide, gate, weight = x.float(), z.float(), weight.float()
    eps = 1e-6 if eps is None else eps
    wide = wide * gate * torch.sigmoid(gate)  # WRONG: after the norm
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight).to(x.dtype)
