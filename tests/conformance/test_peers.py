"""Other libraries as solutions: run where they are named, judged like any, and told apart from this project's own."""

import importlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from conftest import ROOT, Run
from gdnspec.catalog.solutions import load_solution
from gdnspec.cli.selection import chosen_solutions
from gdnspec.report.markdown import BEGIN, END, placed
from helpers_known_bad import wrong
from packaging.requirements import Requirement

PEERS = sorted(file.parent.name for file in (ROOT / "peers").glob("*/solution.json"))


def test_these_there_are() -> None:
    assert PEERS == [
        "attn_gym", "attn_gym_kda", "fla", "fla_kda", "fla_kda_backward", "flash_qla", "flash_qla_backward",
        "flashinfer", "onnxruntime", "transformers", "transformers_kda",
    ]  # fmt: skip


def test_they_run_where_they_are_named_alone() -> None:
    everything, _ = chosen_solutions(None, None)
    assert not {solution.name for solution in everything} & set(PEERS)
    for name in PEERS:
        (solution,), problems = chosen_solutions([name], None)
        assert solution.is_peer
        assert not problems


@pytest.mark.parametrize("name", PEERS)
def test_what_they_need_is_an_extra(name: str) -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages = load_solution(ROOT / "peers" / name).manifest.requires.packages
    wanted = {Requirement(line).name for line in packages} - {"torch", "triton"}
    extra = name.removesuffix("_backward").removesuffix("_kda").replace("_", "-")
    assert wanted <= {Requirement(line).name for line in extras[extra]}


def test_a_missing_package_is_told_with_the_command_that_installs_it(gdnspec: Run, tmp_path: Path) -> None:
    folder = tmp_path / "far_away"
    folder.mkdir()
    manifest = json.loads((ROOT / "peers" / "transformers" / "solution.json").read_text())
    manifest |= {"name": "far_away", "requires": {**manifest["requires"], "packages": ["no-such-rules>=3"]}}
    (folder / "solution.json").write_text(json.dumps(manifest))
    (folder / "kernel.py").write_bytes((ROOT / "peers" / "transformers" / "kernel.py").read_bytes())
    options = ("--solution", "far_away", "--solutions-dir", tmp_path, "--device", "cpu")
    done = gdnspec("check", "gdn_decode_k_last", *options)
    assert done.returncode == 3
    assert 'needs no-such-rules>=3: pip install "no-such-rules>=3"' in done.stdout


