"""The example that trains: a few steps on a CPU, in both types."""

import sys

import pytest
from conftest import ROOT
from gdnspec.registration import by_kernel

pytest.importorskip("transformers")
SMALL = ["--device", "cpu", "--steps", "3", "--rows", "2", "--length", "24", "--hidden", "32", "--text", "5000"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_curve_is_that_of_transformers(
    dtype: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    sys.modules.pop("train_two_layers", None)
    import train_two_layers

    asked: set[str] = set()
    kernel = by_kernel.kernel
    monkeypatch.setattr(by_kernel, "kernel", lambda name, *more: asked.add(name) or kernel(name, *more))
    monkeypatch.setattr(train_two_layers, "WINDOW", 1)
    assert train_two_layers.main([*SMALL, "--dtype", dtype]) == 0
    *head, last, compared = capsys.readouterr().out.splitlines()
    step, own, ours, other = map(float, last.split())
    assert (len(head), step) == (4, 2)
    assert ours == pytest.approx(own, abs=2e-4 if dtype == "float32" else 0.05)
    assert abs(other - own) > 1e-4
    assert float(head[2].split()[1]) > own, "nothing was learned"
    assert compared.startswith("largest difference to transformers: gdnspec ")
    of_gradients = {"gdn_prefill_backward_k_last", "gdn_conv_gates_backward", "gdn_gated_rms_norm_backward"}
    assert asked == (of_gradients if dtype == "bfloat16" else set())


@pytest.mark.parametrize(
    "words", ["--steps 0", "--length 1", "--length 400000", "--head-size 0", "--rate nan", "--rate -1"]
)
def test_what_cannot_run_is_said_before_anything_runs(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import train_two_layers

    with pytest.raises(SystemExit) as stopped:
        train_two_layers.main(words.split())
    assert stopped.value.code == 2
    assert f"error: {words.split()[0]}: " in capsys.readouterr().err


def test_the_text_is_that_of_documentation_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import train_two_layers

    text = bytes(train_two_layers.text(3000).tolist()).decode(errors="ignore")
    assert 2900 < len(text) <= 3000
    assert "def " not in text[:200]
    assert "the" in text.split()
