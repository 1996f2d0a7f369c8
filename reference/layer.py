"""The layer around the gated delta rule: the executable specification.

Source: Yang, Kautz and Hatamizadeh, arXiv:2412.06464, section 3.4 and figure 1; the norm is that of Zhang and Sennrich,
"Root Mean Square Layer Normalization", NeurIPS 2019 (arXiv:1910.07467), equation 4.

Arithmetic is done in the widest float type among the inputs, float32 at least, and rounded once at the end.
"""

import torch
from convolution import silu
from gated_delta_net import arithmetic_type
from torch import Tensor

RMS_EPSILON = 1e-6  # inside the root: x * rsqrt(mean(x^2) + eps)


# --- what follows the rule --------------------------------------------------------------------------------------


def rms_normalise(x: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps) over the last dimension."""
    return x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + eps)


def gated_rms_norm(x: Tensor, z: Tensor, weight: Tensor, eps: float | None) -> Tensor:
    """The root mean square norm of what each head has read, times a weight a channel, times silu(z).

    x, z [.., value_head_dim]; weight [value_head_dim]; eps absent means 1e-6. The norm comes before the gate. Returns
    the shape and type of x.
    """
    dtype = arithmetic_type(x, z, weight)
    normed = rms_normalise(x.to(dtype), RMS_EPSILON if eps is None else eps)
    return (normed * weight.to(dtype) * silu(z.to(dtype))).to(x.dtype)
