"""gdnspec.check: the judge on a Python function."""

import contextlib
import inspect
import secrets
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gdnspec.api.spec import Spec, definition
from gdnspec.api.verdict import Verdict
from gdnspec.api.words import LONGEST, SEED, SHORTEST, flag, integer, name_of, seconds
from gdnspec.build import machine
from gdnspec.build.machine import Device
from gdnspec.catalog.definitions import Found
from gdnspec.catalog.functions import call_of, functions
from gdnspec.catalog.solutions import Solution
from gdnspec.catalog.source import Signature
from gdnspec.check.plan import Extras, Job, plan
from gdnspec.check.run import Checker, Options
from gdnspec.inputs.fresh import fresh
from gdnspec.model.errors import SpecError
from gdnspec.model.result import CheckResult
from gdnspec.model.workload import SUITES, Workload
from gdnspec.numerics.allowed import require
from gdnspec.sandbox.parent.in_process import InProcess
from gdnspec.sandbox.parent.process import Child

SOURCE = "function.py"
TIMEOUT = 120.0
DEFAULTS = {"isolated": False, "deterministic": False, "timeout": TIMEOUT}  # a repetition names what differs


def check(
    function: Callable[..., Any],
    definition_name: str | Spec,
    suite: str = "smoke",
    *,
    workload: str | None = None,
    device: str = "auto",
    isolated: bool = False,
    deterministic: bool = False,
    errors: bool = False,
    seed: int | None = None,
    timeout: float = TIMEOUT,
) -> Verdict:
    """Judges a function on the workloads of a definition, and on fresh ones that are drawn for this call.

    `function` takes the inputs of the definition by keyword and returns the outputs, as a tuple in the definition's
    order. If it also has parameters with the names of the outputs, it gets them full of NaN and writes to them.

    `suite`: smoke, conformance, strict, performance, fresh or all. `workload`: this one alone. `device`: auto, cpu or
    cuda. `deterministic`: also demand the same bits for the same content. `errors`: also take errors by position.
    `seed`: of the fresh workloads and of what second calls change; new by default.

    By default the function runs in this process. It has no deadline then, and the verdict says that it was not
    isolated. With `isolated` its source file is copied and runs in a process of its own, within `timeout` seconds per
    call.

    Raises `SpecError` where the request makes no sense: an unknown definition, suite or workload, or a function that
    does not take the inputs.
    """
    for word, value in (("isolated", isolated), ("deterministic", deterministic), ("errors", errors)):
        flag(word, value)
    seconds("timeout", timeout, SHORTEST, LONGEST)
    if seed is not None:
        integer("seed", seed, 0, SEED)
    spec = definition_name if isinstance(definition_name, Spec) else definition(definition_name)
    name = getattr(function, "__name__", type(function).__name__)
    call = _call(function, name, spec)
    where = _device(device)
    name_of("suite", suite)
    drawn = secrets.randbits(62) if seed is None else seed
    lines = _lines(spec.found, suite, workload, drawn, where)
    require(spec.contract, lines)
    with _solution(function, spec.name, call, deterministic, isolated) as solution:
        jobs = list(plan([solution], [(spec.found, lines)], where, Extras(errors=errors)))
        options = Options(timeout, drawn)
        checker = Checker(where.kind, options, _warn) if isolated else _Here(function, where.kind, options)
        results: list[CheckResult] = list(checker.run(jobs))
    given: dict[str, object] = {"isolated": isolated, "deterministic": deterministic, "timeout": timeout}
    changed = {word: value for word, value in given.items() if value != DEFAULTS[word]}
    return Verdict(spec.name, name, where.kind, results, isolated, changed)


class _Here(Checker):
    """Judges in this process."""

    def __init__(self, function: Callable[..., Any], device: str, options: Options) -> None:
        super().__init__(device, options, _warn)
        self._function = function

    def child(self, job: Job) -> Child:
        return InProcess(self._function, job.solution, self.device)


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def _device(name: str) -> Device:
    if name == "auto":
        return machine.best_device()
    found = machine.device(name) if name in ("cpu", "cuda") else None
    if found is None:
        raise SpecError(f"no device {name!r} here: auto, cpu, or cuda where there is a GPU")
    return found


def _call(function: Callable[..., Any], name: str, spec: Spec) -> str:
    """Whether it returns the outputs or takes them. Raises `SpecError` where it does not take the inputs."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise SpecError(f"{name} does not say which arguments it takes: wrap it in a function that does") from None
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise SpecError(f"{name} is a generator or a coroutine: return the outputs as a tuple")
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes = Signature(
        0,
        tuple(p.name for p in named),
        frozenset(p.name for p in named if p.default is p.empty),
        any(p.kind is p.VAR_KEYWORD for p in parameters),
        frozenset(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY),
    )
    return call_of(name, takes, spec.contract)


def _lines(found: Found, suite: str, name: str | None, seed: int, where: Device) -> list[Workload]:
    spec = Spec(found, found.definition.name)
    drawn = fresh(found, seed, where.kind)
    if name is not None:
        name_of("workload", name)
        return [line for line in drawn if line.name == name] or [spec.workload(name).line]
    if suite == "fresh":
        return drawn
    return [case.line for case in spec.workloads(suite)] + (drawn if suite in (*SUITES, "all") else [])


def _at_top_level(function: Callable[..., Any], name: str) -> bool:
    """Whether its file has this function under its name. What a decorator made elsewhere may bear another's name."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    return name.isidentifier() and module is not None and getattr(module, name, None) is function


@contextlib.contextmanager
def _solution(
    function: Callable[..., Any], definition_name: str, call: str, deterministic: bool, isolated: bool
) -> Iterator[Solution]:
    """The function as a solution that serves one definition."""
    name = getattr(function, "__name__", "")
    if isolated and not _at_top_level(function, name):
        raise SpecError("isolated=True takes a function at the top level of a file: its file is copied to a process")
    entry = {"entry": f"{SOURCE}::{name if name.isidentifier() else 'function'}", "call": call}
    with tempfile.TemporaryDirectory(prefix="gdnspec-check-") as folder:
        source = Path(folder) / SOURCE
        source.touch()
        if isolated:
            try:
                shutil.copyfile(inspect.getsourcefile(function) or "", source)
            except (OSError, TypeError):
                raise SpecError(f"isolated=True needs the file of {name}, and there is none") from None
        yield functions(source.parent, [SOURCE], {definition_name: entry}, deterministic)
