"""Traces that nobody measured, for tests of what reads them."""

import json
from pathlib import Path
from typing import Any

from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.solutions import load_solution, solutions
from gdnspec.catalog.traces import definition_hash
from gdnspec.catalog.workloads import by_name
from gdnspec.model.trace import Timing, Trace

DECODE, PREFILL = "gdn_decode_k_last", "gdn_prefill_k_last"
DEVICE = "nvidia-h200"
ENVIRONMENT = {"device": "NVIDIA H200", "torch": "2.13.0", "triton": "3.7.1", "driver": "570.86"}


def make_timing(median: float = 100e-6, within: float = 1.01, **changes: Any) -> Timing:
    """A time in seconds, its interval from median / within to median * within; by default half of the bound."""
    content = {
        "method": "graph", "median": median, "p10": median * 0.99, "p90": median * 1.02,
        "interval": [median / within, median * within], "samples": 40, "calls": 800, "ring_bytes": 1 << 28,
        "witness": {"calls": 20, "once": median * 21, "twice": median * 41, "per_call": median},
        "bytes": 1 << 20, "operations": 1 << 24, "bound": median / 2, "bound_by": "memory",
    }  # fmt: skip
    return Timing.model_validate_json(json.dumps(content | changes))


def make_trace(**changes: Any) -> Trace:
    """A trace of a shipped solution on a shipped workload, fresh unless `changes` say otherwise. `median` and `within`
    are those of `make_timing`."""
    definition = changes.get("definition", DECODE)
    solution = changes.get("solution", "torch_recurrent")
    found = definitions().get(definition, definitions()[DECODE])
    shipped = by_name(found)
    workload = shipped.get(changes.get("workload", ""), next(w for w in shipped.values() if w.suite == "performance"))
    known = solutions()[0].get(solution)
    timing = make_timing(changes.pop("median", 100e-6), changes.pop("within", 1.01))
    content = {
        "schema_version": 1, "definition": definition, "definition_hash": definition_hash(found),
        "workload": workload.name, "suite": workload.suite, "preset": workload.preset, "regime": workload.regime,
        "axes": workload.axes, "sequence_lengths": workload.sequence_lengths, "solution": solution,
        "source_hash": known.source_hash if known else "0" * 64, "device": DEVICE, "recorded": "2026-01-01T00:00:00Z",
        "command": "gdnspec bench", "seed": 1, "status": "PASSED", "environment": ENVIRONMENT,
        "timing": timing.model_dump(mode="json"),
    }  # fmt: skip
    plain = {
        key: value.model_dump(mode="json") if isinstance(value, Timing) else value for key, value in changes.items()
    }
    return Trace.model_validate_json(json.dumps(content | plain))


def trace_of(folder: Path, **changes: Any) -> Trace:
    """As `make_trace`, of the solution in a folder, as its sources are now."""
    solution = load_solution(folder)
    return make_trace(**{"solution": solution.name, "source_hash": solution.source_hash, **changes})


def write_traces(folder: Path, traces: list[Trace]) -> list[Path]:
    """Writes <folder>/traces/<device>.jsonl, a file a device, over what is there; `folder` is a solution's."""
    (folder / "traces").mkdir(exist_ok=True)
    files = sorted({folder / "traces" / f"{trace.device}.jsonl" for trace in traces})
    for file in files:
        file.write_text("".join(line(trace) for trace in traces if trace.device == file.stem))
    return files


def line(trace: Trace) -> str:
    return json.dumps(trace.model_dump(mode="json")) + "\n"
