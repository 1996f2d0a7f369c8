"""A lower bound of 0.0 is none: in inputs that are drawn, and in what may be drawn at all."""

from dataclasses import replace

import gdnspec
import pytest
import torch
from gdnspec.inputs.fresh import fresh

BOUNDED = [
    name
    for name, spec in gdnspec.definitions().items()
    if spec.contract.family == "kda" and "lower_bound" in spec.inputs
]


@pytest.mark.parametrize("name", BOUNDED)
def test_a_lower_bound_of_zero_is_an_absent_one(name: str) -> None:
    case = gdnspec.definition(name).workload("zeros_given")
    scalars = {scalar: value for scalar, value in case.line.scalars.items() if scalar != "lower_bound"}
    absent = replace(case, line=case.line.model_copy(update={"scalars": scalars, "sha256": None}))
    given, without = case.inputs(), absent.inputs()
    assert given.pop("lower_bound") == 0.0
    assert without.pop("lower_bound") is None
    for x, y in zip(given.values(), without.values(), strict=True):
        assert torch.equal(x, y) if torch.is_tensor(x) else x == y
    for x, y in zip(case.expected().values(), absent.expected().values(), strict=True):
        assert torch.equal(x, y)


def test_a_positive_lower_bound_is_no_workload() -> None:
    case = gdnspec.definition(BOUNDED[0]).workload("zeros_given")
    wrong = replace(case, line=case.line.model_copy(update={"scalars": {"lower_bound": 1.0}, "sha256": None}))
    with pytest.raises(Exception, match=r"lower_bound is 1.0"):
        wrong.inputs()


def test_fresh_rows_have_bounds_of_zero_as_well() -> None:
    found = gdnspec.definition("kda_decode_k_last").found
    drawn = {line.scalars.get("lower_bound") for seed in range(40) for line in fresh(found, seed, "cpu")}
    assert {None, 0.0} < drawn
    assert min(bound for bound in drawn if bound is not None) < -1
