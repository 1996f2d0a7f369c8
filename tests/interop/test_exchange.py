"""FlashInfer-Bench, both ways: what is exported is what its own loader takes, comes back as it was, and what another
specification says otherwise is told by name."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, Run
from gdnspec.build.reference import foreign
from gdnspec.catalog.definitions import definition, definitions, preset
from gdnspec.catalog.solutions import load_solution, solutions
from gdnspec.catalog.workloads import load_workloads, workloads
from gdnspec.inputs.materialise import materialise
from gdnspec.interop.foreign import Definition as Foreign
from gdnspec.interop.meaning import meaning
from gdnspec.interop.outward import definition_json
from gdnspec.model.errors import SpecError

SMALL = "synthetic-gva-1x2-d128"
HEADS = "heads-1x1x2-d128"
SERVED = ("gdn_decode_k_last", "gdn_prefill_k_last", "gdn_prefill_k_first", "gdn_decode_packed_k_last")


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def exported(gdnspec: Run, root: Path, name: str, *options: str) -> str:
    done = gdnspec("export", "flashinfer-bench", name, "--preset", SMALL, "-o", root, *options)
    assert done.returncode == 0, done.stderr
    return str(done.stdout + done.stderr)


# --- names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "heads", "theirs"),
    [
        ("gdn_decode_k_last", (4, 4, 8, 128), "gdn_decode_qk4_v8_d128_k_last"),
        ("gdn_prefill_k_first", (16, 16, 32, 128), "gdn_prefill_qk16_v32_d128_k_first"),
        ("gdn_decode_k_last_bf16_state", (2, 2, 6, 64), "gdn_decode_qk2_v6_d64_k_last_bf16_state"),
        ("gdn_prefill_k_last", (4, 2, 2, 64), "gdn_prefill_q4_k2_v2_d64_k_last"),
    ],
)
def test_a_definition_with_heads_has_one_name(ours: str, heads: tuple[int, ...], theirs: str) -> None:
    q, k, v, d = heads
    axes = {"num_q_heads": q, "num_k_heads": k, "num_v_heads": v, "head_size": d}
    names = foreign(definition(ours).family)
    assert names.name(ours, axes) == theirs
    assert names.stage(theirs) == definition(ours).definition.stage
    assert names.stage("gemm_n128_k2048") is None
    assert names.preset(axes) == f"heads-{q}x{k}x{v}-d{d}"


# --- the package itself -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVED)
def test_its_loader_takes_what_is_exported_and_its_reference_gives_what_ours_does(
    gdnspec: Run, tmp_path: Path, name: str
) -> None:
    pytest.importorskip("flashinfer_bench", reason="pip install --no-deps flashinfer-bench docstring-parser")
    import torch
    from flashinfer_bench import TraceSet
    from flashinfer_bench.bench.utils import gen_inputs, load_safetensors
    from flashinfer_bench.compile import BuilderRegistry

    exported(gdnspec, tmp_path, name)
    data = TraceSet.from_path(str(tmp_path))
    ((theirs, item),) = data.definitions.items()
    found = definition(name)
    assert len(data.workloads[theirs]) == len(rows_of(tmp_path / "workloads" / "gdn" / f"{theirs}.jsonl")) > 4
    run = BuilderRegistry.get_instance().build_reference(item)
    for trace in data.workloads[theirs][:4]:
        given = gen_inputs(item, trace.workload, "cpu", load_safetensors(item, trace.workload, data.root))
        assert item.get_axes_values_from_inputs(given) == trace.workload.axes, "axes follow from the tensors"
        outputs = run(*given)
        shapes = item.get_output_shapes(trace.workload.axes)
        assert [list(x.shape) for x in outputs] == shapes
        assert [str(x.dtype).removeprefix("torch.") for x in outputs] == [t.dtype for t in found.definition.outputs]
        assert all(torch.isfinite(x.float()).all() for x in outputs)


def test_its_objects_come_back_equal(gdnspec: Run, tmp_path: Path) -> None:
    """Read and written by its loader, what returns is to the letter what was exported."""
    pytest.importorskip("flashinfer_bench", reason="pip install --no-deps flashinfer-bench docstring-parser")
    from flashinfer_bench import TraceSet
    from flashinfer_bench.data.json_utils import save_json_file, save_jsonl_file

    first, second, third = tmp_path / "first", tmp_path / "second", tmp_path / "third"
    exported(gdnspec, first, "triton_decode")
    data = TraceSet.from_path(str(first))
    for name, item in data.definitions.items():
        save_json_file(item, second / "definitions" / f"{name}.json")
        save_jsonl_file(data.workloads[name], second / "workloads" / f"{name}.jsonl")
        for solution in data.solutions[name]:
            save_json_file(solution, second / "solutions" / f"{solution.name}.json")
    (second / "blob").symlink_to(first / "blob")
    again = TraceSet.from_path(str(second))
    assert again.definitions == data.definitions
    done = gdnspec("import", "flashinfer-bench", second, "-o", third)
    # Tensors lie behind a link that leads out of the dataset: refused, each by name.
    assert done.returncode == 1
    assert "leads out of the dataset" in done.stderr
    assert done.stdout.count(", exactly") == len(data.definitions)
    (second / "blob").unlink()
    (first / "blob").rename(second / "blob")
    done = gdnspec("import", "flashinfer-bench", second, "-o", third, "--force")
    assert done.returncode == 1, "the solutions are there already"
    assert "exists already" in done.stderr


# --- there and back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVED)
def test_workloads_come_back_with_their_tensors(gdnspec: Run, tmp_path: Path, name: str) -> None:
    exported(gdnspec, tmp_path / "out", name)
    done = gdnspec("import", "flashinfer-bench", tmp_path / "out", "-o", tmp_path / "in")
    assert done.returncode == 0, done.stderr
    assert f"{name} with {HEADS}, exactly" in done.stdout
    found, file = definition(name), tmp_path / "in" / f"{name}.jsonl"
    back = {line.name.rpartition("-")[0]: line for line in load_workloads(file, found)}
    before = [line for line in workloads(found) if line.suite == "smoke" and line.name in back]
    assert len(before) == len(back) > 4
    for line in before:
        line = line.model_copy(update={"preset": SMALL, "sha256": None, "budget": None, "emulators": None})
        wanted, got = materialise(found, line), materialise(found.at(file), back[line.name])
        for tensor, array in got.tensors.items():
            if tensor in wanted.tensors:
                assert np.array_equal(array.data, wanted.tensors[tensor].data), (line.name, tensor)
            else:  # left out there, its default here
                assert set(np.unique(array.values())) <= {0.0, 1.0}
        assert got.scalars.get("use_qk_l2norm") == wanted.scalars.get("use_qk_l2norm")
        assert got.scalars["scale"] == wanted.scalars["scale"] or wanted.scalars["scale"] is None


def test_a_solution_comes_back_and_passes(gdnspec: Run, tmp_path: Path) -> None:
    exported(gdnspec, tmp_path / "out", "torch_chunkwise", "--suite", "smoke")
    assert gdnspec("import", "flashinfer-bench", tmp_path / "out", "-o", tmp_path / "in").returncode == 0
    original = solutions()[0]["torch_chunkwise"]
    back = {next(iter(s.manifest.entries)): s for s in map(load_solution, (tmp_path / "in" / "solutions").iterdir())}
    assert set(back) >= {"gdn_prefill_k_last", "gdn_decode_k_last"}
    mine = back["gdn_decode_k_last"]
    assert mine.manifest.entries["gdn_decode_k_last"] == original.manifest.entries["gdn_decode_k_last"]
    assert mine.manifest.sources == original.manifest.sources
    for source in mine.manifest.sources:
        assert (mine.folder / source).read_bytes() == (original.folder / source).read_bytes()
    options = ("--solutions-dir", mine.folder.parent, "--solution", mine.name, "--device", "cpu")
    assert gdnspec("check", "gdn_decode_k_last", *options, "--workload", "batch_8").returncode == 0


def test_what_the_format_has_no_words_for_is_named(gdnspec: Run, tmp_path: Path) -> None:
    said = exported(gdnspec, tmp_path, "torch_recurrent")
    assert "left out: gdn_decode_pool_k_last updates pool in place" in said
    assert "left out: gdn_prefill_checkpoints: FlashInfer-Bench reads axes from shapes of inputs" in said
    done = gdnspec("export", "flashinfer-bench", "gdn_verify_k_last", "--preset", SMALL, "-o", tmp_path / "x")
    assert done.returncode == 2
    assert "updates pool in place" in done.stderr


# --- somebody else's --------------------------------------------------------------------------------------------

OTHER = """
import torch


