"""Families of operators: two folders each, from the checkout or from elsewhere, and what is wrong with them."""

import shutil
from pathlib import Path

import pytest
from conftest import Run
from gdnspec.build.reference import PACKAGE
from helpers_toy import SOLUTIONS, copied, edit
from helpers_toy import SUM as NAME


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """The folder of families of a copy of the toy, which a test may spoil."""
    return copied(tmp_path / "toy") / "definitions"


def test_a_family_from_elsewhere_is_listed_shown_and_valid(gdnspec: Run, toy: Path) -> None:
    assert NAME not in gdnspec("list").stdout
    option = ("--definitions-dir", toy)
    assert NAME in gdnspec("list", *option).stdout
    assert "along each row by itself" in gdnspec("show", NAME, *option).stdout
    assert "falling" in gdnspec("list", "regimes", *option).stdout
    done = gdnspec("validate", *option)
    assert done.returncode == 0, done.stderr
    done = gdnspec("validate", toy, *option)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "6 files valid\n"


def test_a_definition_of_two_families_is_shown_with_both_places(gdnspec: Run, toy: Path) -> None:
    shutil.copytree(toy / "toy", toy / "twin")
    shutil.copytree(toy.parent / "reference" / "toy", toy.parent / "reference" / "twin")
    edit(toy / "twin" / NAME / "definition.json", '"family": "toy"', '"family": "twin"')
    done = gdnspec("list", "--definitions-dir", toy)
    assert done.returncode == 2
    assert f"twin/{NAME}/definition.json: /name: " in done.stderr
    assert f"toy/{NAME}/definition.json already defines {NAME!r}" in done.stderr


def test_two_families_of_one_name_are_shown_with_both_places(gdnspec: Run, toy: Path, tmp_path: Path) -> None:
    shutil.copytree(toy.parent, tmp_path / "other")
    done = gdnspec("list", "--definitions-dir", toy, "--definitions-dir", tmp_path / "other" / "definitions")
    assert done.returncode == 2
    assert "already defines the family 'toy'" in done.stderr
    assert "other/definitions/toy/family.json" in done.stderr


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        pytest.param(
            f"definitions/toy/{NAME}/definition.json", '"family": "toy"', '"family": "gdn"', "the family 'gdn' differs",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "definitions/toy/family.json", '"regimes"', '"regime"', "/regime: unknown key 'regime'",
            marks=pytest.mark.thorough,
        ),
        (f"definitions/toy/{NAME}/workloads.jsonl", '"name": "smoke_0", "suite"', '"suite"', "name"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_family_has_its_place(
    gdnspec: Run, toy: Path, file: str, old: str, new: str, says: str
) -> None:
    edit(toy.parent / file, old, new)
    done = gdnspec("validate", "--definitions-dir", toy)
    assert done.returncode == 2
    assert file.split("/")[-1] in done.stderr
    assert says in done.stderr


def test_a_family_without_code_says_so(gdnspec: Run, toy: Path) -> None:
    (toy.parent / "reference" / "toy" / "family.py").unlink()
    option = ("--definitions-dir", toy, "--device", "cpu", "--solutions-dir", SOLUTIONS)
    done = gdnspec("check", NAME, *option)
    assert done.returncode == 2
    assert "family.py: no such file" in done.stderr


@pytest.mark.parametrize(("folder", "says"), [("nowhere", "no such folder"), ("empty", "contains no family")])
def test_a_folder_without_families_is_refused(gdnspec: Run, tmp_path: Path, folder: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    done = gdnspec("list", "--definitions-dir", tmp_path / folder)
    assert done.returncode == 2
    assert says in done.stderr


def test_code_of_two_families_may_have_modules_of_one_name(toy: Path) -> None:
    from gdnspec.build.reference import module
    from gdnspec.catalog.families import Family

    ours = Family("toy", toy / "toy", toy.parent / "reference" / "toy")
    other = toy.parent / "reference" / "second"
    other.mkdir()
    (other / "running_sum.py").write_text("WORD = 'another'\n")
    second = Family("second", toy / "second", other)
    assert module(second, "running_sum").WORD == "another"
    assert not hasattr(module(ours, "running_sum"), "WORD")
    assert module(ours, "running_sum").__name__ == f"{PACKAGE.format('toy')}.running_sum"
