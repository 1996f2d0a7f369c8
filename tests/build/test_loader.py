"""Loading entry points: what a solution imports from its own folder is its own, whoever else is in the process."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from gdnspec.build.loader import apart, load_function


@pytest.fixture
def two_versions(tmp_path: Path) -> list[Path]:
    folders = [tmp_path / name / "doubled" for name in ("old", "new")]
    for version, folder in enumerate(folders, start=1):
        (folder / "parts").mkdir(parents=True)
        (folder / "neighbour_of_doubled.py").write_text(f"FACTOR = {version}\n")
        (folder / "parts" / "deeper_of_doubled.py").write_text(f"OFFSET = {10 * version}\n")
        (folder / "kernel.py").write_text(
            "from neighbour_of_doubled import FACTOR\nfrom parts.deeper_of_doubled import OFFSET\n\n\n"
            "def run(x):\n    return FACTOR * x + OFFSET\n"
        )
    return folders


def test_two_versions_of_a_solution_keep_their_own_neighbours(
    two_versions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    old, new = (load_function(folder, "kernel.py::run", tmp_path / "build") for folder in two_versions)
    assert (old(1), new(1)) == (11, 22)
    assert load_function(two_versions[0], "kernel.py::run", tmp_path / "build")(1) == 11


def test_a_second_file_of_one_solution_shares_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "neighbour_of_shared.py").write_text("seen = []\n")
    for name in ("first", "second"):
        text = f"from neighbour_of_shared import seen\n\n\ndef run():\n    seen.append({name!r})\n    return seen\n"
        (folder / f"{name}.py").write_text(text)
    first, second = (load_function(folder, f"{name}.py::run", tmp_path / "build") for name in ("first", "second"))
    first()
    assert second() == ["first", "second"]


def test_names_of_modules_stay_the_programs_own(two_versions: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a solution is loaded in a program's own process, which may have modules named like the kernel's."""
    mine, path = ModuleType("neighbour_of_doubled"), list(sys.path)
    monkeypatch.setitem(sys.modules, "neighbour_of_doubled", mine)
    old, new = two_versions

    def deeper() -> dict[str, ModuleType]:
        return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "parts"}

    before = deeper()
    for folder, right in ((new, 22), (old, 11), (new, 22)):
        with apart(folder):
            assert load_function(folder, "kernel.py::run", folder / "build")(1) == right
        assert sys.modules["neighbour_of_doubled"] is mine
        assert deeper() == before
        assert sys.path == path


def test_arguments_of_a_variant_reach_its_function_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "kernel.py").write_text("def run(x, factor=1):\n    return factor * x\n")
    plain = load_function(tmp_path, "kernel.py::run", tmp_path / "build")
    variant = load_function(tmp_path, "kernel.py::run", tmp_path / "build", arguments={"factor": 3})
    assert (plain(2), variant(x=2)) == (2, 6)


def test_variants_of_a_cuda_file_are_built_apart_each_with_its_macros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process, with one folder for builds."""
    import torch
    import tvm_ffi.cpp

    builds: list[dict[str, Any]] = []

    def build(**asked: Any) -> str:
        builds.append(asked)
        file = Path(asked["build_directory"], f"{asked['name']}.so")
        file.write_text(str(len(builds)))
        return str(file)

    monkeypatch.setattr("gdnspec.build.machine.nvcc", lambda: "nvcc")
    monkeypatch.setattr("gdnspec.build.loader._cudart_folders", list)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(tvm_ffi.cpp, "build", build)
    monkeypatch.setattr(tvm_ffi, "load_module", lambda file: SimpleNamespace(run=int(file.read_text())))
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "")
    every: list[dict[str, int]] = [{}, {"TERMS": 2}, {"TERMS": 3}, {"TERMS": 2}]
    found = [load_function(tmp_path, "kernel.cu::run", tmp_path / "build", defines=defines) for defines in every]
    assert found == [1, 2, 3, 2]
    macros = [[flag for flag in build["extra_cuda_cflags"] if flag.startswith("-D")] for build in builds]
    assert macros == [[], ["-DTERMS=2"], ["-DTERMS=3"]]
    for key in ("name", "build_directory"):
        assert len({build[key] for build in builds}) == 3
    assert {file.parent.name for file in (tmp_path / "build").glob("*/*.so")} >= {"kernel"}
