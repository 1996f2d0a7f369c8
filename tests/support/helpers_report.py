"""A factory of evidence for a page: traces, verdicts, a selftest as a real run would leave them, none of it real."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import read_once
from gdnspec.catalog.definitions import Found, definitions, preset_of
from gdnspec.catalog.faults import known_bad
from gdnspec.catalog.traces import Measured, definition_hash
from gdnspec.catalog.workloads import workloads
from gdnspec.model.result import Bucket, CheckResult, OutputErrors, Place
from gdnspec.model.trace import Ceilings, Health, Ratio, Timing, Trace, Witness
from gdnspec.model.workload import Workload
from gdnspec.report.page import Contents

read_once.script_of_charts()

# (bandwidth, rate, launch) of a device; how far from its bound each solution is.
DEVICES = {"nvidia-h200": (4.1e12, 7.2e14, 2.5e-6), "nvidia-h100-80gb-hbm3": (2.6e12, 6.4e14, 2.6e-6)}
SOLUTIONS = {
    "tilelang_chunkwise": 1.35,
    "triton_chunkwise": 1.9,
    "cuda_recurrent": 2.6,
    "flash_qla_adapter": 1.6,
    "fla_adapter": 2.4,
    "triton_recurrent": 7.0,
    "torch_chunkwise": 31.0,
}
BASELINE = "fla_adapter"
ENVIRONMENT = {
    "gpu": "NVIDIA H200",
    "driver": "575.57.08",
    "cuda": "12.9",
    "python": "3.11.7",
    "torch": "2.13.0+cu129",
    "triton": "3.6.0",
    "system": "Linux x86_64",
    "timing": "graph replay, L2 flushed, 128 MiB persisting reset",
}
SHOWN = ("gdn_decode_k_first", "gdn_decode_k_last", "gdn_prefill_k_first", "gdn_prefill_k_last")
EDGES = (0, 1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)


def shown() -> dict[str, Found]:
    """Four definitions: a page of a full run."""
    return {name: definitions()[name] for name in SHOWN}


def errors(line: Workload, share: float, longest: int = 0) -> list[OutputErrors]:
    """Errors at `share` of the budget; with `longest`, a profile by position."""
    found = []
    for output, limits in (line.budget or {}).items():
        buckets = (
            [
                Bucket(
                    first=first,
                    last=min(last, longest) - 1,
                    relative_l2=share * limits["relative_l2"] * (0.5 + i / 20),
                    worst_vector=share * limits["worst_vector"] * (0.6 + i / 20),
                )
                for i, (first, last) in enumerate(pairwise(EDGES))
                if first < longest
            ]
            if output == "output"
            else []
        )
        worst = Place(sequence=0, head=1, vector=5, element=7, got=0.25, expected=0.125) if share > 1 else None
        values: dict[str, float | None] = {metric: share * limit for metric, limit in limits.items()}
        found.append(OutputErrors(output=output, errors=values, budget=dict(limits), worst=worst, profile=buckets))
    return found


def trace(
    definition: str, line: Workload, solution: str = "triton_chunkwise", device: str = "nvidia-h200", **changes: Any
) -> Trace:
    """One trace, with all its parts; `changes` replace some."""
    bandwidth, rate, launch = DEVICES.get(device, (2e10, 1e11, 5e-6))
    heads = preset_of(definitions()[definition], line).axes
    sab = max(heads["num_q_heads"], heads["num_v_heads"])
    tokens = line.axes.get("total_seq_len", line.axes.get("batch_size", 1))
    states = line.axes.get("num_seqs", line.axes.get("batch_size", 1))
    size = heads["head_size"]
    moved = 2 * tokens * size * (heads["num_q_heads"] + heads["num_k_heads"] + 2 * sab) + 8 * states * sab * size**2
    operations = 6 * tokens * sab * size**2 + 1
    bound = max(moved / bandwidth, operations / rate)
    drawn = random.Random(f"{definition} {line.name} {solution} {device}")
    median = launch + bound * SOLUTIONS.get(solution, 3.0) * drawn.uniform(0.92, 1.08)
    cpu = device not in DEVICES
    timing = Timing(
        method="cpu" if cpu else "events" if solution == "torch_chunkwise" else "graph",
        median=median,
        p10=median * 0.991,
        p90=median * 1.014,
        interval=(median * 0.997, median * 1.003),
        samples=120,
        calls=6000,
        ring_bytes=200_000_000,
        host=1.1e-5,
        prepare=3.1e-4,
        floor=None if cpu else bound * 0.7,
        bound=None if cpu else bound,
        bound_by=None if cpu else "memory" if moved / bandwidth > operations / rate else "compute",
        bytes=moved,
        operations=operations,
        witness=Witness(calls=50, once=50 * median + 1e-4, twice=100 * median + 1e-4, per_call=median * 1.01),
        verification=0.9,
        timed=0.7,
    )
    health = Health(sm_mhz=1980, memory_mhz=3201, temperature=41, power=312.5)
    against = (
        []
        if cpu or solution == BASELINE
        else [
            Ratio(
                baseline=BASELINE,
                baseline_hash="c" * 64,
                method="graph",
                median=median * 1.4,
                ratio=drawn.uniform(0.7, 2.1),
                interval=(1.38, 1.42),
            )
        ]
    )
    whole = {
        "schema_version": 1,
        "definition": definition,
        "definition_hash": definition_hash(definitions()[definition]),
        "workload": line.name,
        "suite": line.suite,
        "preset": line.preset,
        "regime": line.regime,
        "axes": line.axes,
        "sequence_lengths": line.sequence_lengths,
        "solution": solution,
        "source_hash": "a" * 64,
        "device": device,
        "recorded": "2026-11-20T08:15:00Z",
        "command": f"gdnspec bench {definition} --solution {solution} --workload {line.name} --save",
        "seed": 90125,
        "status": "PASSED",
        "outputs": errors(line, drawn.uniform(0.2, 0.6)),
        "timing": timing,
        "against": against,
        "ceilings": None if cpu else Ceilings(copy_bandwidth=bandwidth, matrix_rate=rate),
        "before": None if cpu else health,
        "after": None if cpu else health,
        "environment": {**ENVIRONMENT, "gpu": device},
    }
    return Trace(**{**whole, **changes})


def measured(count: int = 500) -> list[Measured]:
    """Traces as four benches would leave them: a few failed, suspect, unclean or stale, and some of a CPU."""
    rows: list[Measured] = []
    for name, found in shown().items():
        lines = [line for line in workloads(found) if line.suite in ("performance", "conformance")]
        lines.sort(key=lambda line: line.suite != "performance")
        here: list[Measured] = []
        for line in lines:
            for i, solution in enumerate(SOLUTIONS):
                for device in DEVICES if line.suite == "performance" else ["nvidia-h200"]:
                    here.append(Measured(trace(name, line, solution, device), ""))
                    if i == 3 and line.name.endswith("2048"):
                        here[-1] = Measured(here[-1].trace, "the solution has changed since it was measured")
        here = here[: count // 4 - 4]
        first = here[0].trace
        line = next(line for line in lines if line.name == first.workload)
        late = {"status": "SUSPECT_TIMING", "message": "the parent's clock saw 41.2 µs a call, the device's 3.9 µs"}
        wrong = {"status": "INCORRECT_NUMERICAL", "timing": None, "against": [], "outputs": errors(line, 37.0)}
        wrong["message"] = "output: relative_l2 0.229 > 0.00618; worst at sequence 0, head 1, token 5, element 7"
        here.append(Measured(trace(name, line, "late_writer", **late), ""))
        here.append(Measured(trace(name, line, "cuda_wgmma_draft", **wrong), ""))
        here.append(Measured(trace(name, line, "torch_recurrent", "x86-64"), ""))
        throttled = ["the GPU was throttled by its power limit (sw_power_cap) during the run"]
        here.append(Measured(trace(name, line, "triton_chunkwise_v2", unclean=throttled), ""))
        rows += here
    return rows


def verdicts(count: int = 2000, solutions: list[str] | None = None) -> list[CheckResult]:
    """Verdicts with profiles; bfloat16-T kernels fail on strict keys, as they are meant to."""
    rows = []
    for solution in solutions or list(SOLUTIONS):
        for name, found in shown().items():
            for line in workloads(found):
                bad = solution == "fla_adapter" and line.suite == "strict"
                skipped = solution == "cuda_recurrent" and "120" in line.preset
                longest = max(line.sequence_lengths or [0])
                rows.append(
                    CheckResult(
                        definition=name,
                        workload=line.name,
                        suite=line.suite,
                        solution=solution,
                        device="nvidia-h200",
                        status="UNSUPPORTED" if skipped else "INCORRECT_NUMERICAL" if bad else "PASSED",
                        message="head_size in (64, 128) does not hold" if skipped else "past its budget" if bad else "",
                        outputs=[] if skipped else errors(line, 4.0 if bad else 0.3 + 0.02 * len(solution), longest),
                        seconds=0.01,
                        repeat=f"gdnspec check {name} --solution {solution} --workload {line.name}",
                        key=f"{len(rows):032x}",
                        environment=ENVIRONMENT,
                    )
                )
    return rows[:count]


def selftest() -> list[CheckResult]:
    """Every known-bad solution on every workload of its definitions, killed by about half of them."""
    rows = []
    drawn = random.Random(4)
    for bad in known_bad():
        chance = drawn.random() ** 2 + 0.05
        for name in bad.solution.manifest.entries:
            for line in workloads(definitions()[name]):
                if line.suite == "performance":
                    continue
                killed = drawn.random() < chance
                status: Any = bad.known.statuses[0] if killed else "UNSUPPORTED" if "drift" in line.name else "PASSED"
                rows.append(
                    CheckResult(
                        definition=name,
                        workload=line.name,
                        suite=line.suite,
                        solution=bad.solution.name,
                        device="x86-64",
                        status=status,
                        outputs=errors(line, 12.0 if killed else 0.3),
                    )
                )
    return rows


def contents(
    traces: list[Measured], judged: list[CheckResult] | None = None, tested: list[CheckResult] | None = None
) -> Contents:
    return Contents(shown(), traces, judged or [], tested, "gdnspec report -o page.html", ["verdicts.jsonl"])


def write_lines(file: Path, rows: list[Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row.model_dump(mode="json")) + "\n" for row in rows))
    return file
