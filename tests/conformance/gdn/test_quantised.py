"""Quantised states: the rule of rounding by hand, and verify beside decode."""

import json

import pytest
import torch
from gdnspec import paths
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.materialise import materialise
from gdnspec.model.definition import Definition
from helpers_unit import arguments, reference

quantised = reference("quantised")
DECODE, VERIFY = "gdn_decode_pool_k_last", "gdn_verify_k_last"


def test_a_row_worked_by_hand() -> None:
    S = torch.tensor([[[-448.0, 100.0, 25.0, 2.0**-10], [0.0, 0.0, 0.0, 0.0]]], dtype=torch.float64) / 64
    codes, scales = quantised.quantise(S, quantised.LARGEST_E4M3, quantised.to_e4m3)
    assert scales.tolist() == [[1 / 64, 0.0]]
    # Three ties: 100 lies between 96 and 104, 25 between 24 and 26, and 2^-10 between 0 and the smallest code, 2^-9.
    assert codes.tolist() == [[[-448.0, 96.0, 24.0, 0.0], [0.0] * 4]]
    S = torch.tensor([[[-127.0, 28.5, 7.5, 0.5]]], dtype=torch.float64) / 4
    codes, scales = quantised.quantise(S, quantised.LARGEST_INT8, quantised.to_int8)
    assert (codes.tolist(), scales.tolist()) == ([[[-127.0, 28.0, 8.0, 0.0]]], [[0.25]])


def test_rounding_is_that_of_torch_and_saturates() -> None:
    x = torch.linspace(-500, 500, 20001, dtype=torch.float32) * torch.tensor([[1.0], [1e-2], [1e-4]])
    assert torch.equal(quantised.to_e4m3(x), x.clamp(-448, 448).to(torch.float8_e4m3fn).float())
    assert quantised.to_int8(torch.tensor([0.5, 1.5, -2.5, 127.6, -300.0])).tolist() == [0.0, 2.0, -2.0, 127.0, -127.0]


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_verify_of_one_token_is_decode(kind: str) -> None:
    found = definition(f"{VERIFY}_{kind}_state")
    line = next(line for line in workloads(found) if line.name == "one_token")
    given = arguments(found, materialise(found, line), torch.float64)
    output, codes, scales = getattr(quantised, f"verify_k_last_{kind}_state")(**given)
    start, end, accepted = (given.pop(name) for name in ("initial_slots", "state_slots", "accepted"))
    slots = torch.where(accepted > 0, end[:, 0], start)
    one = getattr(quantised, f"decode_pool_k_last_{kind}_state")(**given, read_slots=slots, write_slots=end[:, 0])
    for a, b in zip((output, codes, scales), one, strict=True):
        assert torch.equal(a, b)


def test_ties_lie_between_two_codes() -> None:
    """The rows that show how ties are rounded have some: a quarter of the new codes."""
    for kind, largest in (("fp8", quantised.LARGEST_E4M3), ("int8", quantised.LARGEST_INT8)):
        found = definition(f"{DECODE}_{kind}_state")
        line = next(line for line in workloads(found) if line.name == "rounding_ties")
        given = arguments(found, materialise(found, line), torch.float64)
        K = given["k"][:, 0].abs()  # the state is v k^T: a row's codes are those of k
        x = K / K.amax(-1, keepdim=True) * largest
        to_code = quantised.to_e4m3 if kind == "fp8" else quantised.to_int8
        spacing = (to_code(x * (1 + 1e-9)) - to_code(x * (1 - 1e-9))).abs()
        assert 0.15 < float((spacing > 0).double().mean()) < 0.35


BROKEN = {
    "codes_without_scales": ({"inputs": {"pool_scales": {"scales": None}}}, "0 inputs scale its codes"),
    "scales_of_numbers": ({"inputs": {"pool_scales": {"scales": "q"}}}, "'q' is not an input of codes"),
    "scales_of_another_shape": (
        {"inputs": {"pool_scales": {"shape": ["num_slots", "num_sab_heads"]}}}, "one element for each row of 'pool'",
    ),
    "scales_in_bfloat16": ({"inputs": {"pool_scales": {"dtype": "bfloat16"}}}, "a mutated input of float32"),
    "a_convention_that_says_otherwise": ({"conventions": {"state_scale": "none"}}, "the convention must say the same"),
    "an_output_of_codes": ({"outputs": {"output": {"dtype": "int8"}}}, "only a mutated input may hold codes"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_contracts_that_are_refused(name: str) -> None:
    from gdnspec.catalog.extending import merged

    change, said = BROKEN[name]
    file = paths.definitions_dir() / "gdn" / f"{DECODE}_fp8_state" / "definition.json"
    with pytest.raises(ValueError, match=said):
        Definition.model_validate(merged(json.loads(file.read_text(encoding="utf-8")), change))
