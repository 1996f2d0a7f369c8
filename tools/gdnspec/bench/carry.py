"""Traces that outlive a change of sources: where both states of a solution launch the same, what was measured of the
one holds for the other."""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gdnspec.build import machine_code
from gdnspec.catalog.commit import Past
from gdnspec.catalog.definitions import Found, definitions, preset_of
from gdnspec.catalog.solutions import MANIFEST, Solution
from gdnspec.catalog.workloads import by_name
from gdnspec.model.carried import Carried, SameCode
from gdnspec.model.loading import build, parse_json
from gdnspec.model.solution import Manifest
from gdnspec.model.trace import Trace
from gdnspec.model.workload import Workload


@dataclass(frozen=True)
class Described:
    """A tensor as far as a call without memory needs it."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Outcome:
    """Of one trace: why it is not carried over; None where it is."""

    trace: Trace
    why_not: str | None


def carry(solution: Solution, past: Past, traces: list[Trace]) -> tuple[Carried | None, list[Outcome]]:
    """Compiles both states for each of the traces, which were measured with the sources of `past`. The proof for those
    on which they do the same, None where there are none; and what becomes of each. Raises `RuntimeError` where a state
    cannot be looked at without a GPU."""
    before = build(Manifest, parse_json(past.text(MANIFEST), past.named(MANIFEST)), past.named(MANIFEST))
    why_not = {id(trace): _refused(trace, before, solution.manifest) for trace in traces}
    wanted = [trace for trace in traces if why_not[id(trace)] is None]
    hashes: list[list[str]] = []
    for manifest, read in (
        (before, past.read),
        (solution.manifest, lambda name: (solution.folder / name).read_bytes()),
    ):
        with tempfile.TemporaryDirectory() as folder:
            for name in manifest.sources:
                file = Path(folder) / solution.name / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(read(name))
            hashes.append(machine_code.hashes(Path(folder) / solution.name, list(_calls(wanted, manifest))))
    same = []
    for trace, then, now in zip(wanted, *hashes or ([], []), strict=True):
        if then == now:
            same.append(SameCode(definition=trace.definition, workload=trace.workload, code=now))
        else:
            why_not[id(trace)] = "the machine code differs, or what it is launched with"
    outcomes = [Outcome(trace, why_not[id(trace)]) for trace in traces]
    if not same:
        return None, outcomes
    hashes_of = {"before": past.source_hash, "after": solution.source_hash}
    proof = Carried(schema_version=1, solution=solution.name, **hashes_of, compiler=machine_code.compiler(), same=same)
    return proof, outcomes


def _refused(trace: Trace, before: Manifest, after: Manifest) -> str | None:
    """Why the two states cannot be compared on a trace, before anything is compiled."""
    found = definitions().get(trace.definition)
    entries = [manifest.entries.get(trace.definition) for manifest in (before, after)]
    if found is None or trace.workload not in by_name(found) or None in entries:
        return "the definition, the workload or the entry is gone"
    if any(entry is not None and entry.prepare is not None for entry in entries):
        return "a call with `prepare` cannot be looked at without a GPU"
    if trace.environment.get("triton") != machine_code.compiler()["triton"]:
        return f"it was measured with Triton {trace.environment.get('triton')}, and another one is here"
    return None


def _calls(traces: list[Trace], manifest: Manifest) -> Iterator[tuple[str, Mapping[str, object]]]:
    for trace in traces:
        found, entry = definitions()[trace.definition], manifest.entries[trace.definition]
        yield entry.entry, inputs(found, by_name(found)[trace.workload], entry.call == "out")


def inputs(found: Found, workload: Workload, outputs: bool) -> dict[str, object]:
    """What a call passes by keyword, tensors without memory; with `outputs` those as well."""
    definition = found.definition
    scope, absent = workload.scope(definition, preset_of(found, workload)), workload.omitted(definition)
    given: dict[str, object] = {}
    for tensor in definition.inputs:
        if tensor.is_scalar:
            given[tensor.name] = workload.scalars.get(tensor.name)
        elif tensor.name in absent:
            given[tensor.name] = None
        else:
            given[tensor.name] = Described(definition.shape(tensor, scope), tensor.dtype)
    for output in definition.outputs if outputs else ():
        given[output.name] = Described(definition.shape(output, scope), output.dtype)
    return given
