"""Wrong on purpose. Divided by the mean of magnitudes, not by the root of the mean of squares."""

import torch


def norm(x, z, weight, eps):
    """gdn_gated_rms_norm."""
    wide, gate, weight = x.float(), z.float(), weight.float()
    eps = 1e-6 if eps is None else eps
    wide = wide / (wide.abs().mean(-1, keepdim=True) + eps)  # WRONG: root mean square
    return (wide * weight * gate * torch.sigmoid(gate)).to(x.dtype)
