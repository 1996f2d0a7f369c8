import sys
p = sys.argv[1] + "/scan.py"
s = open(p).read()
a = s.index("    for turn in tl.range(0, segments, num_stages=STAGES):"); e = s.index("    if REVERSE:\n        tl.store(found_ptr")
s = s[:a] + '''    before = 1  # from one segment to the next, in the order of the scan
    segment = segments * 0
    if REVERSE:
        before = -1
        segment = segments - 1
    within, of_E = j[:, None] * D + i[None, :], j[:, None] * D + e[None, :]
    moves_ptr += (slot + segment) * H * (D * D) + h * (D * D)
    bounds_ptr += (slot + segment) * H * (D * D) + h * (D * D)
    diagonals_ptr += (slot + segment) * H * D + h * D
    some = segments > 0
    E = tl.load(moves_ptr + of_E, mask=inside & some, other=0.0)
    B = tl.load(bounds_ptr + within, mask=there & some, other=0.0)
    d = tl.load(diagonals_ptr + j, mask=there_are(j, D) & some, other=0.0)
    for turn in tl.range(0, segments, num_stages=1):
        # Those of the next segment come while this one is multiplied.
        more, at = turn + 1 < segments, bounds_ptr + within
        moves_ptr += before * H * (D * D)
        bounds_ptr += before * H * (D * D)
        diagonals_ptr += before * H * D
        next_E = tl.load(moves_ptr + of_E, mask=inside & more, other=0.0)
        next_B = tl.load(bounds_ptr + within, mask=there & more, other=0.0)
        next_d = tl.load(diagonals_ptr + j, mask=there_are(j, D) & more, other=0.0)
        if REVERSE:
            E = tl.trans(E)
        after = tl.dot(E, S.to(OPERAND), acc=S * d[:, None] + B, input_precision=PRECISION)
        tl.debug_barrier()  # all of B is read
        tl.store(at, S, mask=there)
        S, E, B, d = after, next_E, next_B, next_d
''' + s[e:]
open(p, "w").write(s)
p = sys.argv[1] + "/kernel.py"
s = open(p).read()
a = s.index("    scan_kernel[("); b = s.index("def gradients(x")
s = s[:a] + s[a:b].replace("launch(4, 0", "launch(8, 0").replace("\n        STAGES=ahead(2, x.q.device), SEGMENT", "\n        SEGMENT") + s[b:]
open(p, "w").write(s)
p = sys.argv[1] + "/scan.py"
s = open(p).read()
s = s.replace("BV: tl.constexpr, STAGES: tl.constexpr,\n    SEGMENT", "BV: tl.constexpr, SEGMENT")
open(p, "w").write(s)
