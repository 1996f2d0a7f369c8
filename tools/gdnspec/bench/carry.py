"""Carries traces over a change of sources: if both states of a solution launch the same code, measurements of the old
state are valid for the new one."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gdnspec.build import cuda_code, machine_code
from gdnspec.catalog.commit import Past
from gdnspec.catalog.definitions import Found, definitions, preset_of
from gdnspec.catalog.solutions import Solution, settings
from gdnspec.catalog.workloads import by_name
from gdnspec.model.carried import Carried, SameCode
from gdnspec.model.solution import Manifest
from gdnspec.model.trace import Trace
from gdnspec.model.workload import Workload

COMPARED = ("triton", "cuda")  # the languages whose code can be compared


@dataclass(frozen=True)
class Described:
    """The shape and type of a tensor, which is enough for a call without memory."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Outcome:
    """A trace, and why it is not carried over, or None."""

    trace: Trace
    why_not: str | None


@dataclass(frozen=True)
class State:
    """A state of a solution or variant: its manifest, its macros and arguments, and a function that reads its files."""

    manifest: Manifest
    settings: Mapping[str, Mapping[str, Any]]
    read: Callable[[str], bytes]


def carry(solution: Solution, past: Past, traces: list[Trace]) -> tuple[Carried | None, list[Outcome]]:
    """Compiles both states for each trace, which was measured with the sources of `past`. Returns the proof for the
    traces on which both do the same (None if there are none), and the outcome of each trace. Raises `RuntimeError` if a
    state cannot run without a GPU, and `NoCompilerError` if there is no compiler."""
    now = State(solution.manifest, solution.settings, lambda name: (solution.folder / name).read_bytes())
    then = State(past.manifest, settings(past.manifest, past.variant), past.read)
    in_cuda = solution.manifest.language == "cuda"
    made_by, hashes = (cuda_code.compiler, _cuda_hashes) if in_cuda else (machine_code.compiler, _triton_hashes)
    compiler = made_by()
    refused = _refused_cuda if in_cuda else _refused_triton
    why_not = {id(t): _gone(t, then.manifest, now.manifest) or refused(t, then.manifest, now.manifest) for t in traces}
    wanted = [trace for trace in traces if why_not[id(trace)] is None]
    same = []
    for trace, before, after in zip(wanted, hashes(then, wanted), hashes(now, wanted), strict=True):
        if before == after:
            same.append(SameCode(definition=trace.definition, workload=trace.workload, code=after))
        else:
            words = "the machine code or the host code differs" if in_cuda else None
            why_not[id(trace)] = words or "the machine code differs, or its launches do"
    outcomes = [Outcome(trace, why_not[id(trace)]) for trace in traces]
    if not same:
        return None, outcomes
    old_name = past.folder.name if past.variant is None else f"{past.folder.name}:{past.variant}"
    proof = Carried(
        schema_version=1, solution=solution.name, measured_as=None if old_name == solution.name else old_name,
        before=past.source_hash, after=solution.source_hash, compiler=compiler,
        compared=cuda_code.COMPARED if in_cuda else None, same=same,
    )  # fmt: skip
    return proof, outcomes


def _gone(trace: Trace, before: Manifest, after: Manifest) -> str | None:
    """Why a trace cannot be compared at all, or None."""
    found = definitions().get(trace.definition)
    entries = [manifest.entries.get(trace.definition) for manifest in (before, after)]
    if found is None or trace.workload not in by_name(found) or None in entries:
        return "the definition, the workload or the entry no longer exists"
    return "the solution now uses another language" if before.language != after.language else None


@contextmanager
def _staged(state: State) -> Iterator[Path]:
    """A folder with the sources. It has the same name for both states, because kernels' names contain it."""
    with tempfile.TemporaryDirectory() as above:
        for name in state.manifest.sources:
            file = Path(above) / "solution" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(state.read(name))
        yield Path(above) / "solution"


# --- Triton -----------------------------------------------------------------------------------------------------


def _refused_triton(trace: Trace, before: Manifest, after: Manifest) -> str | None:
    """Why the two states cannot be compared on a trace, before anything is compiled."""
    if any(manifest.entries[trace.definition].prepare is not None for manifest in (before, after)):
        return "a call with `prepare` cannot run without a GPU"
    if trace.environment.get("triton") != machine_code.compiler()["triton"]:
        return f"it was measured with Triton {trace.environment.get('triton')}, but another version is installed"
    return None


def _triton_hashes(state: State, traces: list[Trace]) -> list[str]:
    with _staged(state) as folder:
        return machine_code.hashes(folder, list(_calls(traces, state)))


def _calls(traces: list[Trace], state: State) -> Iterator[tuple[str, Mapping[str, object]]]:
    for trace in traces:
        found, entry = definitions()[trace.definition], state.manifest.entries[trace.definition]
        given = inputs(found, by_name(found)[trace.workload], entry.call == "out")
        yield entry.entry, given | dict(state.settings["arguments"])


def inputs(found: Found, workload: Workload, outputs: bool) -> dict[str, object]:
    """The keyword arguments of a call, with tensors without memory; with `outputs`, those as well."""
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


# --- CUDA -------------------------------------------------------------------------------------------------------


def _refused_cuda(trace: Trace, before: Manifest, after: Manifest) -> str | None:
    """Why the two states cannot be compared on a trace, before anything is compiled."""
    if not all(manifest.entries[trace.definition].file.endswith(".cu") for manifest in (before, after)):
        return "its entry is not in a .cu file"
    if not cuda_code.HOPPER.search(trace.device):
        return f"it was measured on {trace.device}, but the code is compared for sm_{cuda_code.ARCH}"
    return None


def _cuda_hashes(state: State, traces: list[Trace]) -> list[str]:
    """For each trace, a hash of the called function and of its file's code. The workload does not matter here."""
    with _staged(state) as folder:

        @cache
        def code(file: str) -> str:
            return cuda_code.code(folder, file, state.settings["defines"])

        entries = [state.manifest.entries[trace.definition] for trace in traces]
        called = [json.dumps([entry.function, code(entry.file)]) for entry in entries]
        return [hashlib.sha256(text.encode()).hexdigest() for text in called]
