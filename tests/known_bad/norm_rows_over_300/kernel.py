"""Wrong on purpose. Rows from the 301st on have the output gate of the 300th."""

import torch


def norm(x, z, weight, eps):
    """gdn_gated_rms_norm."""
    wide, gate, weight = x.float(), z.float(), weight.float()
    gate = gate[torch.arange(len(gate)).clamp(max=299)]  # WRONG: gate
    eps = 1e-6 if eps is None else eps
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight * gate * torch.sigmoid(gate)).to(x.dtype)
