"""The entries with two head sizes, whose write strength may be doubled: `kernel.py` has the rest."""

from kernel import decode, in_pool, require_one_token


def decode_k_last_kv_dims(
    q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, allow_neg_eigval, output, new_state
):  # fmt: skip
    """state [batch_size, H, V, K], float32 or bfloat16; beta = 2 sigmoid(b) where allow_neg_eigval is true."""
    decode(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state, k_first=False,
           one_size=False, doubled=bool(allow_neg_eigval))  # fmt: skip


def decode_pool_k_last_kv_dims(
    q, k, v, pool, read_slots, write_slots, A_log, a, dt_bias, b, scale, use_qk_l2norm, allow_neg_eigval, output
):  # fmt: skip
    """pool [num_slots, H, V, K], updated in place."""
    require_one_token(q)
    in_pool(q, k, v, pool, read_slots, write_slots, None, A_log, a, dt_bias, b, scale, use_qk_l2norm, output,
            names=("read_slots", "write_slots"), one_size=False, doubled=bool(allow_neg_eigval))  # fmt: skip


def verify_k_last_kv_dims(
    q, k, v, pool, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, scale, use_qk_l2norm,
    allow_neg_eigval, output,
):  # fmt: skip
    """pool [num_slots, H, V, K]; q, k, v, a and b hold T tokens a row, whose states go to T slots."""
    in_pool(q, k, v, pool, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, scale, use_qk_l2norm, output,
            names=("initial_slots", "state_slots"), one_size=False, doubled=bool(allow_neg_eigval))  # fmt: skip
