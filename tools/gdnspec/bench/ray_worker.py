"""The code that runs on a machine of a Ray cluster: one actor per device, with one `Measurer`.

Workers read sources locally; they are not sent. Every machine needs the same checkout of gdnspec and the same solutions
at the same place. Each order contains the hashes of the driver, and a worker with other hashes refuses.
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
    """A task in JSON types."""
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
    """The hashes that a figure depends on, besides the solutions, each under a name that a user knows."""
    return {
        "tools/gdnspec": judge_hash(),
        "reference": code_hash(found.family),
        f"definitions/{found.definition.name}": definition_hash(found),
        "presets": preset_of(found, workload).model_dump_json(),
    }


class Worker:
    """The actor. Methods return {"refused": why} instead of raising errors that the driver should see."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._measurer: Measurer | None = None
        self._device: machine.Device | None = None

    def start(self, settings: Said, judge: str) -> Said:
        """Takes memory and measures ceilings; called once before any order. Returns the device."""
        if judge != judge_hash():
            return _refusal("it differs from the driver's copy: tools/gdnspec")
        try:
            chosen = Settings(**settings)
            self._device = machine.device(chosen.device)
            # Warnings concern this machine only. Ray writes stderr to its log.
            measurer = chosen.measurer(lambda message: print(message, file=sys.stderr))
        except SpecError as error:
            return _refusal(str(error))
        self._measurer = self._stack.enter_context(measurer)
        assert self._device is not None
        return {"device": asdict(self._device)}

    def measure(self, wanted: Said) -> Said:
        """Measures one order and returns its traces as JSON."""
        try:
            job, *rivals = self._jobs(wanted)
        except SpecError as error:
            return _refusal(str(error))
        assert self._measurer is not None
        return {"traces": [trace.model_dump_json() for trace in self._measurer.traces(job, rivals)]}

    def end(self) -> Said:
        """Ends the children and frees the memory."""
        self._stack.close()
        return {}

    def _jobs(self, wanted: Said) -> list[Job]:
        """The job and its rivals on this machine. Raises `SpecError` if a source differs from the driver's."""
        found, line = definition(wanted["definition"]), Workload.model_validate(wanted["workload"])
        if found.family.preset(line.preset) is None:
            raise SpecError(f"the family {found.family.name} has no preset {line.preset!r}")
        mine = _sources(found, line)
        differing = [name for name, theirs in wanted["sources"].items() if mine[name] != theirs]
        solutions = [load_variant(Path(folder), variant) for folder, variant, _ in wanted["solutions"]]
        for solution, (folder, _, theirs) in zip(solutions, wanted["solutions"], strict=True):
            if solution.source_hash != theirs:
                differing.append(folder)
        if differing:
            raise SpecError(f"it differs from the driver's copy: {', '.join(differing)}")
        assert self._device is not None
        return list(plan(solutions, [(found, [line])], self._device))


def _refusal(why: str) -> Said:
    return {"refused": f"{platform.node()}: {why}"}
