"""benchmarks/invariance_table.py: a row for each solution and device, from results and from traces."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest
from conftest import ROOT, Run

DECODE = "gdn_decode_k_last"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("invariance_table")


def test_results_become_rows(script: ModuleType, gdnspec: Run, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    words = ("--solution", "torch_recurrent", "--workload", "batch_8", "--device", "cpu", "--invariance")
    assert gdnspec("check", DECODE, *words, "--json", file).returncode == 0
    (found,) = script.from_results([file])
    assert (found.solution, found.same, found.pieces, found.failed) == ("torch_recurrent", True, None, False)


def test_the_worst_pieces_and_all_definitions_count(script: ModuleType) -> None:
    of = script.Found
    rows = [of("s", "d", True, "same_bits", False), of("s", "d", False, "within_budget", False)]
    rows.append(of("s", "e", None, None, True))
    assert script.table(rows).splitlines()[2:] == [
        "| s | d | 1 of 2 definitions | within budget |  |",
        "| s | e |  |  | 1 |",
    ]
