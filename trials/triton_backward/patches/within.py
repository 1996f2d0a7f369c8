import sys
p = sys.argv[1] + "/within.py"
s = open(p).read()
a = s.index("@triton.jit\ndef small_write_gates("); e = s.index('@triton.jit(do_not_specialize')
s = s[:a] + '''@triton.jit
def small_write_gates(dv_ptr, decay_ptr, t, row, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr):
    """P and dV have the factor b so far (prepare.py), which is never 0. Where that is not beta, beta takes its place,
    before gradients_kernel reads dV. Returned is the factor for that."""
    beta = tl.load(decay_ptr + 3 * C + t)
    other = row & (tl.abs(beta) < LEAST)
    ratio = tl.where(other, beta * tl.load(decay_ptr + 6 * C + t), 1.0)
    if tl.max(other.to(tl.int32), axis=0) > 0:
        for d_first in tl.range(0, D, 16, num_stages=1):  # few at a time: it is seldom done, and takes registers
            d = d_first + tl.arange(0, 16)
            dV = channels_of(dv_ptr, t, d, row, H, D).to(tl.float32) * ratio[:, None]
            tl.debug_barrier()  # all of it is read
            store_channels(dv_ptr, dV, t, d, row & other, H, D)
    return beta, ratio


@triton.jit
def of_scores_and_keys(
    k_ptr, do_ptr, r_ptr, dv_ptr, decay_ptr, of_keys_ptr, of_scores_ptr, of_beta_ptr, scale, norm_ptr, norm_at, t, row,
    NORMED: tl.constexpr, HK: tl.constexpr, H: tl.constexpr, D: tl.constexpr, OPERAND: tl.constexpr,
    PRECISION: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, OF_BETA: tl.constexpr,
):  # fmt: skip
    """Of one head: the gradients of Q K^T and of K K^T [C, C] take the places of P and of the inverse. Returned is what
    is between two tokens: of decays in P and in A, Gamma times its gradient."""
    places, below = triangle(t, C)

    # dA = -strict_lower(dV U^T) and dP = G U^T, U = diag(beta) r: the right operand is r, the factor comes afterwards.
    # One after the other, so that fewer tiles are in registers.
    KK = scores_of(k_ptr, k_ptr, t, row, HK, HK, D, OPERAND, PRECISION, C, BD)
    dA = scores_of(dv_ptr, r_ptr, t, row, H, H, D, OPERAND, PRECISION, C, BD)
    if OF_BETA:  # the sum of b x . r (gates.py)
        tl.store(of_beta_ptr + t, tl.sum(tl.where(t[:, None] == t[None, :], dA, 0.0), axis=1))
    beta, ratio = small_write_gates(dv_ptr, decay_ptr, t, row, H, D, C)
    fall, resets = tl.load(decay_ptr + 4 * C + t), tl.load(decay_ptr + 5 * C + t)
    # A has a factor beta, which is in dV: so dA is symmetric in what it does to keys.
    dA *= ratio[:, None] * -beta[None, :] * decays_between(dA, fall, resets)
    dA = tl.where(t[:, None] > t[None, :], dA, 0.0)
    tl.store(of_keys_ptr + places, dA.to(OPERAND), mask=below)
    between = dA * KK

    dP = scores_of(do_ptr, r_ptr, t, row, H, H, D, OPERAND, PRECISION, C, BD)
    P = tl.load(of_scores_ptr + places, mask=below, other=0.0).to(tl.float32)
    between += tl.where(t[:, None] >= t[None, :], P * dP * ratio[None, :], 0.0)
    dP = scaled(dP * beta[None, :] * decays_between(dP, fall, resets), scale, norm_ptr, norm_at, row, NORMED)
    tl.debug_barrier()  # all of P is read
    tl.store(of_scores_ptr + places, tl.where(t[:, None] >= t[None, :], dP, 0.0).to(OPERAND), mask=below)
    return between


''' + s[e:]
s = s.replace("    between, dA = of_scores_and_keys(\n        do_ptr + tokens", "    between = of_scores_and_keys(\n        k_ptr, do_ptr + tokens")
s = s.replace("t, row, NORMED, H, D, OPERAND", "t, row, NORMED, HK, H, D, OPERAND")
s = s.replace("    between += dA * scores_of(k_ptr, k_ptr, t, row, HK, HK, D, OPERAND, PRECISION, C, BD)\n", "")
open(p, "w").write(s)
p = sys.argv[1] + "/cut.py"
s = open(p).read()
assert "(4, 168, B), (4, 0, 64, 64, 3))" in s
s = s.replace("(4, 168, B), (4, 0, 64, 64, 3))", sys.argv[2] + ", (4, 0, 64, 64, 3))")
open(p, "w").write(s)
