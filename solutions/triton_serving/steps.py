"""The gated delta rule for one token, on the part of a state that a program holds: [BV, BK] in registers.

Arithmetic is float32. Which product of a sum is rounded is written out, so that a channel's result does not depend on
where it lies.
"""

import os

import triton
import triton.language as tl

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def blocking(size: int) -> tuple[int, int]:
    """(value channels of a program, warps) for heads of this size: a warp holds about 4 KiB of a state."""
    padded = triton.next_power_of_2(size)
    if INTERPRETED:
        return padded, 1  # it charges by the program
    return max(1, min(padded, 4096 // padded)), 4 if padded >= 64 else 1


@triton.jit
def softplus(x):
    # max(x, 0) + log1p(y), y = exp(-|x|). There is no log1p here, and log(1 + y) loses a small y; it is
    # 2 atanh(y / (2 + y)), whose argument is at most 1/3: eight terms give float32.
    y = tl.exp(-tl.abs(x))
    s = y / (2.0 + y)
    s2 = s * s
    series = 1.0 / 13.0 + s2 * (1.0 / 15.0)
    series = 1.0 / 9.0 + s2 * (1.0 / 11.0 + s2 * series)
    series = 1.0 / 5.0 + s2 * (1.0 / 7.0 + s2 * series)
    return tl.maximum(x, 0.0) + 2.0 * s * (1.0 + s2 * (1.0 / 3.0 + s2 * series))


@triton.jit
def raw_gates(a, dt_bias, A_log, b):
    """(alpha, beta) of one token and head."""
    alpha = tl.exp(-tl.exp(A_log) * softplus(a + dt_bias))
    return alpha, 1.0 / (1.0 + tl.exp(-b))


@triton.jit
def normalised(x):
    return x * (1.0 / tl.sqrt(tl.sum(x * x, axis=0) + 1e-6))


@triton.jit
def step(S, q, k, v, alpha, beta):
    """S [BV, BK], q, k [BK], v [BV]. Returns S q, after the write, and S."""
    S = alpha * S
    u = beta * (v - tl.sum(S * k[None, :], axis=1))  # the error, of the decayed state
    S = tl.fma(tl.broadcast_to(u[:, None], S.shape), tl.broadcast_to(k[None, :], S.shape), S)
    return tl.sum(S * q[None, :], axis=1), S
