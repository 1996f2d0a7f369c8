"""Tests the judge of sessions: it must reject every wrong scheduler and wrong kernel, and accept its own reference."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from gdnspec.catalog.families import Family, families
from gdnspec.catalog.sessions import sessions
from gdnspec.model.session_fault import SessionFault
from gdnspec.numerics.judge import Verdict
from gdnspec.sandbox.wire.lifetime import die_with
from gdnspec.sessions.case import Case
from gdnspec.sessions.check import judged
from gdnspec.sessions.honest import reference
from gdnspec.sessions.wrong import Wrong

REFERENCE = "reference"  # in the place of a fault's name: the judge's own scheduler and kernels


@dataclass(frozen=True)
class Trial:
    """A fault and the sessions that it runs through; without a fault, the judge's reference."""

    table: Path
    fault: SessionFault | None
    names: tuple[str, ...]

    @property
    def family(self) -> Family:
        return families()[self.table.parent.name]


@dataclass(frozen=True)
class Tried:
    """A trial with the verdict on each session."""

    trial: Trial
    verdicts: dict[str, Verdict]

    def complaints(self) -> Iterator[str]:
        """Why the judge is wrong about it, in words."""
        fault = self.trial.fault
        if fault is None:
            for name, verdict in self.verdicts.items():
                if verdict.status != "PASSED":
                    yield f"the judge's reference gets {verdict.status} on session {name}: {verdict.message}"
            return
        for name in fault.killed_by:
            if self.verdicts[name].status == "PASSED":
                yield f"{fault.name} passes session {name}, which must reject it: {fault.fault}"
        for name, verdict in self.verdicts.items():
            if name in fault.killed_by and verdict.status not in ("PASSED", *fault.statuses):
                wanted = " or ".join(fault.statuses)
                yield f"{fault.name} on session {name} is {verdict.status}, not {wanted}: {verdict.message}"


def trials(faults: Sequence[tuple[Path, SessionFault]], every: bool) -> Iterator[Trial]:
    """One trial per fault, on the sessions that must reject it, or on every session of its family. The reference runs
    through all of these sessions, one trial per session."""
    needed: dict[Path, dict[str, None]] = {}
    for table, fault in faults:
        lines = sessions(families()[table.parent.name]) if every else []
        known = tuple(line.name for line in lines if fault.pooled in (None, line.pooled))
        names = known or tuple(fault.killed_by)
        needed.setdefault(table, {}).update(dict.fromkeys(names))
        yield Trial(table, fault, names)
    for table, names_of in needed.items():
        for name in names_of:
            yield Trial(table, None, (name,))


def run(asked: Sequence[Trial], jobs: int) -> Iterator[Tried]:
    """The trials in order, as soon as they are known, `jobs` at a time."""
    jobs = max(1, min(jobs, len(asked) // 4))  # to start one more takes longer than a few trials
    # "spawn" and not "fork": torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _begin, (os.getpid(),)) as pool:
        try:
            yield from pool.map(tried, asked, chunksize=max(1, len(asked) // (4 * jobs)))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def tried(trial: Trial) -> Tried:
    """Runs one trial in this process."""
    fault, found = trial.fault, {}
    for name in trial.names:
        case = _case(trial.family.name, name)
        found[name] = judged(case, reference).verdict if fault is None else Wrong(fault, trial.table).verdict(case)
    return Tried(trial, found)


@cache
def _case(family: str, name: str) -> Case:
    known = families()[family]
    return Case.of(known, next(line for line in sessions(known) if line.name == name))


def _begin(parent: int) -> None:
    die_with(parent)
    torch.set_num_threads(1)  # the tensors are small
