"""Workloads that nobody has seen: drawn anew for every check, by the family, from the seed of the check."""

from gdnspec.build.reference import judged, running
from gdnspec.catalog.definitions import Found
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.contract import FreshLines, Published
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
        return [] if drawer is None else [drawer.draw(name, seed, device) for name in drawer.names(device)]


def narrower(found: Found, line: Workload) -> Workload | None:
    """A fresh line with fewer sequences; None where it has few. The more there are, the likelier is one on which honest
    arithmetic is far off."""
    drawer = _drawer(found)
    with running(found.family, _DOING):
        return None if drawer is None else drawer.narrower(line)


def _drawer(found: Found) -> FreshLines | None:
    make = judged(found.family).fresh

    def heads(name: str) -> dict[str, int]:
        preset = found.family.preset(name)
        assert preset is not None, name
        return dict(preset.axes)

    presets = {name: dict(preset.axes) for name, preset in found.family.presets.items()}
    published = Published(found.definition, workloads(found), presets, heads)
    with running(found.family, _DOING):
        drawer: FreshLines | None = make and make(published)
    return drawer
