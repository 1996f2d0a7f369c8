"""Runs wrong schedulers and wrong kernels through sessions, in the judge's own process: they are its own data."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gdnspec.catalog.definitions import Found
from gdnspec.catalog.session_faults import base, source
from gdnspec.check.content import Content
from gdnspec.check.junk import with_junk
from gdnspec.model.session_fault import SessionFault
from gdnspec.model.workload import Workload
from gdnspec.numerics.judge import Verdict
from gdnspec.numerics.pools import integers, left, untouched
from gdnspec.sessions.case import Case
from gdnspec.sessions.check import CallFault, Judgement
from gdnspec.sessions.follow import Maker, follow
from gdnspec.sessions.honest import arguments, reference
from gdnspec.sessions.kernels import Run


def module_of(name: str, text: str, beside: Path | None = None) -> ModuleType:
    """A module from the text of a wrong file. `beside`: the folder of the files that it imports."""
    module = ModuleType(name)
    with _importing(beside):
        exec(compile(text, f"<{name}>", "exec"), module.__dict__)
    return module


@contextmanager
def _importing(folder: Path | None) -> Iterator[None]:
    """Modules come from this folder first, and are forgotten: other solutions have files of the same names."""
    names = set() if folder is None else {file.stem for file in folder.glob("*.py")}
    known = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    path = list(sys.path)
    sys.path[:0] = [] if folder is None else [str(folder)]
    try:
        yield
    finally:
        sys.path[:] = path
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(known)


def run_of(entries: dict[str, Callable[..., Any]]) -> Run:
    """Calls of these functions, by the definitions that they serve; all others are the judge's reference."""

    def run(kind: str, found: Found, workload: Workload, content: Content) -> dict[str, Tensor]:
        function, definition = entries.get(found.definition.name), found.definition
        if function is None:
            return reference(kind, found, workload, content)
        given = with_junk(definition, content)
        own = Content({name: x.clone() for name, x in given.tensors.items()}, given.scalars, given.scope)
        with torch.no_grad():
            returned = function(**arguments(found, own))
        values = () if returned is None else returned if isinstance(returned, tuple) else (returned,)
        outputs = dict(zip((tensor.name for tensor in definition.outputs), values, strict=True))
        fault = untouched(definition, given.tensors, own.tensors)
        if fault is not None:
            raise CallFault(fault)
        return outputs | left(definition, own.tensors, integers(own.tensors))

    return run


class Wrong:
    """One fault, ready to run. It is made anew for each session, so that nothing is left of another."""

    def __init__(self, fault: SessionFault, table: Path) -> None:
        self.fault, self._text = fault, source(fault, table)
        self._base = None if fault.is_scheduler else base(fault, table)

    def verdict(self, case: Case) -> Verdict:
        """The verdict on one session. An exception of the fault is a RUNTIME_ERROR."""
        scheduler, run = self._made()
        found = Judgement()
        try:
            for pair in follow(case, run, scheduler):
                if not found.add(case.line, pair):
                    break
        except CallFault as error:
            return error.verdict
        except Exception as error:
            return Verdict("RUNTIME_ERROR", f"{type(error).__name__}: {error}")
        return found.verdict

    def _made(self) -> tuple[Maker | None, Run]:
        # dataclasses look their module up by name: that of the right file serves as well.
        name = f"gdnspec.sessions.{self.fault.base}" if self.fault.is_scheduler else self.fault.name
        module = module_of(name, self._text, None if self._base is None else self._base.folder)
        if self._base is None:
            return module.PoolScheduler if self.fault.pooled else module.Scheduler, reference
        entries = {d: getattr(module, self._base.manifest.entries[d].function) for d in self.fault.definitions}
        return None, run_of(entries)
