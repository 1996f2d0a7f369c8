"""Loads definitions and presets. Checks signatures of references without running them, and constraints on presets."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

from gdnspec import paths
from gdnspec.catalog.extending import DEFINITION_FILE, Source, because_of, read
from gdnspec.catalog.families import FAMILY_FILE, Family, families, family_of
from gdnspec.catalog.source import python_functions
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Part, Tensor
from gdnspec.model.errors import PlacedError, Problem, SpecError, nearest, similar
from gdnspec.model.loading import build, from_text, is_file
from gdnspec.model.preset import Preset
from gdnspec.model.workload import Workload


@dataclass(frozen=True)
class Found:
    """A definition, and the folder that it was read from."""

    definition: Definition
    folder: Path = field(compare=False)
    family: Family = field(compare=False)
    beside: Path | None = field(default=None, compare=False)  # the folder of a user's workload file

    def at(self, file: Path) -> "Found":
        """The same definition, with tensor files looked up beside this workload file first."""
        return replace(self, beside=file.resolve().parent)

    def tensors(self, name: str) -> Path:
        """The tensor file that a workload names: beside the workload file, or else in the definition's folder."""
        if self.beside is not None and is_file(self.beside / name):
            return self.beside / name
        return self.folder / name

    @property
    def file(self) -> Path:
        return self.folder / DEFINITION_FILE

    @property
    def files(self) -> list[Path]:
        """Its own file and those of the definitions that it extends."""
        return [source.file for source in read(self.file).chain()]

    @cached_property  # asked for by every trace
    def workloads_file(self) -> Path:
        return self.folder / "workloads.jsonl"


def load_definition(file: Path) -> Found:
    """One definition, checked against the name of its folder and against its reference. Raises `SpecError`."""
    source = read(file)
    definition = _parsed(source)
    problems = []
    if definition.name != file.parent.name:
        message = f"the name {definition.name!r} differs from its folder's, {file.parent.name!r}"
        problems.append(Problem(file, message, "/name"))
    family = family_of(file, definition.family)
    if definition.family != family.name:
        message = f"the family {definition.family!r} differs from its folder's, {family.name!r}"
        problems.append(Problem(file, message, "/family"))
    problems += _reference_problems(definition, family, file)
    problems += _draw_problems(definition, family, file)
    if problems:
        raise SpecError(map(source.placed, problems))
    return Found(definition, file.parent, family)


@cache  # each command asks for a definition more than once
def _parsed(source: Source) -> Definition:
    if source.parent is None:
        return from_text(Definition, source.text, source.file)
    try:
        _parsed(source.parent)
    except SpecError as error:
        raise SpecError([*error.problems, because_of(source.file, source.parent.file)]) from None
    try:
        return build(Definition, source.whole, source.file)
    except SpecError as error:
        raise SpecError(map(source.placed, error.problems)) from None


def _draw_problems(definition: Definition, family: Family, file: Path) -> Iterator[Problem]:
    """Drawn inputs that do not name a generator of the family, if the family lists any."""
    known = family.about.draws
    for i, tensor in enumerate(definition.inputs):
        at = f"/inputs/{i}"
        drawn: dict[str, Tensor | Part] = {f"{at}/parts/{k}": part for k, part in enumerate(tensor.parts or [])}
        for pointer, one in (drawn or {at: tensor}).items() if tensor.is_drawn else ():
            if one.draw is None and known:
                yield Problem(
                    file, f"{one.name!r} does not say how it is drawn", pointer, f"draw: {nearest('', known)}"
                )
            elif one.draw is not None and one.draw not in known:
                message = f"{FAMILY_FILE} lists no generator {one.draw!r} in its draws"
                yield Problem(file, message, f"{pointer}/draw", nearest(one.draw, known))


def _reference_problems(definition: Definition, family: Family, file: Path) -> list[Problem]:
    problems = _function_problems(definition, family, file, definition.reference, "/reference")
    if problems or definition.second_reference is None:
        return problems  # the second reference would have the same problems
    second = definition.second_reference.function
    return _function_problems(definition, family, file, second, "/second_reference/function", ("chunk_size", "stored"))


def _function_problems(
    definition: Definition, family: Family, file: Path, named: str, at: str, also: tuple[str, ...] = ()
) -> list[Problem]:
    """Why `file.py::function` cannot be called with the inputs. `also`: optional parameters that it may have."""
    name, function = named.split("::")
    source = family.reference / name
    if not is_file(source):
        return [Problem(file, f"no file {name!r} in reference/{family.name}/", at)]
    functions = python_functions(source)
    if function not in functions:
        return [Problem(file, f"no function {function!r} in {name}", at, nearest(function, functions))]
    signature = functions[function]
    wanted, has = tuple(tensor.name for tensor in definition.inputs), signature.names
    taken = tuple(parameter for parameter in has if parameter not in also or parameter in signature.required)
    if taken != wanted and not (also and signature.open and not taken):
        return [Problem(file, f"{function} takes ({', '.join(has)}), but the inputs are ({', '.join(wanted)})", at)]
    return []


