"""Traces are carried over a change of sources that reaches no GPU, by a proof, and over no other."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import forked_command
import pytest
import triton
from conftest import Run
from gdnspec.build import cuda_code
from gdnspec.build.machine import nvcc
from gdnspec.catalog.carried_traces import proof_files, proofs
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.solutions import load_solution, load_variant
from gdnspec.catalog.traces import Measured, is_stale, trace_files
from gdnspec.model.trace import Trace
from gdnspec.report.rows import rows
from helpers_traces import DECODE, ENVIRONMENT, make_trace, trace_of, write_traces

ROWS = ("16x32_batch_1", "16x32_batch_4")
HERE = ENVIRONMENT | {"triton": triton.__version__}
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def copy(state_ptr, new_state_ptr, count, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(new_state_ptr + at, tl.load(state_ptr + at, mask=at < count, other=0.0), mask=at < count)


def run(state, output, new_state, **inputs):
    output.zero_()
    copy[(triton.cdiv(state.numel(), 1024),)](state, new_state, state.numel(), SIZE=1024)
"""
SAME = {
    "a comment": ("def run(", "# Nothing but words.\ndef run("),
    "another name": ("SIZE", "BLOCK"),
    "a check on the host": ("    output.zero_()", "    assert state.is_contiguous()\n    output.zero_()"),
    "room that is not used": ("    output.zero_()", "    torch.empty_like(output)\n    output.zero_()"),
}
OTHER = {
    "another block": ("1024", "512"),
    "other arithmetic": ("other=0.0)", "other=0.0) * 2.0"),
    "another grid": ("triton.cdiv(state.numel(), 1024)", "1 + triton.cdiv(state.numel(), 1024)"),
    "another argument": ("new_state, state.numel()", "new_state, state.numel() - 1"),
    "another operation": ("output.zero_()", "output.fill_(1.0)"),
    "one launch more": ("    output.zero_()", "    output.zero_()\n    output.zero_()"),
}


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def measured(make_solution: Callable[..., Path]) -> Path:
    """A solution with traces, committed as it was measured."""
    folder = make_solution("", name="mine", language="triton")
    (folder / "kernel.py").write_text(KERNEL)
    manifest = json.loads((folder / "solution.json").read_text())
    manifest["entries"][DECODE]["call"] = "out"
    (folder / "solution.json").write_text(json.dumps(manifest))
    write_traces(folder, [trace_of(folder, workload=name, environment=HERE) for name in ROWS])
    git(folder.parent, "init", "-q")
    git(folder.parent, "add", ".")
    git(folder.parent, "commit", "-q", "-m", "measured")
    return folder


def changed(folder: Path, old: str, new: str, name: str = "kernel.py") -> None:
    file = folder / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def stale(folder: Path) -> list[str | None]:
    solution, (file,) = load_solution(folder), sorted((folder / "traces").glob("*.jsonl"))
    every = [Trace.model_validate_json(line) for line in file.read_text().splitlines()]
    return [is_stale(trace, solution, definitions()[DECODE]) for trace in every]


def carry(gdnspec: Run, folder: Path) -> subprocess.CompletedProcess[str]:
    return gdnspec("traces", "carry", "mine", "--solutions-dir", str(folder.parent))


def test_a_change_that_reaches_no_gpu_leaves_a_proof_and_fresh_traces(gdnspec: Run, measured: Path) -> None:
    traces = (measured / "traces" / "nvidia-h200.jsonl").read_bytes()
    before = load_solution(measured).source_hash
    for old, new in SAME.values():
        changed(measured, old, new)
    assert all(stale(measured))
    done = carry(gdnspec, measured)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 traces carried over from" in done.stdout
    assert (measured / "traces" / "nvidia-h200.jsonl").read_bytes() == traces, "no trace is rewritten"
    (file,) = proof_files(measured)
    proof = json.loads(file.read_text())
    solution = load_solution(measured)
    assert (proof["before"], proof["after"]) == (before, solution.source_hash)
    assert proof["compiler"] == {"triton": triton.__version__, "target": "sm_90"}
    assert [row["workload"] for row in proof["same"]] == list(ROWS)
    assert gdnspec("validate", str(file)).returncode == 0
    assert "no trace of mine is stale" in carry(gdnspec, measured).stdout
    page = measured.parent / "page.html"
    done = gdnspec("report", DECODE, "-o", str(page), "--solutions-dir", str(measured.parent))
    assert done.returncode == 0, done.stderr
    assert f"measured with sources {before[:12]}" in page.read_text()
    for wrong, says in (
        ({"solution": "yours"}, "about 'yours', but it is in the folder of 'mine'"),
        ({"before": "x"}, "/before"),
    ):
        file.write_text(json.dumps(proof | wrong))
        done = gdnspec("validate", str(measured))
        assert done.returncode == 2
        assert says in done.stderr


SOME = ("another block",)