def run(q, k, v, state, A_log, a, dt_bias, b, scale):
    if scale is None or scale == 0.0:
        scale = q.shape[-1] ** -0.5
    repeats = v.shape[2] // q.shape[2]
    Q, K = (x[:, 0].float().repeat_interleave(repeats, 1) for x in (q, k))
    alpha = torch.exp(-torch.exp(A_log) * torch.nn.functional.softplus(a[:, 0].float() + dt_bias))
    S = alpha[..., None, None] * state
    error = torch.sigmoid(b[:, 0].float())[..., None] * (v[:, 0].float() - (S @ K[..., None])[..., 0])
    S = S + error[..., None] * K[..., None, :]
    return (scale * (S @ Q[..., None])[..., 0])[:, None].bfloat16(), S
"""


def other(**changes: Any) -> dict[str, Any]:
    """A decode as that benchmark's own data set has them: no norm, no switch, another type of dt_bias."""
    heads = {"num_q_heads": 1, "num_k_heads": 1, "num_v_heads": 2, "head_size": 128}
    const = {name: {"type": "const", "value": value} for name, value in {"seq_len": 1, **heads}.items()}
    row = ["batch_size", "seq_len"]

    def tensor(dtype: str, *shape: str) -> dict[str, Any]:
        return {"shape": list(shape), "dtype": dtype}

    state = ("batch_size", "num_v_heads", "head_size", "head_size")
    data: dict[str, Any] = {
        "name": "gdn_decode_qk1_v2_d128_k_last", "op_type": "gdn", "tags": ["stage:decode"],
        "axes": {"batch_size": {"type": "var"}, **const},
        "inputs": {
            "q": tensor("bfloat16", *row, "num_q_heads", "head_size"),
            "k": tensor("bfloat16", *row, "num_k_heads", "head_size"),
            "v": tensor("bfloat16", *row, "num_v_heads", "head_size"),
            "state": tensor("float32", *state), "A_log": tensor("float32", "num_v_heads"),
            "a": tensor("bfloat16", *row, "num_v_heads"), "dt_bias": tensor("float32", "num_v_heads"),
            "b": tensor("bfloat16", *row, "num_v_heads"), "scale": {"shape": None, "dtype": "float32"},
        },
        "outputs": {
            "output": tensor("bfloat16", *row, "num_v_heads", "head_size"), "new_state": tensor("float32", *state),
        },
        "reference": OTHER,
    }  # fmt: skip
    return data | changes


