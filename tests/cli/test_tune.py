"""gdnspec tune: what is measured on this machine decides here."""

from pathlib import Path

import gdnspec as package
import pytest
import torch
from conftest import Run
from gdnspec.catalog.definitions import definitions, preset_of
from gdnspec.choice.asking import ask, batch_of
from gdnspec.choice.tuned import tuned_traces
from gdnspec.cli.commands.tune import _line
from helpers_unit import OF_A_MODEL

SMALL = "synthetic-gva-1x2-d128"
DECODE = ("tune", "gdn_decode_k_last", "--preset", SMALL, "--batch", "8")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")


@no_gpu
def test_without_a_gpu_one_sentence_says_so(gdnspec: Run) -> None:
    done = gdnspec(*DECODE)
    assert done.returncode == 3
    assert done.stderr == "gdnspec: this machine has no CUDA GPU to tune for; --device cpu tunes for its processor\n"


def test_the_choice_finds_what_was_tuned(gdnspec: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDNSPEC_CACHE", str(tmp_path))
    done = gdnspec(*DECODE, "--device", "cpu", "--solution", "torch_recurrent", "--seconds", "0.1")
    assert done.returncode == 0, done.stderr
    assert "kept 1 of 1 times in" in done.stdout
    assert "the only one tuned on this machine at batch 8: " in done.stdout
    (trace,) = tuned_traces("gdn_decode_k_last")
    assert (trace.solution, trace.status, trace.axes) == ("torch_recurrent", "PASSED", {"batch_size": 8})
    q = torch.zeros(8, 1, 1, 128, dtype=torch.bfloat16)
    kernel = package.kernel("gdn_decode_k_last", like=(q, q, torch.zeros(8, 1, 2, 128, dtype=torch.bfloat16)))
    assert kernel.solution == "torch_recurrent"
    assert kernel.reason.startswith("the only one tuned on this machine")
    other = package.kernel("gdn_decode_k_last", like=(q[:4], q[:4]), device="cpu")
    assert "tuned" not in other.reason


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--device", "tpu"), "--device takes cuda or cpu"),
        (("--device", "cpu", "--solution", "torch_recurent"), "did you mean 'torch_recurrent'?"),
        (("--device", "cpu", "--solution", "cuda_decode"), "cannot serve this call: it runs only on cuda"),
    ],
)
def test_what_makes_no_sense_is_refused(gdnspec: Run, arguments: tuple[str, ...], said: str) -> None:
    done = gdnspec(*DECODE, *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_cache_that_cannot_be_written_is_told_before_anything_runs(gdnspec: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = gdnspec(*DECODE, "--device", "cpu", env={"GDNSPEC_CACHE": str(tmp_path / "file")})
    assert done.returncode == 2
    assert "GDNSPEC_CACHE names another folder" in done.stderr
    assert "PASSED" not in done.stderr


@pytest.mark.parametrize("name", sorted(definitions()))
def test_every_definition_has_a_workload_of_a_shape(name: str) -> None:
    found = definitions()[name]
    ragged = found.definition.conventions.packing == "ragged"
    each = [70, 3] if ragged else batch_of(found, None, 3, None)
    preset = OF_A_MODEL[found.family.name]
    asked = ask(found, found.family.preset(preset), preset, each, "nvidia-h200")
    line = _line(found, preset, each, asked)
    assert line.suite == "fresh"
    line.check(found.definition, preset_of(found, line))
    for axis, size in line.axes.items():
        assert asked.scope.get(axis, size) == size


def test_a_published_workload_of_the_shape_is_taken() -> None:
    found = definitions()["gdn_prefill_k_last"]
    preset = "qwen3-next-80b-a3b-tp1"
    asked = ask(found, found.family.preset(preset), preset, [8192], "nvidia-h200")
    assert _line(found, preset, [8192], asked).name == "16x32_1x8192"
