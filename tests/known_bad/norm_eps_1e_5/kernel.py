"""Wrong on purpose. The default of PyTorch's layer norm, 1e-5, in place of 1e-6."""

import torch


def norm(x, z, weight, eps):
    """gdn_gated_rms_norm."""
    wide, gate, weight = x.float(), z.float(), weight.float()
    eps = 1e-5 if eps is None else eps
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)  # WRONG: 1e-6
    return (wide * weight * gate * torch.sigmoid(gate)).to(x.dtype)
