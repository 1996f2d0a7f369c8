"""Kimi Delta Attention over whole sequences from raw gates, as a model calls it."""

from typing import Any

import torch
from gdnspec.family import Asked, checks, register
from torch import Tensor

from ..kimi_delta_attention import arithmetic_type, l2_normalise
from . import sizes
from .decode import log_gate
from .rule import computed, flat

NAME = "kimi_delta_attention_raw_gates"


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    lower_bound: float | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
    state_layout: str = "k_last",
) -> tuple[Tensor, Tensor]:
    """The gates, then the rule with finished ones. Nothing is rounded between the two."""
    output, final = fake(
        q, k, v, A_log, a, dt_bias, b, initial_state, cu_seqlens, lower_bound, scale, use_qk_l2norm, state_layout
    )  # fmt: skip
    q, k, v, a, b = checks.of_sequences(NAME, "cu_seqlens", cu_seqlens, q, k, v, a, b)
    dtype = arithmetic_type(q, k, v, A_log, a, dt_bias, b, initial_state)
    Q, K = q.to(dtype), k.to(dtype)
    if use_qk_l2norm is None or use_qk_l2norm:
        Q, K = l2_normalise(Q), l2_normalise(K)
    g = log_gate(A_log.to(dtype), a.to(dtype), dt_bias.to(dtype), lower_bound)
    beta = b.to(dtype).sigmoid()
    O, S = computed(Q, K, v, g, beta, initial_state, cu_seqlens, scale, state_layout)
    O = checks.padded(O.to(output.dtype), output.shape[:-2].numel())
    return O.reshape(output.shape), S.to(final.dtype).contiguous()


def fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    lower_bound: float | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
    state_layout: str = "k_last",
) -> tuple[Tensor, Tensor]:
    """Outputs without values, for a call that is served. Raises `ValueError` and `TypeError` for others."""
    floats = {"q": q, "k": k, "v": v, "A_log": A_log, "a": a, "dt_bias": dt_bias, "b": b}
    checks.tensors(NAME, {**floats, "initial_state": initial_state}, {"cu_seqlens": cu_seqlens})
    sizes.bound(NAME, lower_bound)
    of_output, of_states = sizes.sequences(NAME, q, k, v, initial_state, cu_seqlens, state_layout)
    sizes.raw_gates(NAME, q, v, A_log, a, dt_bias, b)
    state_type = arithmetic_type(*floats.values()) if initial_state is None else initial_state.dtype
    return v.new_empty(of_output), v.new_empty(of_states, dtype=state_type)


def asked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    lower_bound: float | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
    state_layout: str = "k_last",
) -> Asked:
    """The definition has states [V, K], float32."""
    sizes.one_size(NAME, q, v)
    turned, given = state_layout == "k_first", None if initial_state is None else initial_state.dtype
    (q, k, v, a, b), starts, padded = flat((q, k, v, a, b), cu_seqlens)
    S = initial_state
    if S is not None:
        S = S.mT.float().contiguous() if turned else S.float()
    inputs = (q, k, v, A_log.float(), a, dt_bias.float(), b, starts, S, lower_bound, scale, use_qk_l2norm)
    if padded is None and not turned and given in (None, torch.float32):
        return "kda_prefill_raw_gates", inputs, None

    def finish(outputs: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        output, state = outputs
        state = state.mT.contiguous() if turned else state
        output = output if padded is None else output.unflatten(0, padded)
        return output, state if given is None else state.to(given)

    return "kda_prefill_raw_gates", inputs, finish


ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor A_log, Tensor a, Tensor dt_bias, Tensor b, Tensor? initial_state=None, "
    "Tensor? cu_seqlens=None, float? lower_bound=None, float? scale=None, bool? use_qk_l2norm=True, "
    "str state_layout='k_last'"
)
OPERATOR = register(NAME, ARGUMENTS, "(Tensor, Tensor)", plain, fake, asked)
