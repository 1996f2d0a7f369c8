"""Find the definition here that has the contract of a definition of FlashInfer-Bench.

Tensors are matched by their names, by known aliases, or by the only place where their shape and type fit. Axes are
matched by their places in the shapes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gdnspec.build.reference import foreign, judged
from gdnspec.catalog.definitions import Found, definitions, preset, presets
from gdnspec.interop.foreign import Definition
from gdnspec.interop.foreign import Tensor as Theirs
from gdnspec.model.elements import Scope
from gdnspec.model.elements import Tensor as Ours
from gdnspec.model.errors import PlacedError
from gdnspec.model.expression import parse
from gdnspec.model.roles import is_state

UNKNOWN = "unknown"  # the type of a tensor in a recorded definition that does not name it
HALF = 0.5  # of all tensors; a definition with fewer in common is not called near


@dataclass
class Sizes:
    """Which of their axes our axes correspond to: var axes by name, const axes by value."""

    kinds: dict[str, str]  # of our axes
    const: dict[str, int] = field(default_factory=dict)
    var: dict[str, str] = field(default_factory=dict)
    places: set[tuple[str, str]] = field(default_factory=set)  # pairs of const axes, ours and theirs
    later: list[tuple[str, str]] = field(default_factory=list)  # pairs of our expression and their axis

    def copy(self) -> "Sizes":
        return Sizes(self.kinds, dict(self.const), dict(self.var), set(self.places), list(self.later))

    def take(self, other: "Sizes") -> None:
        self.const, self.var, self.places, self.later = other.const, other.var, other.places, other.later


@dataclass
class Match:
    """How well a definition here matches theirs. `fits`: all of their tensors have a place, and all that ours needs are
    there. `renamed`: from their names of tensors to ours. `axes`: the same for the axes that a workload binds."""

    found: Found
    fits: bool = False
    preset: str = ""
    renamed: dict[str, str] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    left_over: list[str] = field(default_factory=list)  # their optional inputs that are not here
    types: list[tuple[str, str, str]] = field(default_factory=list)  # a tensor, its type there and here
    problems: list[str] = field(default_factory=list)
    alike: float = 0.0  # the share of tensors that were matched
    rank: tuple[int, ...] = ()  # the smallest rank is the nearest


def matches(theirs: Definition) -> list[Match]:
    """Matches with every definition here whose family describes the format, the nearest first."""
    found = [_match(theirs, mine) for mine in definitions().values() if judged(mine.family).foreign is not None]
    return sorted(found, key=lambda match: (not match.fits, match.rank if match.fits else (), -match.alike))


def raw_gates(theirs: Definition, mine: Found) -> bool:
    """Whether theirs takes raw gates, and ours takes the values that are computed from them."""
    names, there = {tensor.name for tensor in mine.definition.inputs}, foreign(mine.family)
    ready, raw = set(there.ready.values()), set(there.raw)
    return bool(raw) and names >= ready and not names & raw and theirs.inputs.keys() >= raw


def _match(theirs: Definition, mine: Found) -> Match:
    match, sizes = Match(mine), Sizes({axis.name: axis.kind for axis in mine.definition.axes})
    raw, format_ = raw_gates(theirs, mine), foreign(mine.family)
    given = {name: spec for name, spec in theirs.inputs.items() if not (raw and name in format_.raw)}
    ready = format_.ready if raw else {}
    wanted = {tensor.name: tensor for tensor in mine.definition.inputs if tensor.name not in ready.values()}
    sides = [(given, wanted, "input"), (theirs.outputs, {t.name: t for t in mine.definition.outputs}, "output")]
    for there, here, kind in sides:
        _by_name(match, theirs, there, here, sizes)
        _by_shape(match, theirs, there, here, sizes, kind)
        for name in [name for name in there if name not in match.renamed]:
            if kind == "input" and there[name].optional:
                match.left_over.append(name)
            else:
                match.problems.append(f"{kind} {name!r} has no counterpart in {mine.definition.name}")
        taken = set(match.renamed.values())
        for tensor in here.values():
            if tensor.name not in taken and (kind == "output" or not tensor.optional):
                match.problems.append(f"it has no {tensor.name!r}, an {kind} of {mine.definition.name}")
    pairs = ((theirs.inputs[name], mine.definition.input(ours)) for name, ours in ready.items())
    if not all(_fits(theirs, spec, tensor, sizes) for spec, tensor in pairs):
        match.problems.append(f"its raw gates have other shapes than in {mine.definition.name}")
    _by_axis_name(theirs, mine, sizes)
    match.problems += _settled(theirs, mine, sizes)
    match.axes = {theirs_: ours for ours, theirs_ in sizes.var.items()}
    _choose_preset(match, sizes)
    tensors = {t.name: t for t in (*mine.definition.inputs, *mine.definition.outputs)}
    specs = theirs.inputs | theirs.outputs
    match.types = [
        (name, specs[name].dtype, tensors[ours].dtype)
        for name, ours in match.renamed.items()
        if specs[name].dtype != tensors[ours].dtype
    ]
    match.alike = 2 * len(match.renamed) / (len(given) + len(theirs.outputs) + len(wanted) + len(sides[1][1]))
    match.fits = not match.problems
    states = sum(
        is_state(mine.definition, tensors[match.renamed[name]]) and there != UNKNOWN for name, there, _ in match.types
    )
    ours_twice = len(sizes.places) - len({ours for ours, _ in sizes.places})
    theirs_twice = len(sizes.places) - len({name for _, name in sizes.places})
    absent = len(wanted) - len(set(match.renamed.values()) & wanted.keys())
    match.rank = (states, len(match.types), ours_twice + theirs_twice, absent + len(match.left_over))
    return match


def _by_name(match: Match, theirs: Definition, there: dict[str, Theirs], here: dict[str, Ours], sizes: Sizes) -> None:
    """Matches tensors by the same name, then by known aliases, if the shape fits."""
    for name, spec in there.items():
        if name in here and _fits(theirs, spec, here[name], sizes):
            match.renamed[name] = name
    for name, spec in there.items():
        taken = set(match.renamed.values())
        aliases = foreign(match.found.family).aliases
        for ours in [ours for ours, names in aliases.items() if name in names and ours in here and ours not in taken]:
            if name not in match.renamed and _fits(theirs, spec, here[ours], sizes):
                match.renamed[name] = ours


def _by_shape(
    match: Match, theirs: Definition, there: dict[str, Theirs], here: dict[str, Ours], sizes: Sizes, kind: str
) -> None:
    """Matches the remaining tensors by shape, if there is only one way. Never matches a tensor with one of our names to
    another tensor."""
    rest = {name: spec for name, spec in there.items() if name not in match.renamed and name not in here}
    taken = set(match.renamed.values())
    free = {name: tensor for name, tensor in here.items() if name not in taken and name not in there}
    rest = {name: spec for name, spec in rest.items() if spec.shape and any(_alike(spec, x) for x in free.values())}
    if not rest or not free or len(rest) > len(free):
        return
    ways = []
    for way in _ways(theirs, list(rest), rest, free, sizes):
        ways.append(way)
        if len(ways) > 1:
            first, second = (pairs for pairs, _ in ways)
            name = next(name for name in first if first[name] != second[name])
            match.problems.append(f"{kind} {name!r} may be {first[name]!r} or {second[name]!r}: the name is ambiguous")
            return
    if ways:
        pairs, then = ways[0]
        match.renamed.update(pairs)
        sizes.take(then)


def _ways(
    theirs: Definition, names: list[str], specs: dict[str, Theirs], free: dict[str, Ours], sizes: Sizes
) -> Iterator[tuple[dict[str, str], Sizes]]:
    if not names:
        yield {}, sizes
        return
    for ours, tensor in free.items():
        then = sizes.copy()
        if _alike(specs[names[0]], tensor) and _fits(theirs, specs[names[0]], tensor, then):
            others = {name: x for name, x in free.items() if name != ours}
            for pairs, last in _ways(theirs, names[1:], specs, others, then):
                yield {names[0]: ours, **pairs}, last


def _alike(spec: Theirs, tensor: Ours) -> bool:
    return spec.dtype in (tensor.dtype, UNKNOWN) and tensor.shape is not None


def _fits(theirs: Definition, spec: Theirs, tensor: Ours, sizes: Sizes) -> bool:
    """Whether the shapes match. If they do, adds to `sizes` what follows for the axes."""
    if (spec.shape is None) != (tensor.shape is None):
        return False
    if spec.shape is None or tensor.shape is None:
        return True
    if len(spec.shape) != len(tensor.shape):
        return False
    then = sizes.copy()
    if not all(_goes(theirs, name, str(size), then) for name, size in zip(spec.shape, tensor.shape, strict=True)):
        return False
    sizes.take(then)
    return True


def _goes(theirs: Definition, name: str, size: str, sizes: Sizes) -> bool:
    """Whether one dimension matches: their axis `name`, our `size`."""
    axis, kind = theirs.axes.get(name), sizes.kinds.get(size)
    if axis is None:
        return False
    if kind == "const":
        sizes.places.add((size, name))
        return axis.type == "const" and axis.value == sizes.const.setdefault(size, axis.value or 0)
    if kind == "var":
        return axis.type == "var" and sizes.var.setdefault(size, name) == name and _once(sizes.var, name)
    sizes.later.append((size, name))
    return True


def _once(pairs: dict[str, str], value: str) -> bool:
    return list(pairs.values()).count(value) == 1


def _by_axis_name(theirs: Definition, mine: Found, sizes: Sizes) -> None:
    """Matches axes by name if they are not a dimension of any shape, as in a packed tensor."""
    for name in set(mine.definition.const_axes()) - sizes.const.keys():
        axis = theirs.axes.get(name)
        if axis is not None and axis.type == "const" and axis.value is not None:
            sizes.const[name] = axis.value


def _settled(theirs: Definition, mine: Found, sizes: Sizes) -> list[str]:
    """Problems with sizes that follow from others, and with the heads."""
    definition = mine.definition
    try:
        scope: Scope = definition.bind(sizes.const)
    except PlacedError as error:
        return [f"its heads: {error.message}"]
    problems = []
    for text, name in dict.fromkeys(sizes.later):
        axis, expression = theirs.axes[name], parse(text)
        if not expression.names <= scope.keys():  # it depends on the workload, so theirs must too
            varies = bool(expression.names & {axis.name for axis in definition.var_axes()})
            if varies and axis.type != "var":
                problems.append(f"its {name} is always {axis.value}: {text} here")
        elif axis.type != "const" or axis.value != expression.evaluate(scope):
            there = axis.value if axis.type == "const" else "any number"
            problems.append(f"its {name} is {there}: {text} here")
    return problems + [f"its heads: {why}" for _, _, why in definition.broken(scope)]


def _choose_preset(match: Match, sizes: Sizes) -> None:
    """Chooses the preset with its heads: by name, or one of the known presets with the same values."""
    names = match.found.definition.const_axes()
    if unknown := sorted(set(names) - sizes.const.keys()):
        match.problems.append(f"it gives no value for {', '.join(unknown)}")
        return
    for name in (foreign(match.found.family).preset(sizes.const), *presets()):
        axes = found.axes if (found := preset(name)) is not None else {}
        if all(axes.get(axis) == sizes.const[axis] for axis in names):
            match.preset = name
            return
    said = ", ".join(f"{name} {sizes.const[name]}" for name in names)
    match.problems.append(f"no preset has its heads: {said}")
