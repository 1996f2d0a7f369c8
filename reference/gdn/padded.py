"""A padded batch: rows of one length, and a mask that says which positions are tokens.

It is how transformers and training code hold sequences of several lengths. A row is the sequence of its tokens.
Padding, wherever it stands, is not a step at all: a gate that decays there, or a write of zeros, would be one.
"""

import torch
from torch import Tensor

from .gated_delta_net import prefill_k_first


def prefill_padded_k_first(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    attention_mask: Tensor,
    initial_state: Tensor | None,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """`prefill_k_first` of the tokens of each row, put back where they stand.

    q [batch_size, T, num_q_heads, K], k [.., num_k_heads, K], v [.., num_v_heads, V], g and beta [batch_size, T,
    num_sab_heads]; attention_mask [batch_size, T] is 1 at tokens and 0 at padding. Returns output [batch_size, T,
    num_o_heads, V], zero at padding, and final_state [batch_size, num_sab_heads, K, V].
    """
    there = attention_mask != 0
    bounds = torch.cat([there.new_zeros(1, dtype=torch.int64), there.sum(1).cumsum(0)])
    packed, final_state = prefill_k_first(
        q[there], k[there], v[there], None if g is None else g[there], None if beta is None else beta[there], bounds,
        initial_state, scale,
    )  # fmt: skip
    output = packed.new_zeros(*there.shape, *packed.shape[1:])
    output[there] = packed
    return output, final_state
