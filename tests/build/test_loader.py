"""Loading entry points: what a solution imports from its own folder is its own, whoever else is in the process."""

import sys
from pathlib import Path

import pytest
from gdnspec.build.loader import load_function


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
