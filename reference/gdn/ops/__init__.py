"""The operators of gated delta net as functions: what `gdnspec.ops` has of this family.

On a CPU they compute in PyTorch; on a GPU by the kernel that gdnspec chooses. Gradients are PyTorch's everywhere. Each
is also `torch.ops.gdnspec.<name>`, with all arguments by position.
"""

from torch import Tensor

from . import decode, rule

__all__ = ["gated_delta_rule", "gated_delta_rule_step"]


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
    """The rule over whole sequences. Returns output and final_state.

    Ragged: q [T, heads, K], k, v [T, heads, V], g and beta [T, H], cu_seqlens [N + 1]. Padded: the same with a batch
    axis B before T, and no cu_seqlens. H is the larger of the numbers of query and value heads. States: [N, H, K, V],
    or [N, H, V, K] with state_layout="k_last".

    gate: "log" means alpha = exp(g), "linear" alpha = g. Absent g and beta mean ones, an absent initial_state zeros, an
    absent scale 1 / sqrt(K). The output has the type of v. The state has that of initial_state, else float32 or wider.
    """
    return rule.OPERATOR(q, k, v, g, beta, initial_state, cu_seqlens, scale, gate, state_layout)  # type: ignore[no-any-return]


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
