"""The reference against a Kimi Linear model: definitions/kda/*/tensors/kimi_linear.safetensors, an oracle of others.

Also: mistakes that public descriptions make are caught by these tensors, and the script that made them still does.
"""

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT
from gdnspec.build.reference import function
from gdnspec.catalog.definitions import definition
from patience import PATIENCE
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

NAMES = ("kda_prefill_raw_gates", "kda_prefill_k_last", "kda_decode_k_last")
AGREEMENT, MISTAKE = 1e-5, 0.03  # relative L2, the worst row or state
REPRODUCED = 2e-3  # another CPU sums in another order, and an element may round the other way

Given = dict[str, Any]


def tensor_file(name: str, root: Path = ROOT / "definitions/kda") -> Path:
    return root / name / "tensors" / "kimi_linear.safetensors"


def computed(name: str, given: Given) -> tuple[Tensor, Tensor]:
    """By the reference, in float64."""
    reference = function(definition(name).family, definition(name).definition.reference)
    wide = {key: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for key, x in given.items()}
    return reference(**{key: wide.get(key) for key in inspect.signature(reference).parameters})


def error(name: str, given: Given) -> float:
    """The worst relative L2 of any row and head of the output, or of any state; NaN counts as infinite."""
    tensors = load_file(tensor_file(name))
    state = "expected.new_state" if "expected.new_state" in tensors else "expected.final_state"
    worst = 0.0
    for found, wanted, within in zip(
        computed(name, given), (tensors["expected.output"], tensors[state]), ((-1,), (-1, -2)), strict=True
    ):
        far = (found - wanted.double()).norm(dim=within) / wanted.double().norm(dim=within)
        worst = max(worst, float(far.nan_to_num(torch.inf).max()))
    return worst


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_agrees_with_the_model(name: str) -> None:
    """In float64 the reference returns what the package's own function returned in float32."""
    assert error(name, load_file(tensor_file(name))) <= AGREEMENT


def one_gate_for_all_channels(x: Given) -> Given:
    gate = "a" if "a" in x else "g"
    return {gate: x[gate].float().mean(-1, keepdim=True).expand_as(x[gate])}


def other_layout(x: Given) -> Given:
    state = "state" if "state" in x else "initial_state"
    return {state: x[state].mT}


def clamped(x: Given) -> Given:
    return {"lower_bound": -5.0} if "a" in x else {"g": x["g"].clamp(min=-0.5)}


def unbiased(x: Given) -> Given:
    return {"dt_bias": torch.zeros_like(x["dt_bias"])} if "a" in x else {"g": x["g"] * 0.5}


def no_write_gate(x: Given) -> Given:
    return {"b": torch.full_like(x["b"], 100.0)} if "b" in x else {"beta": None}


def no_scale(x: Given) -> Given:
    return {"scale": 1.0}


MISTAKES = (one_gate_for_all_channels, other_layout, clamped, unbiased, no_write_gate, no_scale)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows(name: str, mistake: Callable[[Given], Given]) -> None:
    tensors = load_file(tensor_file(name))
    assert error(name, tensors | mistake(tensors)) > MISTAKE


@pytest.mark.parametrize("name", NAMES)
def test_the_file_follows_its_definition(name: str) -> None:
    """Exactly the definition's tensors with its types, all outputs expected, channels that decay unlike one another."""
    tensors, contract = load_file(tensor_file(name)), definition(name).definition
    inputs = {tensor.name: tensor.dtype for tensor in contract.inputs if not tensor.is_scalar}
    outputs = {f"expected.{tensor.name}": "float32" for tensor in contract.outputs}
    assert {key: str(x.dtype).removeprefix("torch.") for key, x in tensors.items()} == inputs | outputs
    assert all(bool(torch.isfinite(x).all()) for x in tensors.values())
    x = tensors["a"].float() + tensors["dt_bias"] if "a" in tensors else tensors["g"]
    medians = x.flatten(0, -3).median(0).values
    assert (medians.amax(-1) - medians.amin(-1)).min() > 0.1
    with safe_open(tensor_file(name), framework="pt") as file:
        assert json.loads(file.metadata()["provenance"])["package"] == "transformers"


@pytest.mark.thorough
def test_the_script_makes_these_files(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    with safe_open(tensor_file(NAMES[0]), framework="pt") as file:
        recorded = json.loads(file.metadata()["provenance"])["version"]
    if transformers.__version__ != recorded:
        pytest.skip(f"recorded with transformers {recorded}, this is {transformers.__version__}")
    script = [sys.executable, str(ROOT / "reference/kda/scripts/make_real_input.py"), "--out", str(tmp_path)]
    subprocess.run(script, check=True, timeout=PATIENCE)
    for name in NAMES:
        kept, made = load_file(tensor_file(name)), load_file(tensor_file(name, tmp_path))
        assert made.keys() == kept.keys()
        for key, x in kept.items():
            far = (made[key].double() - x.double()).norm() / x.double().norm().clamp(min=1e-30)
            assert far <= REPRODUCED, f"{name}: {key} moved by {far:.1e}"
