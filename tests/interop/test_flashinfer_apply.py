"""Exported solutions in place of library functions: by `apply` of FlashInfer-Bench, and by `trace_apply` of FlashInfer.

No GPU is needed: solutions in PyTorch run on a CPU.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Run
from gdnspec.build.reference import function
from gdnspec.catalog.definitions import definition

PRESET = "synthetic-gva-1x2-d128"
DECODE, APPLIED = "gdn_decode_qk1_v2_d128_k_last", "gdn_decode_qk1_v2_d128"


def export(gdnspec: Run, root: Path, name: str, *options: str) -> str:
    done = gdnspec("export", "flashinfer-bench", name, "--preset", PRESET, "-o", root, *options)
    assert done.returncode == 0, done.stderr
    return str(done.stdout + done.stderr)


def decode_inputs(batch: int = 3) -> dict[str, Any]:
    numbers = torch.Generator().manual_seed(1)

    def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, generator=numbers).to(dtype)

    return {
        "q": drawn(batch, 1, 1, 128), "k": drawn(batch, 1, 1, 128), "v": drawn(batch, 1, 2, 128),
        "state": drawn(batch, 2, 128, 128, dtype=torch.float32), "A_log": drawn(2, dtype=torch.float32),
        "a": drawn(batch, 1, 2), "dt_bias": drawn(2), "b": drawn(batch, 1, 2), "scale": None,
    }  # fmt: skip


def expected(name: str, given: dict[str, Any], *further: Any) -> tuple[torch.Tensor, torch.Tensor]:
    found = definition(name)
    wide = [value.double() if getattr(value, "is_floating_point", bool)() else value for value in given.values()]
    return function(found.family, found.definition.reference)(*wide, *further)


def near(got: torch.Tensor, wanted: torch.Tensor, within: float) -> bool:
    return float((got - wanted).norm() / wanted.norm()) < within


# --- FlashInfer-Bench -------------------------------------------------------------------------------------------


def timed(solution: str, batch: int, faster: float) -> dict[str, Any]:
    """A trace, as `flashinfer-bench run` writes it on a GPU."""
    environment = {"hardware": "a GPU", "libs": {}}
    evaluation = {
        "status": "PASSED", "log": "", "environment": environment, "timestamp": "2026-11-26T00:00:00",
        "correctness": {"max_relative_error": 1e-3, "max_absolute_error": 1e-3},
        "performance": {"latency_ms": 1.0 / faster, "reference_latency_ms": 1.0, "speedup_factor": faster},
    }  # fmt: skip
    workload = {"axes": {"batch_size": batch}, "inputs": {}, "uuid": f"{solution}-{batch}"}
    return {"definition": DECODE, "solution": solution, "workload": workload, "evaluation": evaluation}


def test_apply_chooses_among_exported_solutions_and_calls_one(
    gdnspec: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flashinfer_bench = pytest.importorskip("flashinfer_bench")
    from flashinfer_bench.apply.runtime import ApplyRuntime

    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    root = tmp_path / "dataset"
    for name in ("torch_chunkwise", "torch_recurrent"):
        export(gdnspec, root, name, "--force")
    quick, slow = (f"gdnspec_{name}_{DECODE}" for name in ("torch_chunkwise", "torch_recurrent"))
    traces = root / "traces" / "gdn" / f"{DECODE}.jsonl"
    traces.parent.mkdir(parents=True)
    rows = [timed(slow, 3, 2.0), timed(quick, 3, 5.0), timed(slow, 4, 9.0)]
    traces.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # Its defaults drop every solution with outputs in bfloat16: a relative error of 1e-5 at most.
    assert DECODE not in ApplyRuntime(flashinfer_bench.TraceSet.from_path(str(root)))._table.index
    runtime = flashinfer_bench.enable_apply(str(root), flashinfer_bench.ApplyConfig(max_rtol=1e-2))
    try:
        assert {dict(key.axes)["batch_size"]: name for key, name in runtime._table.index[DECODE].items()} == {
            3: quick, 4: slow,
        }  # fmt: skip
        given = decode_inputs()
        output, state = flashinfer_bench.apply(DECODE, args=(*given.values(), True))
        wanted, new_state = expected("gdn_decode_k_last", given, True)
        assert near(output, wanted, 1e-2)
        assert near(state, new_state, 1e-5)
        unmeasured = decode_inputs(batch=1)
        missed = flashinfer_bench.apply(DECODE, args=(*unmeasured.values(), True), fallback=lambda *_: "fallback")
        assert missed == "fallback", "no trace has this batch"
    finally:
        runtime.stop()


@pytest.mark.thorough
def test_a_solution_of_several_files_finds_those_beside_it(gdnspec: Run, tmp_path: Path) -> None:
    pytest.importorskip("flashinfer_bench")
    pytest.importorskip("triton")
    from flashinfer_bench import TraceSet
    from flashinfer_bench.compile import BuilderRegistry

    export(gdnspec, tmp_path, "triton_chunkwise")
    data = TraceSet.from_path(str(tmp_path))
    for name, (solution,) in data.solutions.items():
        before = set(sys.modules)
        runnable = BuilderRegistry.get_instance().build(data.definitions[name], solution)
        entry = name.replace("qk1_v2_d128_", "")
        assert callable(runnable._callable.__globals__["_python"]("kernel.py").__dict__[entry.removeprefix("gdn_")])
        assert "arguments" not in set(sys.modules) - before, "its files hide those of others"


# --- FlashInfer -------------------------------------------------------------------------------------------------


def applied(root: Path, name: str, folder: Path) -> Any:
    """The function as FlashInfer 0.7.2 loads it: sources beside each other, the entry's file as a lone module."""
    (file,) = (root / "trace_apply" / "solutions" / "gdn" / name).glob("*.json")
    solution = json.loads(file.read_text())
    assert solution["definition"] == name
    assert not solution["spec"]["destination_passing_style"], "FlashInfer has no places for these outputs"
    for source in solution["sources"]:
        (folder / source["path"]).write_text(source["content"])
    path, entry = solution["spec"]["entry_point"].split("::")
    spec = importlib.util.spec_from_file_location(f"flashinfer_trace_apply_solution_{name}", folder / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, entry)


