"""The names that a shell offers to complete: `autocompletion` of arguments and options."""

from collections.abc import Callable, Iterable

import typer

from gdnspec.model.errors import SpecError
from gdnspec.model.workload import SUITES

LISTS = ("definitions", "solutions", "workloads", "sessions", "presets", "regimes", "faults")  # of gdnspec list
LANGUAGES = ("python", "triton", "cuda")


def _starting(incomplete: str, known: Callable[[], Iterable[str]]) -> list[str]:
    """The known names that start like this. None if the files cannot be read: another command says why."""
    try:
        return [name for name in known() if name.startswith(incomplete)]
    except SpecError:
        return []


def definitions(incomplete: str) -> list[str]:
    from gdnspec.catalog.definitions import definitions as known

    return _starting(incomplete, known)


def solutions(incomplete: str) -> list[str]:
    from gdnspec.catalog.solutions import solutions as known

    return _starting(incomplete, lambda: known()[0])


def baselines(incomplete: str) -> list[str]:
    """The last of names between commas."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in solutions(last)]


def presets(incomplete: str) -> list[str]:
    from gdnspec.catalog.definitions import presets as known

    return _starting(incomplete, known)


def regimes(incomplete: str) -> list[str]:
    from gdnspec.catalog.families import regimes as known

    return _starting(incomplete, known)


def workloads(ctx: typer.Context, incomplete: str) -> list[str]:
    """Those of the definitions that the command names, or of all."""
    from gdnspec.catalog.definitions import definitions as known
    from gdnspec.catalog.workloads import workloads as lines

    def names() -> Iterable[str]:
        chosen = [found for name, found in known().items() if name in ctx.args] or known().values()
        return dict.fromkeys(line.name for found in chosen for line in lines(found))

    return _starting(incomplete, names)


def suites(incomplete: str) -> list[str]:
    return _starting(incomplete, lambda: (*SUITES, "all"))


def lists(incomplete: str) -> list[str]:
    return _starting(incomplete, lambda: LISTS)


def languages(incomplete: str) -> list[str]:
    return _starting(incomplete, lambda: LANGUAGES)


def devices(incomplete: str) -> list[str]:
    return _starting(incomplete, lambda: ("auto", "cpu", "cuda"))


def exports(incomplete: str) -> list[str]:
    return [*definitions(incomplete), *solutions(incomplete)]


def everything(incomplete: str) -> list[str]:
    from gdnspec.catalog.families import families as known

    return [*exports(incomplete), *presets(incomplete), *regimes(incomplete), *_starting(incomplete, known)]
