"""Builds, compares bits, and prints the table; run by run.sh in the root of the tree.

python bits.py build NAME     tree, before, chains: as decode_rows.py loads them; judge: as gdnspec check does; copy
python bits.py bits           on a GPU; with H39_STUB=1 a rule in torch takes the place of all versions, on a CPU
python bits.py table FILE
"""

import json
import math
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path

ROOT = Path.cwd()
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]
BUILD, VARIANTS = Path(os.environ.get("H39_BUILD", "/tmp/h39b_build")), Path(os.environ.get("H39_VARIANTS", "."))
STUB = os.environ.get("H39_STUB") == "1"
DEVICE = "cpu" if STUB else "cuda"


def named(version):
    """As decode_rows.py names it."""
    return "cuda_decode" if version == "tree" else str(VARIANTS / version / "cuda_decode")


def entry(version, name):
    from gdnspec.build.loader import load_function
    from prefill_rows import folder_of
    from prefill_shapes import build_of

    if STUB:
        return partial(stub, name)
    folder = folder_of(named(version), "solutions" if version == "tree" else "peers")
    return load_function(folder, f"kernel.cu::gdn_{name}", build_dir=build_of(BUILD, folder, named(version)))


def build(name):
    begun = time.time()
    from gdnspec import paths
    from gdnspec.build.loader import load_function
    from gdnspec.catalog.solutions import load_variant

    if name == "copy":
        load_function(ROOT / "benchmarks/floor", "kernel.cu::pool", build_dir=BUILD / "floor")
    elif name == "judge":
        folder = ROOT / "solutions/cuda_decode"
        load_function(folder, "kernel.cu::gdn_decode_k_last", build_dir=paths.build_cache(load_variant(folder, None).source_hash))
    else:
        entry(name, "decode_k_last")
    print(f"build {name}: {time.time() - begun:.0f} s")


# --- bits ---------------------------------------------------------------------------------------------------------------


def rule(q, k, v, S, A_log, a, dt_bias, b, scale=None):
    """Output and new state, a row at a time so that bits do not depend on the batch; for the stub and the reference."""
    import torch

    q, k, v, S = (x.double() for x in (q[:, 0], k[:, 0], v[:, 0], S))
    q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    group = v.shape[1] // q.shape[1]
    q, k = (x.repeat_interleave(group, 1) for x in (q, k))
    alpha = (-A_log.double().exp() * torch.nn.functional.softplus(a[:, 0].double() + dt_bias.double())).exp()
    S = S * alpha[..., None, None]
    u = torch.sigmoid(b[:, 0].double())[..., None] * (v - (S * k[:, :, None]).sum(-1))
    S = S + u[..., None] * k[:, :, None]
    return q.shape[-1] ** -0.5 * (S * q[:, :, None]).sum(-1), S


def stub(name, *given):
    if name == "decode_pool_k_last":
        q, k, v, pool, read, write, A_log, a, dt_bias, b, _, _, output = given
        live = [n for n in range(len(read)) if 0 <= read[n] < len(pool) and 0 <= write[n] < len(pool)]
        output.zero_()
        o, S = rule(q[live], k[live], v[live], pool[read[live].long()], A_log, a[live], dt_bias, b[live])
        output[live, 0] = o.to(output.dtype)
        pool[write[live].long()] = S.to(pool.dtype)
    elif name == "verify_k_last":
        q, k, v, pool, read, write, _, A_log, a, dt_bias, b, _, _, output = given
        S = pool[read.long()]
        for t in range(q.shape[1]):
            o, S = rule(*(x[:, t : t + 1] for x in (q, k, v)), S, A_log, a[:, t : t + 1], dt_bias, b[:, t : t + 1])
            S = S.to(pool.dtype)
            output[:, t] = o.to(output.dtype)
            pool[write[:, t].long()] = S
    else:
        q, k, v, S, A_log, a, dt_bias, b, _, _, output, new = given
        o, n = rule(q, k, v, S if "last" in name else S.mT, A_log, a, dt_bias, b)
        output[:, 0], new[:] = o.to(output.dtype), (n if "last" in name else n.mT).to(new.dtype)