def test_trace_apply_calls_by_name_and_finds_the_state_updated(gdnspec: Run, tmp_path: Path) -> None:
    root, folder = tmp_path / "dataset", tmp_path / "loaded"
    folder.mkdir()
    said = export(gdnspec, root, "torch_chunkwise")
    assert f"for FlashInfer's trace_apply as {APPLIED}: {root / 'trace_apply'}" in said
    run, given = applied(root, APPLIED, folder), decode_inputs()
    wanted, new_state = expected("gdn_decode_k_last", given, True)
    output, state = run(**{name: value for name, value in given.items() if value is not None})
    assert near(output, wanted, 1e-2)
    assert state is given["state"], "FlashInfer updates it in place"
    assert near(state, new_state, 1e-5)
    with pytest.raises(ValueError, match="no pool"):
        run(**{name: value for name, value in given.items() if name not in ("scale", "state")})
    with pytest.raises(ValueError, match=r"states in torch\.float16"):
        run(**{**given, "state": given["state"].half()})


def test_trace_apply_gives_gates_under_other_names(gdnspec: Run, tmp_path: Path) -> None:
    root, folder = tmp_path / "dataset", tmp_path / "loaded"
    folder.mkdir()
    export(gdnspec, root, "torch_chunkwise")
    run = applied(root, "gdn_prefill_qk1_v2_d128", folder)
    q, k, v = (torch.randn(9, heads, 128).bfloat16() / 11 for heads in (1, 1, 2))
    g, beta, bounds = torch.rand(9, 2), torch.rand(9, 2), torch.tensor([0, 2, 9], dtype=torch.int32)
    given = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "cu_seqlens": bounds, "initial_state": None}
    wanted, new_state = expected("gdn_prefill_k_last", given, 0.3)
    output, state = run(q=q, k=k, v=v, a=g, b=beta, cu_seqlens=bounds, scale=0.3)
    assert near(output, wanted, 1e-2)
    assert near(state, new_state, 1e-2)


@pytest.mark.thorough
def test_one_solution_a_name(gdnspec: Run, tmp_path: Path) -> None:
    export(gdnspec, tmp_path, "torch_chunkwise")
    said = export(gdnspec, tmp_path, "torch_recurrent", "--force")
    assert "left out of trace_apply: FlashInfer takes one solution a name" in said
    folder = tmp_path / "trace_apply" / "solutions" / "gdn" / APPLIED
    assert [file.name for file in folder.iterdir()] == [f"gdnspec_torch_chunkwise_{APPLIED}.json"]


def test_a_cuda_solution_carries_what_builds_it(gdnspec: Run, tmp_path: Path) -> None:
    export(gdnspec, tmp_path, "cuda_decode")
    folder = tmp_path / "loaded"
    folder.mkdir()
    run = applied(tmp_path, APPLIED, folder)
    assert (folder / "kernel.cu").is_file()
    assert '_cuda("kernel.cu").gdn_decode_k_last(q, k, v, state, ' in (folder / "gdnspec_entry.py").read_text()
    assert {"gdn_decode_k_last", "gdn_decode_k_last_bf16_state"} <= run.__globals__.keys()
