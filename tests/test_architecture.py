"""The tree is what the design says: imports point one way, contributions stand alone."""

import ast
import json
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

import pytest
from conftest import ROOT, Run

REFERENCE = sorted((ROOT / "reference").glob("*/*.py"))
SUITES = sorted((ROOT / "reference").glob("*/suites/**/*.py"))
# What the judge needs of a family beside the operators: these may import the module that is for authors of families.
OF_THE_JUDGE = {
    "bounds.py", "call_tensors.py", "calls.py", "codes.py", "device.py", "draw.py", "emulators.py", "family.py",
    "foreign.py", "foreign_adapter.py", "foreign_words.py", "fresh.py", "onnx_nodes.py", "regimes.py", "regions.py",
    "residuals.py", "sessions.py", "solved.py", "write_gate.py",
}  # fmt: skip
# What the judge runs: a tool beside a kernel, which no manifest lists, may use what it likes.
KERNELS = sorted(
    manifest.parent / name
    for manifest in (ROOT / "solutions").glob("*/solution.json")
    for name in json.loads(manifest.read_text())["sources"]
    if name.endswith(".py")
)


def imports(file: Path) -> set[str]:
    """The top-level names of what a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names)


@pytest.mark.thorough  # `make lint` asks the same
def test_import_contracts_hold() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("file", REFERENCE, ids=lambda f: f.name)
def test_the_reference_imports_torch_alone(file: Path) -> None:
    beside = {f.stem for f in REFERENCE}
    if file.name in OF_THE_JUDGE:
        assert imports(file) <= {"torch", "numpy", "gdnspec", "suites", *beside}
        assert "import gdnspec" not in file.read_text()
        assert file.read_text().count("from gdnspec") == file.read_text().count("from gdnspec.family import")
    else:
        assert imports(file) <= {"torch", *beside}


@pytest.mark.parametrize("file", SUITES, ids=lambda f: f"{f.parent.name}/{f.name}")
def test_suites_import_their_neighbours_and_the_public_module(file: Path) -> None:
    """Not the operators beside them either: workloads are lists, and nothing is computed to make one."""
    folder = next(parent for parent in file.parents if parent.name == "suites")
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            assert file.parents[node.level - 1].is_relative_to(folder)
            names = []
        elif isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        else:
            continue
        for name in names:
            assert name == "gdnspec.family" or name.split(".")[0] in {"torch", "numpy", *sys.stdlib_module_names}, name


def test_no_family_reaches_into_another() -> None:
    """What families share, such as the registration of operators, is behind gdnspec.family."""
    assert [file for file in (ROOT / "reference").rglob("*") if file.is_symlink()] == []
    for file in sorted((ROOT / "reference").glob("*/ops/*.py")):
        family = file.parents[1]
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert file.parents[node.level - 1].is_relative_to(family), file
            elif isinstance(node, ast.ImportFrom):
                top = f"{node.module}".partition(".")[0]
                assert node.module == "gdnspec.family" or top in {"torch", *sys.stdlib_module_names}, file


def test_a_family_loads_its_suites_only_when_it_is_asked_for_them() -> None:
    """No verdict follows from them: the hash of a family's code leaves them out."""
    for file in REFERENCE:
        tree = ast.parse(file.read_text())
        named = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "suites" in f"{node.module}"]
        assert not named or file.name == "family.py", file
        assert not [node for node in tree.body if node in named], file
    code = (
        "import sys; from gdnspec.build.reference import judged; from gdnspec.catalog.families import family;"
        "load = judged(family('gdn')).suites; name = 'gdnspec_reference_gdn.suites';"
        "assert name not in sys.modules; load(); assert name in sys.modules; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("file", KERNELS, ids=lambda f: f"{f.parent.name}/{f.name}")
def test_a_solution_imports_neither_the_judge_nor_the_reference(file: Path) -> None:
    assert not imports(file) & {"gdnspec", "reference", "gated_delta_net", "chunkwise"}


def test_the_pinned_versions_satisfy_the_bounds() -> None:
    import tomllib

    from packaging.requirements import Requirement

    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pins = {name.lower().replace("_", "-"): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for line in (line for group in groups for line in group):
        requirement = Requirement(line)
        assert requirement.name in pins, f"{requirement.name} is not pinned"
        assert requirement.specifier.contains(pins[requirement.name]), line
    assert pins["torch"] == "2.13.0"


def test_every_tracked_file_is_small() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        file = ROOT / name
        if file.is_file():
            assert file.stat().st_size <= 2_000_000, name


def test_documented_commands_exist(gdnspec: Run) -> None:
    """Every `gdnspec ...` line of the documents names commands and options that the program has."""
    names = ("README.md", "CONTRIBUTING.md", "definitions/gdn/README.md", "samples/README.md")
    documents = [*(ROOT / name for name in names), *(ROOT / "docs").rglob("*.md")]
    seen = 0
    helps: dict[tuple[str, ...], str] = {}
    for document in documents:
        for line in document.read_text().splitlines():
            words = line.strip().removeprefix("$ ").split("#")[0].split()
            if words[:1] != ["gdnspec"] or len(words) < 2 or words[1] == "is":
                continue
            command = tuple(words[1:3]) if words[1] in ("workloads", "vectors") else (words[1],)
            if command not in helps:
                done = gdnspec(*command, "--help")
                assert done.returncode == 0, f"{document.name}: {line}"
                helps[command] = done.stdout
            for option in (word.split("=")[0] for word in words if word.startswith("--")):
                assert option in helps[command], f"{document.name}: {line}"
            seen += 1
    assert seen >= 8


def test_documented_schema_versions_match() -> None:
    for file in [*ROOT.glob("definitions/*/*/definition.json"), *ROOT.glob("solutions/*/solution.json")]:
        assert json.loads(file.read_text())["schema_version"] == 1


def test_a_file_name_means_one_thing() -> None:
    """A command's module has the name of the command; every other name occurs once."""
    package = ROOT / "tools/gdnspec"
    named = [file for file in package.rglob("*.py") if not file.name.startswith("__")]
    names = Counter(file.name for file in named if file.parent.name != "commands")
    assert [name for name, count in names.items() if count > 1] == []


def test_pytest_enters_every_folder_with_tests(pytestconfig: pytest.Config) -> None:
    """By itself it passes by a folder that is named build."""
    passed_by = pytestconfig.getini("norecursedirs")
    folders = {part for file in (ROOT / "tests").rglob("test_*.py") for part in file.relative_to(ROOT).parts[:-1]}
    assert {name for name in folders if any(fnmatch(name, pattern) for pattern in passed_by)} == set()


def test_tests_mirror_the_packages() -> None:
    """Every folder of tests has the name of a package, or is one of those that CONTRIBUTING names beside them."""
    packages = {file.parent.name for file in (ROOT / "tools/gdnspec").glob("*/__init__.py")}
    beside = {"conformance", "docs", "honest", "kernels", "known_bad", "support"}
    folders = {folder.name for folder in (ROOT / "tests").iterdir() if any(folder.glob("**/*.py"))}
    assert folders <= packages | beside


def test_files_and_functions_stay_small() -> None:
    """At most 400 lines in a file of the tools, and 80 in a function."""
    large = []
    for file in sorted((ROOT / "tools/gdnspec").rglob("*.py")):
        text = file.read_text()
        if text.count("\n") > 400:
            large.append(file.name)
        functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
        large += [f"{file.name}::{f.name}" for f in functions if (f.end_lineno or 0) - f.lineno >= 80]
    assert large == []