def drawn(rows, hk, h, D, bf16, tokens=1, seed=1):
    import torch

    draw = torch.Generator(DEVICE).manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, device=DEVICE, generator=draw)  # noqa: E731
    x = {name: normal(rows, tokens, n, D).bfloat16() for name, n in (("q", hk), ("k", hk), ("v", h))}
    x["S"] = normal(rows, h, D, D).to(torch.bfloat16 if bf16 else torch.float32)
    x |= {"A_log": normal(h), "a": normal(rows, tokens, h).bfloat16(), "dt_bias": normal(h).bfloat16(), "b": normal(rows, tokens, h).bfloat16()}
    return x


def part(x, rows):
    """Some rows, in memory of their own."""
    return {name: y if name in ("A_log", "dt_bias") else y[rows].clone() for name, y in x.items()}


def dense(call, x):
    import torch

    output, new = torch.full_like(x["v"], math.nan), torch.full_like(x["S"], math.nan)
    call(*(x[n] for n in ("q", "k", "v", "S", "A_log", "a", "dt_bias", "b")), None, None, output, new)
    return output, new


def pooled(call, x, seed=3, skip=()):
    """In slots in random order, some moved. Rows in `skip` have a slot that is none. Also whether other slots stayed."""
    import torch

    rows, draw = len(x["S"]), torch.Generator().manual_seed(seed)
    order = torch.randperm(2 * rows + 2, generator=draw).to(DEVICE)
    read = order[:rows]
    write = torch.where(torch.arange(rows, device=DEVICE) % 2 == 0, read, order[rows : 2 * rows])
    pool = torch.full((2 * rows + 2, *x["S"].shape[1:]), 7.0, device=DEVICE, dtype=x["S"].dtype)
    pool[read] = x["S"]
    before, output = pool.clone(), torch.full_like(x["v"], math.nan)
    given, to = read.to(torch.int32), write.to(torch.int32)
    for n, row in enumerate(skip):
        (given if n % 2 else to)[row] = (-1, len(pool), -1, 2**31 - 1)[n % 4]
    call(*(x[n] for n in ("q", "k", "v")), pool, given, to, *(x[n] for n in ("A_log", "a", "dt_bias", "b")), None, None, output)
    live = [row for row in range(rows) if row not in set(skip)]
    others = torch.ones(len(pool), dtype=torch.bool, device=DEVICE)
    others[write[live]] = False
    kept = torch.equal(pool[others], before[others]) and not bool(output[list(skip)].any())
    return (output[live], pool[write[live]]), kept


def same(x, y):
    import torch

    return all(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)) for a, b in zip(x, y, strict=True))


def apart(x, y):
    """The largest relative difference of a row's output and of its state."""
    return [max(float(((a.double() - b.double()).flatten(1).norm(dim=1) / b.double().flatten(1).norm(dim=1)).max()), 0.0) for a, b in zip(x, y, strict=True)]


def near(x, y):
    return "same bits" if same(x, y) else "{:.1e} of output, {:.1e} of state".format(*apart(x, y))


