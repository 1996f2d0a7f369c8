"""A family's code: reference/<family>/ as a package of its own, whatever else has names like its modules.

It is somebody else's code, which the judge runs in its own process: what it raises is told as a problem of its file.
"""

import contextlib
import hashlib
import importlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gdnspec.catalog.families import Family
from gdnspec.model.errors import Problem, RegimeError, SpecError
from gdnspec.model.loading import is_file

if TYPE_CHECKING:
    from gdnspec.inputs.contract import Calls, Foreign

PACKAGE = "gdnspec_reference_{}"
FAMILY_CODE = "family.py"
ASKED = ("painter", "problems", "emulators")  # what no family can do without
_OF_THE_JUDGE = re.compile(r"^ *(from|import) gdnspec\b", re.MULTILINE)
BESIDE = ("suites", "scripts")  # folders of what lists workloads and writes data: no verdict follows from them


def out_of_memory(error: BaseException) -> bool:
    """torch says it in three ways. Here it is not imported."""
    return isinstance(error, MemoryError) or any(
        word in f"{type(error).__name__}: {error}" for word in ("OutOfMemoryError", "can't allocate memory")
    )


@contextlib.contextmanager
def running(family: Family, doing: str) -> Iterator[None]:
    """Around a call of a family's code. What that raises becomes a `SpecError` with its file and line; memory that is
    missing is no fault of the code, and a `RegimeError` is an answer."""
    try:
        yield
    except (SpecError, RegimeError):
        raise
    except (Exception, SystemExit) as error:  # what ends the process would look like a verdict
        if out_of_memory(error):
            raise
        file, line = _origin(family, error)
        what = f"{type(error).__name__}: {(str(error).splitlines() or ['no more is said'])[0]}"
        place = "" if line is None else f"line {line}"
        raise SpecError([Problem(file, f"{what}, raised while {doing}", place)]) from error


def _origin(family: Family, error: BaseException) -> tuple[Path, int | None]:
    """The last line of the family's own code that an error passed through."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        places.append((error.filename, error.lineno or 1))
    mine = [(Path(name), line) for name, line in places if Path(name).is_relative_to(family.reference)]
    return mine[-1] if mine else (family.reference / FAMILY_CODE, None)


def module(family: Family, name: str) -> ModuleType:
    """reference/<family>/<name>.py; in a folder of it `folder.name`. Raises `SpecError`."""
    with running(family, f"{name}.py is imported"):
        return importlib.import_module(f"{_package(family)}.{name}")


def function(family: Family, named: str) -> Callable[..., Any]:
    """What a definition names as `file.py::function`. Raises `SpecError`."""
    file, name = named.split("::")
    found = module(family, file.removesuffix(".py"))
    with running(family, f"{name} is looked up"):
        return getattr(found, name)  # type: ignore[no-any-return]


def judged(family: Family) -> Any:
    """What the judge asks the family for: the `FAMILY` of its family.py, a `gdnspec.family.Family`. Raises `SpecError`
    where there is none."""
    file = family.reference / FAMILY_CODE
    if not is_file(file):
        raise SpecError([Problem(file, "no such file", hint=f"a family's {FAMILY_CODE} says how its inputs are drawn")])
    found = getattr(module(family, "family"), "FAMILY", None)
    if found is None:
        raise SpecError([Problem(file, "no FAMILY in it", hint="FAMILY = gdnspec.family.Family(painter, ..)")])
    if missing := [name for name in ASKED if not callable(getattr(found, name, None))]:
        raise SpecError([Problem(file, f"FAMILY has no function {missing[0]!r}: it is a {type(found).__name__}")])
    return found


def calls(family: Family) -> "Calls":
    """How calls of a library become workloads of the family's definitions. Raises `SpecError` where they do not."""
    return _further(family, "calls", "reads no library calls")  # type: ignore[no-any-return]


def foreign(family: Family) -> "Foreign":
    """How FlashInfer-Bench has the family's definitions. Raises `SpecError` where nothing says so."""
    return _further(family, "foreign", "does not say how FlashInfer-Bench has it")  # type: ignore[no-any-return]


def _further(family: Family, part: str, without: str) -> Any:
    """What a family need not have."""
    found = getattr(judged(family), part, None)
    if found is None:
        hint = f"FAMILY = gdnspec.family.Family(.., {part}=..)"
        raise SpecError([Problem(family.reference / FAMILY_CODE, f"the family {family.name} {without}", hint=hint)])
    return found()


@cache
def code_hash(family: Family) -> str:
    """sha256 over all that a verdict follows from: the operators' files and what the judge needs beside them."""
    digest = hashlib.sha256(family.file.read_bytes())
    for file in _judging(family):
        digest.update(_named(family, file) + file.read_bytes())
    return digest.hexdigest()


@cache
def reference_hash(family: Family) -> str:
    """sha256 over what expected values follow from: the files of the operators, not those that only the judge needs."""
    digest = hashlib.sha256()
    for file in _judging(family):
        content = file.read_bytes()
        if not _OF_THE_JUDGE.search(content.decode()):
            digest.update(_named(family, file) + content)
    return digest.hexdigest()


def _judging(family: Family) -> list[Path]:
    """The family's files, those in folders too, but for those from which no verdict follows."""
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
