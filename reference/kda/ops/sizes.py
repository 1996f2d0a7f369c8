"""What all operators say of heads, gates and states that they cannot serve."""

import math
from typing import Any

import torch
from gdnspec.family import checks
from torch import Tensor

LAYOUTS = ("k_first", "k_last")
STATES = {torch.float32: "", torch.bfloat16: "_bf16_state"}  # a definition's name by the type of its states


def of_state(layout: str, K: Any, V: Any) -> tuple[tuple[Any, Any], str]:
    """The last two sizes of a state, and their names."""
    return ((V, K), "V, K") if layout == "k_last" else ((K, V), "K, V")


def heads(operator: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """As many query as key heads, which divide the value heads."""
    queries, keys, values = (x.shape[-2] for x in (q, k, v))
    if min(queries, keys, values) < 1 or queries != keys or values % keys:
        raise ValueError(
            f"{operator}: {queries} query, {keys} key and {values} value heads: served are as many query as key heads "
            "with a multiple of value heads"
        )
    if q.shape[-1] < 1:  # the read-out is divided by the root of their number
        raise ValueError(f"{operator}: q and k have heads of size 0: sizes from 1 on are served")


def sequences(
    operator: str, q: Tensor, k: Tensor, v: Tensor, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    layout: str = "k_last",
) -> tuple[Any, Any]:  # fmt: skip
    """Checks whole sequences, ragged where there is cu_seqlens. Returns the sizes of the output and of the states."""
    checks.choice(operator, "state_layout", layout, LAYOUTS)
    ragged = cu_seqlens is not None
    if q.dim() != (3 if ragged else 4):
        said = "[T, heads, K] with cu_seqlens, [B, T, heads, K] without"
        raise ValueError(f"{operator}: q has the shape {list(q.shape)}: {said} is served")
    if cu_seqlens is not None and (cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 1):
        raise ValueError(f"{operator}: cu_seqlens has the shape {list(cu_seqlens.shape)}: [sequences + 1] is served")
    lead, told = q.shape[:-2], f"{lead_of(q)}heads, "
    checks.shape(operator, "k", k, (*lead, None, q.shape[-1]), f"[{told}K]")
    checks.shape(operator, "v", v, (*lead, None, None), f"[{told}V]")
    heads(operator, q, k, v)
    H, N = v.shape[-2], q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    last, names = of_state(layout, q.shape[-1], v.shape[-1])
    checks.shape(operator, "initial_state", initial_state, (N, H, *last), f"[sequences, heads, {names}]")
    return (*lead, H, v.shape[-1]), (N, H, *last)


def lead_of(q: Tensor) -> str:
    """The names of the axes before heads, for a message."""
    return "T, " if q.dim() == 3 else "B, T, "


def log_gates(operator: str, q: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None) -> None:
    """Finished gates: a decay for each key channel, a write strength for each head."""
    checks.shape(operator, "g", g, (*v.shape[:-1], q.shape[-1]), f"[{lead_of(q)}heads, K]")
    checks.shape(operator, "beta", beta, tuple(v.shape[:-1]), f"[{lead_of(q)}heads]")


def raw_gates(operator: str, q: Tensor, v: Tensor, A_log: Tensor, a: Tensor, dt_bias: Tensor, b: Tensor) -> None:
    """Raw gates, the rate of each head, and the bias of each of its key channels."""
    H, K = v.shape[-2], q.shape[-1]
    checks.shape(operator, "a", a, (*v.shape[:-1], K), f"[{lead_of(q)}heads, K]")
    checks.shape(operator, "b", b, tuple(v.shape[:-1]), f"[{lead_of(q)}heads]")
    checks.shape(operator, "A_log", A_log, (H,), "[heads]")
    checks.shape(operator, "dt_bias", dt_bias, (H, K), "[heads, K]")


def bound(operator: str, lower_bound: float | None) -> None:
    """A lower bound is negative; None and 0 mean that there is none."""
    if lower_bound is not None and not -math.inf < lower_bound <= 0:
        raise ValueError(f"{operator}: lower_bound={lower_bound}: None, 0 and finite negative numbers are served")


def tokens(
    operator: str, q: Tensor, k: Tensor, v: Tensor, held: str, states: Tensor, A_log: Tensor, a: Tensor,
    dt_bias: Tensor, b: Tensor, lower_bound: float | None = None, layout: str = "k_last", **integers: Tensor,
) -> Tensor:  # fmt: skip
    """Checks tokens [B, T, ..] with raw gates. `held`: the name of the states. Returns an output without values."""
    checks.tensors(
        operator,
        {"q": q, "k": k, "v": v, held: states, "A_log": A_log, "a": a, "dt_bias": dt_bias, "b": b},
        dict(integers),
    )
    checks.choice(operator, "state_layout", layout, LAYOUTS)
    bound(operator, lower_bound)
    if q.dim() != 4:
        raise ValueError(f"{operator}: q has the shape {list(q.shape)}: [B, T, heads, K] is served")
    (B, T), K = q.shape[:2], q.shape[-1]
    checks.shape(operator, "k", k, (B, T, None, K), "[B, T, heads, K]")
    checks.shape(operator, "v", v, (B, T, None, None), "[B, T, heads, V]")
    heads(operator, q, k, v)
    H, V = v.shape[2:]
    last, names = of_state(layout, K, V)
    told = f"[{'slots' if integers else 'B'}, heads, {names}]"
    checks.shape(operator, held, states, (None if integers else B, H, *last), told)
    raw_gates(operator, q, v, A_log, a, dt_bias, b)
    return v.new_empty(B, T, H, V)


def one_size(operator: str, q: Tensor, v: Tensor) -> None:
    """What the definitions, hence all kernels, have."""
    if q.shape[-1] != v.shape[-1]:
        said = f"heads of size {q.shape[-1]} in q and k and {v.shape[-1]} in v"
        raise ValueError(f"{operator}: {said}: on a GPU one size of all is served")
