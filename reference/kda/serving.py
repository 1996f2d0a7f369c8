"""What an engine keeps between calls: states in slots, and those after single tokens until it is known which count.

`kimi_delta_attention.py` is the arithmetic. Everything here says where a state comes from and where it goes.
"""

from torch import Tensor

from .kimi_delta_attention import decode_k_last

# --- decode from a pool of states -------------------------------------------------------------------------------


def decode_pool_k_last(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    lower_bound: float | None,
    scale: float | None,
    use_qk_l2norm: bool | None,
) -> tuple[Tensor, Tensor]:
    """`decode_k_last` on states in a pool [num_slots, num_v_heads, V, K].

    Row n starts from slot read_slots[n] and leaves its state in slot write_slots[n]; where they are -1 the row is
    skipped: its output is zero. Returns output and the pool afterwards; the pool given stays as it was.
    """
    output, after = v.new_zeros(v.shape), pool.clone()
    rows = (read_slots >= 0).nonzero()[:, 0]
    o, S = decode_k_last(
        q[rows], k[rows], v[rows], pool[read_slots[rows].long()], A_log, a[rows], dt_bias, b[rows], lower_bound, scale,
        use_qk_l2norm,
    )  # fmt: skip
    output[rows], after[write_slots[rows].long()] = o, S
    return output, after