def presets() -> dict[str, Preset]:
    """The presets of all families, in the order of the files. If two families share a name, the first counts."""
    found: dict[str, Preset] = {}
    for family in families().values():
        found = family.presets | found
    return found


def preset(name: str) -> Preset | None:
    """The first preset with this name in any family, from its file or its patterns."""
    return next((found for family in families().values() if (found := family.preset(name)) is not None), None)


def preset_of(found: Found, workload: Workload) -> Preset:
    """The preset of a workload that was checked already."""
    preset = found.family.preset(workload.preset)
    assert preset is not None, workload.preset
    return preset


def preset_problems(found: Found, known: dict[str, Preset], file: Path) -> list[Problem]:
    """The presets that break a constraint of this definition."""
    problems = [*_broken_by(found, known, file), *_unknown_axes(found, known, file)]
    return list(map(read(found.file).placed, problems)) if problems else []


def _broken_by(found: Found, known: dict[str, Preset], file: Path) -> Iterator[Problem]:
    definition = found.definition
    const = definition.const_axes()
    alike = set()  # many models have the same heads, which are checked once
    for name, preset in known.items():
        heads = tuple(map(preset.axes.get, const))
        if heads in alike or not applies(preset, definition):
            continue
        alike.add(heads)
        bound = {axis: preset.axes[axis] for axis in const}
        try:
            scope = definition.bind(bound)
        except PlacedError as error:
            yield Problem(found.file, f"with preset {name!r}: {error.message}", error.pointer)
            return  # the axis is wrong, and would fail with every preset
        for _, constraint, why in definition.broken(scope):
            yield Problem(file, f"breaks {constraint.expression!r} of {definition.name}: {why}", f"/{name}/axes")
        senseless = _senseless(definition, bound)
        yield from (Problem(found.file, f"with preset {name!r}: {why}", at) for at, why in senseless)
        if senseless:
            return
        for symmetry in definition.mixed_symmetries:
            sizes = set(definition.symmetry_sizes(symmetry, scope))
            if len(sizes) > 1:
                message = f"symmetry {symmetry.name!r} needs dimensions of one size, not {sorted(sizes)}"
                yield Problem(found.file, message, f"preset {name}")


def _senseless(definition: Definition, bound: dict[str, int]) -> list[tuple[str, str]]:
    """The expressions that have no valid value with the axes of a preset and the smallest var axes."""
    least = {axis.name: axis.minimum for axis in definition.var_axes()}
    try:
        scope = definition.bind({**bound, **least})
    except PlacedError as error:
        return [(error.pointer, error.message)]
    return list(definition.senseless(scope))


def _unknown_axes(found: Found, known: dict[str, Preset], file: Path) -> list[Problem]:
    """Axes of presets that look like a misspelt const axis."""
    names, others = found.definition.const_axes(), _const_axes(found.family.folder)
    return [
        Problem(
            file, f"{axis!r} is not an axis of {found.definition.name}", f"/{preset}/axes/{axis}", nearest(axis, names)
        )
        for preset, item in known.items()
        for axis in item.axes
        if axis not in names and axis not in others and similar(axis, names)
    ]


@cache
def _const_axes(folder: Path) -> frozenset[str]:
    """The const axes of all readable definitions: such a name is not a misspelling of another."""
    found: set[str] = set()
    for file in folder.glob(f"*/{DEFINITION_FILE}"):
        try:
            found.update(_parsed(read(file)).const_axes())
        except SpecError:
            continue
    return frozenset(found)


def applies(preset: Preset, definition: Definition) -> bool:
    """Whether a preset is meant for this definition and binds all of its const axes."""
    bound = all(axis in preset.axes for axis in definition.const_axes())
    return bound and (preset.stages is None or definition.stage in preset.stages)


def definitions() -> dict[str, Found]:
    """All definitions by name. Raises one `SpecError` with the problems of all files."""
    found, problems = loaded()
    if problems:
        raise SpecError(problems)
    return found


@cache
def loaded() -> tuple[dict[str, Found], list[Problem]]:
    """The definitions, and the problems of their files: these are found once, however many files ask for them."""
    found: dict[str, Found] = {}
    problems: list[Problem] = []
    for family in families().values():
        known = family.presets
        for file in sorted(family.folder.glob(f"*/{DEFINITION_FILE}")):
            try:
                item = load_definition(file)
            except SpecError as error:
                problems += error.problems
                continue
            name = item.definition.name
            if name in found:
                where = paths.shown(found[name].file)
                problems.append(Problem(file, f"{where} already defines {name!r}", "/name"))
            problems += preset_problems(item, known, family.presets_file)
            found.setdefault(name, item)
    return found, list(dict.fromkeys(problems))  # each extending definition repeats the problems of its parent


def without_family(name: str) -> str:
    """The name of a definition without its family, for tables that name the family elsewhere."""
    found = definitions().get(name)
    return name.removeprefix(f"{found.family.name}_") if found else name


def definition(name: str) -> Found:
    """One definition by name. Raises `SpecError`."""
    known = definitions()
    if name not in known:
        raise SpecError(f"no definition {name!r} ({nearest(name, known)})")
    return known[name]
