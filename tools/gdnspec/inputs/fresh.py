"""Draws new workloads for every check: the family draws them from the seed of the check."""

from collections.abc import Iterator
from itertools import chain, islice

from gdnspec.build.reference import FAMILY_CODE, judged, running
from gdnspec.catalog.definitions import Found
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.contract import FreshLines, Published
from gdnspec.model.errors import PlacedError, Problem, SpecError
from gdnspec.model.workload import Workload

_DOING = "drawing fresh lines"
LINES = 4  # of one name: other lengths and gates where no content will do
SEEDS = 64  # in which those lines are looked for


def names(found: Found, device: str) -> tuple[str, ...]:
    """The names of the fresh lines, which are the same for every seed; empty if the family draws none."""
    drawer = _drawer(found)
    with running(found.family, _DOING):
        return () if drawer is None else drawer.names(device)


def fresh(found: Found, seed: int, device: str) -> list[Workload]:
    """The fresh lines of this seed, without budgets. The same seed gives the same lines."""
    drawer = _drawer(found)
    with running(found.family, _DOING):
        return [] if drawer is None else [_held(found, drawer.draw(n, seed, device)) for n in drawer.names(device)]


def narrower(found: Found, line: Workload) -> Workload | None:
    """The line with fewer sequences; None if it has few. With many sequences, it is more likely that honest arithmetic
    is far off on one of them."""
    drawer = _drawer(found)
    with running(found.family, _DOING):
        return None if drawer is None else drawer.narrower(line)


def lines_like(found: Found, first: Workload, device: str) -> Iterator[Workload]:
    """The line and those with fewer of its sequences, then others that may take its place: honest arithmetic may be far
    off whatever is drawn for some lengths and gates."""
    for each in islice(chain([first], _alike(found, first, device)), LINES):
        line: Workload | None = each
        while line is not None:
            yield line
            line = narrower(found, line)


def _alike(found: Found, first: Workload, device: str) -> Iterator[Workload]:
    """Lines of the same name, heads and switches, so that the same solutions serve them. They are drawn from the line's
    own seed, and repeat as it does."""
    switches = {name: value for name, value in first.scalars.items() if isinstance(value, bool)}
    for i in range(SEEDS):
        for line in fresh(found, (first.seed or 0) ^ i, device):
            like = (line.name, line.preset) == (first.name, first.preset)
            if like and switches.items() <= line.scalars.items():
                yield line


def _held(found: Found, line: Workload) -> Workload:
    """The line, if it is a valid workload of its definition. Raises `SpecError`."""
    preset = found.family.preset(line.preset)
    try:
        if preset is None:
            raise PlacedError("/preset", f"no preset {line.preset!r}")
        if not line.name.startswith("fresh"):  # so that a misspelt --workload is found before anything is drawn
            raise PlacedError("/name", "its name does not start with 'fresh'")
        line.check(found.definition, preset)
    except PlacedError as error:
        said = f"draws a fresh line {line.name!r} that is not valid for {found.definition.name}: {error.pointer}"
        raise SpecError([Problem(found.family.reference / FAMILY_CODE, f"{said}: {error.message}")]) from None
    return line


def _drawer(found: Found) -> FreshLines | None:
    make = judged(found.family).fresh
    told = published(found, workloads(found))
    with running(found.family, _DOING):
        drawer: FreshLines | None = make and make(told)
    return drawer


def published(found: Found, lines: list[Workload]) -> Published:
    """What the family gets for a definition whose file contains these lines."""

    def heads(name: str) -> dict[str, int]:
        preset = found.family.preset(name)
        assert preset is not None, name
        return dict(preset.axes)

    presets = {name: dict(preset.axes) for name, preset in found.family.presets.items()}
    return Published(found.definition, lines, presets, heads)