def gemm() -> dict[str, Any]:
    """Another operator."""
    axes = {"M": {"type": "var"}, "N": {"type": "const", "value": 128}, "K": {"type": "const", "value": 64}}
    a, b, c = ({"shape": shape, "dtype": "float16"} for shape in (["M", "K"], ["N", "K"], ["M", "N"]))
    reference = "def run(A, B):\n    return A @ B.T\n"
    return {"name": "gemm_n128", "op_type": "gemm", "axes": axes, "inputs": {"A": a, "B": b}, "outputs": {"C": c},
            "reference": reference}  # fmt: skip


def written(root: Path, *items: dict[str, Any]) -> Path:
    for item in items:
        folder = root / ("solutions" if "sources" in item else "definitions")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{item['name']}.json").write_text(json.dumps(item))
    return root


def test_contradictions_are_told_by_name(gdnspec: Run, tmp_path: Path) -> None:
    done = gdnspec("import", "flashinfer-bench", written(tmp_path, other()))
    assert done.returncode == 0, done.stderr
    for text in (
        f"gdn_decode_qk1_v2_d128_k_last: gdn_decode_k_last with {HEADS}",
        "dt_bias is float32, bfloat16 here",
        "it has no 'use_qk_l2norm'",
        "its reference takes no L2 norm of q and k",
        "a scale of 0.0 is its default scale",
    ):
        assert text in done.stdout
    assert ", exactly" not in done.stdout


