"""The operators of gated delta net as functions: what `gdnspec.ops` has of this family.

On a CPU they compute in PyTorch; on a GPU by the kernel that gdnspec chooses. Gradients come from the kernel that it
chooses for a definition of them, where there is one, and else from PyTorch. Each is also `torch.ops.gdnspec.<name>`,
with all arguments by position.
"""

from torch import Tensor

from . import conv_gates, convolution, decode, layer_step, norm, rule
from . import pool as pools

__all__ = [
    "causal_conv1d", "causal_conv1d_gates", "causal_conv1d_step", "gated_delta_net_step_", "gated_delta_rule",
    "gated_delta_rule_step", "gated_delta_rule_step_", "gated_delta_rule_verify", "gated_rms_norm",
]  # fmt: skip


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    scale: float | None = None,
    gate: str = "log",
    state_layout: str = "k_first",
) -> tuple[Tensor, Tensor]:
    """The rule over whole sequences (Yang, Kautz and Hatamizadeh, arXiv:2412.06464, equation 10). Returns output and
    final_state.

    Ragged: q and k [T, heads, K], v [T, heads, V], g and beta [T, H], cu_seqlens [N + 1]. Padded: the same with a batch
    axis B before T, and no cu_seqlens. H is the larger of the numbers of query and value heads. States: [N, H, K, V],
    or [N, H, V, K] with state_layout="k_last".

    gate: "log" means alpha = exp(g), "linear" alpha = g. Absent g and beta mean ones, an absent initial_state zeros, an
    absent scale 1 / sqrt(K). The output has the type of v. The state has that of initial_state, else float32 or wider.

    All tensors but cu_seqlens have gradients. That of g is finite where alpha is 0. cu_seqlens may end before T: rows
    from there on belong to no sequence, and have gradients of zero. Do not read their outputs.

    Raises TypeError, ValueError or gdnspec.SpecError for what is not served; on a CPU also ValueError for cu_seqlens
    that fall or end past T.
    """
    return rule.OPERATOR(q, k, v, g, beta, initial_state, cu_seqlens, scale, gate, state_layout)


def gated_delta_rule_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    *,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
    allow_neg_eigval: bool | None = False,
    state_layout: str = "k_last",
) -> tuple[Tensor, Tensor]:
    """One token per sequence, from raw gates. Returns output and new_state.

    q [B, 1, heads, K], k, v [B, 1, heads, V], a and b [B, 1, H], A_log and dt_bias [H]; state [B, H, V, K], or
    [B, H, K, V] with state_layout="k_first". alpha = exp(-exp(A_log) softplus(a + dt_bias)) and beta = sigmoid(b),
    twice that with allow_neg_eigval. use_qk_l2norm normalises q and k first.
    """
    return decode.OPERATOR(
        q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, allow_neg_eigval, state_layout
    )  # fmt: skip


def gated_delta_rule_step_(
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
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
    allow_neg_eigval: bool | None = False,
) -> Tensor:
    """`gated_delta_rule_step` on states in a pool [slots, H, V, K], which is updated in place. Returns output.

    Row n starts from slot read_slots[n] and leaves its state in slot write_slots[n]. Where both are -1 the row is
    skipped: its output is zero. No slot is written twice, and no row reads a slot that another one writes.
    """
    return pools.STEP_OPERATOR(
        q, k, v, pool, read_slots, write_slots, A_log, a, dt_bias, b, scale, use_qk_l2norm, allow_neg_eigval
    )


