"""Called by run.sh in the root of a copy of the tree.

    python hb2.py build NAME              a folder here, or prefill
    python hb2.py once HEADS              triton_backward on each row of these heads: Triton compiles
    python hb2.py bits                    gradients of all versions, bit by bit, beside v12
    python hb2.py measure STAGE STAGE ..  rows, typical, training, triton; in one process
    python hb2.py mine                    all versions in turns, 72 rows, without FlashQLA; GATES=decay,typical
    python hb2.py again                   a few rows many times, in other orders
    python hb2.py table
"""
import argparse, json, math, os, statistics, sys, time, traceback, warnings
from pathlib import Path

HERE, ROOT = Path(__file__).resolve().parent, Path.cwd()
OUT = Path(os.environ.get("OUT", "/tmp/out")) / "hb2"
BUILD = Path(os.environ.get("HB2_BUILD", "/tmp/hb2build"))
BEST = os.environ.get("V", "all")  # timed first, and trained with
ROWS = os.environ.get("ROWS", "long,short 64x128,short 256x128,short 100x300,short 48x512")
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]
warnings.simplefilter("ignore")


def path(version):
    return str(HERE / version / "hopper_backward")


def versions():
    asked = os.environ.get("VERSIONS", "v12 tree no_spare no_next_wave next_first next_late decays tokens onward even all").split()
    there = [v for v in asked if (HERE / v).is_dir()]
    return sorted(there, key=lambda v: v != BEST)


def solutions(b):
    """Those that build."""
    found = []
    for v in versions():
        try:
            found.append(solution(b, v))
        except Exception as error:
            print(f"Error: {v} does not load: {error!r}"[:600], flush=True)
    return found


def solution(b, version):
    found = b.Solution(path(version), BUILD)
    found.name = version
    return found


def build(name):
    import backward_rows as b, prefill_rows as p
    begin = time.time()
    if name == "prefill":
        p.Subject("hopper_prefill", p.folder_of("hopper_prefill", "solutions"), BUILD)
    else:
        solution(b, name)
    print(f"{name}: built in {time.time() - begin:.0f} s", flush=True)


def rows_of(text):
    from prefill_shapes import chosen
    return chosen(text)


def once(heads):
    import torch, backward_rows as b
    subject = b.Solution("triton_backward", BUILD)
    for row in rows_of(ROWS):
        if row.name.split()[0] == heads:
            try:
                subject.bound(b.inputs(row, "decay", 0.1))()
                torch.cuda.synchronize()
            except Exception as error:
                print(row.name, repr(error)[:200])
            torch.cuda.empty_cache()


