"""Workloads that nobody has seen: drawn anew for every check, by the family, from the seed of the check."""

from gdnspec.build.reference import FAMILY_CODE, judged, running
from gdnspec.catalog.definitions import Found
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.contract import FreshLines, Published
from gdnspec.model.errors import PlacedError, Problem, SpecError
from gdnspec.model.workload import Workload

_DOING = "fresh lines are drawn"


def names(found: Found, device: str) -> tuple[str, ...]:
    """The names of the lines of every seed; none where the family draws none."""
    drawer = _drawer(found)
    with running(found.family, _DOING):
        return () if drawer is None else drawer.names(device)


def fresh(found: Found, seed: int, device: str) -> list[Workload]:
    """The lines of this seed, without budgets: those follow from their inputs. The same seed gives the same lines."""
    drawer = _drawer(found)
    with running(found.family, _DOING):
        return [] if drawer is None else [_held(found, drawer.draw(n, seed, device)) for n in drawer.names(device)]


def narrower(found: Found, line: Workload) -> Workload | None:
    """A fresh line with fewer sequences; None where it has few. The more there are, the likelier is one on which honest
    arithmetic is far off."""
    drawer = _drawer(found)
    with running(found.family, _DOING):
        return None if drawer is None else drawer.narrower(line)


def _held(found: Found, line: Workload) -> Workload:
    """The line, seen to be one of its definition. Raises `SpecError`."""
    preset = found.family.preset(line.preset)
    try:
        if preset is None:
            raise PlacedError("/preset", f"no preset {line.preset!r}")
        line.check(found.definition, preset)
    except PlacedError as error:
        said = f"draws a fresh line {line.name!r} that is none of {found.definition.name}: {error.pointer}"
        raise SpecError([Problem(found.family.reference / FAMILY_CODE, f"{said}: {error.message}")]) from None
    return line


def _drawer(found: Found) -> FreshLines | None:
    make = judged(found.family).fresh
    told = published(found, workloads(found))
    with running(found.family, _DOING):
        drawer: FreshLines | None = make and make(told)
    return drawer


def published(found: Found, lines: list[Workload]) -> Published:
    """What the family is told of a definition whose file holds these lines."""

    def heads(name: str) -> dict[str, int]:
        preset = found.family.preset(name)
        assert preset is not None, name
        return dict(preset.axes)

    presets = {name: dict(preset.axes) for name, preset in found.family.presets.items()}
    return Published(found.definition, lines, presets, heads)
