"""Prefill of Kimi Delta Attention over 30 rows, triton_kda and FLA side by side in one process.

    python benchmarks/kda_rows.py [--rows TEXT,TEXT] [--gates 0.3,typical,12] [--version FOLDER] [--no-fla]
                                  [--json FILE] [--check]

kda_prefill_k_last at head size 128, with the 32 heads of Kimi Linear and the 16, 8 and 4 of its tensor-parallel shards.
Microseconds a call: the median of replays of a CUDA graph of six calls over two sets of inputs, kernels in turns; what
cannot be captured is timed by events over eager calls and marked with `*`. What differs from triton_kda by more than 2%
of the output's norm is marked with `!`. FlashInfer 0.7.2 has no prefill for sm_90.

The time of triton_kda depends on the gates, that of FLA does not. So each row is timed with three kinds of them: g from
-0.3 to 0, where channels last through a chunk; rates as models start with; and g from -12 to 0, where channels forget
within a few tokens. --gates names others: a number, or `typical`. Each kind has its own summary.

--version: the folder of another version of triton_kda, timed beside it; repeatable.

--check times nothing: a few short rows, with gates of four kinds, against the recurrence in float64.
"""

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gdnspec.bench.ceilings import copy_bandwidth
from gdnspec.build.loader import load_function
from prefill_rows import Timed
from prefill_shapes import COPY_RATES, PRODUCTS, RAGGED

GATES, TYPICAL = "0.3,typical,12", "typical"
ROOT, D, SETS, WINDOWS = Path(__file__).resolve().parent.parent, 128, 2, 7
LENGTHS = {
    "1x2048": (2048,), "1x8192": (8192,), "4x2048": (2048,) * 4, "8x1024": (1024,) * 8, "ragged16": RAGGED,
    "short 64x128": (128,) * 64, "short 256x40": (40,) * 256,
}  # fmt: skip
MORE = {"32 1x32768": (32, (32768,)), "32 4x8192": (32, (8192,) * 4)}
CHECKED = {"plain": (300, 64, 1, 0, 129), "resets": (200, 70), "slow and fast channels": (500,), "no decay": (333,)}
Arguments = dict[str, Any]


class Row(NamedTuple):
    name: str
    heads: int
    lengths: tuple[int, ...]


def rows() -> list[Row]:
    found = [Row(f"{heads} {name}", heads, lengths) for heads in (32, 16, 8, 4) for name, lengths in LENGTHS.items()]
    return found + [Row(name, *what) for name, what in MORE.items()]


def bound(row: Row, copy_rate: float) -> float:
    """Microseconds: inputs read once and outputs written once, or the causal products."""
    total, heads = sum(row.lengths), row.heads
    moved = total * heads * (4 * 2 * D + 4 * D + 4) + 8 * len(row.lengths) * heads * D * D
    return 1e6 * max(moved / copy_rate, total * heads * (6 * D * D + 4 * 65 * D) / PRODUCTS)


def drawn_gates(kind: str, total: int, heads: int) -> torch.Tensor:
    """g [total, heads, D] in log space: from minus a number to 0, or, where `kind` is typical, of rates A up to 16 and
    steps that are log-uniform from 0.001 to 0.1."""
    u = torch.rand(total, heads, D, device="cuda")
    if kind != TYPICAL:
        return -float(kind) * u
    rate = 16 * torch.rand(heads, 1, device="cuda")
    steps = torch.exp(math.log(1e-3) + math.log(100.0) * torch.rand(heads, D, device="cuda"))
    return -rate * steps * 2 * u


def kinds(text: str) -> list[str]:
    """Of --gates. Raises `argparse.ArgumentTypeError` for what is neither a number from 0 on nor `typical`."""
    found = [kind.strip() for kind in text.split(",")]
    for kind in found:
        try:
            right = kind == TYPICAL or 0 <= float(kind) < math.inf
        except ValueError:
            right = False
        if not right:
            raise argparse.ArgumentTypeError(f"{kind!r} is neither a number from 0 on nor {TYPICAL}")
    return found


