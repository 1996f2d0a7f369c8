"""The backward pass of Kimi Delta Attention over 32 rows, triton_kda and FLA side by side in one process.

    python benchmarks/kda_backward_rows.py [--rows TEXT,TEXT] [--gates 0.3,typical,12] [--json FILE]
                                           [--check]

kda_prefill_backward_k_last at head size 128, with an initial state and the gradient of the final one: the rows of
kda_rows.py, and two that are against a walk over chunks: one long sequence of two heads, and 512 of 17 tokens.

FLA is given what its forward pass keeps: sums of gates, and both matrices of scores. It computes states and errors
again. triton_kda is given nothing. The casts to the types of the inputs, which FLA's autograd makes after its kernels,
are part of its time.

Microseconds a call: the median of replays of a CUDA graph of six calls over two sets of inputs, kernels in turns; what
cannot be captured is timed by events over eager calls and marked with `*`. A gradient that differs from that of
triton_kda by more than 2% of its norm is marked with `!`. MB is what triton_kda allocates in a call. The bound is the
larger of the bytes, inputs read once and outputs written once, and of 20 K V operations a token and head.

Gates are those of kda_rows.py, each kind with a summary of its own. --check times nothing: a few short rows, with gates
of four kinds, against the recurrence in float64.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gdnspec.bench.ceilings import copy_bandwidth
from gdnspec.build.loader import load_function
from kda_rows import CHECKED, GATES, ROOT, SETS, WINDOWS, Arguments, D, Row, beside_fla, kinds
from kda_rows import arguments as forward_arguments
from kda_rows import rows as forward_rows
from prefill_rows import Timed
from prefill_shapes import COPY_RATES, PRODUCTS

OUTPUTS = ("dq", "dk", "dv", "dg", "dbeta", "dh0")
LIKE = dict(zip(OUTPUTS, ("q", "k", "v", "g", "beta", "initial_state"), strict=True))
MORE = {"2 1x32768": (2, (32768,)), "32 short 512x17": (32, (17,) * 512)}
Gradients = dict[str, torch.Tensor]
Bind = Callable[[Arguments], Callable[[], Gradients]]


def rows() -> list[Row]:
    return [*forward_rows(), *(Row(name, *what) for name, what in MORE.items())]


def bound(row: Row, copy_rate: float) -> float:
    """Microseconds."""
    total, heads = sum(row.lengths), row.heads
    moved = total * heads * (7 * 2 * D + 2 * 4 * D + 8) + 12 * len(row.lengths) * heads * D * D
    return 1e6 * max(moved / copy_rate, total * heads * 20 * D * D / PRODUCTS)


def arguments(row: Row, gates: str) -> Arguments:
    given = forward_arguments(row, gates)
    v, states = given["v"], given["initial_state"]
    kept = {name: x for name, x in given.items() if name not in ("output", "final_state")}
    return kept | {"do": torch.randn_like(v), "dht": torch.randn_like(states)}


def ours(build: Path) -> Bind:
    entry = load_function(ROOT / "solutions" / "triton_kda", "backward.py::backward_k_last", build / "triton_kda")

    def bind(given: Arguments) -> Callable[[], Gradients]:
        out = {name: torch.full_like(given[like], math.nan) for name, like in LIKE.items()}

        def call() -> Gradients:
            entry(**given, **out)
            return out

        return call

    return bind


def of_fla() -> Bind:
    """By the functions that its autograd calls, behind its forward pass."""
    from fla.ops.kda.chunk_bwd import chunk_kda_bwd
    from fla.ops.kda.chunk_fwd import chunk_kda_fwd
    from fla.ops.utils.index import prepare_chunk_indices

    def bind(given: Arguments) -> Callable[[], Gradients]:
        q, k, v, g, beta, do = (given[name][None] for name in ("q", "k", "v", "g", "beta", "do"))
        bounds = given["cu_seqlens"].clone()
        common = {
            "scale": D**-0.5, "initial_state": given["initial_state"], "state_v_first": True, "cu_seqlens": bounds,
            "chunk_indices": prepare_chunk_indices(bounds, 64, cu_seqlens_cpu=bounds.cpu()),
        }  # fmt: skip
        kept = chunk_kda_fwd(q, k, v, g, beta, output_final_state=True, **common)
        sums, Aqk, Akk = kept[2:5]

        def call() -> Gradients:
            dq, dk, dv, dbeta, dg, dh0, *_ = chunk_kda_bwd(
                q, k, v, beta, Aqk, Akk, do=do, dht=given["dht"], g=sums, **common
            )
            found = dq.to(q)[0], dk.to(k)[0], dv.to(v)[0], dg.to(g)[0], dbeta.to(beta)[0], dh0
            return dict(zip(OUTPUTS, found, strict=True))

        return call

    return bind


def apart(found: Gradients, expected: Gradients) -> dict[str, float]:
    return {name: float((found[name].double() - x.double()).norm() / x.double().norm()) for name, x in expected.items()}


def check(subjects: dict[str, Bind]) -> None:
    """The reference of the package is what it is checked against: in float64, token by token."""
    from gdnspec.build.reference import module
    from gdnspec.catalog.families import family

    exact = module(family("kda"), "backward").prefill_backward_k_last
    print("relative errors of " + ", ".join(OUTPUTS))
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
        wide = {key: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
                for key, x in given.items()}  # fmt: skip
        expected = dict(zip(OUTPUTS, exact(**wide), strict=True))
        for subject, bind in subjects.items():
            errors = apart(bind(given)(), expected)
            print(f"{name:24}{subject:12}" + "".join(f"{errors[x]:10.1e}" for x in OUTPUTS), flush=True)


def measure(subjects: dict[str, Bind], row: Row, gates: str) -> tuple[dict[str, Any], float]:
    """Microseconds and marks of each subject, and the megabytes that the first one allocates."""
    sets = [arguments(row, gates) for _ in range(SETS)]
    timed: dict[str, Timed] = {}
    marks: dict[str, str] = {}
    expected: Gradients = {}
    allocated = math.nan
    for name, bind in subjects.items():
        try:
            calls = [bind(given) for given in sets]
            found = calls[0]()
        except Exception as error:
            if name == "triton_kda":
                raise
            print(f"{row.name}: {name} is left out: {type(error).__name__}: {str(error).splitlines()[:1]}")
            continue  # a library may refuse a shape; the others go on
        if not expected:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            calls[0]()
            allocated = (torch.cuda.max_memory_allocated() - before) / 1e6
            expected = {key: x.clone() for key, x in found.items()}
        far = not all(error <= 0.02 for error in apart(found, expected).values())  # NaN is far
        timed[name] = Timed(calls)
        marks[name] = "!" * far + "*" * (timed[name].graph is None)
    for _ in range(1 + WINDOWS):
        for one in timed.values():
            one.window()
    return {name: (one.median, marks[name]) for name, one in timed.items()}, allocated


def report(subjects: dict[str, Bind], asked: list[Row], gates: str, file: Path | None) -> None:
    device, ratios = torch.cuda.get_device_name(), {}
    rate = next((rate for name, rate in COPY_RATES.items() if name in device), None) or copy_bandwidth()
    print(f"\n{device}, copy {rate / 1e12:.2f} TB/s, gates {gates}\n")
    print(f"{'':20}{'bound':>8}" + "".join(f"{name:>14}" for name in subjects) + f"{'ratio':>8}{'share':>8}{'MB':>7}")
    for row in asked:
        us, allocated = measure(subjects, row, gates)
        mine, least = us["triton_kda"][0], bound(row, rate)
        if "fla" in us:
            ratios[row.name] = us["fla"][0] / mine
        cells = "".join(f"{time:>12.1f}{mark:2}" for time, mark in us.values())
        ratio = ratios.get(row.name, math.nan)
        print(f"{row.name:20}{least:8.0f}{cells}{ratio:8.2f}{least / mine:8.0%}{allocated:7.0f}", flush=True)
        if file:
            line = {"device": device, "row": row.name, "gates": gates, "bound": least, "us": us, "allocated": allocated}
            with file.open("a") as to:
                to.write(json.dumps(line) + "\n")
    print(beside_fla(ratios, gates))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", metavar="TEXT,TEXT", help="only those with one of these in their name")
    said = "kinds of gates: g from minus a number to 0, or typical rates"
    parser.add_argument("--gates", type=kinds, default=kinds(GATES), metavar="KIND,KIND", help=said)
    parser.add_argument("--json", type=Path, help="append a line a row")
    parser.add_argument("--check", action="store_true", help="errors of a few rows; nothing is timed")
    options = parser.parse_args()
    asked = [row for row in rows() if any(text in row.name for text in options.rows.split(","))]
    if not asked:
        raise SystemExit(f"kda_backward_rows.py: no row has one of {options.rows!r} in its name")
    if not torch.cuda.is_available():
        raise SystemExit("kda_backward_rows.py: needs a CUDA GPU")
    with tempfile.TemporaryDirectory() as scratch:
        subjects: dict[str, Bind] = {"triton_kda": ours(Path(scratch))}
        try:
            subjects["fla"] = of_fla()
        except ImportError as error:
            print(f"fla is left out: {error}")
        if options.check:
            check(subjects)
            return
        for gates in options.gates:
            report(subjects, asked, gates, options.json)


if __name__ == "__main__":
    main()
