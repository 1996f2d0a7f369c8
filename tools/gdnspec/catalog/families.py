"""Finds families of operators: their data and their code.

A family has two folders: `definitions/<family>/` and `reference/<family>/` beside it. gdnspec looks for families in the
data of this package, in the folders of `--definitions-dir`, and in installed packages with the entry point
`gdnspec.families`, whose value is a package that contains both folders. Only selftest reads the third folder,
`tests/known_bad/<family>/`.
"""

import importlib.util
import os
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import entry_points
from pathlib import Path

from gdnspec import paths
from gdnspec.model.errors import Problem, SpecError, nearest
from gdnspec.model.family_file import FamilyFile
from gdnspec.model.loading import build, is_file, load, parse_json, read_text
from gdnspec.model.preset import Preset, Presets

FAMILY_FILE, PRESETS_FILE = "family.json", "presets.json"
ENTRY_POINTS = "gdnspec.families"
VARIABLE = "GDNSPEC_DEFINITIONS"  # passes the folders of --definitions-dir to child processes


@dataclass(frozen=True)
class Family:
    """One family. `folder` holds its definitions, `reference` its code."""

    name: str
    folder: Path
    reference: Path

    @property
    def file(self) -> Path:
        return self.folder / FAMILY_FILE

    @property
    def presets_file(self) -> Path:
        return self.folder / PRESETS_FILE

    @cached_property
    def about(self) -> FamilyFile:
        return load(FamilyFile, self.file)

    @cached_property
    def presets(self) -> dict[str, Preset]:
        """The presets of the file, by name, in its order."""
        return load_presets(self.presets_file)

    def preset(self, name: str) -> Preset | None:
        """A preset by name, from the file or from a pattern of names; None if there is none."""
        if name not in self._named:
            self._named[name] = self.presets.get(name) or self._by_pattern(name)
        return self._named[name]

    @cached_property
    def _named(self) -> dict[str, Preset | None]:
        """A cache of `preset`: many workloads name the same one."""
        return {}

    def _by_pattern(self, name: str) -> Preset | None:
        for i, pattern in enumerate(self.about.preset_patterns):
            try:
                if (axes := pattern.bind(name)) is not None:
                    return Preset(axes=axes, source="named by its heads")
            except ValueError as error:  # not a number, an expression without a value, or not a size
                why = f"the pattern cannot make a preset of {name!r}: {str(error).splitlines()[0]}"
                raise SpecError([Problem(self.file, why, f"/preset_patterns/{i}")]) from None
        return None


def load_presets(file: Path) -> dict[str, Preset]:
    return build(Presets, parse_json(read_text(file), file), file).root


def at(folder: Path) -> Family:
    """The family in `definitions/<family>/`."""
    return Family(folder.name, folder, folder.parent.parent / "reference" / folder.name)


def add(folder: Path) -> None:
    """Adds a folder of families to those that gdnspec reads. Raises `SpecError` if it contains none."""
    if not folder.is_dir():
        raise SpecError([Problem(folder, "no such folder", hint="--definitions-dir takes a folder of families")])
    if not list(folder.glob(f"*/{FAMILY_FILE}")):
        raise SpecError([Problem(folder, f"contains no family: none of its folders has a {FAMILY_FILE}")])
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys([*map(str, given()), str(folder.resolve())]))
    families.cache_clear()


def given() -> list[Path]:
    """The folders that `--definitions-dir` named."""
    return [Path(text) for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text]


def same_families() -> tuple[str, ...]:
    """Arguments for a command that continues this one, so that it finds the same families."""
    return tuple(word for folder in given() for word in ("--definitions-dir", str(folder)))


def elsewhere() -> list[Path]:
    """The folders of families outside the data of this package. Raises `SpecError`."""
    return [*given(), *_installed()]


@cache
def families() -> dict[str, Family]:
    """All families by name. Raises `SpecError` if two have the same name."""
    found: dict[str, Family] = {}
    for root in _roots():
        for file in sorted(root.glob(f"*/{FAMILY_FILE}")):
            family = at(file.parent)
            if (other := found.get(family.name)) is not None and other.folder != family.folder:
                where = paths.shown(other.file)
                raise SpecError([Problem(file, f"{where} already defines the family {family.name!r}")])
            found[family.name] = family
    return found


def family(name: str) -> Family:
    """One family by name. Raises `SpecError`."""
    known = families()
    if name not in known:
        raise SpecError(f"no family {name!r} ({nearest(name, known)})")
    return known[name]


def regimes() -> dict[str, str]:
    """The regimes of all families with their descriptions. If two families share a name, the first counts."""
    found: dict[str, str] = {}
    for one in families().values():
        found = one.about.regimes | found
    return found


def having_regime(name: str) -> list[Family]:
    """The families that have a regime of this name: each may mean something else by it."""
    return [family for family in families().values() if name in family.about.regimes]


def family_of(definition_file: Path, name: str) -> Family:
    """The family of a definition's file: the folder that contains it, or, elsewhere, the family called `name`."""
    folder = definition_file.parent.parent
    if is_file(folder / FAMILY_FILE):
        return next((known for known in families().values() if known.folder == folder), at(folder))
    if name not in families():
        raise SpecError([Problem(definition_file, f"no family {name!r}", "/family", nearest(name, families()))])
    return families()[name]


def _roots() -> list[Path]:
    return list(dict.fromkeys([paths.definitions_dir(), *elsewhere()]))


@cache
def _installed() -> tuple[Path, ...]:
    return tuple(_root(point.name, point.value) for point in entry_points(group=ENTRY_POINTS))


def _root(name: str, package: str) -> Path:
    """The folder of definitions of an installed package. Raises `SpecError`."""
    said = f"the entry point {name!r} of {ENTRY_POINTS}"
    try:
        spec = importlib.util.find_spec(package)
    except Exception as error:  # for a dotted name, find_spec imports the parent package
        why = f"{type(error).__name__}: {error}"
        raise SpecError(f"{said} names {package!r}, which cannot be imported: {why}") from None
    if spec is None or not spec.submodule_search_locations:
        raise SpecError(f"{said} names {package!r}, which is not a package")
    root = Path(next(iter(spec.submodule_search_locations))) / "definitions"
    if not list(root.glob(f"*/{FAMILY_FILE}")):
        hint = f"{said} needs a family here, in the form of definitions/, with reference/ beside it"
        raise SpecError([Problem(root, "contains no family", hint=hint)])
    return root