def bits():
    import torch, backward_rows as b
    from prefill_shapes import Row
    subjects = {x.name: x for x in solutions(b)}
    names = list(subjects)
    shapes = {"1": (1,), "64": (64,), "65": (65,), "0,130,0,64": (0, 130, 0, 64), "1000,3": (1000, 3), "1x4033": (4033,),
              "3x700": (700,) * 3, "17x90": (90,) * 17, "2x2500": (2500,) * 2}
    asked = [r for r in rows_of(ROWS) if "32768" not in r.name or r.heads in ((2, 8), (4, 16), (16, 32))]
    asked += [Row(f"{hk}/{h} {n}", (hk, h), x, "odd") for hk, h in ((1, 1), (2, 8), (1, 12), (7, 28), (4, 16), (8, 32), (22, 44), (16, 48)) for n, x in shapes.items()]
    # Query heads that share keys and values: dv is a sum by a kernel of its own.
    asked += [Row(f"gqa {hk}/{h} {n}", (hk, h), x, "gqa") for hk, h in ((8, 32), (16, 32), (4, 16), (2, 40)) for n, x in
              {"1x1024": (1024,), "1x2048": (2048,), "1x5000": (5000,), "3x700": (700,) * 3, "9x1100": (1100,) * 9}.items()]
    asked += [Row(f"{hk}/{h} {n}", (hk, h), x, "even") for hk, h in ((8, 32), (16, 48)) for n, x in
              {"8x1000": (1000,) * 8, "8x1000, one less": (1000,) * 7 + (900,), "9x500": (500,) * 9, "64x300": (300,) * 64, "65x300": (300,) * 65}.items()]
    wrong = dict.fromkeys(names, 0)

    def given_of(row, gates):
        given = b.inputs(row, gates, 0.1)
        if row.group != "gqa":
            return given
        hk, h = row.heads
        return given | {"q": torch.nn.functional.normalize(given["v"].float(), dim=-1).bfloat16(), "v": given["v"][:, :hk].contiguous()}

    for row in asked:
        for gates in ("decay", "typical"):
            try:
                torch.manual_seed(7)
                given = given_of(row, gates)
                found = {v: {k: x.clone() for k, x in subjects[v].bound(given)().items()} for v in names for _ in range(2)}
                again = {v: subjects[v].bound(given)() for v in names}
                torch.cuda.synchronize()
                for v in names:
                    for k, x in found["v12"].items():
                        as_int = torch.int16 if x.dtype == torch.bfloat16 else torch.int32
                        for one in (found[v][k], again[v][k]):
                            if not torch.equal(x.view(as_int), one.view(as_int)):
                                wrong[v] += 1
                                apart = float((one.float() - x.float()).norm() / x.float().norm().clamp(min=1e-30))
                                print(f"{v} {row.name} {gates} {k}: other bits, {apart:.2e} apart", flush=True)
            except Exception as error:
                print(f"{row.name} {gates}: {error!r}"[:300], flush=True)
                if "CUDA" in repr(error) and "memory" not in repr(error):
                    raise
        torch.cuda.empty_cache()
    print(f"bits: {len(asked)} shapes, both kinds of gates, twice; tensors with other bits than v12: {wrong}", flush=True)


def measure(*stages):
    import backward_rows as b, training_rows as t
    begin = time.time()
    mine, theirs = solutions(b), []
    if set(stages) & {"rows", "typical", "training"}:
        theirs = [b.FlashQLA(name) for name in b.PEERS]
    print(f"loaded in {time.time() - begin:.0f} s", flush=True)
    for stage in stages:
        begin, file = time.time(), OUT / f"{stage}.jsonl"
        try:
            if stage in ("rows", "typical"):
                gates = "decay" if stage == "rows" else "typical"
                b.measure_all(mine + theirs, rows_of(ROWS), argparse.Namespace(gates=gates, decay=0.1, json=file))
            elif stage == "triton":
                subjects = [b.Solution("triton_backward", BUILD), *mine]
                b.measure_all(subjects, rows_of(ROWS), argparse.Namespace(gates="decay", decay=0.1, json=file))
            elif stage == "training":
                subjects = [t.Ours("hopper_prefill", path(BEST), BUILD), *(t.Theirs(name) for name in b.PEERS)]
                t.measure_all(subjects, rows_of(ROWS), argparse.Namespace(gates="decay,typical", decay=0.1, json=file))
        except Exception:
            traceback.print_exc()
        print(f"stage {stage}: {time.time() - begin:.0f} s", flush=True)


def mine():
    import backward_rows as b
    subjects = solutions(b)
    for gates in os.environ.get("GATES", "decay").split(","):
        begin = time.time()
        b.measure_all(subjects, rows_of(ROWS), argparse.Namespace(gates=gates, decay=0.1, json=OUT / ("mine.jsonl" if gates == "decay" else "mine-typical.jsonl")))
        print(f"stage mine {gates}: {time.time() - begin:.0f} s", flush=True)


