"""The operators of all families, as functions: `gdnspec.ops.<name>`. Which there are, the families say."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from gdnspec.build.reference import operators, origin
from gdnspec.catalog.families import Family, families
from gdnspec.model.errors import Problem, SpecError, installed, nearest
from gdnspec.paths import shown


def __getattr__(name: str) -> Callable[..., Any]:
    """An operator by its name. Raises `SpecError` if two families have one of this name."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = _operators(tuple(families().values()))
    if name not in found:
        raise AttributeError(f"gdnspec.ops has no operator {name!r} ({nearest(name, found)})")
    globals()[name] = found[name]  # a call through this function costs time
    return found[name]


def __dir__() -> list[str]:
    return sorted(_operators(tuple(families().values())))


@cache
def _operators(known: tuple[Family, ...]) -> Mapping[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    places: dict[str, str] = {}
    for family in known:
        with installed("gdnspec.ops"):
            each = operators(family)
        for name, operator in each.items():
            file, line = origin(operator, family)
            if name in found:
                raise SpecError([Problem(file, f"{places[name]} already has an operator {name!r}", f"line {line}")])
            found[name], places[name] = operator, f"{shown(file)}: line {line}"
    return found
