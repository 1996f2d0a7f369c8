"""Codes of quantised states: their numbers, how far off they may be, and scales that nothing else makes up for."""

import numpy as np
import pytest
import torch
from gdnspec.build.e4m3 import E4M3, to_e4m3
from gdnspec.catalog.definitions import Found, definition
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.materialise import Inputs, materialise
from gdnspec.model.budget import OF_CODES, freeze, metrics_of
from gdnspec.numerics.allowed import budget
from gdnspec.numerics.code_steps import of_codes, place
from gdnspec.numerics.expected import evaluate
from gdnspec.numerics.judge import Verdict, judge
from torch import Tensor

F8, I8 = "gdn_decode_pool_k_last_fp8_state", "gdn_decode_pool_k_last_int8_state"


def test_codes_of_e4m3_are_those_of_torch() -> None:
    bits = np.arange(256, dtype=np.uint8)
    torch_values = torch.from_numpy(bits).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(E4M3, torch_values, equal_nan=True)
    between = (E4M3[:126] + E4M3[1:127]) / 2  # exact ties, and numbers on either side of them
    for x in (between, between * (1 + 1e-6), between * (1 - 1e-6), -between, np.float32([448, 460, 1e9, 0.0])):
        wanted = torch.from_numpy(x).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        assert np.array_equal(to_e4m3(x), wanted)


def test_codes_are_counted_from_zero() -> None:
    values = torch.from_numpy(E4M3[:127].astype(np.float64))
    assert place(values, "float8_e4m3fn").tolist() == list(range(127))
    assert place(-values, "float8_e4m3fn").tolist() == [-n for n in range(127)]
    assert place(torch.tensor([-127.0, 3.0]), "int8").tolist() == [-127.0, 3.0]


def test_steps_and_moved_by_hand() -> None:
    want = torch.tensor([[[448.0, 1.0, 0.0, 2.0]], [[448.0, 1.0, 0.0, 2.0]]])
    got = torch.tensor([[[416.0, 1.125, 0.0, 2.0]], [[448.0, 1.0, 2.0**-8, 2.0]]])  # one code, one code; two codes
    found = of_codes(got.double(), want.double(), torch.tensor([0, 1]), 2, "float8_e4m3fn")
    assert found["steps"].tolist() == [[1.0], [2.0]]
    assert found["moved"].tolist() == [[0.5], [0.25]]
    got[0, 0, 0] = torch.nan
    assert of_codes(got.double(), want.double(), torch.tensor([0, 1]), 2, "float8_e4m3fn")["steps"][0, 0] == torch.inf


def test_no_budget_lets_a_code_be_off_by_two() -> None:
    pool = definition(F8).definition.input("pool")
    figures = {metric: [0.01, 3.0 if metric == "steps" else 0.0] for metric in metrics_of(pool)}
    limits = freeze(pool, figures)
    assert limits["steps"] == OF_CODES["float8_e4m3fn"]["steps"] < 2
    assert limits["relative_l2"] == pytest.approx(0.02)


def judged(name: str) -> tuple[Found, Inputs, dict[str, Tensor]]:
    found = definition(name)
    line = next(line for line in workloads(found) if line.name == "shared")
    inputs = materialise(found, line)
    return found, inputs, evaluate(found, inputs, "cpu", torch.float64)


def verdicts(name: str, got: dict[str, Tensor], found: Found, inputs: Inputs, want: dict[str, Tensor]) -> list[Verdict]:
    line = next(line for line in workloads(found) if line.name == "shared")
    return [
        judge(got[t.name], want[t.name], t, found.definition, inputs.scope, budget(found.definition, t, line))
        for t in found.definition.judged
    ]


@pytest.mark.parametrize("name", [F8, I8])
def test_a_wrong_scale_is_not_made_up_for_by_matching_codes(name: str) -> None:
    found, inputs, want = judged(name)
    halved = want | {"pool": want["pool"] / 2, "pool_scales": want["pool_scales"] * 2}
    output, codes, scales = verdicts(name, halved, found, inputs, want)
    assert (output.status, codes.status, scales.status) == ("PASSED", "INCORRECT_NUMERICAL", "INCORRECT_NUMERICAL")
    # Of one row alone it shows as well, and so it does where the codes are right.
    scaled = want["pool_scales"].clone()
    scaled[2, 1, 5] *= 1 + 2.0**-12
    *_, scales = verdicts(name, want | {"pool_scales": scaled}, found, inputs, want)
    assert scales.status == "INCORRECT_NUMERICAL"
    assert "head 1, row 5" in scales.message


@pytest.mark.parametrize("name", [F8, I8])
def test_a_code_on_a_boundary_may_be_off_by_one(name: str) -> None:
    found, inputs, want = judged(name)
    moved = want["pool"].clone()
    moved[0, 0, 0, 0] = 1.0
    near = want["pool"].clone()
    near[0, 0, 0, 0] = 2.0 if name == I8 else 1.125
    _, codes, _ = verdicts(name, want | {"pool": near}, found, inputs, want | {"pool": moved})
    assert codes.status == "PASSED"
    assert codes.errors is not None
    assert codes.errors.errors["steps"] == 1.0
    near[0, 0, 0, 0] = 3.0 if name == I8 else 1.25
    _, codes, _ = verdicts(name, want | {"pool": near}, found, inputs, want | {"pool": moved})
    assert codes.status == "INCORRECT_NUMERICAL"
    assert "steps 2 > 1.5" in codes.message
