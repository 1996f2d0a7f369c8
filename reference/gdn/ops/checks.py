"""What an operator says of a call that it cannot serve: one line that says what is wrong and what is served."""

from typing import Any

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # torch computes with no smaller ones


def tensors(operator: str, floats: dict[str, Tensor | None], integers: dict[str, Tensor | None]) -> None:
    """All tensors on one device, of floating point or integer types as named."""
    given = {name: x for name, x in (floats | integers).items() if x is not None}
    first, home = next(iter(given.items()))
    for name, x in given.items():
        if x.device != home.device:
            raise ValueError(f"{operator}: {name} is on {x.device} and {first} on {home.device}: use one device")
        if name in floats and x.dtype not in FLOATS:
            served = "float16, bfloat16, float32 and float64 are served"
            raise TypeError(f"{operator}: {name} has the type {said(x)}: {served}")
        if name in integers and x.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{operator}: {name} has the type {said(x)}: int32 and int64 are served")


def shape(operator: str, name: str, x: Tensor | None, want: tuple[Any, ...], told: str) -> None:
    """The shape of a tensor; None is any size. `told`: the shape that is served, in the names of axes."""
    if x is None:
        return
    if x.dim() != len(want):
        raise ValueError(f"{operator}: {name} has the shape {list(x.shape)}: {told} is served")
    for size, wanted in zip(x.shape, want, strict=True):
        if wanted is not None:
            torch._check_value(size == wanted, lambda: _unlike(operator, name, x, want, told))


def _unlike(operator: str, name: str, x: Tensor, want: tuple[Any, ...], told: str) -> str:
    sizes = ", ".join("any" if size is None else str(size) for size in want)
    return f"{operator}: {name} has the shape {list(x.shape)}: {told}, here [{sizes}], is served"


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


def choice(operator: str, name: str, value: str, served: tuple[str, ...]) -> None:
    """An argument that is one of a few words."""
    if value not in served:
        raise ValueError(f"{operator}: {name}={value!r}: {' and '.join(map(repr, served))} are served")


def bounds(operator: str, cu_seqlens: Tensor, tokens: int) -> list[int]:
    """The values of cu_seqlens, which are read on a CPU and where gradients are wanted."""
    found: list[int] = cu_seqlens.tolist()
    if found[0] != 0 or found[-1] != tokens or sorted(found) != found:
        raise ValueError(f"{operator}: cu_seqlens must rise from 0 to the number of tokens, {tokens}")
    return found


def said(x: Tensor) -> str:
    """The name of a type: bfloat16."""
    return str(x.dtype).removeprefix("torch.")


def tokens(
    operator: str, q: Tensor, k: Tensor, v: Tensor, held: str, states: Tensor, A_log: Tensor, a: Tensor,
    dt_bias: Tensor, b: Tensor, state_layout: str = "k_last", **integers: Tensor,
) -> Tensor:  # fmt: skip
    """The output of an operator on tokens [B, T, ..] with raw gates. `held`: the name of the states."""
    tensors(
        operator,
        {"q": q, "k": k, "v": v, held: states, "A_log": A_log, "a": a, "dt_bias": dt_bias, "b": b},
        dict(integers),
    )
    if q.dim() != 4:
        raise ValueError(f"{operator}: q has the shape {list(q.shape)}: [B, T, heads, K] is served")
    B, T, _, K = q.shape
    shape(operator, "k", k, (B, T, None, K), "[B, T, heads, K]")
    shape(operator, "v", v, (B, T, None, None), "[B, T, heads, V]")
    heads(operator, q.shape[2], k.shape[2], v.shape[2])
    head_size(operator, K)
    H, V = max(q.shape[2], v.shape[2]), v.shape[3]
    last = (V, K) if state_layout == "k_last" else (K, V)
    told = f"[{'slots' if integers else 'B'}, heads, {'V, K' if state_layout == 'k_last' else 'K, V'}]"
    shape(operator, held, states, (states.shape[0] if integers else B, H, *last), told)
    for name, x in (("a", a), ("b", b)):
        shape(operator, name, x, (B, T, H), "[B, T, heads]")
    for name, x in (("A_log", A_log), ("dt_bias", dt_bias)):
        shape(operator, name, x, (H,), "[heads]")
    return v.new_empty(B, T, H, V)


def stored(operator: str, name: str, states: Tensor) -> str:
    """The ending of the names of definitions with states of this type."""
    endings = {torch.float32: "", torch.bfloat16: "_bf16_state"}
    if states.dtype not in endings:
        raise TypeError(f"{operator}: {name} has the type {said(states)}: on a GPU float32 and bfloat16 are served")
    return endings[states.dtype]


def slots(operator: str, name: str, named: Tensor, count: int) -> None:
    """The values of slots without -1, which are read on a CPU and where gradients are wanted."""
    if named.numel() and (named.min() < 0 or named.max() >= count):
        raise ValueError(f"{operator}: {name} names slots outside 0 .. {count - 1}")


# --- parts of a layer -------------------------------------------------------------------------------------------


def convolution(
    operator: str, name: str, x: Tensor, weight: Tensor, bias: Tensor | None, states: Tensor, prefix: str = "conv_"
) -> None:
    """A convolution of rows of channels, its states in a pool. `prefix`: of the names of weight and bias."""
    shape(operator, name, x, (None, None), "[tokens, channels]")
    shape(operator, f"{prefix}weight", weight, (x.shape[1], None), "[channels, width]")
    shape(operator, f"{prefix}bias", bias, (x.shape[1],), "[channels]")
    told = "[slots, channels, width - 1]"
    shape(operator, "conv_states", states, (None, x.shape[1], weight.shape[1] - 1), told)


def sequences(operator: str, x: Tensor, cu_seqlens: Tensor, slots: Tensor, has_initial_state: Tensor) -> None:
    """Ragged sequences with a state each."""
    shape(operator, "slots", slots, (None,), "[N]")
    shape(operator, "cu_seqlens", cu_seqlens, (slots.shape[0] + 1,), "[N + 1]")
    shape(operator, "has_initial_state", has_initial_state, (slots.shape[0],), "[N]")
    if has_initial_state.dtype != torch.bool or has_initial_state.device != x.device:
        found = f"{said(has_initial_state)} on {has_initial_state.device}"
        raise TypeError(f"{operator}: has_initial_state is {found}: bool on {x.device} is served")


def gates(operator: str, rows: str, count: Any, a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor) -> None:
    """Raw gates of rows of heads. `rows`: the name of that axis."""
    shape(operator, "a", a, (count, None), f"[{rows}, heads]")
    shape(operator, "b", b, (count, a.shape[1]), f"[{rows}, heads]")
    for name, x in (("A_log", A_log), ("dt_bias", dt_bias)):
        shape(operator, name, x, (a.shape[1],), "[heads]")


def channels(operator: str, name: str, count: Any, values: Any, K: Any, V: Any) -> Any:
    """The number of key heads of rows that hold all query, then all key, then all value heads."""
    of_keys = count - values * V
    if K < 1 or V < 1 or of_keys < 2 * K or of_keys % (2 * K) or values % (of_keys // (2 * K)):
        raise ValueError(
            f"{operator}: {name} has {count} channels: those of {values} value heads of {V}, and of as many query as "
            f"key heads of {K} whose number divides {values}, are served"
        )
    return of_keys // (2 * K)
