"""Wrong on purpose. A layer norm: the mean is taken off first."""

import torch


def norm(x, z, weight, eps):
    """gdn_gated_rms_norm."""
    wide, gate, weight = x.float(), z.float(), weight.float()
    eps = 1e-6 if eps is None else eps
    wide = wide - wide.mean(-1, keepdim=True)  # WRONG: as it is
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight * gate * torch.sigmoid(gate)).to(x.dtype)
