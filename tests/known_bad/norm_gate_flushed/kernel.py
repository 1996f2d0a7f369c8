"""Wrong on purpose. The output gate is 0 where its argument is below -20."""

import torch


def norm(x, z, weight, eps):
    """gdn_gated_rms_norm."""
    wide, gate, weight = x.float(), z.float(), weight.float()
    eps = 1e-6 if eps is None else eps
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    gate = torch.where(gate < -20, 0.0, gate * torch.sigmoid(gate))  # WRONG: gate * torch.sigmoid(gate)
    return (wide * weight * gate).to(x.dtype)
