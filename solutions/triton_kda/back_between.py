"""What passes between tokens of a chunk, in channels that forget: parts of dq, dk and dg, before the states' parts.

Channels that last are left to back_gradients.py, which takes quotients of decays. A slice of channels is one or the
other as a whole.
"""

import triton
import triton.language as tl
from borders import LASTING, LEVELS, row_at
from chunks import known_tokens
from products import two_terms


@triton.jit
def columns_at(x_ptr, t, d, inside, STRIDE: tl.constexpr, D: tl.constexpr):
    """Some channels of tokens t, in float32, zeros where not `inside`: [BD, ..]."""
    mask = (d < D)[:, None] & inside[None, :]
    return tl.load(x_ptr + t[None, :] * STRIDE + d[:, None], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def summed(sums, x, ones):
    """sums + x ones, of a float32 x and of 0 and 1 in `ones`, in two terms: 2^-16 of each element is lost."""
    high, low = two_terms(x)
    return tl.dot(high, ones, acc=tl.dot(low, ones, acc=sums))


@triton.jit
def inside_of_block(Q, K, g, P_ptr, B_ptr, spans_ptr, C: tl.constexpr):
    """What passes between tokens of one block. At one level a token is a later one or an earlier one. The exponents of
    its decays are sums of gates g: products, in two terms, with zeros and ones."""
    N: tl.constexpr = g.shape[1]
    high, low = two_terms(g)
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    # dP is 0 where no later token meets an earlier one: a pair's level says which of them meet.
    P, P_across, B = tl.load(P_ptr + i * C + j), tl.load(P_ptr + j * C + i), tl.load(B_ptr + i * C + j)
    dQ, dK, dg = tl.zeros(g.shape, tl.float32), tl.zeros(g.shape, tl.float32), tl.zeros(g.shape, tl.float32)
    for level in tl.range(0, LEVELS, num_stages=1):
        factor = tl.load(spans_ptr + level * (N * N) + j * N + i)
        factor = tl.exp2(tl.dot(high, factor, acc=tl.dot(low, factor)))
        Q_at, K_at = (Q * factor).to(tl.bfloat16), (K * factor).to(tl.bfloat16)
        here = (i ^ j) >> level == 1
        y = factor * tl.dot(K_at, tl.where(here, P_across, 0.0))
        z = tl.dot(Q_at, tl.where(here, P, 0.0))
        z = factor * tl.dot(K_at, tl.where(here, B, 0.0), acc=z)
        dQ += y
        dK += z
        dg = summed(dg, Q * y + K * z, tl.load(spans_ptr + level * (N * N) + i * N + j))
    return dQ, dK, dg


@triton.jit
def between_kernel(
    q_ptr, k_ptr, chunks_ptr, sums_ptr, P_ptr, B_ptr, ones_ptr, dq_part_ptr, dk_part_ptr, dg_ptr,
    HQ: tl.constexpr, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, BD: tl.constexpr, SLICE: tl.constexpr,
):  # fmt: skip
    """A program has a chunk, a value head, some channels and a block of 16 tokens: the later tokens of pairs with
    blocks before it, the earlier ones of pairs with blocks behind it, and those between which such pairs pass.

    Tiles are [BD, 16], a column a token: a product's result has the layout of the next one's left operand, and stays in
    registers. One warp has 32 channels, so nobody waits at barriers. SLICE channels last or forget together.
    """
    B: tl.constexpr = 16
    BLOCKS: tl.constexpr = C // B
    SLICES: tl.constexpr = (D + BD - 1) // BD
    block, rest = tl.program_id(0) % BLOCKS, tl.program_id(0) // BLOCKS
    part, pair = rest % SLICES, rest // SLICES
    h, slot = pair % H, (pair // H).to(tl.int64)
    first, count = known_tokens(chunks_ptr, slot)
    if block * B >= count:  # a slot that no chunk has, or a block without tokens
        return
    sums_ptr += (slot * H + h) * (C * D)
    d = part * BD + tl.arange(0, BD)
    if tl.min(row_at(sums_ptr, C - 1, part * BD // SLICE * SLICE + tl.arange(0, SLICE), D), axis=0) >= LASTING:
        return
    q_ptr += (first * HQ + h // (H // HQ)) * D
    k_ptr += (first * HQ + h // (H // HQ)) * D
    P_ptr += (slot * H + h) * (C * C)
    B_ptr += (slot * H + h) * (C * C)
    r = tl.arange(0, B)
    i, j, t = r[:, None], r[None, :], block * B + r
    row, every = t < count, t >= 0
    start, end = row_at(sums_ptr, block * B - 1, d, D)[:, None], row_at(sums_ptr, block * B + B - 1, d, D)[:, None]
    Q, K = columns_at(q_ptr, t, d, row, HQ * D, D), columns_at(k_ptr, t, d, row, HQ * D, D)
    G = columns_at(sums_ptr, t, d, every, D, D)
    g = G - columns_at(sums_ptr, t - 1, d, t > 0, D, D)

    near = block * B * (C + 1)
    dQ, dK, dg = inside_of_block(Q, K, g, P_ptr + near, B_ptr + near, ones_ptr + 2 * C * C, C)
    if block > 0:  # with tokens before: a border where the block begins
        y, z = tl.zeros([BD, B], dtype=tl.float32), tl.zeros([BD, B], dtype=tl.float32)
        for other in tl.range(0, block, num_stages=1):
            e = other * B + r
            back = tl.exp2(tl.minimum(start - columns_at(sums_ptr, e, d, e >= 0, D, D), 0.0))
            back = (columns_at(k_ptr, e, d, e >= 0, HQ * D, D) * back).to(tl.bfloat16)
            y = tl.dot(back, tl.load(P_ptr + (block * B + j) * C + other * B + i), acc=y)
            z = tl.dot(back, tl.load(B_ptr + (other * B + i) * C + block * B + j), acc=z)
        factor = tl.exp2(tl.minimum(G - start, 0.0))
        y *= factor
        z *= factor
        dQ += y
        dK += z
        dg = summed(dg, Q * y + K * z, (i >= j).to(tl.bfloat16))
    if block * B + B < count:  # with tokens behind: a border where it ends
        z, through = tl.zeros([BD, B], dtype=tl.float32), tl.zeros([BD, B], dtype=tl.float32)
        for far in tl.range(block + 1, (count + B - 1) // B, num_stages=1):
            s = far * B + r
            forth = tl.exp2(tl.minimum(columns_at(sums_ptr, s, d, s >= 0, D, D) - end, 0.0))
            Q_at = (columns_at(q_ptr, s, d, s < count, HQ * D, D) * forth).to(tl.bfloat16)
            K_at = (columns_at(k_ptr, s, d, s < count, HQ * D, D) * forth).to(tl.bfloat16)
            rows = (far * B + i) * C + j
            z = tl.dot(Q_at, tl.load(P_ptr + rows + block * B), acc=z)
            z = tl.dot(K_at, tl.load(B_ptr + rows + block * B), acc=z)
            for other in tl.range(0, block, num_stages=1):  # past the whole block
                x = tl.dot(Q_at, tl.load(P_ptr + rows + other * B))
                x = tl.dot(K_at, tl.load(B_ptr + rows + other * B), acc=x)
                e = other * B + r
                back = tl.exp2(tl.minimum(start - columns_at(sums_ptr, e, d, e >= 0, D, D), 0.0))
                through += x * (back * columns_at(k_ptr, e, d, e >= 0, HQ * D, D))
        z *= tl.exp2(tl.minimum(end - G, 0.0))
        dK += z
        dg = summed(dg, K * z, (i < j).to(tl.bfloat16))
        dg += tl.sum(through, axis=1)[:, None] * tl.exp2(tl.minimum(end - start, 0.0))

    inside = (d < D)[:, None] & row[None, :]
    at = (slot * H + h) * (C * D) + t[None, :] * D + d[:, None]
    tl.store(dq_part_ptr + at, dQ, mask=inside)
    tl.store(dk_part_ptr + at, dK, mask=inside)
    tl.store(dg_ptr + (first * H + h) * D + t[None, :] * (H * D) + d[:, None], dg, mask=inside)
