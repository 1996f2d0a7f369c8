"""Gated Delta Net on states that are kept as codes, with one scale for each value row.

A row of a state S [V, K] is kept as K codes and one scale: S[i, j] is about scale[i] code[i, j]. A step reads it so,
computes as gated_delta_net.py does, and quantises the new state where it is stored, and only there. Every write renews
the scale.

As there, arithmetic is done in the widest float type among the inputs. Codes and scales that are given in float64 come
back in float64: this is the oracle, whose codes are exact and whose scales are not rounded.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .gated_delta_net import arithmetic_type, decode_k_last

LARGEST_E4M3, LARGEST_INT8 = 448.0, 127.0  # -128 is no code: negated, it would have none
LEAST = 2.0**-100  # a row of smaller numbers is kept as zeros: its scale would come near the end of float32's range


# --- codes ------------------------------------------------------------------------------------------------------


def to_e4m3(x: Tensor) -> Tensor:
    """The nearest number of e4m3, ties to even; beyond 448, 448. Eight numbers in each power of two from 2^-6 on."""
    exponent = (torch.frexp(x)[1] - 1).clamp(min=-6)
    spacing = torch.exp2((exponent - 3).to(x.dtype))
    return (torch.round(x / spacing) * spacing).clamp(-LARGEST_E4M3, LARGEST_E4M3)


def to_int8(x: Tensor) -> Tensor:
    """The nearest whole number, ties to even; beyond 127, 127."""
    return torch.round(x).clamp(-LARGEST_INT8, LARGEST_INT8)


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    """codes [.., V, K], scales [.., V] -> S [.., V, K]."""
    return scales[..., None] * codes


def quantise(S: Tensor, largest: float, to_code: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """S [.., V, K] -> codes [.., V, K], scales [.., V]. A scale is the row's largest magnitude over the largest code; a
    row of zeros has scale 0, and codes 0."""
    magnitude = S.abs().amax(dim=-1)
    scales = torch.where(magnitude < LEAST, 0.0, magnitude / largest)
    codes = to_code(S / torch.where(scales == 0, 1.0, scales)[..., None])
    return torch.where(scales[..., None] == 0, 0.0, codes), scales


# --- decode from a pool of quantised states ---------------------------------------------------------------------


def decode_pool_k_last_fp8_state(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    pool_scales: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    use_qk_l2norm: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """`decode_pool_k_last` on codes of e4m3: pool [num_slots, num_sab_heads, V, K], pool_scales [num_slots,
    num_sab_heads, V]. The output is read from the new state before it is quantised. Returns output, and codes and
    scales afterwards; those given stay as they were."""
    return _decode_pool(
        q, k, v, pool, pool_scales, read_slots, write_slots, A_log, a, dt_bias, b, scale, use_qk_l2norm,
        LARGEST_E4M3, to_e4m3,
    )  # fmt: skip


def decode_pool_k_last_int8_state(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    pool_scales: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    use_qk_l2norm: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """`decode_pool_k_last_fp8_state` with whole numbers from -127 to 127 as codes."""
    return _decode_pool(
        q, k, v, pool, pool_scales, read_slots, write_slots, A_log, a, dt_bias, b, scale, use_qk_l2norm,
        LARGEST_INT8, to_int8,
    )  # fmt: skip


def _decode_pool(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    pool_scales: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    use_qk_l2norm: bool,
    largest: float,
    to_code: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = arithmetic_type(q, pool_scales)
    output, codes, scales = torch.zeros_like(v), pool.clone(), pool_scales.clone()
    rows = (read_slots >= 0).nonzero()[:, 0]
    read, written = read_slots[rows].long(), write_slots[rows].long()
    S = dequantise(pool[read].to(dtype), pool_scales[read].to(dtype))
    o, S = decode_k_last(q[rows], k[rows], v[rows], S, A_log, a[rows], dt_bias, b[rows], scale, use_qk_l2norm)
    new_codes, new_scales = quantise(S, largest, to_code)
    output[rows], codes[written], scales[written] = o, new_codes.to(codes.dtype), new_scales.to(scales.dtype)
    return output, codes, scales


# --- verify -----------------------------------------------------------------------------------------------------


def verify_k_last_fp8_state(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    pool_scales: Tensor,
    initial_slots: Tensor,
    state_slots: Tensor,
    accepted: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    use_qk_l2norm: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """`verify_k_last` on codes of e4m3. The state after each token is quantised into its slot; the next token of the
    call goes on from the state itself. Returns output, and codes and scales afterwards."""
    return _verify(
        q, k, v, pool, pool_scales, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, scale, use_qk_l2norm,
        LARGEST_E4M3, to_e4m3,
    )  # fmt: skip


def verify_k_last_int8_state(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    pool_scales: Tensor,
    initial_slots: Tensor,
    state_slots: Tensor,
    accepted: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    use_qk_l2norm: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """`verify_k_last_fp8_state` with whole numbers from -127 to 127 as codes."""
    return _verify(
        q, k, v, pool, pool_scales, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, scale, use_qk_l2norm,
        LARGEST_INT8, to_int8,
    )  # fmt: skip


def _verify(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    pool_scales: Tensor,
    initial_slots: Tensor,
    state_slots: Tensor,
    accepted: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None,
    use_qk_l2norm: bool,
    largest: float,
    to_code: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = arithmetic_type(q, pool_scales)
    output, codes, scales = torch.zeros_like(v), pool.clone(), pool_scales.clone()
    last = state_slots.gather(1, (accepted.long() - 1).clamp(min=0)[:, None])[:, 0]
    start = torch.where(accepted > 0, last, initial_slots)
    rows = (initial_slots >= 0).nonzero()[:, 0]
    read = start[rows].long()
    S = dequantise(pool[read].to(dtype), pool_scales[read].to(dtype))
    for t in range(q.shape[1]):
        one = slice(t, t + 1)
        o, S = decode_k_last(
            q[rows, one], k[rows, one], v[rows, one], S, A_log, a[rows, one], dt_bias, b[rows, one], scale,
            use_qk_l2norm,
        )  # fmt: skip
        new_codes, new_scales = quantise(S, largest, to_code)
        written = state_slots[rows, t].long()
        output[rows, one], codes[written], scales[written] = o, new_codes.to(codes.dtype), new_scales.to(scales.dtype)
    return output, codes, scales
