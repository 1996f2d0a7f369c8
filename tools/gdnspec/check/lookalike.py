"""Whether a failing solution answers like a known fault: the wrong solutions of its definition get the same inputs.

The faults are the project's own, and small: they run in this process. An installation without them finds nothing.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gdnspec.build.loader import apart, load_function
from gdnspec.catalog.definitions import Found
from gdnspec.catalog.faults import Bad, known_bad, rejections
from gdnspec.inputs.materialise import Inputs
from gdnspec.model.errors import SpecError
from gdnspec.model.fault import Fault
from gdnspec.model.workload import Workload
from gdnspec.numerics.allowed import budget
from gdnspec.numerics.arguments import arguments
from gdnspec.numerics.threads import one_thread

ROWS = 9  # failing workloads of a solution that are compared, at most
BYTES = 32 << 20  # of all tensors of a row, at most
SECONDS = 10.0  # of processor time: what others do on the machine decides nothing
NEAR = 0.1  # of the distance to the right answer: a fault explains the rest
NAMED = 3  # faults that match equally well, at most

Outputs = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Row:
    """A workload that a solution fails: what it answered, and the right answer."""

    found: Found
    workload: Workload
    inputs: Inputs
    answer: Outputs
    expected: Outputs


@dataclass(eq=False)
class Wrong:
    """The first failing workloads of each solution and definition."""

    rows: dict[tuple[str, str], list[Row]] = field(default_factory=dict)

    def add(self, solution: str, row: Row) -> None:
        size = sum(x.numel() * 8 for x in row.expected.values()) + sum(x.nbytes for x in row.inputs.tensors.values())
        kept = self.rows.setdefault((solution, row.found.definition.name), [])
        if len(kept) < ROWS and size <= BYTES:
            kept.append(row)

    def likenesses(self, clock: Callable[[], float] = time.process_time) -> Iterator[str]:
        """A sentence for each solution and definition whose answers are those of a known fault. Faults that are not
        compared within `SECONDS` of processor time are left out."""
        end = clock() + SECONDS
        for (solution, name), rows in self.rows.items():
            counts: dict[str, int] = {}
            for bad in _faults(name):
                if clock() > end:
                    return
                with one_thread():
                    counts[bad.solution.name] = _alike(rows, bad)
            most = max(counts.values(), default=0)
            if most:
                names = [fault for fault, count in counts.items() if count == most]
                listed = ", ".join(names[:NAMED]) + (" and others" if len(names) > NAMED else "")
                why = f": {rejections()[names[0]].fault}" if len(names) == 1 else ""
                yield f"{solution} on {name} matches {listed} on {most} of {len(rows)} rows{why}"


def _alike(rows: list[Row], bad: Bad) -> int:
    """On how many of the rows the fault answers alike; 0 if on fewer than half."""
    alike = 0
    for i, row in enumerate(rows):
        alike += _answers_like(row, bad)
        if i + 1 - alike > len(rows) / 2:
            return 0
    return alike


def _faults(definition: str) -> list[Bad]:
    """The wrong solutions of a definition that PyTorch alone can run."""
    names = [
        name
        for name, known in rejections().items()
        if isinstance(known, Fault) and known.kind == "wrong" and definition in known.definitions
    ]
    try:
        return [bad for bad in known_bad(names) if _in_pytorch(bad)] if names else []
    except SpecError:
        return []  # a table that cannot be read: selftest and validate say so


def _in_pytorch(bad: Bad) -> bool:
    """Whether this process can run it."""
    return bad.solution.manifest.language == "python"


def _answers_like(row: Row, bad: Bad) -> bool:
    try:
        theirs = _answer(row, bad)
    except Exception:  # the fault is that it cannot be called like this, or it refuses the shape
        return False
    likenesses = [
        _near(row.answer[o.name], theirs[o.name], row.expected[o.name], budget(row.found.definition, o, row.workload))
        for o in row.found.definition.judged
    ]
    return None not in likenesses and True in likenesses


def _near(mine: Tensor, theirs: Tensor, right: Tensor, limits: dict[str, float]) -> bool | None:
    """Whether the fault explains the error of an output; None if it contradicts it. False: both are right."""
    mine, theirs, right = mine.double().cpu(), theirs.double().cpu(), right.double().cpu()
    finite = torch.isfinite(mine)
    if not torch.equal(finite, torch.isfinite(theirs)):
        return None
    mine, theirs, right = mine[finite], theirs[finite], right[finite]
    size = float(right.norm()) or 1.0
    apart, error = float((mine - theirs).norm()) / size, float((mine - right).norm()) / size
    if not finite.all():
        error = math.inf
    allowed = limits.get("relative_l2", 0.0)
    if error <= allowed and apart <= 2 * allowed:
        return False
    return True if apart <= max(allowed, NEAR * min(error, 1.0)) and apart <= error / 2 else None


@cache
def _function(folder: Path, spec: str) -> Callable[..., Any]:
    """A function of a fault. Files beside it have the names of those of other faults, and maybe of this program."""
    with apart(folder):
        return load_function(folder, spec, folder)


def _answer(row: Row, bad: Bad) -> Outputs:
    """What the fault answers to the row's inputs."""
    definition = row.found.definition
    entry = bad.solution.manifest.entries[definition.name]
    function = _function(bad.solution.folder, entry.entry)
    shared = arguments(row.found, row.inputs, "cpu")
    given = {name: x.clone() if isinstance(x, Tensor) else x for name, x in shared.items()}  # it may write to them
    if entry.prepare:
        given["prepared"] = _function(bad.solution.folder, entry.prepare)(**given)
    out = {
        t.name: torch.full(definition.shape(t, row.inputs.scope), math.nan, dtype=getattr(torch, t.dtype))
        for t in definition.outputs
    }
    if entry.call == "out":
        function(**given, **out)
    else:
        returned = function(**given)
        answers = returned if isinstance(returned, tuple) else (returned,)
        out = {t.name: x for t, x in zip(definition.outputs, answers, strict=True)}
    return {t.name: given[t.name] if t.mutates else out[t.name] for t in definition.judged}