def arguments(row: Row, gates: str) -> Arguments:
    total, count, heads = sum(row.lengths), len(row.lengths), row.heads
    normal = lambda *shape: torch.randn(*shape, device="cuda")  # noqa: E731
    q, k = (torch.nn.functional.normalize(normal(total, heads, D), dim=-1).bfloat16() for _ in range(2))
    v = normal(total, heads, D).bfloat16()
    return {
        "q": q, "k": k, "v": v, "g": drawn_gates(gates, total, heads),
        "beta": torch.rand(total, heads, device="cuda"),
        "cu_seqlens": torch.tensor([0, *row.lengths], device="cuda").cumsum(0),
        "initial_state": normal(count, heads, D, D), "scale": None,
        "output": torch.empty_like(v), "final_state": torch.empty(count, heads, D, D, device="cuda"),
    }  # fmt: skip


def ours(build: Path, folder: Path = ROOT / "solutions" / "triton_kda") -> Callable[[Arguments], Callable[[], Any]]:
    call = load_function(folder, "kernel.py::prefill_k_last", build / folder.name)
    return lambda given: partial(call, **given)


def of_fla(build: Path) -> Callable[[Arguments], Callable[[], Any]]:
    load = partial(load_function, ROOT / "peers" / "fla_kda", build_dir=build / "fla_kda")
    call, prepare = load("kernel.py::prefill_k_last"), load("kernel.py::prepare_prefill")

    def bind(given: Arguments) -> Callable[[], Any]:
        inputs = {name: x for name, x in given.items() if name not in ("output", "final_state")}
        return partial(call, **inputs, prepared=prepare(**inputs))

    return bind


