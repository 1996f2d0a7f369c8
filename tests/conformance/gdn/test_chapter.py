"""The chapter that teaches (definitions/gdn/README.md, section 14): its equations are the reference's lines, its
solutions and figures are there, and the figures show what it says."""

import re
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from gdnspec.catalog.faults import rejections

torch = pytest.importorskip("torch")
pytest.importorskip("altair")
pytest.importorskip("vl_convert")

CHAPTER = (ROOT / "definitions/gdn/README.md").read_text().split("\n## 14. ")[1].split("\n## ")[0]
FIGURES = re.findall(r"!\[[^\]]+\]\(\.\./\.\./(docs/figures/\w+\.svg)\)", CHAPTER)
LINES = re.findall(r"\[`([^`]+)`\]\(\.\./\.\./(reference/gdn/\w+\.py)#L(\d+)\)", CHAPTER)


@pytest.fixture(scope="module")
def figures() -> object:
    sys.path.insert(0, str(ROOT / "reference/gdn/scripts"))
    import make_figures

    return make_figures


@pytest.mark.parametrize(("code", "file", "number"), LINES, ids=[f"{Path(f).stem}_{n}" for _, f, n in LINES])
def test_an_equation_is_the_line_that_it_links(code: str, file: str, number: str) -> None:
    line = (ROOT / file).read_text().splitlines()[int(number) - 1]
    assert line.split("  #")[0].strip() == code


def test_the_equations_are_all_there() -> None:
    linked = {code for code, _, _ in LINES}
    assert len(linked) == len(LINES) >= 11


def test_every_solution_named_as_wrong_is_rejected_by_the_selftest() -> None:
    named = set(re.findall(r"`([a-z]\w{3,}_\w+)`", CHAPTER)) - {"gamma_i", "gamma_C"}
    assert len(named) >= 12
    assert not named - set(rejections())


def test_the_figures_are_those_that_the_script_makes(figures) -> None:  # type: ignore[no-untyped-def]
    assert {Path(file).stem for file in FIGURES} == set(figures.FIGURES)
    for file in FIGURES:
        svg = (ROOT / file).read_text()
        assert svg.startswith("<svg")
        assert len(svg) < 200_000


def test_the_figures_show_what_the_chapter_says(figures) -> None:  # type: ignore[no-untyped-def]
    shown = figures.contributions()
    assert torch.equal(shown, shown.tril()), "no token sees a later one"
    assert not shown[figures.RESET :, : figures.RESET].any(), "nothing reaches over a reset"
    assert (shown[figures.RESET - 1, : figures.RESET] != 0).all()
    rows = figures.recall().to_dict()["data"]["values"]
    error = {(row["rule"], row["keys"]): row["error"] for row in rows}
    assert error["linear attention", 2] > 0.9 > 0.3 > error["delta rule", 2]
    assert all(error["linear attention", n] > 2 * error["delta rule", n] for _, n in error)


def test_contributions_within_a_chunk_are_those_of_the_chunkwise_form(figures) -> None:  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(figures.SEED)
    k, q = figures.unit_keys(generator, figures.TOKENS, 12), figures.unit_keys(generator, figures.TOKENS, 12)
    first = slice(0, figures.CHUNK)
    Gamma, _ = figures.chunkwise.decay_ratios(figures.gates()[first])
    A = 0.8 * (Gamma * (k[first] @ k[first].T)).tril(-1)
    T = torch.linalg.inv(torch.eye(figures.CHUNK, dtype=torch.float64) + A) * 0.8
    expected = (Gamma * (q[first] @ k[first].T)) @ T
    torch.testing.assert_close(figures.contributions()[first, first], expected, rtol=0, atol=1e-12)
