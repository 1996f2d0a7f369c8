"""exp(x) overflows in float32 from 88.73 on, and torch's softplus uses it for every x up to its threshold, 20. A kernel
that sets the threshold to 100 is wrong in between, so each definition with raw gates has a row with steps there."""

import pytest
import torch
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.workloads import workloads
from gdnspec.check.content import Content
from gdnspec.inputs.materialise import materialise

RAW = {"a", "A_log", "dt_bias"}  # where a projection inside of an operator makes `a`, a step is nobody's input
WITH_RAW_GATES = [found for found in definitions().values() if {x.name for x in found.definition.inputs} >= RAW]


def test_both_families_have_raw_gates() -> None:
    assert {found.family.name for found in WITH_RAW_GATES} == {"gdn", "kda"}


@pytest.mark.parametrize("found", WITH_RAW_GATES, ids=lambda found: found.definition.name)
def test_a_row_has_steps_between_89_and_100(found) -> None:
    (large,) = [line for line in workloads(found) if line.name in ("large_steps", "regime_large_steps")]
    given = Content.of(materialise(found, large), "cpu").tensors
    step = given["a"].double() + given["dt_bias"].double()
    rate = given["A_log"].double().exp()
    rate = rate[:, None] if given["dt_bias"].dim() == 2 else rate  # steps of each channel, or of each head
    alpha = torch.exp(-rate * torch.nn.functional.softplus(step))
    seen = alpha > 1e-3  # below, an alpha of 0 is hardly another one
    assert (seen & (step > 89) & (step < 99.5)).any()
    assert (seen & (step > 100)).any()
