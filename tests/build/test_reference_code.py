"""Loading a family's code: its folders as well as its files, each family a package of its own."""

from pathlib import Path

import pytest
from gdnspec.build.reference import code_hash, module, reference_hash
from gdnspec.catalog.families import Family, at

BESIDE = ("suites/rows.py", "scripts/draw.py", "ops/rule.py", "ops.py")


@pytest.fixture
def family(tmp_path: Path, request: pytest.FixtureRequest) -> Family:
    """A family with a folder `parts`, one of what lists its workloads, of scripts and of operators."""
    made = at(tmp_path / "definitions" / f"of_{request.node.name}".lower())
    made.folder.mkdir(parents=True)
    for folder in ("parts/deeper", "suites", "scripts", "ops"):
        (made.reference / folder).mkdir(parents=True)
    made.file.write_text("{}")
    (made.reference / "base.py").write_text("SIZE = 3\n")
    (made.reference / "parts" / "__init__.py").write_text("")
    (made.reference / "parts" / "half.py").write_text("from ..base import SIZE\n\nHALF = SIZE / 2\n")
    (made.reference / "parts" / "deeper" / "__init__.py").write_text("")
    (made.reference / "parts" / "deeper" / "quarter.py").write_text("from ..half import HALF\n\nQUARTER = HALF / 2\n")
    (made.reference / "suites" / "rows.py").write_text("ROWS = 1\n")
    (made.reference / "scripts" / "draw.py").write_text("DRAWN = 1\n")
    (made.reference / "ops" / "rule.py").write_text("RULE = 1\n")
    return made


def test_a_file_in_a_folder_is_a_module_with_its_own_neighbours(family: Family) -> None:
    assert module(family, "parts.half").HALF == 1.5
    assert module(family, "parts.deeper.quarter").QUARTER == 0.75


@pytest.mark.parametrize("hashed", [code_hash, reference_hash])
@pytest.mark.parametrize(
    ("file", "counts"),
    [("base.py", True), ("parts/half.py", True), *((name, False) for name in BESIDE)],
)
def test_the_hash_of_its_code_has_what_a_verdict_follows_from(family: Family, hashed, file: str, counts: bool) -> None:  # type: ignore[no-untyped-def]
    before = hashed(family)
    (family.reference / file).write_text("CHANGED = True\n")
    hashed.cache_clear()
    assert (hashed(family) != before) == counts