def test_raw_gates_of_a_prefill_and_a_gate_of_the_other_kind(gdnspec: Run, tmp_path: Path) -> None:
    whole = definition_json(definition("gdn_prefill_k_last"), preset(SMALL))  # type: ignore[arg-type]
    log = {**whole, "tags": [], "reference": "import torch\ndef run(q, k, v, g, *rest):\n    return torch.exp(g)\n"}
    raw = {**whole, "tags": [], "name": "gdn_prefill_qk1_v2_d128_k_last"}
    shapes = {name: ["num_v_heads"] for name in ("A_log", "dt_bias")}
    shapes |= {name: ["total_seq_len", "num_v_heads"] for name in ("a", "b")}
    gates = {name: {"shape": shape, "dtype": "float32"} for name, shape in shapes.items()}
    raw["inputs"] = {name: spec for name, spec in whole["inputs"].items() if name not in ("g", "beta")} | gates
    for folder, item, text in (
        ("log", log, "its reference reads g as a logarithm: in gdn_prefill_k_last it is alpha itself"),
        ("raw", raw, "its gates are raw (A_log, a, dt_bias, b): gdn_prefill_k_last takes alpha itself and beta"),
    ):
        done = gdnspec("import", "flashinfer-bench", written(tmp_path / folder, item))
        assert text in done.stdout, done.stdout + done.stderr


def test_the_judge_says_where_its_reference_is_not_right_here(gdnspec: Run, tmp_path: Path) -> None:
    done = gdnspec("import", "flashinfer-bench", written(tmp_path, other()), "--judge")
    known = "without the L2 norm and with a scale of 0.0 as the default scale"
    said = re.search(
        rf"its reference is right on (\d+) of (\d+) smoke workloads {known}; on (\d+) unchanged", done.stdout
    )
    assert said, done.stdout
    passed, total, before = map(int, said.groups())
    assert passed == total > before, "all that is wrong is a difference that was named"
    assert "INCORRECT_NUMERICAL" not in done.stdout


def test_what_is_left_when_differences_are_put_aside_is_told(gdnspec: Run, tmp_path: Path) -> None:
    """It forgets the decay as well, which no difference explains."""
    wrong = OTHER.replace("S = alpha[..., None, None] * state", "S = state")
    done = gdnspec("import", "flashinfer-bench", written(tmp_path, other(reference=wrong)), "--judge")
    said = re.search(r"its reference is right on (\d+) of (\d+)", done.stdout)
    assert said, done.stdout
    left = re.findall(r"^  (\w+): INCORRECT_NUMERICAL  ", done.stdout, re.MULTILINE)
    assert len(left) == int(said[2]) - int(said[1]) > 5
    assert {"batch_8", "no_l2norm", "scale_zero"} <= set(left)


PREFILL = """
import torch


def run(q, k, v, g, beta, cu_seqlens, initial_state, scale):
    outputs, states = torch.zeros_like(v), torch.zeros(len(cu_seqlens) - 1, v.shape[1], q.shape[2], v.shape[2])
    repeats = v.shape[1] // q.shape[1]
    Q, K = (x.float().repeat_interleave(repeats, 1) for x in (q, k))
    for n in range(len(cu_seqlens) - 1):
        if cu_seqlens[n] == cu_seqlens[n + 1]:
            continue
        S = initial_state[n]
        for t in range(int(cu_seqlens[n]), int(cu_seqlens[n + 1])):
            S = g[t][:, None, None] * S
            error = beta[t][:, None] * (v[t].float() - (K[t][:, None] @ S)[:, 0])
            S = S + K[t][..., None] * error[:, None]
            outputs[t] = (scale * (Q[t][:, None] @ S)[:, 0]).bfloat16()
        states[n] = S
    return {"final_state": states, "output": outputs}
"""


