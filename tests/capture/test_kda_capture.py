"""Calls of Kimi Delta Attention become workloads: those of transformers' kimi_linear, and by FLA's flags."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from gdnspec import capture
from safetensors.torch import load_file
from test_capture import rows_of

FINISHED = "made_up_kda:rule"


@pytest.fixture
def rule(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function with the arguments of FLA's, which does nothing."""
    module: Any = types.ModuleType("made_up_kda")

    def rule(q: Any, k: Any, v: Any, g: Any, beta: Any, initial_state: Any = None, **options: Any) -> Any:
        return v

    module.rule = rule
    monkeypatch.setitem(sys.modules, "made_up_kda", module)
    return lambda **given: module.rule(**given)


def call(tokens: int = 5, heads: int = 2, size: int = 64) -> dict[str, Any]:
    make = torch.Generator().manual_seed(tokens)
    x = {name: torch.randn(1, tokens, heads, size, generator=make) for name in ("q", "k", "v", "g")}
    return x | {"beta": torch.rand(1, tokens, heads, generator=make), "use_qk_l2norm_in_kernel": True}


def raw(**more: Any) -> dict[str, Any]:
    """By FLA's flags, dt_bias with one axis."""
    given = call() | {"A_log": torch.tensor([[[[0.5], [-1.0]]]]), "dt_bias": torch.linspace(-2, 1, 128)}
    return given | {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, **more}


def kept(definition: str, folder: Path, rule: Any, **given: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    with capture(definition, folder / "run.jsonl", target=FINISHED, tensors="all") as run:
        rule(**given)
    assert not run.unfit
    (row,) = rows_of(folder / "run.jsonl")
    return row, load_file(folder / row["tensors"])


def test_raw_gates_are_kept_as_they_come(rule: Any, tmp_path: Path) -> None:
    given = raw(lower_bound=-5.0)
    row, tensors = kept("kda_prefill_raw_gates", tmp_path, rule, **given)
    assert row["scalars"] == {"use_qk_l2norm": True, "lower_bound": -5.0}
    assert torch.equal(tensors["a"], given["g"][0].bfloat16())
    assert torch.equal(tensors["b"], given["beta"][0].bfloat16())
    assert torch.equal(tensors["A_log"], torch.tensor([0.5, -1.0]))
    assert torch.equal(tensors["dt_bias"], given["dt_bias"].reshape(2, 64))


@pytest.mark.parametrize("bound", [None, -5.0])
def test_raw_gates_become_finished_ones(rule: Any, tmp_path: Path, bound: float | None) -> None:
    state = torch.randn(1, 2, 64, 64)
    given = raw(lower_bound=bound, initial_state=state, state_v_first=True)
    _, tensors = kept("kda_prefill_k_first", tmp_path, rule, **given)
    x = given["g"][0].double() + given["dt_bias"].double().reshape(2, 64)
    rate = torch.tensor([0.5, -1.0]).double().exp()[:, None]
    g = -rate * torch.nn.functional.softplus(x) if bound is None else bound * (rate * x).sigmoid()
    torch.testing.assert_close(tensors["g"], g.float())
    torch.testing.assert_close(tensors["beta"], given["beta"][0].sigmoid())
    assert torch.equal(tensors["initial_state"], state.mT), "the call has [V, K], the definition [K, V]"


def test_finished_gates_become_raw_ones(rule: Any, tmp_path: Path) -> None:
    given = call()
    given["g"] = -given["g"].abs()
    given["g"][0, 2, 1, 5] = -torch.inf
    _, tensors = kept("kda_prefill_raw_gates", tmp_path, rule, **given)
    g = -torch.nn.functional.softplus(tensors["a"].double())
    assert g[2, 1, 5] < -1e6
    finite = given["g"][0].isfinite()
    torch.testing.assert_close(g[finite], given["g"][0].double()[finite], rtol=2e-2, atol=1e-6)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"g": torch.zeros(1, 5, 2)}, r"g \[1, 5, 2\] does not go with k .* \[1, 5, 2, 64\] is wanted"),
        ({"allow_neg_eigval": True}, "its write strength is up to 2"),
        ({"use_gate_in_kernel": True}, "raw gates without A_log"),
        ({"initial_state": torch.zeros(1, 2, 64, 32)}, r"a state \[1, 2, 64, 32\] for 1 sequences"),
    ],
)
def test_what_no_definition_has_is_counted(rule: Any, tmp_path: Path, more: dict[str, Any], said: str) -> None:
    import re

    with capture("kda_prefill_k_last", tmp_path / "run.jsonl", target=FINISHED) as run:
        rule(**(call() | more))
    (why,) = run.unfit
    assert re.search(said, why)


@pytest.mark.xdist_group("capture")
def test_a_model_is_recorded(tmp_path: Path) -> None:
    """A small Kimi Linear generates; prefills and decodes are told apart."""
    from helpers_kimi_linear import LINEAR, model

    small = model()
    with (
        capture("kda_prefill_k_first", tmp_path / "prefill.jsonl") as prefill,
        capture("kda_decode_k_last", tmp_path / "decode.jsonl", tensors="sample:1") as decode,
    ):
        small.generate(torch.arange(9)[None], max_new_tokens=3, do_sample=False)
    assert (prefill.calls, decode.calls, prefill.unfit, decode.unfit) == (LINEAR, 2 * LINEAR, {}, {})
    (row,) = rows_of(tmp_path / "prefill.jsonl")
    assert (row["sequence_lengths"], row["omit"]) == ([9], ["initial_state"])
    kept, *others = rows_of(tmp_path / "decode.jsonl")
    assert kept["weight"] + sum(row["weight"] for row in others) == 2 * LINEAR
    tensors = load_file(tmp_path / kept["tensors"])
    assert tensors["state"].shape == (1, 2, 32, 32)
