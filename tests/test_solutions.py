"""The solutions that gdnspec ships, judged by gdnspec."""

import json
from pathlib import Path

import pytest
from conftest import ROOT, Run

DECODE = sorted(file.parent.name for file in ROOT.glob("definitions/gdn_[dv]e*/definition.json"))
NAMES = sorted(file.parent.name for file in (ROOT / "solutions").glob("*/solution.json"))


def verdicts(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    """(solution, definition) to workload to status."""
    result: dict[tuple[str, str], dict[str, str]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        result.setdefault((row["solution"], row["definition"]), {})[row["workload"]] = row["status"]
    return result


def test_the_main_job_passes(gdnspec: Run, tmp_path: Path) -> None:
    """`make run`: the smoke suites, all definitions, every solution."""
    done = gdnspec("check", "--device", "cpu", "--json", tmp_path / "r.jsonl", timeout=280)
    assert done.returncode == 0, done.stderr
    rows = verdicts(tmp_path / "r.jsonl")
    for name in ("torch_recurrent", "torch_chunkwise", "triton_recurrent"):
        for definition in ("gdn_prefill_k_last", "gdn_prefill_k_first", "gdn_decode_k_last", "gdn_decode_k_first"):
            assert set(rows[name, definition].values()) == {"PASSED"}, (name, definition)
            assert "qwen3_next_model" in rows[name, definition], "the real model's tensors are among them"
    for definition in ("gdn_prefill_k_last", "gdn_prefill_k_first", "gdn_prefill_checkpoints"):
        assert set(rows["triton_chunkwise", definition].values()) == {"PASSED"}, definition
    for definition in DECODE:
        assert set(rows["triton_decode", definition].values()) == {"PASSED"}, definition
        assert set(rows["cuda_decode", definition].values()) == {"UNSUPPORTED"}


@pytest.mark.parametrize("definition", ["gdn_prefill_k_last", "gdn_prefill_checkpoints"])
def test_the_chunkwise_kernels_are_strict(gdnspec: Run, tmp_path: Path, definition: str) -> None:
    options = ("--solution", "triton_chunkwise", "--device", "cpu", "--json", tmp_path / "r.jsonl")
    done = gdnspec("check", definition, "--suite", "strict", *options, timeout=280)
    assert done.returncode == 0, done.stderr
    assert set(verdicts(tmp_path / "r.jsonl")["triton_chunkwise", definition].values()) == {"PASSED"}


@pytest.mark.slow
@pytest.mark.parametrize("definition", ["gdn_prefill_k_last", "gdn_decode_k_first"])
def test_the_chunkwise_solution_conforms_on_a_cpu(gdnspec: Run, tmp_path: Path, definition: str) -> None:
    suites = ("--suite", "conformance", "--suite", "strict")
    options = ("--solution", "torch_chunkwise", "--device", "cpu", "--json", tmp_path / "r.jsonl")
    done = gdnspec("check", definition, *suites[: 4 if "prefill" in definition else 2], *options, timeout=280)
    assert done.returncode == 0, done.stderr
    assert set(verdicts(tmp_path / "r.jsonl")["torch_chunkwise", definition].values()) == {"PASSED"}


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_every_solution_conforms_on_a_gpu(gdnspec: Run, tmp_path: Path) -> None:
    suites = ("--suite", "smoke", "--suite", "conformance", "--suite", "strict")
    done = gdnspec("check", *suites, "--device", "cuda", "--json", tmp_path / "r.jsonl", timeout=880)
    assert done.returncode == 0, done.stderr + done.stdout
    rows = verdicts(tmp_path / "r.jsonl")
    assert {name for name, _ in rows} == set(NAMES)
    for (name, definition), statuses in rows.items():
        unserved = {"UNSUPPORTED"} if name == "cuda_decode" else set()  # head size 120
        assert set(statuses.values()) <= {"PASSED"} | unserved, (name, definition)
        assert "PASSED" in statuses.values(), (name, definition)