def prefill(**changes: Any) -> dict[str, Any]:
    """Names, shapes and types as gdn_prefill_k_last and gdn_prefill_k_first have them; nothing says the layout, its
    reference reads [K, V], and alpha itself."""
    whole = definition_json(definition("gdn_prefill_k_last"), preset(SMALL))  # type: ignore[arg-type]
    words = {
        side: {name: {**spec, "description": ""} for name, spec in whole[side].items()}
        for side in ("inputs", "outputs")
    }
    return {
        **whole,
        **words,
        "tags": [],
        "name": "gdn_prefill_qk1_v2_d128",
        "description": "",
        "reference": PREFILL,
        **changes,
    }


def test_a_layout_that_is_not_said_is_asked_for_by_name(gdnspec: Run, tmp_path: Path) -> None:
    written(tmp_path, prefill())
    done = gdnspec("import", "flashinfer-bench", tmp_path)
    assert done.returncode == 1
    assert "gdn_prefill_qk1_v2_d128: gdn_prefill_k_last or gdn_prefill_k_first" in done.stdout
    assert "--state-layout k_last (gdn_prefill_k_last) or --state-layout k_first (gdn_prefill_k_first)" in done.stdout
    told = gdnspec("import", "flashinfer-bench", tmp_path, "--state-layout", "k_first")
    assert told.returncode == 0, told.stdout + told.stderr
    assert f"gdn_prefill_qk1_v2_d128: gdn_prefill_k_first with {HEADS}" in told.stdout
    assert "its reference reads g as alpha itself: in gdn_prefill_k_first it is a logarithm" in told.stdout
    wrong = gdnspec("import", "flashinfer-bench", tmp_path, "--state-layout", "k_lst")
    assert wrong.returncode == 2
    assert "did you mean 'k_last'?" in wrong.stderr


def test_the_judge_tells_which_layout_it_is(gdnspec: Run, tmp_path: Path) -> None:
    done = gdnspec("import", "flashinfer-bench", written(tmp_path, prefill()), "--judge")
    pattern = r"--state-layout (k_last|k_first): its reference is right on (\d+) of (\d+)"
    said = {layout: (int(right), int(total)) for layout, right, total in re.findall(pattern, done.stdout)}
    assert said["k_last"][0] == 0
    assert said["k_first"][0] == said["k_first"][1] > 5
    assert "with zeros after an empty sequence" in done.stdout


@pytest.mark.parametrize(
    ("change", "ours"),
    [
        ({"name": "gdn_prefill_qk1_v2_d128_v_last"}, "gdn_prefill_k_first"),
        ({"name": "anything", "tags": ["layout:k-last"]}, "gdn_prefill_k_last"),
        ({"description": "Prefill with a k-last state layout."}, "gdn_prefill_k_last"),
        ({"name": "gdn_prefill_k_last", "tags": ["layout:v-last"]}, ""),
    ],
    ids=["name", "tag", "description", "contradiction"],
)
def test_a_layout_is_read_where_it_stands(change: dict[str, Any], ours: str) -> None:
    found = meaning(Foreign.model_validate(prefill(**change)))
    if ours:
        assert found.ours is not None, found.lost
        assert found.ours.definition.name == ours
    else:
        assert "its name says k_last; its tags says k_first" in found.lost[0]
        assert meaning(Foreign.model_validate(prefill(**change)), "k_last").ours is not None


def renamed(item: dict[str, Any], tensors: dict[str, str], axes: dict[str, str]) -> dict[str, Any]:
    def shaped(spec: dict[str, Any]) -> dict[str, Any]:
        return {**spec, "shape": spec["shape"] and [axes.get(name, name) for name in spec["shape"]]}

    sides = {side: {tensors.get(n, n): shaped(s) for n, s in item[side].items()} for side in ("inputs", "outputs")}
    return {**item, **sides, "axes": {axes.get(name, name): axis for name, axis in item["axes"].items()}}


