"""Compare a definition of FlashInfer-Bench with the definition here that has its contract: what is the same, what has
another name, what differs, and what cannot be expressed."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gdnspec.build.reference import foreign
from gdnspec.catalog.definitions import Found, preset
from gdnspec.interop.dataset_paths import MARK
from gdnspec.interop.foreign import Definition
from gdnspec.interop.layouts import LAYOUTS, said
from gdnspec.interop.match import HALF, UNKNOWN, Match, matches, raw_gates
from gdnspec.interop.outward import definition_json, hold
from gdnspec.interop.text import NotPython, read
from gdnspec.model.errors import SpecError

if TYPE_CHECKING:
    from gdnspec.inputs.contract import Foreign


@dataclass
class Meaning:
    """How a foreign definition relates to those here.

    `ours`: the definition with its contract, or None. `candidates`: the possible ones if only the layout of states is
    unknown. `same`: both are exactly the same. `renamed`, `axes`: from their names to ours. `gate`: how it reads the
    decay gate, if ours reads it in another way. `differences`: sentences; a judge can put those in `aside` aside.
    `lost`: why it cannot be expressed here.
    """

    theirs: Definition
    ours: Found | None = None
    candidates: list[Match] = field(default_factory=list)
    preset: str = ""
    same: bool = False
    renamed: dict[str, str] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    gate: str | None = None
    entry: str = "run"
    differences: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def raw_gates(self) -> bool:
        """Whether theirs takes raw gates, and ours takes the values that are computed from them."""
        return self.ours is not None and raw_gates(self.theirs, self.ours)

    @property
    def heads(self) -> dict[str, int]:
        """The values of its preset, by axis."""
        found = preset(self.preset)
        assert found is not None
        return found.axes

    @property
    def format(self) -> "Foreign":
        """How our family describes the format."""
        assert self.ours is not None
        return foreign(self.ours.family)


def meaning(theirs: Definition, layout: str | None = None) -> Meaning:
    """Finds the definition with the contract, and compares the reference. `layout` is used if theirs names no layout or
    contradicts itself."""
    found = Meaning(theirs)
    match = _chosen(found, matches(theirs), layout)
    if match is None:
        return found
    return _compared(found, match)


def each_layout(found: Meaning) -> list[Meaning]:
    """The meaning with each of the candidates."""
    return [_compared(Meaning(found.theirs), match) for match in found.candidates]


def _compared(found: Meaning, match: Match) -> Meaning:
    found.ours, found.preset, found.renamed, found.axes = match.found, match.preset, match.renamed, match.axes
    found.renamed = {theirs: ours for theirs, ours in match.renamed.items() if theirs != ours}
    if _to_the_letter(found):
        found.same = True
        return found
    _compare_tensors(found, match)
    try:
        text = read(found.theirs)
    except NotPython:
        found.lost.append("its reference cannot be read as Python")
        return found
    found.entry = text.entry
    found.format.compare(found, text)
    return found


# --- which one --------------------------------------------------------------------------------------------------


def _chosen(found: Meaning, every: list[Match], layout: str | None) -> Match | None:
    """The nearest of the matches that fit. If there is none, returns None and adds the reason to `lost`."""
    tag = next((tag.split(":", 1)[1] for tag in found.theirs.tags if tag.startswith(f"{MARK}:")), None)
    tagged = [match for match in every if match.fits and match.found.definition.name == tag]
    best = tagged or [match for match in every if match.fits and match.rank == every[0].rank]
    if not best:
        _say_nearest(found, every)
        return None
    told = said(found.theirs)
    layouts = set().union(*told.values()) if told else set()
    if len(best) == 1:
        mine = best[0].found.definition
        if tagged or mine.conventions.state_layout in ("none", *layouts) or not layouts:
            return best[0]
        found.lost.append(f"its states are {' or '.join(layouts)}, but {mine.name}, which matches otherwise, has not")
        return None
    by_layout: dict[str, Match] = {match.found.definition.conventions.state_layout: match for match in best}
    if len(by_layout) < len(best):
        names = ", ".join(match.found.definition.name for match in best)
        found.lost.append(f"several definitions here have its contract: {names}")
        return None
    if len(layouts) != 1:
        layouts = {layout} if layout else set()
    if len(layouts) == 1 and (one := by_layout.get(next(iter(layouts)))) is not None:
        return one
    found.candidates = [by_layout[name] for name in LAYOUTS if name in by_layout]
    names = " or ".join(f"--state-layout {x} ({by_layout[x].found.definition.name})" for x in LAYOUTS if x in by_layout)
    why = "; ".join(f"{place} says {' and '.join(sorted(layouts))}" for place, layouts in told.items())
    unclear = f"it contradicts itself about the layout of its states ({why})" if why else "it names no layout of states"
    found.lost.append(f"{unclear}: choose {names}")
    return None


def _say_nearest(found: Meaning, every: list[Match]) -> None:
    """Explains why no definition matches: what differs from the one that its name suggests, or from the nearest."""
    near = [match for match in every if match.alike >= HALF]
    if not near:
        found.lost.append(f"no definition here is similar: none of the {len(every)} has half of its tensors")
        return
    name = found.theirs.name
    meant = [match for match in near if match.found.definition.stage == foreign(match.found.family).stage(name)]
    match = max(meant or near, key=lambda match: match.alike)
    found.lost.append(f"no definition here has its contract; {match.found.definition.name} is nearest:")
    found.lost += match.problems


# --- what differs -----------------------------------------------------------------------------------------------


def _to_the_letter(found: Meaning) -> bool:
    assert found.ours is not None
    heads = preset(found.preset)
    assert heads is not None
    try:
        hold(found.ours)
        mine = Definition.model_validate(definition_json(found.ours, heads))
    except (SpecError, KeyError):
        return False
    return _bare(mine) == _bare(found.theirs)


def _bare(definition: Definition) -> Definition:
    """The definition without descriptions of tensors, which are not part of the contract."""
    sides = {side: getattr(definition, side) for side in ("inputs", "outputs")}
    bare = {
        side: {name: spec.model_copy(update={"description": None}) for name, spec in specs.items()}
        for side, specs in sides.items()
    }
    return definition.model_copy(update=bare)


def _compare_tensors(found: Meaning, match: Match) -> None:
    assert found.ours is not None
    name, ours = found.ours.definition.name, {tensor.name: tensor for tensor in found.ours.definition.inputs}
    found.differences += [f"{theirs} is called {mine} here" for theirs, mine in found.renamed.items()]
    for theirs, there, here in match.types:
        known = f"{theirs} is {there}, {here} here"
        found.differences.append(known if there != UNKNOWN else f"it gives no type for {theirs}, which is {here} here")
    for theirs, spec in found.theirs.inputs.items():
        mine = found.renamed.get(theirs, theirs)
        if theirs in match.left_over:
            found.differences.append(f"the optional {theirs} has no counterpart in {name}, so it is left out")
        elif spec.optional and mine in ours and not ours[mine].optional:
            found.differences.append(f"{theirs} is optional, but required here")
        elif mine in ours and ours[mine].optional and not spec.optional and not ours[mine].is_scalar:
            found.differences.append(f"{theirs} is required, but optional here: it gets its default")
    if found.raw_gates:
        found.differences.append(found.format.computed(found.ours.definition))
    given = {found.renamed.get(x, x) for x in found.theirs.inputs}
    given |= set(found.format.ready.values()) if found.raw_gates else set()
    for missing in [x for x in ours if x not in given]:
        found.differences.append(f"it has no {missing!r}, an input of {name}")
