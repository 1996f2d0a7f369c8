"""The operators of Kimi Delta Attention as functions: what `gdnspec.ops` has of this family.

On a CPU they compute in PyTorch; on a GPU by the kernel that gdnspec chooses. Gradients come from the kernel that it
chooses for a definition of them, where there is one, and else from PyTorch. Each is also `torch.ops.gdnspec.<name>`,
with all arguments by position. Calls that are not served raise `ValueError` or `TypeError` in one line.
"""

from torch import Tensor

from . import checkpoints, decode, raw, rule
from . import pool as pools

__all__ = [
    "kimi_delta_attention", "kimi_delta_attention_checkpoints", "kimi_delta_attention_raw_gates",
    "kimi_delta_attention_step", "kimi_delta_attention_step_", "kimi_delta_attention_verify",
]  # fmt: skip


def kimi_delta_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    scale: float | None = None,
    state_layout: str = "k_first",
) -> tuple[Tensor, Tensor]:
    """The rule over whole sequences, with finished gates. Returns output and final_state.

    Ragged: q, k [T, heads, K], v [T, H, V], g [T, H, K], beta [T, H], cu_seqlens [N + 1]. Padded: the same with a batch
    axis B before T, and no cu_seqlens. The number of query and key heads divides H. States: [N, H, K, V], or
    [N, H, V, K] with state_layout="k_last".

    g is the logarithm of the decay of each key channel, at most 0; minus infinity resets the channel exactly. q and k
    are used as they are. Absent g means zeros, an absent beta ones, an absent initial_state zeros, an absent scale
    1 / sqrt(K). The output has the type of v. The state has that of initial_state, else float32 or wider. On a GPU K
    and V must be equal.
    """
    return rule.OPERATOR(q, k, v, g, beta, initial_state, cu_seqlens, scale, state_layout)


def kimi_delta_attention_raw_gates(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    lower_bound: float | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
    state_layout: str = "k_last",
) -> tuple[Tensor, Tensor]:
    """`kimi_delta_attention` as a model calls it: gates and the L2 norm inside. Returns output and final_state.

    A_log [H], dt_bias [H, K], a [.., H, K], b [.., H] with the leading axes of q. Without a lower bound, None or 0,
    g = -exp(A_log) softplus(a + dt_bias). With one, which is negative, g = lower_bound sigmoid(exp(A_log) (a +
    dt_bias)). beta = sigmoid(b). use_qk_l2norm divides q and k by the root of the sum of their squares and 1e-6.
    """
    return raw.OPERATOR(
        q, k, v, A_log, a, dt_bias, b, initial_state, cu_seqlens, lower_bound, scale, use_qk_l2norm, state_layout
    )  # fmt: skip


def kimi_delta_attention_checkpoints(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor,
    checkpoint_cu_starts: Tensor,
    num_checkpoints: int,
    *,
    checkpoint_interval: int = 64,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`kimi_delta_attention` over ragged sequences, states [N, H, V, K]. Returns output, final_state and checkpoints.

    checkpoints [num_checkpoints, H, V, K] has the state after every checkpoint_interval tokens of each sequence, a
    multiple of 64. Those of sequence n are rows checkpoint_cu_starts[n] to checkpoint_cu_starts[n + 1], as many as
    whole intervals fit into it; the last entry of checkpoint_cu_starts [N + 1] is num_checkpoints.
    """
    return checkpoints.OPERATOR(
        q, k, v, g, beta, initial_state, cu_seqlens, checkpoint_cu_starts, num_checkpoints, checkpoint_interval, scale
    )  # fmt: skip


def kimi_delta_attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    *,
    lower_bound: float | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
    state_layout: str = "k_last",
) -> tuple[Tensor, Tensor]:
    """One token per sequence, from raw gates. Returns output and new_state.

    q, k [B, 1, heads, K], v [B, 1, H, V], a [B, 1, H, K], b [B, 1, H]; state [B, H, V, K], or [B, H, K, V] with
    state_layout="k_first". The gates and the norm are those of `kimi_delta_attention_raw_gates`.
    """
    return decode.OPERATOR(q, k, v, state, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm, state_layout)


def kimi_delta_attention_step_(
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
    *,
    lower_bound: float | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
) -> Tensor:
    """`kimi_delta_attention_step` on states in a pool [slots, H, V, K], which is updated in place. Returns output.

    Row n starts from slot read_slots[n] and leaves its state in slot write_slots[n]. Where both are -1 the row is
    skipped: its output is zero. No slot is written twice, and no row reads a slot that another one writes.
    """
    return pools.STEP_OPERATOR(
        q, k, v, pool, read_slots, write_slots, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm
    )


def kimi_delta_attention_verify(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    initial_slots: Tensor,
    state_slots: Tensor,
    accepted: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    *,
    lower_bound: float | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
) -> Tensor:
    """Speculative decoding: T draft tokens per sequence, on states in a pool that is updated in place. Returns output.

    q, k, v, a and b have an axis T after B. Row n starts from slot state_slots[n, accepted[n] - 1], or from
    initial_slots[n] where accepted[n] is 0. The state after token t goes to slot state_slots[n, t]. A row whose slots
    are -1 is skipped: its output is zero.
    """
    return pools.VERIFY_OPERATOR(
        q, k, v, pool, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm
    )  # fmt: skip
