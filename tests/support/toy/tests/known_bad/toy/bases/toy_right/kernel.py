"""Both operators in the plainest way."""

import torch


def running_sum(x, decay):
    decay = 0.5 if decay is None else decay
    y, total = torch.empty_like(x), torch.zeros_like(x[:, 0], dtype=torch.float32)
    for i in range(x.shape[1]):
        total = decay * total + x[:, i]
        y[:, i] = total
    return (y,)


def unit_stretch(x, starts, eps):
    eps = 1e-6 if eps is None else eps
    stretches = x.tensor_split(starts[1:-1].tolist())
    return (torch.cat([part * torch.rsqrt(part.square().mean() + eps) for part in stretches]),)
