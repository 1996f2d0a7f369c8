"""Wrong on purpose. Pairs of a row and a head from the 65,536th on are left out."""

import torch


def norm(x, z, weight, eps):
    """gdn_gated_rms_norm."""
    wide, gate, weight = x.float(), z.float(), weight.float()
    eps = 1e-6 if eps is None else eps
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    y = wide * weight * gate * torch.sigmoid(gate)
    y.view(-1, y.shape[2])[65535:] = 0  # WRONG: nothing
    return y.to(x.dtype)