def test_other_names_of_tensors_and_axes_are_found_where_one_place_is_left() -> None:
    tensors = {
        "q": "query",
        "k": "key",
        "v": "value",
        "cu_seqlens": "offsets",
        "initial_state": "S0",
        "final_state": "S1",
    }
    axes = {"total_seq_len": "T", "num_seqs": "N", "num_v_heads": "HV", "num_q_heads": "H", "num_k_heads": "HK"}
    found = meaning(Foreign.model_validate(renamed(prefill(), tensors, axes)), "k_last")
    assert found.ours is not None, found.lost
    assert found.preset == HEADS
    assert found.renamed == {theirs: ours for ours, theirs in tensors.items()}
    assert {found.axes["T"], found.axes["N"]} == {"total_seq_len", "num_seqs"}
    found = meaning(Foreign.model_validate(renamed(prefill(), {"q": "left", "k": "right"}, {})), "k_last")
    assert found.ours is None
    assert "input 'left' may be 'q' or 'k': the name is ambiguous" in found.lost


@pytest.mark.parametrize("name", definitions())
def test_every_definition_that_can_be_exported_is_known_by_its_contract(name: str) -> None:
    """Without tag and name, and with its layout in words alone."""
    found = definition(name)
    try:
        data = definition_json(found, preset("synthetic-gva-2x4-d128"))  # type: ignore[arg-type]
    except (SpecError, KeyError):
        pytest.skip("the format has no words for it")
    layout = found.definition.conventions.state_layout
    tags = [] if layout == "none" else [f"layout:{layout}"]
    back = meaning(Foreign.model_validate({**data, "name": "x", "tags": tags}))
    assert back.ours is not None, back.lost
    assert back.ours.definition.name == name
    assert not back.lost


def test_its_solution_is_adapted_and_judged(gdnspec: Run, tmp_path: Path) -> None:
    mine = {
        "name": "Quick-One v2", "definition": other()["name"], "author": "somebody",
        "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run",
                 "destination_passing_style": False},
        "sources": [{"path": "main.py", "content": OTHER}],
    }  # fmt: skip
    done = gdnspec("import", "flashinfer-bench", written(tmp_path / "data", other(), mine), "-o", tmp_path / "in")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "in" / "solutions" / "quick_one_v2"
    options = ("--solutions-dir", folder.parent, "--solution", folder.name, "--device", "cpu")
    checked = gdnspec("check", "gdn_decode_k_last", *options, "--workload", "no_l2norm", "--workload", "batch_8")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "1 of 2" in checked.stdout
    assert "the solution supports not use_qk_l2norm" in checked.stdout


def test_its_workloads_are_read_and_what_changes_is_said(gdnspec: Run, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    root, rng = written(tmp_path / "data", other()), np.random.default_rng(0)
    floats = {"A_log": (2,), "dt_bias": (2,), "state": (3, 2, 128, 128)}
    (root / "blob").mkdir()
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in floats.items()}
    save_file(tensors, root / "blob" / "x.safetensors")
    kept = {name: {"type": "safetensors", "path": "blob/x.safetensors", "tensor_key": name} for name in tensors}
    drawn = {name: {"type": "random"} for name in ("q", "k", "v", "a", "b")}
    inputs = {**kept, **drawn, "scale": {"type": "scalar", "value": 0.0}}

    def row(uuid: str, **more: Any) -> str:
        given = {"axes": {"batch_size": 3}, "inputs": {**inputs, **more}, "uuid": uuid}
        return json.dumps({"definition": other()["name"], "workload": given}) + "\n"

    outside = {"A_log": {"type": "safetensors", "path": "../../etc/passwd", "tensor_key": "x"}}
    missing = {"A_log": {"type": "safetensors", "path": "blob/x.safetensors", "tensor_key": "B_log"}}
    (root / "workloads").mkdir()
    (root / "workloads" / "w.jsonl").write_text(row("one") + row("two", **outside) + row("three", **missing) + "{}\n")
    done = gdnspec("import", "flashinfer-bench", root, "-o", tmp_path / "in")
    assert done.returncode == 1
    assert "workload two of gdn_decode_qk1_v2_d128_k_last: left out, '../../etc/passwd' leads out" in done.stderr
    assert "workload three" in done.stderr
    assert "has no tensor 'B_log'" in done.stderr
    assert "w.jsonl: line 4" in done.stderr
    assert "scale 0.0, which there means the default" in done.stdout
    assert "are random there, and drawn here" in done.stdout
    (line,) = load_workloads(tmp_path / "in" / "gdn_decode_k_last.jsonl", definition("gdn_decode_k_last"))
    assert (line.axes, line.preset, line.regime) == ({"batch_size": 3}, HEADS, "typical")
    assert line.scalars == {"use_qk_l2norm": False}


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (gemm(), "no definition here is similar"),
        (other(name="gemm_n128"), "it names no layout of states: choose --state-layout k_last"),
        (other(reference="def run(:"), "its reference cannot be read as Python"),
        (other(inputs=other()["inputs"] | {"mask": {"shape": None, "dtype": "bool"}}), "input 'mask' has no"),
    ],
    ids=["contract", "layout", "reference", "input"],
)  # fmt: skip
def test_what_cannot_be_said_is_told_and_ends_in_exit_code_1(
    gdnspec: Run, tmp_path: Path, item: dict[str, Any], said: str
) -> None:
    done = gdnspec("import", "flashinfer-bench", written(tmp_path, item))
    assert done.returncode == 1
    assert f"cannot be expressed: {said}" in done.stdout


