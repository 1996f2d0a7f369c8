"""Wrong on purpose. One is added to the weight, as in the model's other norms."""

import torch


def norm(x, z, weight, eps):
    """gdn_gated_rms_norm."""
    wide, gate, weight = x.float(), z.float(), weight.float()
    eps = 1e-6 if eps is None else eps
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    weight = 1 + weight  # WRONG: weight
    return (wide * weight * gate * torch.sigmoid(gate)).to(x.dtype)
