"""benchmarks/same_bits.py: it counts the runs whose bits differ, and starts each from the same pool."""

import importlib
from types import ModuleType
from typing import Any

import gdnspec
import pytest
import torch
from conftest import ROOT


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("same_bits")


def test_a_pool_starts_each_run_with_its_first_values(script: ModuleType) -> None:
    case = gdnspec.definition("gdn_decode_pool_k_last").workload("in_place")
    assert script.count_other(case, "torch_recurrent", "cpu", 3, 60.0) == (0, 3)


@pytest.mark.parametrize("what", ["output", "pool"])
def test_a_single_other_bit_is_counted(script: ModuleType, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    case = gdnspec.definition("gdn_decode_pool_k_last").workload("in_place")
    real = gdnspec.kernel("gdn_decode_pool_k_last", solution="torch_recurrent", device="cpu")
    calls = 0

    def sometimes(*inputs: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        answer = real(*inputs, **named)
        if calls == 3:
            left = answer if what == "output" else named["pool"]
            left.view(torch.int16 if left.element_size() == 2 else torch.int32).reshape(-1)[5] ^= 1
        return answer

    monkeypatch.setattr(script.gdnspec, "kernel", lambda *asked, **options: sometimes)
    assert script.count_other(case, "any", "cpu", 4, 60.0) == (1, 4)