def test_broken_files_hide_no_others(gdnspec: Run, tmp_path: Path) -> None:
    written(tmp_path, other())
    (tmp_path / "definitions" / "cut.json").write_text('{"name": "gdn_dec')
    (tmp_path / "definitions" / "other.json").write_text('{"name": 5}')
    done = gdnspec("import", "flashinfer-bench", tmp_path)
    assert done.returncode == 1
    assert "cut.json" in done.stderr
    assert "other.json: /name" in done.stderr
    assert "gdn_decode_k_last with" in done.stdout


OUT = ("export", "flashinfer-bench")
TO = ("--preset", SMALL, "-o", "x")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("export", "flashinfer", "gdn_decode_k_last", *TO), "did you mean 'flashinfer-bench'?"),
        ((*OUT, "gdn_decode_k_lst", *TO), "did you mean 'gdn_decode_k_last'?"),
        ((*OUT, "gdn_decode_k_last", "--preset", "qwen", "-o", "x"), "no preset 'qwen'"),
        ((*OUT, "gdn_decode_k_last", *TO, "--suite", "smok"), "no suite 'smok'"),
        ((*OUT, "gdn_decode_k_last", "--preset", "synthetic-gqa-4x2-d64", "-o", "x"), "it is for prefill"),
        ((*OUT, "gdn_decode_k_last", "--preset", "heads-3x3x4-d64", "-o", "x"), "num_q_heads divides num_v_heads"),
        (("import", "flashinfer-bench", "no/such"), "no such file or folder"),
        (("import", "flashinfer-bench", "."), "is not a dataset of FlashInfer-Bench"),
    ],
)
def test_a_wrong_request_is_told(gdnspec: Run, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = gdnspec(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "x").exists()


def test_files_are_overwritten_on_request_only(gdnspec: Run, tmp_path: Path) -> None:
    exported(gdnspec, tmp_path, "gdn_decode_k_last")
    done = gdnspec("export", "flashinfer-bench", "gdn_decode_k_last", "--preset", SMALL, "-o", tmp_path)
    assert done.returncode == 2
    assert "exists already" in done.stderr
    exported(gdnspec, tmp_path, "gdn_decode_k_last", "--force")


def test_a_family_that_the_format_does_not_know_is_told(gdnspec: Run, tmp_path: Path) -> None:
    """Its definitions are not exported, and nothing is compared with them."""
    toy = ("--definitions-dir", ROOT / "tests/support/toy/definitions")
    arguments = ("toy_running_sum", "--preset", "toy-32", "-o", tmp_path / "x")
    done = gdnspec("export", "flashinfer-bench", *arguments, *toy)
    assert done.returncode == 2
    assert "reference/toy/family.py: the family toy does not say how FlashInfer-Bench describes it" in done.stderr
    assert not (tmp_path / "x").exists()
    exported(gdnspec, tmp_path, "gdn_decode_k_last")
    done = gdnspec("import", "flashinfer-bench", tmp_path, *toy)
    assert done.returncode == 0, done.stderr
    assert ", exactly" in done.stdout
