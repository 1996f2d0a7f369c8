"""The benchmark of a layer in training, with a small layer on a CPU."""

import importlib
from typing import Any

import pytest
from conftest import ROOT

pytest.importorskip("transformers")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("FLA_DISABLE_BACKEND_DISPATCH", "FLA_TENSOR_CACHE_SIZE"):
        monkeypatch.setenv(name, "1")  # or the script leaves them to other tests
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("layer_training")


def test_all_gradients_of_a_layer_are_those_of_transformers(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    script.main(["--tiny", "--device", "cpu", "--windows", "1", "--paths", "transformers,gdnspec"])
    printed = capsys.readouterr()
    rows = [line.strip("| ").split(" | ") for line in printed.out.splitlines() if line.startswith("| ")][1:]
    assert [row[:2] for row in rows] == [["1x70", "transformers"], ["1x70", "gdnspec"], ["5+1+70", "gdnspec"]]
    assert all(float(row[2].replace(",", "")) > 0 for row in rows)
    assert float(rows[1][-1]) < 1e-3
    assert "5+1+70: transformers is left out: ValueError: its state runs on over the bounds" in printed.err


def test_a_path_that_is_recorded_runs_again(script: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """On a GPU a graph records the call, on the path that is in use for the call alone."""

    def recorded(call: Any, device: Any) -> Any:
        call()
        return call

    monkeypatch.setattr(script, "recorded", recorded)
    script.main(["--tiny", "--device", "cpu", "--windows", "1", "--paths", "gdnspec"])
    assert "left out" not in capsys.readouterr().err


def test_a_layer_has_gradients_of_what_the_projections_give_and_of_its_own_weights(script: Any) -> None:
    model = script.built(True, 1, "cpu").train()
    (layer,) = (x.linear_attn for x in model.layers)
    output, *gradients = script.Training(layer, script.TINY_CASES[0], model)()
    own = [layer.conv1d.weight, layer.dt_bias, layer.A_log, layer.norm.weight]
    assert output.shape[1] == 70
    assert sorted(x.shape for x in gradients[2:]) == sorted(x.shape for x in own)
    assert all(x.abs().sum() > 0 for x in gradients)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--cases nix --tiny --device cpu", "--cases: no case has 'nix' in its name"),
        ("--paths nix", "--paths: nix is unknown: transformers, fla, gdnspec are known"),
        ("--device cpu", "--device cpu takes --tiny, and no --profile"),
    ],
)
def test_a_wrong_request_is_told_in_one_line(
    script: Any, words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        script.main(words.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
