"""Wrong on purpose. Eps is added to the root, not to what it is taken of."""

import torch


def norm(x, z, weight, eps):
    """gdn_gated_rms_norm."""
    wide, gate, weight = x.float(), z.float(), weight.float()
    eps = 1e-6 if eps is None else eps
    wide = wide / (wide.square().mean(-1, keepdim=True).sqrt() + eps)  # WRONG: eps inside the root
    return (wide * weight * gate * torch.sigmoid(gate)).to(x.dtype)