def again():
    """A few rows many times, each time in another order, so that each version lies elsewhere in memory."""
    import torch, backward_rows as b
    subjects, begin = solutions(b), time.time()
    rows = [r for text in os.environ.get("AGAIN", "16/32 4x8192,8/32 4x8192,16/64 4x8192,2/8 1x2048,16/32 8x1024,2/8 1x32768").split(",")
            for r in rows_of("long,short") if r.name == text]
    for turn in range(int(os.environ.get("TURNS", "5"))):
        step = turn * 5 % len(subjects)
        for row in rows:
            us, _ = b.measure(subjects[step:] + subjects[:step], row, argparse.Namespace(gates="decay", decay=0.1))
            with (OUT / "again.jsonl").open("a") as to:
                to.write(json.dumps({"row": row.name, "turn": turn, "us": {k: x[0] for k, x in us.items()}}) + "\n")
            torch.cuda.empty_cache()
    print(f"stage again: {time.time() - begin:.0f} s", flush=True)


def again_table():
    file = OUT / "again.jsonl"
    if not file.is_file():
        return
    of_row = {}
    for x in map(json.loads, file.read_text().splitlines()):
        for name, us in x["us"].items():
            of_row.setdefault(x["row"], {}).setdefault(name, []).append((us / x["us"]["v12"], us))
    print("again, version / v12: median (least to most), us: median")
    for row, names in of_row.items():
        print(f"{row}: " + "; ".join(f"{n} {statistics.median(q for q, _ in x):.3f} ({min(x)[0]:.3f}-{max(x)[0]:.3f}) {statistics.median(u for _, u in x):.0f}"
                                     for n, x in names.items()))


def mean(numbers):
    numbers = [x for x in numbers if x == x]
    return statistics.geometric_mean(numbers) if numbers else math.nan


def table():
    again_table()
    peers = ("flash_qla", "flash_qla:whole")
    by_stage = {}
    for stage in ("rows", "typical", "mine", "mine-typical", "training", "triton"):
        file = OUT / f"{stage}.jsonl"
        if file.is_file():
            by_stage[stage] = list({(x["row"], x["gates"] if "gates" in x else ""): x for x in map(json.loads, file.read_text().splitlines())}.values())
    for stage, records in by_stage.items():
        names = [n for n in records[0]["us"] if n not in peers]
        for name in names:
            ratios, shares, busy = {}, [], []
            for x in records:
                us = x["us"].get(name, [math.nan])[0]
                best = min((x["us"][p][0] for p in peers if p in x["us"] and x["us"][p][0] == x["us"][p][0]), default=math.nan)
                ratios[f"{x['row']} {x.get('gates', '')}"] = best / us
                shares.append(x["bound"] / us)
                if x["heads"][1] * len(x["lengths"]) >= 256 and len(set(x["lengths"])) == 1:
                    busy.append(x["bound"] / us)
            known = sorted((r, n) for n, r in ratios.items() if r == r)
            worst = "; ".join(f"{r:.2f} {n}" for r, n in known[:5])
            if not known:
                continue
            print(f"{stage} {name}: {len(records)} rows, best FlashQLA / this {mean(ratios.values()):.3f}, share {mean(shares):.1%}, "
                  f"256 pairs: {min(busy, default=math.nan):.0%}-{max(busy, default=math.nan):.0%}\n  least {worst}")
            marks = {m for x in records for m in x["us"].get(name, [0, ""])[1:] if m}
            if marks:
                print(f"  marks: {sorted(marks)[:3]}")
        for first in [n for n in ("v12", "tree") if n in names] or names[:1]:
            for other in [n for n in names if n != first]:
                quotients = sorted((x["us"][other][0] / x["us"][first][0], x["row"]) for x in records if other in x["us"])
                print(f"{stage} {other} / {first}: {mean(q for q, _ in quotients):.4f}; least " + "; ".join(f"{q:.3f} {n}" for q, n in quotients[:3])
                      + "; most " + "; ".join(f"{q:.3f} {n}" for q, n in quotients[-4:]))


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    what, *rest = sys.argv[1:]
    {"build": build, "once": once, "bits": bits, "measure": measure, "mine": mine, "again": again, "table": table}[what](*rest)