def compare():
    failed = 0

    def say(text, good=True):
        nonlocal failed
        failed += not good
        print(("      " if good else "WRONG ") + text, flush=True)

    hk, h = (2, 4) if STUB else (16, 32)
    most = 6 if STUB else 72  # rows: 2,304 pairs
    sizes = [n for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 32, 33, 64, 72) if n <= most]
    for bf16 in (False, True):
        kind = "bfloat16" if bf16 else "float32"
        x = drawn(most, hk, h, 128, bf16)
        now = {n: entry("tree", n) for n in ("decode_k_last", "decode_pool_k_last", "decode_k_first")}
        old = {n: entry("before", n) for n in now}
        wanted = rule(x["q"], x["k"], x["v"], x["S"], x["A_log"], x["a"], x["dt_bias"], x["b"])
        whole = dense(now["decode_k_last"], x)
        error = apart((whole[0][:, 0], whole[1]), wanted)
        say(f"{kind} dense, {most} rows beside the rule: {error[0]:.1e}, {error[1]:.1e}", error[0] < 4e-3 and error[1] < (4e-3 if bf16 else 1e-6))
        other = []
        for n in sizes:
            for start in {0, most - n}:
                rows = slice(start, start + n)
                own = part(x, rows)
                wants = tuple(y[rows] for y in whole)
                if not same(dense(now["decode_k_last"], own), wants):
                    other.append(f"dense {n}")
                found, kept = pooled(now["decode_pool_k_last"], own)
                if not same(found, wants) or not kept:
                    other.append(f"pool {n}" + ("" if kept else " (slots)"))
        say(f"{kind}: dense and in a pool, batches {sizes} of the same rows: {other or 'same bits'}", not other)
        skip = tuple(range(0, most, 7))
        found, kept = pooled(now["decode_pool_k_last"], x, skip=skip)
        live = [row for row in range(most) if row not in skip]
        good = kept and same(found, tuple(y[live] for y in whole))
        say(f"{kind}: {len(skip)} of {most} rows skipped: {'as they should be' if good else 'NOT'}", good)
        again = all(same(dense(now["decode_k_last"], x), whole) and same(pooled(now["decode_pool_k_last"], x)[0], whole) for _ in range(20))
        say(f"{kind}: 20 repeats, dense and in a pool: {'same bits' if again else 'OTHER BITS'}", again)
        for n in [n for n in (2, 8, 16, most) if n <= most]:
            own, wants = part(x, slice(0, n)), tuple(y[:n] for y in whole)
            before, _ = pooled(old["decode_pool_k_last"], own)
            dense_before = dense(old["decode_k_last"], own)
            good = all(max(apart(wants, y)) < (1e-2 if bf16 else 5e-3) for y in (before, dense_before))
            say(f"{kind}, {n} rows, now beside before: dense {near(wants, dense_before)}; pool {near(wants, before)}", good)
        mine, theirs = (dense(c["decode_k_first"], x) for c in (now, old))
        say(f"{kind} k_first now beside before: {near(mine, theirs)}", same(mine, theirs))
        for D in (64, 256):
            y = drawn(3 if STUB else 40, hk, h, D, bf16)
            mine, theirs = (dense(c["decode_k_last"], y) for c in (now, old))
            (a, _), (b, _) = (pooled(c["decode_pool_k_last"], y) for c in (now, old))
            good = all(max(apart(p, r)) < (1e-2 if bf16 else 5e-3) for p, r in ((mine, theirs), (a, b)))
            say(f"{kind} head size {D}, now beside before: dense {near(mine, theirs)}; pool {near(a, b)}", good)
    verify_against_steps(say, hk, h)
    print(f"{failed} wrong")
    return failed


def verify_against_steps(say, hk, h):
    """Tokens to verify beside as many calls of decode."""
    import torch

    rows, T = (3, 3) if STUB else (40, 4)
    x = drawn(rows, hk, h, 128, False, tokens=T)
    slots = torch.arange(rows * (T + 1), device=DEVICE, dtype=torch.int32).view(rows, T + 1)
    pool = torch.zeros(rows * (T + 1), *x["S"].shape[1:], device=DEVICE)
    pool[slots[:, 0].long()] = x["S"]
    output, accepted = torch.full_like(x["v"], math.nan), torch.zeros(rows, device=DEVICE, dtype=torch.int32)
    tokens, gates = (tuple(x[n] for n in names) for names in (("q", "k", "v"), ("A_log", "a", "dt_bias", "b")))
    write = slots[:, 1:].contiguous()
    entry("tree", "verify_k_last")(*tokens, pool, slots[:, 0].contiguous(), write, accepted, *gates, None, None, output)
    step, state, found = entry("tree", "decode_k_last"), x["S"], []
    for t in range(T):
        at = {n: x[n][:, t : t + 1].contiguous() for n in ("q", "k", "v", "a", "b")}
        out, state = dense(step, {**x, **at, "S": state})
        found.append((out[:, 0], state))
    alike = [same((output[:, t], pool[write[:, t].long()]), found[t]) for t in range(T)]
    good = all(max(apart((output[:, t], pool[write[:, t].long()]), found[t])) < 5e-3 for t in range(T))
    say(f"float32 verify, {T} tokens, beside calls of decode: same bits {alike}", good)  # bits are promised of decode alone


