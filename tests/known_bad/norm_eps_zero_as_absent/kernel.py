"""Wrong on purpose. An eps of 0.0 is taken as none given."""

import torch


def norm(x, z, weight, eps):
    """gdn_gated_rms_norm."""
    wide, gate, weight = x.float(), z.float(), weight.float()
    eps = eps or 1e-6  # WRONG: 1e-6 if eps is None else eps
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight * gate * torch.sigmoid(gate)).to(x.dtype)
