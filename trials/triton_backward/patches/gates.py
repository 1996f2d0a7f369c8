import sys
root = sys.argv[1]
p = root + "/gates.py"
s = open(p).read()
a = s.index("@triton.jit\ndef summed("); e = s.index("@triton.jit\ndef gradient_of_decays(")
body = '''@triton.jit
def summed(sums_ptr, at, t, C: tl.constexpr, SLICES: tl.constexpr, APART: tl.constexpr):
    """Over the slices of a (chunk, head): of a row [C] for each, so far apart."""
    found = tl.zeros([C], dtype=tl.float32)
    for part in tl.static_range(SLICES):
        found += tl.load(sums_ptr + (at * SLICES + part) * APART + t, mask=t >= 0, other=0.0)
    return found


@triton.jit
def summed_of_heads(sums_ptr, at, t, SLICES: tl.constexpr, APART: tl.constexpr):
    """The same of some heads: [C, HEADS]."""
    rows = sums_ptr + at[None, :] * (SLICES * APART) + t[:, None]
    found = tl.load(rows, mask=t[:, None] >= 0, other=0.0)
    for part in tl.static_range(1, SLICES):
        found += tl.load(rows + part * APART, mask=t[:, None] >= 0, other=0.0)
    return found


@triton.jit(do_not_specialize=["num_seqs", "total"])
def gates_kernel(
    g_ptr, cu_seqlens_ptr, decay_ptr, between_ptr, sums_ptr, of_walk_ptr, dg_ptr, dbeta_ptr, num_seqs, total,
    H: tl.constexpr, GATE: tl.constexpr, C: tl.constexpr, KEY_SLICES: tl.constexpr, VALUE_SLICES: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    """A program has a chunk and some heads: gates of a token lie side by side. It adds up what within_kernel found, and for
    each slice gradients_kernel and backward_kernel.

    of_start [C]: the gradient of gamma, by which the state at the start reaches a token. of_end [C]: that of the decay
    from a token to the end. through: that of gamma_C, by which the state at the start reaches the end.
    """
    h = tl.program_id(0) % (H // HEADS) * HEADS + tl.arange(0, HEADS)
    slot = (tl.program_id(0) // (H // HEADS)).to(tl.int64)
    first, count = tokens_of(cu_seqlens_ptr, slot, num_seqs, total, C)
    t = tl.arange(0, C)
    behind = slot * C + t  # rows behind the last sequence belong to none
    none = (behind >= start_of(cu_seqlens_ptr, num_seqs, total)) & (behind < total)
    if tl.max(none.to(tl.int32), axis=0) > 0:
        zeros, to = tl.zeros([C, HEADS], dtype=tl.float32), behind[:, None] * H + h[None, :]
        tl.store(dg_ptr + to, zeros, mask=none[:, None] & (h >= 0)[None, :])
        tl.store(dbeta_ptr + to, zeros, mask=none[:, None] & (h >= 0)[None, :])
    if count <= 0:  # a slot that no chunk has
        return
    row = (t < count)[:, None] & (h >= 0)[None, :]
    # From here on all offsets are within the chunk, and fit into 32 bits.
    g_ptr += first * H
    dg_ptr += first * H
    dbeta_ptr += first * H
    decay_ptr += slot * (H * 8 * C)
    between_ptr += slot * (H * C)
    sums_ptr += slot * (H * KEY_SLICES * (2 * C + 4))
    of_walk_ptr += slot * (H * VALUE_SLICES * C)
    to = t[:, None] * H + h[None, :]
    decay, own = decay_ptr + h[None, :] * (8 * C) + t[:, None], h[None, :] * C + t[:, None]
    through = tl.zeros([HEADS], dtype=tl.float32)
    for part in tl.static_range(KEY_SLICES):
        through += tl.load(sums_ptr + (h * KEY_SLICES + part) * (2 * C + 4) + 2 * C)
    of_start = tl.load(decay) * summed_of_heads(sums_ptr, h, t, KEY_SLICES, 2 * C + 4)
    of_end = summed_of_heads(sums_ptr + C, h, t - 1, KEY_SLICES, 2 * C + 4)  # of the token before
    of_end *= tl.load(decay + 2 * C - 1, mask=(t > 0)[:, None], other=0.0)
    dg = tl.load(between_ptr + own) + (tl.load(decay_ptr + h * (8 * C) + C - 1) * through)[None, :]
    dg += tl.cumsum(of_start, axis=0, reverse=True) + tl.cumsum(of_end, axis=0)
    if GATE == "linear":
        alpha, _ = steep_gates(g_ptr, to, row, GATE, C)
        dg /= alpha
    tl.store(dg_ptr + to, dg, mask=row)
    of_beta = summed_of_heads(of_walk_ptr, h, t, VALUE_SLICES, C) * tl.load(decay + 6 * C)  # they have the factor b
    tl.store(dbeta_ptr + to, of_beta, mask=row)


'''
s = s[:a] + body + s[e:]
open(p, "w").write(s)
p = root + "/kernel.py"
s = open(p).read()
a = '''    of_gates = {"H": H, "C": CHUNK, "KEY_SLICES": x.size.key_slices}
    gates_kernel[(slots * H,)]('''
assert a in s
s = s.replace(a, '''    heads = min(GATE_HEADS, H & -H)  # a power of two that divides H
    of_gates = {"H": H, "C": CHUNK, "KEY_SLICES": x.size.key_slices, "HEADS": heads}
    gates_kernel[(slots * (H // heads),)](''')
s = s.replace('''        heads = min(4, H & -H)  # a power of two that divides H
''', "").replace("BD=STEEP_CHANNELS, HEADS=heads,", "BD=STEEP_CHANNELS,").replace("    EARLY,\n", "    EARLY,\n    GATE_HEADS,\n")
open(p, "w").write(s)
p = root + "/cut.py"
s = open(p).read()
s = s.replace("STEEP_CHANNELS = 64", "GATE_HEADS = 4  # of a program of gates_kernel and steep_kernel\nSTEEP_CHANNELS = 64")
open(p, "w").write(s)
