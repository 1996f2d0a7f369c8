"""The solutions that gdnspec ships, judged by gdnspec."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import ROOT, Run
from gdnspec.catalog.definitions import definition as find
from gdnspec.catalog.solutions import load_solution
from gdnspec.catalog.workloads import workloads
from gdnspec.model.errors import SpecError

NAMES = sorted(file.parent.name for file in (ROOT / "solutions").glob("*/solution.json"))


def verdicts(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    """(solution, definition) to workload to status."""
    result: dict[tuple[str, str], dict[str, str]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        result.setdefault((row["solution"], row["definition"]), {})[row["workload"]] = row["status"]
    return result


def test_a_source_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """Whether it leads to another solution or to a file of its own: what two builds share, a variant says."""
    for name in ("torch_recurrent", "twin"):
        shutil.copytree(ROOT / "solutions/torch_recurrent", tmp_path / "solutions" / name)
    twin = tmp_path / "solutions/twin"
    manifest = json.loads((twin / "solution.json").read_text())
    (twin / "solution.json").write_text(json.dumps({**manifest, "name": "twin"}))
    assert load_solution(twin).name == "twin"
    source = manifest["sources"][0]
    (twin / source).rename(twin / "moved.py")
    for target in (Path("../torch_recurrent") / source, Path("moved.py")):
        (twin / source).unlink(missing_ok=True)
        (twin / source).symlink_to(target)
        with pytest.raises(SpecError, match=r"solution.json: /sources/0: .* is a symbolic link .*declare a variant"):
            load_solution(twin)


@pytest.mark.parametrize(
    ("text", "right"),
    [("MIT", True), ("mit OR Apache-2.0", True), ("LicenseRef-Mine", True), ("unknown", True),
     ("MITT", False), ("MIT, Apache-2.0", False), ("my own", False), (" ", False)],
)  # fmt: skip
def test_a_licence_is_one_of_the_spdx_list(tmp_path: Path, text: str, right: bool) -> None:
    shutil.copytree(ROOT / "solutions/torch_recurrent", tmp_path / "torch_recurrent")
    file = tmp_path / "torch_recurrent/solution.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "license": text}))
    if right:
        assert load_solution(tmp_path / "torch_recurrent").manifest.license == text
        return
    with pytest.raises(SpecError, match=r"solution.json: /license: .* is no licence of the SPDX list.*Apache-2.0"):
        load_solution(tmp_path / "torch_recurrent")


CAPTURED = {f"gdn_{stage}_{layout}" for stage in ("prefill", "decode") for layout in ("k_last", "k_first")}
# What an interpreter takes longest for: of definitions that share a kernel, those that differ most.
FEWER = {
    "triton_decode": ["verify_k_last"],
    "triton_recurrent": ["prefill_k_last"],
    "triton_chunkwise": ["prefill_checkpoints"],
    "triton_layer": ["prefill_from_conv_bf16_state"],
    "triton_backward": ["prefill_backward_k_last"],
    "torch_recurrent": ["prefill_k_first", "verify_k_last"],
    "torch_layer": ["conv1d_decode", "core_decode"],
    "torch_backward": ["prefill_backward_k_first"],
    "torch_serving": ["verify_drafts_k_last", "commit_states_k_last"],
    "triton_serving": ["verify_drafts_k_last", "prefill_pool_k_last_bf16_state"],
    "torch_quantised": ["verify_k_last_fp8_state"],
    "triton_quantised": ["decode_pool_k_last_fp8_state"],
    "torch_recurrent_kda": ["prefill_k_first", "verify_k_last"],
    "torch_layer_kda": ["layer_prefill"],
    "torch_chunk_stages_kda": ["chunk_state"],
    "torch_chunkwise_kda": ["prefill_raw_gates"],
}
# Whose definitions other solutions serve, too, or whose own tests sample its kernels.
OTHERS = {
    "triton_recurrent", "triton_backward", "triton_layer_backward", "triton_kda", "triton_chunk_stages",
    "torch_chunkwise", "triton_chunkwise",
}  # fmt: skip


# Of these an interpreter takes half a second for a row, or the budgets of fresh rows take seconds. The quick run has
# every third row of the suite, and no fresh one.
THIRDS = {
    "triton_decode", "triton_layer", "triton_quantised", "triton_serving", "torch_backward", "torch_recurrent_kda",
    "torch_chunk_stages", "torch_chunkwise_kda", "torch_layer_kda",
}  # fmt: skip
MAIN_JOB = [pytest.param(n, 1, id=n, marks=[pytest.mark.thorough] * (n in OTHERS | THIRDS)) for n in NAMES]
MAIN_JOB += [pytest.param(n, 3, id=f"{n}-every third row") for n in sorted(THIRDS)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "step"), MAIN_JOB)
def test_the_main_job_passes(gdnspec: Run, tmp_path: Path, name: str, step: int) -> None:
    """`make run`, a solution at a time: the smoke suites of all definitions that it serves."""
    served = json.loads((ROOT / "solutions" / name / "solution.json").read_text())
    prefix = "kda" if name.endswith("_kda") else "gdn"
    chosen = [f"{prefix}_{end}" for end in FEWER.get(name, ())]
    # With a seed of its own a run would now and then draw a row of gradients that no budget fits.
    options = ("--solution", name, "--device", "cpu", "--seed", "1", "--json", tmp_path / "r.jsonl")
    lines = [line for name in chosen or served["entries"] for line in workloads(find(name))]
    smoke = [*dict.fromkeys(line.name for line in lines if line.suite == "smoke")]
    sampled = [word for row in smoke[::step] for word in ("--workload", row)] if step > 1 else []
    done = gdnspec("check", *chosen, *sampled, *options)
    rows = verdicts(tmp_path / "r.jsonl")
    assert {definition for _, definition in rows} == set(chosen or served["entries"])
    if served["requires"]["device"] == "cuda":
        assert done.returncode == 3, "nothing could run here"
        assert all(set(statuses.values()) == {"UNSUPPORTED"} for statuses in rows.values())
        return
    assert done.returncode == 0, done.stderr
    for (_, definition), statuses in rows.items():
        left_out = {row for row, status in statuses.items() if status == "UNSUPPORTED"}
        slices = {"strided_inputs"} if "contiguous" in served["entries"][definition]["supports"] else set()
        slices &= {*statuses}
        assert left_out == slices, definition
        assert set(statuses.values()) - {"UNSUPPORTED"} == {"PASSED"}, definition
        assert ("qwen3_next_model" in statuses) == (definition in CAPTURED), "the real model's tensors are among them"


# An interpreter takes longest for many chunks: the quick run has one, and the edges of several.
STRICT = [
    ("gdn_prefill_k_last", ["strict_64", "strict_ragged"]),
    pytest.param("gdn_prefill_k_last", [], marks=pytest.mark.thorough),
    pytest.param("gdn_prefill_checkpoints", [], marks=pytest.mark.thorough),
]


@pytest.mark.slow
@pytest.mark.parametrize(("definition", "rows"), STRICT)
def test_the_chunkwise_kernels_are_strict(gdnspec: Run, tmp_path: Path, definition: str, rows: list[str]) -> None:
    options = ("--solution", "triton_chunkwise", "--device", "cpu", "--json", tmp_path / "r.jsonl")
    done = gdnspec(
        "check", definition, "--suite", "strict", *(w for row in rows for w in ("--workload", row)), *options
    )
    assert done.returncode == 0, done.stderr
    found = verdicts(tmp_path / "r.jsonl")["triton_chunkwise", definition]
    assert set(found.values()) == {"PASSED"}
    assert {*rows} <= {*found}


@pytest.mark.slow
@pytest.mark.parametrize("definition", ["gdn_prefill_k_last", "gdn_decode_k_first"])
@pytest.mark.thorough
def test_the_chunkwise_solution_conforms_on_a_cpu(gdnspec: Run, tmp_path: Path, definition: str) -> None:
    suites = ("--suite", "conformance", "--suite", "strict")
    options = ("--solution", "torch_chunkwise", "--device", "cpu", "--json", tmp_path / "r.jsonl")
    done = gdnspec("check", definition, *suites[: 4 if "prefill" in definition else 2], *options)
    assert done.returncode == 0, done.stderr
    statuses = verdicts(tmp_path / "r.jsonl")["torch_chunkwise", definition]
    for_a_gpu = {line.name for line in workloads(find(definition)) if line.device == "cuda"}
    assert {name for name, status in statuses.items() if status == "UNSUPPORTED"} <= for_a_gpu
    assert set(statuses.values()) <= {"PASSED", "UNSUPPORTED"}


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["k_last", "k_first", "raw_gates"])
@pytest.mark.parametrize(
    ("solution", "suite"), [("triton_backward", "conformance"), ("triton_backward:strict", "strict")]
)
def test_the_gradients_in_triton_conform(gdnspec: Run, tmp_path: Path, solution: str, suite: str, layout: str) -> None:
    definition = f"gdn_prefill_backward_{layout}"
    options = ("--solution", solution, "--device", "cpu", "--json", tmp_path / "r.jsonl")
    done = gdnspec("check", definition, "--suite", suite, *options)
    assert done.returncode == 0, done.stderr
    assert set(verdicts(tmp_path / "r.jsonl")[solution, definition].values()) <= {"PASSED", "UNSUPPORTED"}


PLAIN_GRADIENTS = json.loads((ROOT / "solutions/torch_backward/solution.json").read_text())["entries"]


@pytest.mark.parametrize("name", PLAIN_GRADIENTS)
@pytest.mark.thorough
def test_the_plain_gradients_conform_on_a_cpu(gdnspec: Run, tmp_path: Path, name: str) -> None:
    options = ("--solution", "torch_backward", "--device", "cpu", "--json", tmp_path / "r.jsonl")
    suites = {line.suite for line in workloads(find(name))} & {"conformance", "strict"}
    done = gdnspec("check", name, *(word for suite in suites for word in ("--suite", suite)), *options)
    assert done.returncode == 0, done.stderr
    found = verdicts(tmp_path / "r.jsonl")["torch_backward", name]
    for_a_gpu = {line.name for line in workloads(find(name)) if line.device == "cuda"}  # rows past 2^31 elements
    assert {verdict for row, verdict in found.items() if row not in for_a_gpu} == {"PASSED"}


# Plain PyTorch is no kernel for a GPU, and takes longest there.
SERVED = [
    pytest.param(n, d, marks=[pytest.mark.thorough] * n.startswith("torch_"))
    for n in NAMES
    for d in json.loads((ROOT / "solutions" / n / "solution.json").read_text())["entries"]
]


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "definition"), SERVED)
def test_every_solution_conforms_on_a_gpu(gdnspec: Run, tmp_path: Path, name: str, definition: str) -> None:
    suites = ["--suite", "smoke", "--suite", "conformance"]
    if name not in ("hopper_prefill", "triton_backward", "hopper_backward"):  # whose operands are 16 bits
        suites += ["--suite", "strict"]
    options = ("--solution", name, "--device", "cuda", "--json", tmp_path / "r.jsonl")
    done = gdnspec("check", definition, *suites, *options, timeout=880)
    assert done.returncode == 0, done.stderr + done.stdout
    statuses = verdicts(tmp_path / "r.jsonl")[name, definition]
    assert set(statuses.values()) <= {"PASSED", "UNSUPPORTED"}
    assert "PASSED" in statuses.values()
    served = json.loads((ROOT / "solutions" / name / "solution.json").read_text())["entries"][definition]
    if not served["supports"]:
        past_the_card = {row.name for row in workloads(find(definition)) if row.drawn}
        assert {row for row, status in statuses.items() if status == "UNSUPPORTED"} <= past_the_card
