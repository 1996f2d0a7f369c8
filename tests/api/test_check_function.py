"""gdnspec.check, gdnspec.definition: the judge and the definitions from Python."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked_command
import gdnspec
import pytest
import torch
from conftest import ROOT

DECODE = "gdn_decode_k_last"
SPEC = gdnspec.definition(DECODE)


def right(**inputs):
    return SPEC.reference(**inputs)


def out(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state):
    values = SPEC.reference(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)
    output.copy_(values[0])
    new_state.copy_(values[1])


def wrong(**inputs):
    output, state = SPEC.reference(**inputs)
    return output * 1.01, state


def test_a_definition_has_its_reference_and_its_workloads() -> None:
    case = SPEC.workload("batch_8")
    inputs = case.inputs()
    assert tuple(inputs) == SPEC.inputs
    values = dict(zip(SPEC.outputs, SPEC.reference(**inputs), strict=True))
    for name, expected in case.expected().items():
        assert expected.dtype == torch.float64
        assert torch.allclose(values[name].double(), expected, rtol=1e-2, atol=1e-2), name
    wide = {name: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for name, x in inputs.items()}
    assert torch.equal(SPEC.reference(**wide)[0], case.expected()["output"])


def test_expected_values_come_in_the_order_of_the_definition() -> None:
    """Also from the cache, whose files have no order."""
    spec = gdnspec.definition("gdn_prefill_backward_k_last")
    case = spec.workload("one_cotangent")
    assert [tuple(case.expected()) for _ in range(2)] == [spec.outputs] * 2


@pytest.mark.parametrize("name", [DECODE, "gdn_prefill_backward_raw_gates", "kda_decode_k_last"])
def test_a_switch_that_is_left_out_has_its_default_in_the_reference(name: str) -> None:
    spec = gdnspec.definition(name)
    inputs = min((case.inputs() for case in spec.workloads()), key=lambda inputs: inputs["q"].numel())
    on, off, absent = (spec.reference(**inputs | {"use_qk_l2norm": x}) for x in (True, False, None))
    assert not torch.equal(on[0], off[0])
    assert all(torch.equal(x, y) for x, y in zip(absent, on, strict=True))
    with pytest.raises(TypeError, match="missing a required argument: 'q'"):
        spec.reference(k=inputs["k"])


def test_the_same_workload_gives_the_same_bits() -> None:
    first, again = (SPEC.workload("batch_8").inputs()["q"] for _ in range(2))
    assert torch.equal(first, again)


def test_a_device_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    case = SPEC.workload("one_row")
    assert case.inputs(torch.device("cpu")).keys() == case.inputs().keys()
    monkeypatch.setattr("gdnspec.build.machine.device", lambda kind: None)
    for call in (case.inputs, case.expected):
        for name in ("cuda", "cuda:1", "tpu"):
            with pytest.raises(
                gdnspec.SpecError, match=f"^no device '{name}' here: cpu, or cuda where there is a GPU$"
            ):
                call(name)


@pytest.mark.parametrize("function", [right, out])
def test_a_right_function_passes(function) -> None:
    verdict = gdnspec.check(function, DECODE, seed=1)
    assert verdict.passed, verdict
    assert verdict.status == "PASSED"
    verdict.raise_for_status()
    assert verdict.ran == len(SPEC.workloads("smoke")) + 2  # fresh ones
    assert 0 < verdict.errors["output"]["relative_l2"] < 1
    assert "(not isolated)" in str(verdict)
    assert not verdict.isolated


def test_a_wrong_function_says_where_and_how_to_repeat_it() -> None:
    verdict = gdnspec.check(wrong, SPEC, workload="batch_8", seed=5)
    assert [failure.status for failure in verdict.failures] == ["INCORRECT_NUMERICAL"]
    assert verdict.errors["output"]["relative_l2"] > 1
    assert verdict.repeat == f"gdnspec.check(wrong, {DECODE!r}, workload='batch_8', device='cpu', seed=5)"
    with pytest.raises(gdnspec.CheckFailed, match=r"output: relative_l2 .* worst at sequence"):
        verdict.raise_for_status()
    assert "<table>" in verdict._repr_html_()


def test_the_line_that_repeats_a_failure_is_python_with_the_same_options() -> None:
    calls = []

    def drifts(**inputs):
        calls.append(1)
        return tuple(x * (1 + 1e-6 * len(calls)) for x in SPEC.reference(**inputs))

    verdict = gdnspec.check(drifts, DECODE, workload="batch_8", deterministic=True, timeout=60.0)
    assert verdict.status == "NOT_REPRODUCIBLE"
    (message,) = {result.message for result in verdict.failures}
    assert "deterministic=True asks" in message and "solution.json" not in message
    assert not eval(verdict.repeat, {"gdnspec": gdnspec, "drifts": drifts}).passed
    nameless = gdnspec.check(lambda **inputs: None, DECODE, workload="batch_8")
    assert eval(nameless.repeat, {"gdnspec": gdnspec, "function": lambda **inputs: None}).status == nameless.status


def test_an_answer_that_is_kept_between_calls_is_found() -> None:
    kept = {}

    def cached(**inputs):
        key = inputs["q"].data_ptr()
        if key not in kept:
            kept[key] = tuple(value.clone() for value in SPEC.reference(**inputs))
        return kept[key]

    verdict = gdnspec.check(cached, DECODE, workload="batch_8", seed=1)
    assert "second call" in verdict.failures[0].message


def test_a_function_that_writes_to_its_inputs_is_found() -> None:
    def writes(**inputs):
        values = SPEC.reference(**inputs)
        inputs["q"].zero_()
        return values

    assert gdnspec.check(writes, DECODE, workload="batch_8").status == "MUTATED_INPUT"


def test_an_exception_is_a_verdict() -> None:
    def raises(**inputs):
        raise ValueError("not on a Wednesday")

    verdict = gdnspec.check(raises, DECODE, workload="batch_8")
    assert verdict.status == "RUNTIME_ERROR"
    assert "not on a Wednesday" in verdict.failures[0].message


def test_it_may_run_in_a_process_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import os, torch, gdnspec\n"
        "def mine(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):\n"
        "    return v, torch.full_like(state, os.getpid())\n"
        "if __name__ == '__main__':\n"
        "    import mine as here\n"
        f"    verdict = gdnspec.check(here.mine, {DECODE!r}, workload='batch_8', isolated=True)\n"
        "    got = verdict.failures[0].outputs[1].worst.got\n"
        "    print(verdict.isolated, got > 1 and got != os.getpid(), verdict.failures[0].isolation)\n"
    )
    done = forked_command.run([], dict(os.environ), tmp_path, script=file)
    assert done.stdout.startswith("True True"), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda q: q, "lacks k, v, state"),
        (lambda extra, **inputs: extra, "wants extra"),
        (lambda q, k, /, **inputs: q, "takes q, k by position alone: .* by keyword"),
        (5, "does not say which arguments it takes"),
    ],
)
def test_a_function_with_other_arguments_is_refused(function, said: str) -> None:
    with pytest.raises(gdnspec.SpecError, match=said):
        gdnspec.check(function, DECODE)


def test_a_generator_is_refused() -> None:
    def generates(**inputs):
        yield SPEC.reference(**inputs)

    with pytest.raises(gdnspec.SpecError, match="return the outputs as a tuple"):
        gdnspec.check(generates, DECODE)


def test_what_does_not_exist_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(gdnspec.SpecError, match=DECODE):
        gdnspec.definition("gdn_decode_klast")
    with pytest.raises(gdnspec.SpecError, match="smoke"):
        SPEC.workloads("smok")
    with pytest.raises(gdnspec.SpecError, match="batch_8"):
        gdnspec.check(right, DECODE, workload="batch8")
    with pytest.raises(gdnspec.SpecError, match="no device 'tpu'"):
        gdnspec.check(right, DECODE, device="tpu")
    with pytest.raises(gdnspec.SpecError, match="its file is copied"):
        gdnspec.check(lambda **inputs: right(**inputs), DECODE, isolated=True)
    with pytest.raises(gdnspec.SpecError, match="at the top level of a file"):
        gdnspec.check(SPEC.reference, DECODE, isolated=True)  # made by a decorator, so no file has it


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"definition_name": right}, "the definition is of type function instead of str"),
        ({"suite": ["smoke"]}, "suite is of type list instead of str"),
        ({"workload": 8}, "workload is of type int instead of str"),
        ({"seed": -1}, "seed=-1: it is a whole number from 0 to 4611686018427387903"),
        ({"seed": 1.5}, "seed=1.5: it is a whole number"),
        ({"timeout": 0}, "timeout=0: it is a number of seconds from 0.1 to 86,400"),
        ({"timeout": float("nan")}, "timeout=nan: it is a number of seconds"),
        ({"deterministic": "yes"}, "deterministic='yes': it is True or False"),
    ],
)
def test_an_option_of_the_wrong_kind_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(gdnspec.SpecError, match=said):
        gdnspec.check(right, **{"definition_name": DECODE, **options})
    for call in (gdnspec.definition, SPEC.workload, SPEC.workloads):
        with pytest.raises(gdnspec.SpecError, match="is of type NoneType instead of str"):
            call(None)


def test_reading_definitions_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import gdnspec; "
        f"print(gdnspec.definition({DECODE!r}).inputs[0], len(gdnspec.definitions()) > 20)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "q True\n", done.stderr