@pytest.mark.thorough
def test_transformers_is_right_but_for_resets(gdnspec: Run, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    names = ("batch_8", "no_l2norm", "scale_zero", "ragged", "empty_sequences", "same_key", "regime_hard_reset")
    definitions = ("gdn_decode_k_last", "gdn_decode_k_first_bf16_state", "gdn_decode_packed_k_last",
                   "gdn_prefill_k_last", "gdn_prefill_k_first")  # fmt: skip
    options = [part for name in names for part in ("--workload", name)]
    file = tmp_path / "r.jsonl"
    gdnspec("check", *definitions, "--solution", "transformers", "--device", "cpu", *options, "--json", file)
    results = [json.loads(line) for line in file.read_text().splitlines()]
    assert {result["definition"] for result in results} == set(definitions)
    for result in results:
        # Cumulated logarithms: its chunk rule has no answer to alpha = 0, its recurrence has.
        lost = "prefill" in result["definition"] and "reset" in result["workload"]
        assert result["status"] == ("NON_FINITE" if lost else "PASSED"), result["message"]
    assert len({result["status"] for result in results}) == 2


@pytest.mark.thorough
def test_transformers_kda_is_right_but_for_resets_in_chunks(gdnspec: Run, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    names = ("batch_5", "bounded", "ragged", "empty_sequences", "regime_mixed_channels", "scaled", "regime_hard_reset")
    definitions = ("kda_decode_k_last", "kda_prefill_k_last", "kda_prefill_raw_gates")
    options = [part for name in names for part in ("--workload", name)]
    file = tmp_path / "r.jsonl"
    gdnspec("check", *definitions, "--solution", "transformers_kda", "--device", "cpu", *options, "--json", file)
    found = {(row["definition"], row["workload"]): row["status"] for row in map(json.loads, file.open())}
    # A finished gate is minus infinity; a raw one so large that a sum of gates loses those of later tokens.
    lost = {"kda_prefill_k_last": "NON_FINITE", "kda_prefill_raw_gates": "INCORRECT_NUMERICAL"}
    assert {name for name, _ in found} == set(definitions)
    for (name, workload), status in found.items():
        wanted = lost.get(name, "PASSED") if workload == "regime_hard_reset" else "PASSED"
        assert status == wanted, (name, workload)


@pytest.mark.parametrize("name", ["onnxruntime", pytest.param("onnxruntime:reference", marks=pytest.mark.thorough)])
def test_onnx_is_right_but_for_a_scale_of_zero(gdnspec: Run, tmp_path: Path, name: str) -> None:
    pytest.importorskip("onnxruntime")
    asked = ("ragged", "empty_sequences", "regime_hard_reset", "scale_zero", "batch_8")
    definitions = ("gdn_prefill_k_last", "gdn_decode_k_first", "gdn_conv1d_prefill", "gdn_decode_pool_k_last")
    options = [part for one in asked for part in ("--workload", one)]
    file = tmp_path / "r.jsonl"
    gdnspec("check", *definitions, "--solution", name, "--device", "cpu", *options, "--json", file)
    results = [json.loads(line) for line in file.read_text().splitlines()]
    assert {result["definition"] for result in results} == set(definitions)
    for result in results:
        wrong_scale = result["workload"] == "scale_zero"  # 0.0 stands for the default there
        assert result["status"] == ("INCORRECT_NUMERICAL" if wrong_scale else "PASSED"), result["message"]
    assert len({result["status"] for result in results}) == 2


LIBRARIES = (
    "fla", "fla.ops", "fla.ops.gated_delta_rule", "fla.ops.utils", "fla.ops.utils.index",
    "flash_qla", "flash_qla.ops", "flash_qla.ops.gated_delta_rule", "flash_qla.ops.gated_delta_rule.chunk",
    "flash_qla.utils", "flash_qla.utils.index",
    "flashinfer", "flashinfer.gdn_decode", "flashinfer.gdn_prefill",
)  # fmt: skip


@pytest.mark.parametrize("name", ["fla", "flash_qla", "flashinfer"])
def test_the_benchmark_of_the_layer_calls_adapters_by_the_arguments_that_they_have(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An adapter whose arguments changed would be left out there, and the ratio be one to slower libraries alone."""
    library = MagicMock()
    library.chunk_gated_delta_rule.side_effect = lambda *given, **named: (torch.zeros(1, 3, 4, 128), named)
    for module in LIBRARIES:
        monkeypatch.setitem(sys.modules, module, library)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    conv_prefill = importlib.import_module("conv_prefill")
    rule = {
        "cu_seqlens": torch.tensor([0, 3]), "initial_state": torch.zeros(1, 4, 128, 128), "scale": None,
        "output": torch.zeros(3, 4, 128), "final_state": torch.zeros(1, 4, 128, 128),
    }  # fmt: skip
    q, k, v = torch.zeros(3, 2, 128), torch.zeros(3, 2, 128), torch.zeros(3, 4, 128)
    linear, prefill = conv_prefill.peers([name], tmp_path)[name](SimpleNamespace(rule=rule))
    output, _ = prefill(q, k, v, torch.zeros(3, 4), torch.zeros(3, 4))
    assert linear == (name == "flashinfer")
    assert output.shape == rule["output"].shape
    called = library.chunk_gated_delta_rule.call_args.kwargs
    assert called["initial_state"] is rule["initial_state"]
    assert called["output_final_state"]


# --- report --markdown ------------------------------------------------------------------------------------------


def test_verdicts_by_regime_go_into_a_readme_and_what_stands_there_stays(gdnspec: Run, tmp_path: Path) -> None:
    verdicts, readme = tmp_path / "v.jsonl", tmp_path / "README.md"
    readme.write_text("# Mine\n\nWords of my own.\n")
    options = ("--solution", "torch_chunkwise", "--workload", "no_l2norm", "--workload", "batch_8", "--device", "cpu")
    assert gdnspec("check", "gdn_decode_k_last", *options, "--json", verdicts).returncode == 0
    for _ in range(2):  # again: in the same place
        done = gdnspec("report", "--markdown", "torch_chunkwise", "--verdicts", verdicts, "-o", readme)
        assert done.returncode == 0, done.stderr
    text = readme.read_text()
    assert text.startswith("# Mine\n\nWords of my own.\n")
    assert (text.count(BEGIN), text.count(END)) == (1, 1)
    assert "| regime | gdn_decode_k_last |" in text
    assert "| typical | 2 of 2 |" in text
    times = text.split("Times on nvidia-h200")[1]  # what was measured of it stands there too
    batches = [int(batch) for batch in re.findall(r"gdn_decode_k_last \| 16x32_batch_(\d+)", times)]
    assert batches == sorted(batches) and batches[-1] > 100, "as in the workloads' file, not by their first digits"


def test_failures_are_named(gdnspec: Run, tmp_path: Path) -> None:
    verdicts, readme = tmp_path / "v.jsonl", tmp_path / "README.md"
    chosen = ("--solutions-dir", wrong("output_times_1_01"), "--solution", "output_times_1_01", "--device", "cpu")
    options = ("--workload", "ragged")
    assert gdnspec("check", "gdn_prefill_k_last", *chosen, *options, "--json", verdicts).returncode == 1
    report = ("report", "--markdown", "output_times_1_01", "--verdicts", verdicts, "-o", readme)
    assert gdnspec(*report, *chosen[:2]).returncode == 0
    text = readme.read_text()
    assert text.startswith("# output_times_1_01\n")
    assert "| typical | **0 of 1** |" in text
    assert "- gdn_prefill_k_last, INCORRECT_NUMERICAL: " in text


KNOWN_BAD = ("output_times_1_01", "--solutions-dir", str(wrong("output_times_1_01")))  # which nobody measures


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("transformer", "-o", "x.md"), 2, "did you mean 'transformers'?"),
        (("transformers", "-o", "x.html"), 2, "is not named .md"),
        ((*KNOWN_BAD, "-o", "x.md"), 3, "no trace and no verdict of output_times_1_01"),
        (("torch_recurrent", "-o", "no/such/x.md"), 2, "cannot be written"),
    ],
)
def test_bad_requests(gdnspec: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = gdnspec("report", "--markdown", *arguments, cwd=tmp_path)
    assert done.returncode == code
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


def test_marks_out_of_order_are_refused() -> None:
    from gdnspec.model.errors import SpecError

    for text in (f"{END}\n{BEGIN}", BEGIN, END):
        with pytest.raises(SpecError, match="in the wrong order"):
            placed(text, "body", "x")
