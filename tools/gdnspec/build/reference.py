"""A family's code: reference/<family>/ as a package of its own, whatever else has names like its modules."""

import hashlib
import importlib
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gdnspec.catalog.families import Family
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import is_file

if TYPE_CHECKING:
    from gdnspec.inputs.contract import Calls, Foreign

PACKAGE = "gdnspec_reference_{}"
FAMILY_CODE = "family.py"
_OF_THE_JUDGE = re.compile(r"^ *(from|import) gdnspec\b", re.MULTILINE)
BESIDE = ("suites", "scripts")  # folders of what lists workloads and writes data: no verdict follows from them


def module(family: Family, name: str) -> ModuleType:
    """reference/<family>/<name>.py; in a folder of it `folder.name`."""
    return importlib.import_module(f"{_package(family)}.{name}")


def function(family: Family, named: str) -> Callable[..., Any]:
    """What a definition names as `file.py::function`."""
    file, name = named.split("::")
    return getattr(module(family, file.removesuffix(".py")), name)  # type: ignore[no-any-return]


def judged(family: Family) -> Any:
    """What the judge asks the family for: the `FAMILY` of its family.py, a `gdnspec.family.Family`. Raises `SpecError`
    where there is none."""
    file = family.reference / FAMILY_CODE
    if not is_file(file):
        raise SpecError([Problem(file, "no such file", hint=f"a family's {FAMILY_CODE} says how its inputs are drawn")])
    found = getattr(module(family, "family"), "FAMILY", None)
    if found is None:
        raise SpecError([Problem(file, "no FAMILY in it", hint="FAMILY = gdnspec.family.Family(painter, ..)")])
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