@pytest.mark.parametrize("what", [pytest.param(x, marks=() if x in SOME else pytest.mark.thorough) for x in OTHER])
def test_a_change_that_reaches_the_gpu_leaves_traces_stale(gdnspec: Run, measured: Path, what: str) -> None:
    changed(measured, *OTHER[what])
    done = carry(gdnspec, measured)
    assert done.returncode == 1, done.stderr
    assert "2 traces still stale: the machine code differs, or its launches do" in done.stdout
    assert not proof_files(measured)


@pytest.mark.thorough
def test_a_proof_is_of_today_s_sources_alone(gdnspec: Run, measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit after it ends it, and the next is compared with what was measured, not with the state in between."""
    from gdnspec.catalog import carried_traces

    changed(measured, *SAME["a comment"])
    assert carry(gdnspec, measured).returncode == 0
    changed(measured, *OTHER["another block"])
    carried_traces.proofs.cache_clear()
    assert all(stale(measured))
    assert carry(gdnspec, measured).returncode == 1
    changed(measured, "512", "1024")
    carried_traces.proofs.cache_clear()
    assert not any(stale(measured))


@pytest.mark.thorough
def test_what_was_measured_by_another_compiler_or_elsewhere_stays_stale(gdnspec: Run, measured: Path) -> None:
    other = trace_of(measured, workload=ROWS[0], environment=HERE | {"triton": "3.1.0"})
    nowhere = trace_of(measured, workload=ROWS[1], environment=HERE, source_hash="0" * 64)
    write_traces(measured, [other, nowhere])
    changed(measured, *SAME["a comment"])
    done = carry(gdnspec, measured)
    assert done.returncode == 1
    assert "1 trace still stale: it was measured with Triton 3.1.0, but another version is installed" in done.stdout
    assert "1 trace: no commit has the measured sources (000000000000)" in done.stderr


def test_a_row_of_the_report_says_so() -> None:
    (row,) = rows([Measured(make_trace(), None, "because")], {})
    assert ("carried over", "because") in row.labels


def test_solutions_whose_code_cannot_be_compared_are_refused(gdnspec: Run) -> None:
    done = gdnspec("traces", "carry", "torch_recurrent")
    assert done.returncode == 2
    assert "torch_recurrent is a python solution" in done.stderr


# --- CUDA -------------------------------------------------------------------------------------------------------

HAS_NVCC = pytest.mark.skipif(nvcc() is None, reason="no nvcc here: CUDA sources cannot be compiled")
CUDA = """#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/tvm_ffi.h>
#include "body.cuh"
namespace {
__global__ void fill(float* state, int count) {
  int at = blockIdx.x * 32 + threadIdx.x;
  if (at < count) state[at] = times(state[at]);
}
}  // namespace
void run(tvm::ffi::TensorView state) {
  if (state.ndim() != 1) TVM_FFI_THROW(ValueError) << "one dimension";
  fill<<<1, 32>>>(static_cast<float*>(state.data_ptr()), 32);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
"""
BODY = """#pragma once
#ifndef TERMS
#define TERMS 1
#endif
__device__ inline float times(float x) { return x * TERMS; }
"""
AT = "  int at = blockIdx.x * 32 + threadIdx.x;\n  if (at < count) state[at] = times(state[at])"
SAME_CUDA = {
    "a comment": ("namespace {\n", "namespace {\n// Nothing but words.\n\n"),
    "another name in a kernel": (AT, re.sub(r"\bat\b", "i", AT)),
    "a part of a kernel by itself": (
        "__global__ void fill(",
        "__device__ __forceinline__ int here() { return blockIdx.x * 32 + threadIdx.x; }\n__global__ void fill(",
    ),
    "its call": ("int i = blockIdx.x * 32 + threadIdx.x;", "int i = here();"),
    "a function elsewhere": ("void run(", '#line 1 "elsewhere.cuh"\nvoid run('),
}
OTHER_CUDA = {
    "other arithmetic": ("times(state[at])", "times(state[at]) + 1.0f"),
    "another launch": ("<<<1, 32>>>", "<<<1, 64>>>"),
    "another message": ("one dimension", "one  dimension"),
}


def cuda_solution(make: Callable[..., Path], name: str, **manifest: object) -> Path:
    entries = {DECODE: {"entry": "kernel.cu::run", "call": "out"}}
    folder = make("", name=name, language="cuda", sources=["kernel.cu", "body.cuh"], entries=entries, **manifest)
    (folder / "kernel.py").unlink()
    (folder / "kernel.cu").write_text(CUDA)
    (folder / "body.cuh").write_text(BODY)
    return folder


def committed(folder: Path) -> Path:
    git(folder.parent, "init", "-q")
    git(folder.parent, "add", ".")
    git(folder.parent, "commit", "-q", "-m", "measured")
    return folder


@pytest.fixture
def measured_cuda(make_solution: Callable[..., Path]) -> Path:
    """A solution in CUDA with traces, committed as it was measured."""
    folder = cuda_solution(make_solution, "mine")
    write_traces(folder, [trace_of(folder, workload=name) for name in ROWS])
    return committed(folder)


@HAS_NVCC
@pytest.mark.thorough  # of the quick run: the same with Triton, above
def test_a_change_that_no_compiler_sees_leaves_a_proof(gdnspec: Run, measured_cuda: Path) -> None:
    before = load_solution(measured_cuda).source_hash
    for old, new in SAME_CUDA.values():
        changed(measured_cuda, old, new, "kernel.cu")
    assert all(stale(measured_cuda))
    done = carry(gdnspec, measured_cuda)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 traces carried over from" in done.stdout
    (file,) = proof_files(measured_cuda)
    proof = json.loads(file.read_text())
    assert (proof["before"], proof["after"]) == (before, load_solution(measured_cuda).source_hash)
    assert proof["compiler"] == cuda_code.compiler()
    assert "__LINE__" in proof["compared"]
    proofs.cache_clear()
    assert not any(stale(measured_cuda))
    assert gdnspec("validate", str(measured_cuda)).stdout == "3 files valid\n"


@pytest.mark.slow
@HAS_NVCC
@pytest.mark.thorough  # of the quick run: the same with Triton, above
@pytest.mark.parametrize("what", OTHER_CUDA)
def test_a_change_that_the_compiler_sees_leaves_traces_stale(gdnspec: Run, measured_cuda: Path, what: str) -> None:
    changed(measured_cuda, *OTHER_CUDA[what], "kernel.cu")
    done = carry(gdnspec, measured_cuda)
    assert done.returncode == 1, done.stderr
    assert "2 traces still stale: the machine code or the host code differs" in done.stdout
    assert not proof_files(measured_cuda)


def test_without_nvcc_nothing_is_carried(measured_cuda: Path) -> None:
    changed(measured_cuda, *SAME_CUDA["a comment"], "kernel.cu")
    tools = measured_cuda.parent / "tools"  # git, and no compiler
    tools.mkdir()
    (tools / "git").symlink_to(str(shutil.which("git")))
    environment = {k: v for k, v in os.environ.items() if k not in ("CUDA_HOME", "CUDA_PATH")} | {"PATH": str(tools)}
    done = forked_command.run(["traces", "carry", "mine", "--solutions-dir", str(measured_cuda.parent)], environment)
    assert done.returncode == 3, done.stdout + done.stderr
    assert (
        "the two states cannot be compared here: nvcc was not found: install the CUDA toolkit, or set CUDA_HOME"
        in done.stderr
    )
    assert not proof_files(measured_cuda)


def test_what_another_generation_ran_is_not_compared(gdnspec: Run, measured_cuda: Path) -> None:
    if nvcc() is None:
        pytest.skip("no nvcc here: CUDA sources cannot be compiled")
    (file,) = (measured_cuda / "traces").glob("*.jsonl")
    file.unlink()
    write_traces(measured_cuda, [trace_of(measured_cuda, workload=ROWS[0], device="nvidia-b200")])
    changed(measured_cuda, *SAME_CUDA["a comment"], "kernel.cu")
    done = carry(gdnspec, measured_cuda)
    assert done.returncode == 1
    assert "1 trace still stale: it was measured on nvidia-b200, but the code is compared for sm_90a" in done.stdout


@pytest.mark.thorough
@HAS_NVCC
def test_traces_of_a_folder_of_links_come_to_the_variant_that_replaces_it(
    gdnspec: Run, make_solution: Callable[..., Path]
) -> None:
    """Its state is read from git, links and all: the folder is gone."""
    folder, old = cuda_solution(make_solution, "mine"), cuda_solution(make_solution, "mine_two")
    (old / "kernel.cu").write_text(f"#define TERMS 2\n{CUDA}")
    hashed = load_solution(old).source_hash
    (old / "body.cuh").unlink()
    (old / "body.cuh").symlink_to("../mine/body.cuh")
    write_traces(old, [make_trace(solution="mine_two", source_hash=hashed, workload=name) for name in ROWS])
    committed(folder)
    shutil.rmtree(old)
    manifest = json.loads((folder / "solution.json").read_text())
    for terms, code in ((3, 1), (2, 0)):
        two = {"two": {"description": "two terms", "defines": {"TERMS": terms}}}
        (folder / "solution.json").write_text(json.dumps(manifest | {"variants": two}))
        done = gdnspec("traces", "carry", "mine:two", "--from", "mine_two", "--solutions-dir", str(folder.parent))
        assert done.returncode == code, done.stdout + done.stderr
        assert bool(proof_files(folder)) == (code == 0)
    one = load_variant(folder, "two")
    (file,) = trace_files(one)
    assert file == folder / "traces/two/nvidia-h200.jsonl"
    traces = [Trace.model_validate_json(line) for line in file.read_text().splitlines()]
    assert {(trace.solution, trace.source_hash) for trace in traces} == {("mine:two", hashed)}
    proofs.cache_clear()
    assert [is_stale(trace, one, definitions()[DECODE]) for trace in traces] == [None, None]
    assert json.loads(proof_files(folder)[0].read_text())["measured_as"] == "mine_two"
    done = gdnspec("traces", "carry", "mine:two", "--from", "nobody", "--solutions-dir", str(folder.parent))
    assert (done.returncode, "no commit has a solution 'nobody'" in done.stderr) == (2, True)