def gated_delta_rule_verify(
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
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
    allow_neg_eigval: bool | None = False,
) -> Tensor:
    """Speculative decoding: T draft tokens per sequence, on states in a pool that is updated in place. Returns output.

    q, k, v, a and b have an axis T after B. Row n starts from slot state_slots[n, accepted[n] - 1], or from
    initial_slots[n] where accepted[n] is 0. The state after token t goes to slot state_slots[n, t]. A row whose slots
    are -1 is skipped: its output is zero.
    """
    return pools.VERIFY_OPERATOR(
        q, k, v, pool, initial_slots, state_slots, accepted, A_log, a, dt_bias, b,
        scale, use_qk_l2norm, allow_neg_eigval,
    )  # fmt: skip


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cu_seqlens: Tensor,
    conv_states: Tensor,
    slots: Tensor | None,
    has_initial_state: Tensor,
) -> Tensor:
    """silu of the causal convolution of each channel, over ragged sequences. Returns output.

    x [T, C], weight [C, W], bias [C] or None, cu_seqlens [N + 1]; conv_states [slots, C, W - 1], updated in place;
    slots [N], has_initial_state [N] bool. Sequence n starts from slot slots[n], or from zeros where has_initial_state
    is false, and leaves its last W - 1 inputs there. Where the slot is -1 the output is zero. With None
    for slots, sequence n has slot n, none is skipped, and gradients take less time.
    """
    return convolution.OPERATOR(x, weight, bias, cu_seqlens, conv_states, slots, has_initial_state)


def causal_conv1d_step(
    x: Tensor, weight: Tensor, bias: Tensor | None, conv_states: Tensor, slots: Tensor
) -> Tensor:  # fmt: skip
    """`causal_conv1d` of one token per sequence, x [B, C], that goes on from its state. Returns output."""
    return convolution.STEP_OPERATOR(x, weight, bias, conv_states, slots)


def gated_rms_norm(x: Tensor, z: Tensor, weight: Tensor, eps: float | None = None) -> Tensor:
    """x rsqrt(mean(x^2) + eps) weight silu(z), over the last axis. x, z [.., V], weight [V]; eps absent means 1e-6."""
    return norm.OPERATOR(x, z, weight, eps)


def causal_conv1d_gates(
    x: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    cu_seqlens: Tensor,
    conv_states: Tensor,
    slots: Tensor | None,
    has_initial_state: Tensor,
    head_dim: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`causal_conv1d`, then all that `gated_delta_rule` reads: heads apart, q and k L2-normalised, both gates ready.

    The C channels of x are those of all query heads, then of all key heads, then of all value heads, of head_dim each.
    a and b [T, H], A_log and dt_bias [H], H being the number of value heads; the rest as in `causal_conv1d`. Returns q
    and k [T, key heads, head_dim], v [T, H, head_dim], g = alpha = exp(-exp(A_log) softplus(a + dt_bias)), which is for
    gate="linear", and beta = sigmoid(b), both [T, H]. Where the slot is -1, q, k, v and beta are zero and g is 1.
    """
    return conv_gates.OPERATOR(
        x, conv_weight, conv_bias, a, b, A_log, dt_bias, cu_seqlens, conv_states, slots, has_initial_state, head_dim
    )  # fmt: skip


def gated_delta_net_step_(
    qkv: Tensor,
    z: Tensor,
    a: Tensor,
    b: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    conv_states: Tensor,
    conv_slots: Tensor,
    recurrent_states: Tensor,
    state_slots: Tensor,
) -> Tensor:
    """All of a layer between its projections, one token per sequence. Returns what its last projection reads.

    It is `causal_conv1d_step`, `gated_delta_rule_step_` with normalised q and k, and `gated_rms_norm` with an eps of
    1e-6, and rounds nothing between them. qkv [B, C] with the channels as in `causal_conv1d_gates`, z [B, H V], a and b
    [B, H], A_log and dt_bias [H], norm_weight [V]. Two pools with as many slots are updated in place: conv_states
    [slots, C, W - 1] and recurrent_states [slots, H, V, K], each with a slot per row, conv_slots and state_slots [B].
    Where both are -1 the row is skipped: its output is zero.
    """
    return layer_step.OPERATOR(
        qkv, z, a, b, conv_weight, conv_bias, A_log, dt_bias, norm_weight, conv_states, conv_slots, recurrent_states,
        state_slots,
    )  # fmt: skip
