"""Imports a family's code, reference/<family>/, as a package whose name cannot clash with others.

The judge runs this foreign code in its own process. An exception in it becomes a problem of its file.
"""

import contextlib
import hashlib
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gdnspec.build.full_memory import out_of_memory
from gdnspec.catalog.families import Family
from gdnspec.model.errors import RUNNING, Problem, RegimeError, SpecError
from gdnspec.model.loading import is_file

if TYPE_CHECKING:
    from gdnspec.inputs.contract import Calls, Foreign, Onnx

PACKAGE = "gdnspec_reference_{}"
FAMILY_CODE = "family.py"
ASKED = ("painter", "problems", "emulators")  # every family needs these
_OF_THE_JUDGE = re.compile(r"^ *(from|import) gdnspec\b", re.MULTILINE)
BESIDE = ("suites", "scripts", "ops", "ops.py")  # no verdict depends on these


@contextlib.contextmanager
def running(family: Family, doing: str) -> Iterator[None]:
    """Wraps a call of a family's code. An exception becomes a `SpecError` with its file and line, except lack of
    memory, which is not the code's fault, and `RegimeError`, which is an answer."""
    try:
        yield
    except (SpecError, RegimeError):
        raise
    except (Exception, SystemExit) as error:  # an exit of the process would look like a verdict
        if out_of_memory(error) or (isinstance(error, ModuleNotFoundError) and error.name in RUNNING):
            raise
        file, line = _origin(family, error)
        what = f"{type(error).__name__}: {(str(error).splitlines() or ['no details'])[0]}"
        place = "" if line is None else f"line {line}"
        raise SpecError([Problem(file, f"{what} (while {doing})", place)]) from error


def _origin(family: Family, error: BaseException) -> tuple[Path, int | None]:
    """The last place in the family's own code that an error passed through."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        places.append((error.filename, error.lineno or 1))
    mine = [(Path(name), line) for name, line in places if Path(name).is_relative_to(family.reference)]
    return mine[-1] if mine else (family.reference / FAMILY_CODE, None)


def module(family: Family, name: str) -> ModuleType:
    """The module reference/<family>/<name>.py, or `folder.name` for one in a folder. Raises `SpecError`."""
    with running(family, f"importing {name}.py"):
        return importlib.import_module(f"{_package(family)}.{name}")


def function(family: Family, named: str) -> Callable[..., Any]:
    """The function that a definition names as `file.py::function`. Raises `SpecError`."""
    file, name = named.split("::")
    found = module(family, file.removesuffix(".py"))
    with running(family, f"looking up {name}"):
        return getattr(found, name)  # type: ignore[no-any-return]


def judged(family: Family) -> Any:
    """The `FAMILY` of a family's family.py, a `gdnspec.family.Family`. Raises `SpecError` if there is none."""
    file = family.reference / FAMILY_CODE
    if not is_file(file):
        raise SpecError(
            [Problem(file, "no such file", hint=f"every family needs a {FAMILY_CODE}, which draws its inputs")]
        )
    found = getattr(module(family, "family"), "FAMILY", None)
    if found is None:
        raise SpecError(
            [Problem(file, "it does not define FAMILY", hint="FAMILY = gdnspec.family.Family(painter, ..)")]
        )
    if missing := [name for name in ASKED if not callable(getattr(found, name, None))]:
        raise SpecError([Problem(file, f"FAMILY has no function {missing[0]!r}: it is a {type(found).__name__}")])
    return found


def calls(family: Family) -> "Calls":
    """How library calls become workloads of the family's definitions. Raises `SpecError` if the family does not say."""
    return _further(family, "calls", "has no calls of libraries to record")  # type: ignore[no-any-return]


def foreign(family: Family) -> "Foreign":
    """How FlashInfer-Bench describes the family's definitions. Raises `SpecError` if the family does not say."""
    return _further(family, "foreign", "does not say how FlashInfer-Bench describes it")  # type: ignore[no-any-return]


def onnx(family: Family) -> "Onnx":
    """How ONNX describes the family's definitions. Raises `SpecError` if the family does not say."""
    return _further(family, "onnx", "does not say how ONNX describes it")  # type: ignore[no-any-return]


def operators(family: Family) -> Mapping[str, Callable[..., Any]]:
    """The family's operators as functions, by name; empty if it has none. Raises `SpecError`."""
    make = getattr(judged(family), "ops", None)
    with running(family, "loading its operators"):
        found: Mapping[str, Callable[..., Any]] = make() if make is not None else {}
    return found


def origin(function: Callable[..., Any], family: Family) -> tuple[Path, int]:
    """Where a function of a family stands: its file and line."""
    try:
        return Path(inspect.getsourcefile(function) or ""), inspect.getsourcelines(function)[1]
    except (OSError, TypeError):  # not written in Python
        return family.reference / FAMILY_CODE, 1


def _further(family: Family, part: str, without: str) -> Any:
    """An optional part of a family. Raises `SpecError` if it is missing."""
    found = getattr(judged(family), part, None)
    if found is None:
        hint = f"FAMILY = gdnspec.family.Family(.., {part}=..)"
        raise SpecError([Problem(family.reference / FAMILY_CODE, f"the family {family.name} {without}", hint=hint)])
    return found()


@cache
def code_hash(family: Family) -> str:
    """sha256 over all files of the family that affect a verdict: the operators, and what the judge needs."""
    digest = hashlib.sha256(family.file.read_bytes())
    for file in _judging(family):
        digest.update(_named(family, file) + file.read_bytes())
    return digest.hexdigest()


@cache
def reference_hash(family: Family) -> str:
    """sha256 over the files that affect expected values: the operators, not the files that only the judge needs."""
    digest = hashlib.sha256()
    for file in _judging(family):
        content = file.read_bytes()
        if not _OF_THE_JUDGE.search(content.decode()):
            digest.update(_named(family, file) + content)
    return digest.hexdigest()


def _judging(family: Family) -> list[Path]:
    """The family's Python files, including those in folders, except folders that affect no verdict."""
    files = sorted(family.reference.rglob("*.py"))
    return [file for file in files if file.relative_to(family.reference).parts[0] not in BESIDE]


def _named(family: Family, file: Path) -> bytes:
    return f"{file.relative_to(family.reference).as_posix()}\0".encode()


@cache
def _package(family: Family) -> str:
    name = PACKAGE.format(family.name)
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(family.reference)]
    sys.modules[name] = module_from_spec(spec)
    return name
