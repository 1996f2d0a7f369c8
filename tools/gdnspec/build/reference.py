"""A family's code: reference/<family>/ as a package of its own, whatever else has names like its modules."""

import hashlib
import importlib
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

from gdnspec.catalog.families import Family

PACKAGE = "gdnspec_reference_{}"
_OF_THE_JUDGE = re.compile(r"^(from|import) gdnspec\b", re.MULTILINE)


def module(family: Family, name: str) -> ModuleType:
    """reference/<family>/<name>.py."""
    return importlib.import_module(f"{_package(family)}.{name}")


def function(family: Family, named: str) -> Callable[..., Any]:
    """What a definition names as `file.py::function`."""
    file, name = named.split("::")
    return getattr(module(family, file.removesuffix(".py")), name)  # type: ignore[no-any-return]


@cache
def reference_hash(family: Family) -> str:
    """sha256 over what expected values follow from: the files of the operators, not those that only the judge needs."""
    digest = hashlib.sha256()
    for file in sorted(family.reference.glob("*.py")):
        content = file.read_bytes()
        if not _OF_THE_JUDGE.search(content.decode()):
            digest.update(f"{file.name}\0".encode() + content)
    return digest.hexdigest()


@cache
def _package(family: Family) -> str:
    name = PACKAGE.format(family.name)
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(family.reference)]
    sys.modules[name] = module_from_spec(spec)
    return name
