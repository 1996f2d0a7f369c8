"""Solutions as a package that the `kernels` library of Hugging Face loads from a folder."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, Run
from gdnspec.build.reference import function
from gdnspec.catalog.definitions import definition

kernels = pytest.importorskip("kernels", reason="pip install --no-deps kernels tomlkit")


def export(gdnspec: Run, out: Path, *names: str, code: int = 0, options: tuple[object, ...] = ()) -> str:
    done = gdnspec("export", "hf-kernels", *names, "-o", out, *options)
    assert done.returncode == code, done.stderr
    return str(done.stdout + done.stderr)


def gates(batch: int) -> dict[str, Any]:
    return {
        "A_log": torch.zeros(2), "a": torch.zeros(batch, 1, 2).bfloat16(), "dt_bias": torch.zeros(2).bfloat16(),
        "b": torch.ones(batch, 1, 2).bfloat16(),
    }  # fmt: skip


def test_the_library_loads_a_package_and_its_functions_are_right(gdnspec: Run, tmp_path: Path) -> None:
    said = export(gdnspec, tmp_path / "two-rules", "torch_layer", "torch_recurrent")
    assert "torch_layer, torch_recurrent: torch-cpu, torch-cuda in" in said
    before = sys.modules.get("kernel")  # another test of this process may have loaded a solution
    package = kernels.get_local_kernel(tmp_path / "two-rules", backend="cpu")
    assert {"gdn_decode_k_last", "gdn_gated_rms_norm", "gdn_prefill_k_first"} <= {*package.__all__}
    q, k, v = (torch.randn(3, 1, heads, 16).bfloat16() for heads in (1, 1, 2))
    given = {"q": q, "k": k, "v": v, "state": torch.randn(3, 2, 16, 16), **gates(3)}
    found = definition("gdn_decode_k_last")
    wide = [value.double() for value in given.values()]
    output, state = package.gdn_decode_k_last(**given, use_qk_l2norm=True)
    wanted, new_state = function(found.family, found.definition.reference)(*wide, None, True)
    assert float((output - wanted).norm() / wanted.norm()) < 1e-2
    assert float((state - new_state).norm() / new_state.norm()) < 1e-5
    with pytest.raises(TypeError, match="gdn_prefill_k_first needs cu_seqlens"):
        package.gdn_prefill_k_first(q[:, 0], k[:, 0], v[:, 0])
    assert sys.modules.get("kernel") is before, "its files hide those of others"
    (loaded,) = [one for one in kernels.get_loaded_kernels() if one.module is package]
    assert str(loaded.metadata.name) == "two-rules"


def test_outputs_that_an_entry_fills_are_allocated(gdnspec: Run, tmp_path: Path) -> None:
    """A Python solution with `"call": "out"`, `prepare` and a file beside it."""
    mine = tmp_path / "mine" / "doubling"
    mine.mkdir(parents=True)
    (mine / "beside.py").write_text("FACTOR = 2\n")
    (mine / "kernel.py").write_text(
        "from beside import FACTOR\n\n\ndef prepare(q, **others):\n    return q * FACTOR\n\n\n"
        "def run(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm, output, new_state, prepared):\n"
        "    output[:] = prepared\n    new_state[:] = state\n"
    )
    entry = {"entry": "kernel.py::run", "call": "out", "prepare": "kernel.py::prepare", "supports": []}
    manifest = json.loads((ROOT / "solutions" / "torch_recurrent" / "solution.json").read_text())
    manifest |= {"name": "doubling", "sources": ["kernel.py", "beside.py"], "entries": {"gdn_decode_k_last": entry}}
    (mine / "solution.json").write_text(json.dumps(manifest))
    export(gdnspec, tmp_path / "doubled", "doubling", options=("--solutions-dir", mine.parent))
    package = kernels.get_local_kernel(tmp_path / "doubled", backend="cpu")
    q, v = torch.randn(3, 1, 2, 16).bfloat16(), torch.zeros(3, 1, 2, 16).bfloat16()
    state = torch.randn(3, 2, 16, 16)
    output, new_state = package.gdn_decode_k_last(q, q, v, state, **gates(3))
    assert torch.equal(output, 2 * q) and output.dtype == torch.bfloat16
    assert torch.equal(new_state, state) and new_state is not state


def test_cuda_carries_its_sources_and_what_builds_them(gdnspec: Run, tmp_path: Path) -> None:
    said = export(gdnspec, tmp_path / "fast", "hopper_prefill:strict", "triton_decode")
    assert "hopper_prefill:strict: gdn_prefill_checkpoints: its outputs cannot be allocated" in said
    (variant,) = (tmp_path / "fast" / "build").iterdir()
    metadata = json.loads((variant / "metadata.json").read_text())
    assert metadata["python-depends"] == ["tvm-ffi"]
    assert metadata["backend"] == {"type": "cuda", "archs": ["8.0+PTX"]}
    kernels.Metadata.read_from_file(variant / "metadata.json")
    sources = {file.name for file in (variant / "hopper_prefill_strict" / "sources").iterdir()}
    assert sources == set(json.loads((ROOT / "solutions/hopper_prefill/solution.json").read_text())["sources"])
    text = (variant / "hopper_prefill_strict" / "__init__.py").read_text()
    assert "'-DGDN_TERMS=2'" in text, "a macro of the variant"
    with pytest.raises(FileNotFoundError, match="does not match system backend"):
        kernels.get_local_kernel(tmp_path / "fast", backend="cpu")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("flash_qla", "-o", "x-y"), "flash_qla needs the package flash-qla, which metadata.json cannot name"),
        (("torch_layr", "-o", "x-y"), "did you mean 'torch_layer'?"),
        (("torch_layer", "-o", "7"), "gives no valid name of a kernel"),
        (("torch_layer", "-o", "x-y", "--preset", "heads-1x1x2-d128"), "takes no --preset"),
        (("triton_recurrent:fast", "-o", "x-y"), "triton_recurrent"),
    ],
)
def test_a_wrong_request_is_told(gdnspec: Run, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = gdnspec("export", "hf-kernels", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_a_package_is_overwritten_on_request_only(gdnspec: Run, tmp_path: Path) -> None:
    export(gdnspec, tmp_path / "once", "torch_layer")
    assert "exists already" in export(gdnspec, tmp_path / "once", "torch_layer", code=2)
    export(gdnspec, tmp_path / "once", "torch_layer", options=("--force",))
