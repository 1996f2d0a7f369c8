"""Shipped documents of every format, and how a file that holds one is read."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gdnspec import paths
from gdnspec.catalog.definitions import applies, definitions, load_definition, preset_problems, presets
from gdnspec.catalog.families import families, load_presets
from gdnspec.catalog.solutions import MANIFEST, load_solution, solution_folders
from gdnspec.catalog.workloads import load_workloads
from gdnspec.check.record import LASTING, Recorder, earlier
from gdnspec.check.seal import is_sealed
from gdnspec.model.definition import Definition
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.fault import FaultTable, KnownBad
from gdnspec.model.loading import load, load_lines
from gdnspec.model.preset import Presets
from gdnspec.model.result import CheckResult
from gdnspec.model.solution import Manifest
from gdnspec.model.workload import Workload


@dataclass(frozen=True)
class Document:
    """A shipped document and how a file that holds one is read. `load` gives what was read as plain JSON."""

    tree: Any
    model: Any
    file: str  # below a temporary folder
    load: Callable[[Path], Any]
    beside: Path | None = None  # a folder whose files lie beside it

    def place(self, root: Path) -> Path:
        """An empty file where the document may stand."""
        file = root / self.file
        if self.beside is not None:
            shutil.copytree(self.beside, file.parent, dirs_exist_ok=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
        return file

    @property
    def text(self) -> str:
        return json.dumps(self.tree) + "\n"


def plain(model: Any) -> Any:
    return model.model_dump(mode="json", exclude_unset=True)


def read_definition(file: Path) -> Any:
    """As `gdnspec validate` does; what is not refused can be used with every preset."""
    found = load_definition(file)
    own = families().get(found.definition.family)
    known = presets() if own is None else own.presets
    refuse(preset_problems(found, known, file))
    for preset in [preset for preset in known.values() if applies(preset, found.definition)][:3]:
        least = {axis.name: axis.minimum for axis in found.definition.var_axes()}
        scope = found.definition.bind({**preset.axes, **least})
        assert found.definition.bytes_moved(scope) >= 0
        for tensor in (*found.definition.inputs, *found.definition.outputs):
            assert all(type(size) is int and size >= 0 for size in found.definition.shape(tensor, scope))
        for symmetry in found.definition.symmetries:
            found.definition.symmetry_sizes(symmetry, scope)
    return plain(found.definition)


def read_presets(file: Path) -> Any:
    known = load_presets(file)
    # What a preset does to a definition is said of the definition's file where that may be at fault as well.
    own = [found for found in definitions().values() if found.family.name == "gdn"]  # as `documents` has them
    problems = [problem for found in own for problem in preset_problems(found, known, file)]
    for problem in problems:
        assert problem.file in {file, *(found.file for found in definitions().values())}
    refuse([Problem(file, problem.message, problem.place, problem.hint) for problem in problems])
    return {name: plain(preset) for name, preset in known.items()}


def read_workloads(name: str) -> Callable[[Path], Any]:
    return lambda file: [plain(workload) for workload in load_workloads(file, definitions()[name])]


def read_results(file: Path) -> Any:
    """As a run that goes on where another stopped: what it cannot read it passes over, with a warning each."""
    said: list[str] = []
    before = file.read_bytes()
    resumed = earlier(file, said.append)
    assert file.read_bytes() == before
    try:
        rows = [result for _, result in load_lines(CheckResult, file)]
    except SpecError:
        assert said
        assert all(file.name in line and line.isprintable() for warning in said for line in warning.split("\n"))
        raise
    lasting = [row for row in rows if row.status in LASTING]
    assert bool(said) == any(not is_sealed(row) for row in lasting)
    assert resumed == {row.key: row for row in lasting if is_sealed(row)}
    with Recorder(file):
        pass
    return [plain(row) for row in rows]


def refuse(problems: list[Problem]) -> None:
    if problems:
        raise SpecError(problems)


KNOWN_BAD = {
    "schema_version": 1, "kind": "wrong", "fault": "the gate is read as linear", "statuses": ["INCORRECT_NUMERICAL"],
    "killed_by": ["one_row"], "only_in": ["strict"], "long_workloads": False,
}  # fmt: skip
KNOWN_BAD_PART = {key: value for key, value in KNOWN_BAD.items() if key not in ("schema_version", "kind")}
PLACE = {"sequence": 0, "head": 1, "vector": 2, "element": 3, "got": 1.5, "expected": 1.25}
RESULT = {
    "schema_version": 1, "definition": "gdn_decode_k_last", "workload": "one_row", "suite": "smoke", "solution": "s",
    "device": "cpu", "status": "INCORRECT_NUMERICAL", "message": "new_state: relative_l2 0.01", "seconds": 0.5,
    "outputs": [{"output": "o", "errors": {"relative_l2": 0.25, "worst_vector": None}, "budget": {"relative_l2": 0.5},
                 "worst": PLACE}],
    "prepare_seconds": None, "isolation": "landlock", "repeat": "gdnspec check", "key": "0123", "environment":
    {"python": "3.11", "threads": 2, "nested": {"a": [1, 2.5, None, True]}},
}  # fmt: skip


@cache
def documents(kind: str) -> list[Document]:
    """What is shipped of a format."""
    match kind:
        case "definition.json":
            trees = [plain(found.definition) for found in definitions().values()]
            return [Document(tree, Definition, f"{tree['name']}/{kind}", read_definition) for tree in trees]
        case "presets.json":
            tree = json.loads((paths.definitions_dir() / "gdn" / kind).read_text())
            names = [*list(tree)[:2], *[name for name in tree if "stages" in tree[name]][:1], list(tree)[-1]]
            return [Document({name: tree[name] for name in names}, Presets, kind, read_presets)]
        case "workloads.jsonl":
            return [
                Document(json.loads(line), Workload, f"{name}/{kind}", read_workloads(name))
                for name, found in definitions().items()
                for line in found.workloads_file.read_text().splitlines()
            ]
        case "solution.json":
            folders = [*solution_folders(), *sorted(f.parent for f in paths.known_bad_dir().glob(f"*/*/{MANIFEST}"))]
            trees = [(folder, json.loads((folder / MANIFEST).read_text())) for folder in folders[:12]]

            def read(file: Path) -> Any:
                return plain(load_solution(file.parent).manifest)

            return [Document(tree, Manifest, f"{folder.name}/{kind}", read, folder) for folder, tree in trees]
        case "known_bad.json":
            shipped = [json.loads(file.read_text()) for file in sorted(paths.known_bad_dir().glob(f"*/*/{kind}"))]
            return [Document(x, KnownBad, kind, lambda f: plain(load(KnownBad, f))) for x in (KNOWN_BAD, *shipped[:6])]
        case "faults.json":
            trees = [json.loads(file.read_text()) for file in sorted(paths.known_bad_dir().glob(f"*/{kind}"))]
            faults = [fault for tree in trees for fault in tree["faults"]]
            every = [fault for fault in faults if "manifest" in fault][:2] + faults[:2]
            table = {"schema_version": 1, "faults": [{**KNOWN_BAD_PART, **fault} for fault in every]}
            return [Document(table, FaultTable, kind, lambda f: plain(load(FaultTable, f)))]
    return [Document(RESULT, CheckResult, kind, read_results)]


def said(document: Document, text: str) -> Any:
    """What a file says to a reader without models."""
    if not document.file.endswith(".jsonl"):
        return json.loads(text)
    return [json.loads(line) for line in text.replace("\r", "\n").split("\n") if line.strip()]
