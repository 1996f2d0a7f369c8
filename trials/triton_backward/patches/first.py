import sys
p = sys.argv[1] + "/prepare.py"
s = open(p).read()
a = s.index("    QK = scores_of(")
s = s[:a] + '''    # One inverse does for both walks: x = M^T X for M = (I + diag(b) N)^-1, and diag(b) M^T = E^T diag(b).
    # E = (I + N diag(b))^-1 for N = strict_lower(Gamma * K K^T). `unit_lower_inverse` never looks at the rest of N.
    KK = scores_of(k_ptr, k_ptr, t, row, HK, HK, D, OPERAND, PRECISION, C, BK)
    if LOST:
        store_lost(lost_ptr + (slot * H + h) * C, KK, beta, fall + resets, t, C)
    E = unit_lower_inverse(KK * decays_between(KK, fall, resets) * b[None, :], C, TERMS, PRECISION)
    tl.store(inverse_ptr + places, E.to(OPERAND), mask=below)

    # After the inverse: so fewer registers are taken at once.
    QK = scores_of(q_ptr, k_ptr, t, row, HQ, HK, D, OPERAND, PRECISION, C, BK)
    P = QK * decays_between(QK, fall, resets)
    P = scaled(P, scale, norm_ptr, first * HQ + h // (H // HQ) + t * HQ, row, NORMED) * b[None, :]
    tl.store(P_ptr + places, tl.where(t[:, None] >= t[None, :], P, 0.0).to(OPERAND), mask=below)
'''
open(p, "w").write(s)
