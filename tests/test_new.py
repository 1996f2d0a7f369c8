"""A new solution is one `gdnspec new`, one edited file, one `gdnspec check`."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import RIGHT_DECODE, ROOT, Run

SMALL = ("--workload", "one_row", "--workload", "resets", "--device", "cpu")


def test_new_edit_check_outside_the_checkout(gdnspec: Run, tmp_path: Path) -> None:
    made = gdnspec("new", "mine", "--definition", "gdn_decode_k_last", "--solutions-dir", tmp_path)
    assert made.returncode == 0, made.stderr
    assert f"gdnspec check --solution mine --solutions-dir {tmp_path}" in made.stdout
    check = ("check", "gdn_decode_k_last", "--solution", "mine", "--solutions-dir", tmp_path, *SMALL)
    unwritten = gdnspec(*check)
    assert unwritten.returncode == 1
    assert "gdn_decode_k_last is still to be written" in unwritten.stderr

    kernel = tmp_path / "mine" / "kernel.py"
    arguments = "(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)"
    kernel.write_text(
        RIGHT_DECODE
        + kernel.read_text().replace(
            'raise NotImplementedError("gdn_decode_k_last is still to be written")', f"return decode_k_last{arguments}"
        )
    )
    written = gdnspec(*check)
    assert written.returncode == 0, written.stderr
    assert "2 of 2" in written.stdout


def test_new_shows_every_argument_with_its_shape(gdnspec: Run, tmp_path: Path) -> None:
    names = ("gdn_prefill_k_last", "gdn_prefill_k_first")
    options = [word for name in names for word in ("--definition", name)]
    assert gdnspec("new", "both", *options, "--solutions-dir", tmp_path).returncode == 0
    text = (tmp_path / "both" / "kernel.py").read_text()
    for line in (
        "def gdn_prefill_k_last(q, k, v, g, beta, cu_seqlens, initial_state, scale):",
        "def gdn_prefill_k_first(",
        "cu_seqlens [num_seqs + 1] int64.",
        "initial_state [num_seqs, num_sab_heads, head_size, head_size] float32; None: 0.",
        "output [total_seq_len, num_o_heads, head_size] bfloat16.",
    ):
        assert line in text
    assert set(json.loads((tmp_path / "both" / "solution.json").read_text())["entries"]) == set(names)


MORE = pytest.param("gdn_prefill_checkpoints", marks=pytest.mark.thorough)


@pytest.mark.parametrize("definition", ["gdn_prefill_k_first", "gdn_decode_k_last", MORE])
def test_the_triton_scaffold_compiles_and_is_found_unwritten(gdnspec: Run, tmp_path: Path, definition: str) -> None:
    new = ("new", "mine", "--language", "triton", "--definition", definition, "--solutions-dir", tmp_path)
    assert gdnspec(*new).returncode == 0
    small = "one_row" if "decode" in definition else "only_required"
    options = ("--solutions-dir", tmp_path, "--workload", small, "--device", "cpu")
    done = gdnspec("check", definition, "--solution", "mine", *options)
    assert done.returncode == 1
    assert "NON_FINITE" in done.stdout, done.stderr
    assert "never written" in done.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
@pytest.mark.thorough
def test_the_cuda_scaffold_compiles(gdnspec: Run, tmp_path: Path) -> None:
    pytest.importorskip("tvm_ffi")
    from tvm_ffi.libinfo import find_dlpack_include_path, find_include_path

    new = ("new", "mine", "--language", "cuda", "--definition", "gdn_prefill_k_last", "--definition")
    more = ("gdn_decode_k_first", "--definition", "gdn_prefill_checkpoints")
    made = gdnspec(*new, *more, "--solutions-dir", tmp_path)
    assert made.returncode == 0, made.stderr
    assert gdnspec("validate", tmp_path / "mine").returncode == 0
    includes = [f"-I{find_include_path()}", f"-I{find_dlpack_include_path()}"]
    kernel = tmp_path / "mine" / "kernel.cu"
    command = ["nvcc", "-std=c++17", "-arch=sm_90", "-c", *includes, str(kernel), "-o", str(tmp_path / "kernel.o")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_new_overwrites_nothing(gdnspec: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kernel.py").write_text("precious")
    done = gdnspec("new", "mine", "--definition", "gdn_decode_k_last", "--solutions-dir", tmp_path)
    assert done.returncode == 2
    assert (tmp_path / "mine" / "kernel.py").read_text() == "precious"


def test_new_in_the_checkout_goes_to_its_solutions_folder() -> None:
    from gdnspec import paths

    assert paths.solutions_dir() == ROOT / "solutions"
