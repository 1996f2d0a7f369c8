"""The sizes of calls that the operators of gated delta net serve, and the endings of its definitions' names."""

from typing import Any

import torch
from gdnspec.family import checks
from torch import Tensor

STATES = {torch.float32: "", torch.bfloat16: "_bf16_state"}  # a definition's name by the type of its states


def heads(operator: str, queries: int, keys: int, values: int) -> None:
    """GVA: queries and keys have as many heads, values a multiple. GQA: keys and values have as many."""
    if min(queries, keys, values) < 1 or not (
        (queries == keys and values % keys == 0) or (keys == values and queries % keys == 0)
    ):
        raise ValueError(
            f"{operator}: {queries} query, {keys} key and {values} value heads: served are as many query as key heads "
            "with a multiple of value heads, or as many key as value heads with a multiple of query heads"
        )


def head_size(operator: str, K: int) -> None:
    """Keys of at least one element: the read-out is divided by the root of their number."""
    if K < 1:
        raise ValueError(f"{operator}: q and k have heads of size {K}: sizes from 1 on are served")


def tokens(
    operator: str, q: Tensor, k: Tensor, v: Tensor, held: str, states: Tensor, A_log: Tensor, a: Tensor,
    dt_bias: Tensor, b: Tensor, state_layout: str = "k_last", **integers: Tensor,
) -> Tensor:  # fmt: skip
    """The output of an operator on tokens [B, T, ..] with raw gates. `held`: the name of the states."""
    checks.tensors(
        operator,
        {"q": q, "k": k, "v": v, held: states, "A_log": A_log, "a": a, "dt_bias": dt_bias, "b": b},
        dict(integers),
    )
    if q.dim() != 4:
        raise ValueError(f"{operator}: q has the shape {list(q.shape)}: [B, T, heads, K] is served")
    B, T, _, K = q.shape
    checks.shape(operator, "k", k, (B, T, None, K), "[B, T, heads, K]")
    checks.shape(operator, "v", v, (B, T, None, None), "[B, T, heads, V]")
    heads(operator, q.shape[2], k.shape[2], v.shape[2])
    head_size(operator, K)
    H, V = max(q.shape[2], v.shape[2]), v.shape[3]
    last = (V, K) if state_layout == "k_last" else (K, V)
    told = f"[{'slots' if integers else 'B'}, heads, {'V, K' if state_layout == 'k_last' else 'K, V'}]"
    checks.shape(operator, held, states, (None if integers else B, H, *last), told)
    for name, x in (("a", a), ("b", b)):
        checks.shape(operator, name, x, (B, T, H), "[B, T, heads]")
    for name, x in (("A_log", A_log), ("dt_bias", dt_bias)):
        checks.shape(operator, name, x, (H,), "[heads]")
    return v.new_empty(B, T, H, V)


# --- parts of a layer -------------------------------------------------------------------------------------------


def convolution(
    operator: str, name: str, x: Tensor, weight: Tensor, bias: Tensor | None, states: Tensor, prefix: str = "conv_"
) -> None:
    """A convolution of rows of channels, its states in a pool. `prefix`: of the names of weight and bias."""
    checks.shape(operator, name, x, (None, None), "[tokens, channels]")
    checks.shape(operator, f"{prefix}weight", weight, (x.shape[1], None), "[channels, width]")
    checks.shape(operator, f"{prefix}bias", bias, (x.shape[1],), "[channels]")
    told = "[slots, channels, width - 1]"
    checks.shape(operator, "conv_states", states, (None, x.shape[1], weight.shape[1] - 1), told)


def sequences(
    operator: str, x: Tensor, cu_seqlens: Tensor, states: Tensor, slots: Tensor | None, has_initial_state: Tensor
) -> None:
    """Ragged sequences with a state each. Without slots those of the first sequences are in the first slots."""
    checks.shape(operator, "slots", slots, (None,), "[N]")
    checks.shape(operator, "cu_seqlens", cu_seqlens, (None if slots is None else slots.shape[0] + 1,), "[N + 1]")
    count = cu_seqlens.shape[0] - 1
    torch._check_value(count >= 0, lambda: f"{operator}: cu_seqlens has the shape [0]: [N + 1] is served")
    checks.shape(operator, "has_initial_state", has_initial_state, (count,), "[N]")
    if slots is None:
        said = f"slots is None, and conv_states has {states.shape[0]} slots"
        torch._check_value(states.shape[0] >= count, lambda: f"{operator}: {said}: one for each of {count} is served")
    if has_initial_state.dtype != torch.bool or has_initial_state.device != x.device:
        found = f"{checks.said(has_initial_state)} on {has_initial_state.device}"
        raise TypeError(f"{operator}: has_initial_state is {found}: bool on {x.device} is served")


def gates(operator: str, rows: str, count: Any, a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor) -> None:
    """Raw gates of rows of heads. `rows`: the name of that axis."""
    checks.shape(operator, "a", a, (count, None), f"[{rows}, heads]")
    checks.shape(operator, "b", b, (count, a.shape[1]), f"[{rows}, heads]")
    for name, x in (("A_log", A_log), ("dt_bias", dt_bias)):
        checks.shape(operator, name, x, (a.shape[1],), "[heads]")


def channels(operator: str, name: str, count: Any, values: Any, K: Any, V: Any) -> Any:
    """The number of key heads of rows that hold all query, then all key, then all value heads."""
    of_keys = count - values * V
    if K < 1 or V < 1 or of_keys < 2 * K or of_keys % (2 * K) or values % (of_keys // (2 * K)):
        raise ValueError(
            f"{operator}: {name} has {count} channels: those of {values} value heads of {V}, and of as many query as "
            f"key heads of {K} whose number divides {values}, are served"
        )
    return of_keys // (2 * K)
