"""What runs on a machine of a Ray cluster: one actor a device, which holds one `Measurer`.

Sources are read there, not sent: every machine needs the same checkout of gdnspec, and the same solutions, at the same
place. Each order says what the driver has; where a worker has anything else it refuses.
"""

import platform
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gdnspec.bench.executor import Settings, Task
from gdnspec.bench.measure import Measurer
from gdnspec.build import machine
from gdnspec.build.reference import code_hash
from gdnspec.catalog.definitions import Found, definition, preset_of
from gdnspec.catalog.solutions import load_variant
from gdnspec.catalog.traces import definition_hash
from gdnspec.check.plan import Job, judge_hash, plan
from gdnspec.model.errors import SpecError
from gdnspec.model.workload import Workload

Said = dict[str, Any]


def order(task: Task) -> Said:
    """A task in types that JSON has."""
    job = task.job
    return {
        "definition": job.found.definition.name,
        "workload": job.workload.model_dump(mode="json"),
        "sources": _sources(job.found, job.workload),
        "solutions": [
            [str(s.folder.resolve()), s.variant, s.source_hash]
            for s in (job.solution, *(r.solution for r in task.rivals))
        ],
    }


def _sources(found: Found, workload: Workload) -> dict[str, str]:
    """What a figure depends on beside the solutions, each by the name that a person knows it by."""
    return {
        "tools/gdnspec": judge_hash(),
        "reference": code_hash(found.family),
        f"definitions/{found.definition.name}": definition_hash(found),
        "presets": preset_of(found, workload).model_dump_json(),
    }


class Worker:
    """The actor. No method raises what the driver should know: it comes back as {"refused": why}."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._measurer: Measurer | None = None
        self._device: machine.Device | None = None

    def start(self, settings: Said, judge: str) -> Said:
        """Once, before any order: memory is taken and ceilings are measured. The device that it has."""
        if judge != judge_hash():
            return _refusal("not the driver's: tools/gdnspec")
        try:
            chosen = Settings(**settings)
            self._device = machine.device(chosen.device)
            # Of what it is warned, its machine alone is concerned; Ray keeps stderr in that machine's log.
            measurer = chosen.measurer(lambda message: print(message, file=sys.stderr))
        except SpecError as error:
            return _refusal(str(error))
        self._measurer = self._stack.enter_context(measurer)
        assert self._device is not None
        return {"device": asdict(self._device)}

    def measure(self, wanted: Said) -> Said:
        """The traces of one order, each as JSON."""
        try:
            job, *rivals = self._jobs(wanted)
        except SpecError as error:
            return _refusal(str(error))
        assert self._measurer is not None
        return {"traces": [trace.model_dump_json() for trace in self._measurer.traces(job, rivals)]}

    def end(self) -> Said:
        """Ends the children and gives the memory back."""
        self._stack.close()
        return {}

    def _jobs(self, wanted: Said) -> list[Job]:
        """The job and its rivals, as this machine has them. Raises `SpecError`."""
        found, line = definition(wanted["definition"]), Workload.model_validate(wanted["workload"])
        if found.family.preset(line.preset) is None:
            raise SpecError(f"the presets of {found.family.name} have no {line.preset!r}")
        mine = _sources(found, line)
        differing = [name for name, theirs in wanted["sources"].items() if mine[name] != theirs]
        solutions = [load_variant(Path(folder), variant) for folder, variant, _ in wanted["solutions"]]
        for solution, (folder, _, theirs) in zip(solutions, wanted["solutions"], strict=True):
            if solution.source_hash != theirs:
                differing.append(folder)
        if differing:
            raise SpecError(f"not the driver's: {', '.join(differing)}")
        assert self._device is not None
        return list(plan(solutions, [(found, [line])], self._device))


def _refusal(why: str) -> Said:
    return {"refused": f"{platform.node()}: {why}"}