# --- table --------------------------------------------------------------------------------------------------------------

CLASSES = ((0, 131), (132, 264), (265, 528), (529, 1023), (1024, 2047), (2048, 8447), (8448, 10**9))


def mean(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def table(file):
    from decode_shapes import Row, allowed

    records = []
    for text in Path(file).read_text().splitlines():
        try:
            records.append(json.loads(text))
        except ValueError:
            print("a line was cut off")
    if not records:
        raise SystemExit("no rows")
    print(records[0]["device"], len(records), "rows; FI / it: FlashInfer's time over this version's, mean (least); beside before: mean (worst)")
    said = []
    for pool, bf16 in ((True, False), (True, True), (False, False), (False, True)):
        kind = f"{'pool' if pool else 'dense'} {'bfloat16' if bf16 else 'float32'}"
        own = [x | {"pairs": x["batch"] * x["heads"][1]} for x in records if (x["pool"], x["bf16"]) == (pool, bf16)]
        if not own:
            continue
        print(f"{kind:15} {'pairs':>11} {'rows':>5} {'/ copy':>7} {'late':>5} {'FI / it':>15}  {'beside before':>15}  {'beside chains':>15}")
        for low, high in CLASSES:
            rows = [x for x in own if low <= x["pairs"] <= high]
            if not rows:
                continue
            late = sum(x["us"] > allowed(row_of(x), x["copy"], 132) for x in rows)
            cells = []
            for part_of_name, mine_below in (("flashinfer", False), ("/before/", True), ("/chains/", True)):
                found = [(us, x["us"]) for x in rows for name, us in x["peers"].items() if part_of_name in name]
                ratios = [mine / us if mine_below else us / mine for us, mine in found]
                cells.append(f"{mean(ratios):.4f} ({(max if mine_below else min)(ratios):.3f})" if ratios else "-")
            span = f"{low}..{high}" if high < 10**9 else f"{low}.."
            print(f"{'':15} {span:>11} {len(rows):5} {mean([x['us'] / x['copy'] for x in rows]):7.3f} {late:5} {cells[0]:>15}  {cells[1]:>15}  {cells[2]:>15}")
        top = [x for x in own if x["pairs"] >= 8448]
        slower = [(x["peers"]["flashinfer"] / x["us"], f"{x['heads'][0]}/{x['heads'][1]} {x['batch']}") for x in own if "flashinfer" in x["peers"]]
        text = f"{kind}: {sum(x['us'] > allowed(row_of(x), x['copy'], 132) for x in own)} of {len(own)} rows past the target"
        if top:
            text += f"; {100 * mean([x['copy'] / x['us'] for x in top]):.2f}% of the copy from 8,448 pairs on"
        if slower:
            text += f"; FlashInfer / it at least {min(slower)[0]:.4f} ({min(slower)[1]}), below 1 on {sum(r < 1 for r, _ in slower)}, below 0.99 on {sum(r < 0.99 for r, _ in slower)}"
        said.append(text)
    print(*said, sep="\n")


def row_of(x):
    from decode_shapes import Row

    return Row(tuple(x["heads"]), x["batch"], x["pool"], x["bf16"])


if __name__ == "__main__":
    if sys.argv[1] == "build":
        build(sys.argv[2])
    elif sys.argv[1] == "table":
        table(sys.argv[2])
    else:
        sys.exit(1 if compare() else 0)
