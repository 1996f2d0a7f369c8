"""Wrong on purpose. Eps is 1e-6, whatever is given."""

import torch


def norm(x, z, weight, eps):
    """gdn_gated_rms_norm."""
    wide, gate, weight = x.float(), z.float(), weight.float()
    eps = 1e-6  # WRONG: only where eps is None
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight * gate * torch.sigmoid(gate)).to(x.dtype)