def recurrence(given: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and final state in float64, token by token."""
    q, k, v, g, beta, states = (given[x].double() for x in ("q", "k", "v", "g", "beta", "initial_state"))
    output, states, bounds = torch.zeros_like(v), states.clone(), given["cu_seqlens"].tolist()
    for n, state in enumerate(states):
        for t in range(bounds[n], bounds[n + 1]):
            state *= g[t].exp()[:, None, :]  # [H, V, K]
            u = beta[t][:, None] * (v[t] - torch.einsum("hvk,hk->hv", state, k[t]))
            state += u[:, :, None] * k[t][:, None, :]
            output[t] = D**-0.5 * torch.einsum("hvk,hk->hv", state, q[t])
    return output, states


def check(subjects: dict[str, Callable[[Arguments], Callable[[], Any]]]) -> None:
    print("relative errors of output and state")
    for name, lengths in CHECKED.items():
        given = arguments(Row(name, 4, lengths), "0.3")
        g = given["g"]
        if name == "resets":
            g[torch.rand_like(g) < 0.05] = -math.inf
            g[::7] = -math.inf
        elif name == "slow and fast channels":
            g *= torch.logspace(-3, 2.5, D, device="cuda")
        elif name == "no decay":
            g.zero_()
        output, states = recurrence(given)
        for subject, bind in subjects.items():
            found = bind(given)() or (given["output"], given["final_state"])
            errors = [float((x.double() - y).norm() / y.norm()) for x, y in zip(found, (output, states), strict=True)]
            print(f"{name:24}{subject:12}{errors[0]:10.1e}{errors[1]:10.1e}", flush=True)


def measure(subjects: dict[str, Callable[[Arguments], Callable[[], Any]]], row: Row, gates: str) -> dict[str, Any]:
    """Microseconds and marks of each subject."""
    sets = [arguments(row, gates) for _ in range(SETS)]
    timed, marks, expected = {}, {}, None
    for name, bind in subjects.items():
        calls = [bind(given) for given in sets]
        answer = calls[0]()
        output = (sets[0]["output"] if answer is None else answer[0]).float()
        expected = output.clone() if expected is None else expected
        timed[name] = Timed(calls)
        apart = float((output - expected).norm() / expected.norm()) > 0.02
        marks[name] = ("!" if apart else "") + ("" if timed[name].graph else "*")
    for _ in range(1 + WINDOWS):
        for one in timed.values():
            one.window()
    return {name: (one.median, marks[name]) for name, one in timed.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", metavar="TEXT,TEXT", help="only those with one of these in their name")
    said = "kinds of gates: g from minus a number to 0, or typical rates"
    parser.add_argument("--gates", type=kinds, default=kinds(GATES), metavar="KIND,KIND", help=said)
    parser.add_argument("--version", type=Path, action="append", default=[], help="the folder of another version")
    parser.add_argument("--no-fla", action="store_true", help="leave out FLA, whose tuning takes most of the time")
    parser.add_argument("--json", type=Path, help="append a line a row")
    parser.add_argument("--check", action="store_true", help="errors of a few rows; nothing is timed")
    options = parser.parse_args()
    asked = [row for row in rows() if any(text in row.name for text in options.rows.split(","))]
    if not asked:
        raise SystemExit(f"kda_rows.py: no row has one of {options.rows!r} in its name")
    if not torch.cuda.is_available():
        raise SystemExit("kda_rows.py: needs a CUDA GPU")
    with tempfile.TemporaryDirectory() as scratch:
        subjects = {"triton_kda": ours(Path(scratch))}
        subjects |= {folder.name: ours(Path(scratch), folder.resolve()) for folder in options.version}
        try:
            if not options.no_fla:
                subjects["fla"] = of_fla(Path(scratch))
        except ImportError as error:
            print(f"fla is left out: {error}")
        if options.check:
            check(subjects)
            return
        for gates in options.gates:
            report(subjects, asked, gates, options.json)


def beside_fla(ratios: dict[str, float], gates: str) -> str:
    """FLA's times over triton_kda's, by row, in a line; nothing if FLA did not run."""
    if not ratios:
        return ""
    mean, least = statistics.geometric_mean(ratios.values()), min(ratios, key=lambda name: ratios[name])
    of = f"geometric mean of {len(ratios)}"
    return f"\nfla / triton_kda, gates {gates}: {mean:.3f} ({of}), {ratios[least]:.3f} ({least})"


def report(
    subjects: dict[str, Callable[[Arguments], Callable[[], Any]]], asked: list[Row], gates: str, file: Path | None
) -> None:
    device, ratios = torch.cuda.get_device_name(), {}
    versions: dict[str, list[float]] = {}  # times of others over triton_kda's
    rate = next((rate for name, rate in COPY_RATES.items() if name in device), None) or copy_bandwidth()
    print(f"\n{device}, copy {rate / 1e12:.2f} TB/s, gates {gates}\n")
    print(f"{'':20}{'bound':>8}" + "".join(f"{name:>14}" for name in subjects) + f"{'ratio':>8}{'share':>8}")
    for row in asked:
        us = measure(subjects, row, gates)
        mine, least = us["triton_kda"][0], bound(row, rate)
        if "fla" in us:
            ratios[row.name] = us["fla"][0] / mine
        for name in us.keys() - {"fla", "triton_kda"}:
            versions.setdefault(name, []).append(us[name][0] / mine)
        cells = "".join(f"{time:>12.1f}{mark:2}" for time, mark in us.values())
        print(f"{row.name:20}{least:8.0f}{cells}{ratios.get(row.name, math.nan):8.2f}{least / mine:8.0%}", flush=True)
        if file:
            with file.open("a") as to:
                to.write(json.dumps({"device": device, "row": row.name, "gates": gates, "bound": least, "us": us}))
                to.write("\n")
    for name, found in versions.items():
        mean = statistics.geometric_mean(found)
        print(f"\n{name} / triton_kda, gates {gates}: {mean:.3f}, {min(found):.3f} to {max(found):.3f}")
    print(beside_fla(ratios, gates))


if __name__ == "__main__":
    main()
