"""A new solution is one `gdnspec new`, one edited file, one `gdnspec check`."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import forked_command
import pytest
from conftest import RIGHT_DECODE, ROOT, Run
from gdnspec.catalog.definitions import definition, definitions
from gdnspec.cli.scaffold import SCAFFOLDS
from gdnspec.model import roles

SMALL = ("--workload", "one_row", "--workload", "resets", "--device", "cpu")


def test_new_edit_check_outside_the_checkout(gdnspec: Run, tmp_path: Path) -> None:
    made = gdnspec("new", "mine", "--definition", "gdn_decode_k_last", "--solutions-dir", tmp_path)
    assert made.returncode == 0, made.stderr
    assert f"gdnspec check --solution mine --solutions-dir {tmp_path}" in made.stdout
    check = ("check", "gdn_decode_k_last", "--solution", "mine", "--solutions-dir", tmp_path, *SMALL)
    unwritten = gdnspec(*check)
    assert unwritten.returncode == 1
    assert "gdn_decode_k_last is not written yet" in unwritten.stderr

    kernel = tmp_path / "mine" / "kernel.py"
    arguments = "(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)"
    kernel.write_text(
        RIGHT_DECODE
        + kernel.read_text().replace(
            'raise NotImplementedError("gdn_decode_k_last is not written yet")', f"return decode_k_last{arguments}"
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


DEFINITIONS = sorted(path.parent.name for path in (ROOT / "definitions").glob("*/*/definition.json"))


def test_the_triton_scaffold_is_found_unwritten(gdnspec: Run, tmp_path: Path) -> None:
    new = ("new", "mine", "--language", "triton", "--definition", "gdn_prefill_k_first", "--solutions-dir", tmp_path)
    assert gdnspec(*new).returncode == 0
    options = ("--solutions-dir", tmp_path, "--workload", "only_required", "--device", "cpu")
    done = gdnspec("check", "gdn_prefill_k_first", "--solution", "mine", *options)
    assert done.returncode == 1
    assert "NON_FINITE" in done.stdout, done.stderr
    assert "never written" in done.stderr


# Every entry, called once as the worker does without a GPU. One process for all: most of the time is to import Triton.
CALL_EVERY = """
import sys
from pathlib import Path
import torch
from gdnspec.build.interpreter import correct_interpreter
from gdnspec.build.loader import load_function
from gdnspec.catalog.definitions import definition, definitions
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.materialise import materialise
from gdnspec.numerics.arguments import arguments

correct_interpreter()
folder, *names = sys.argv[1:]
for name in names:
    found = definition(name)
    inputs = materialise(found, workloads(found)[0])
    given = arguments(found, inputs, "cpu")
    kept = {key: value.clone() for key, value in given.items() if isinstance(value, torch.Tensor)}
    outputs = {
        tensor.name: torch.full(
            found.definition.shape(tensor, inputs.scope), float("nan"), dtype=getattr(torch, tensor.dtype)
        )
        for tensor in found.definition.outputs
    }
    load_function(Path(folder), f"kernel.py::{name}", Path(folder))(**given, **outputs)
    assert all(value.isnan().all() for value in outputs.values()), name
    assert all(torch.equal(given[key], value) for key, value in kept.items()), name
"""


def _options(*names: str) -> list[str]:
    return [word for name in names for word in ("--definition", name)]


@pytest.mark.slow
def test_every_triton_scaffold_is_called_and_writes_nothing(gdnspec: Run, tmp_path: Path) -> None:
    made = gdnspec("new", "mine", "--language", "triton", *_options(*DEFINITIONS), "--solutions-dir", tmp_path)
    assert made.returncode == 0, made.stderr
    assert gdnspec("validate", tmp_path / "mine").returncode == 0
    (tmp_path / "program.py").write_text(CALL_EVERY)
    given = [str(tmp_path / "mine"), *DEFINITIONS]
    done = forked_command.run(given, os.environ | {"TRITON_INTERPRET": "1"}, script=tmp_path / "program.py")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("language", ["triton", "cuda"])
def test_a_scaffold_starts_from_the_states_there_are(gdnspec: Run, tmp_path: Path, language: str) -> None:
    new = ("new", "mine", "--language", language, "--solutions-dir", tmp_path)
    assert gdnspec(*new, *_options(*DEFINITIONS)).returncode == 0
    text = next((tmp_path / "mine").glob("kernel.*")).read_text()
    for line in STATES[language]:
        assert line in text


STATES = {
    "triton": (
        "sequences = output.shape[0]\n    _, heads, head_size, _ = pool.shape",
        "sequences = row_offsets.shape[0] - 1\n    _, heads, key_head_dim, value_head_dim = recurrent_state.shape",
        "gdn_gated_rms_norm_kernel[(output.shape[0],)](",
        "\n    has_initial_state,\n",  # a tensor of them; only one truth for the whole call selects code
        "\n    use_qk_l2norm: tl.constexpr,\n",
    ),
    "cuda": (
        "gdn_decode_pool_k_last_kernel(float* pool)",
        "gdn_decode_pool_k_last_bf16_state_kernel(__nv_bfloat16* pool)",
        "gdn_gated_rms_norm_kernel(__nv_bfloat16* output)",
    ),
}


def test_a_triton_scaffold_has_a_program_for_each_row_and_no_slot() -> None:
    """An operator without outputs leaves a pool behind, which has more slots than the call has rows."""
    counted = 0
    for found in definitions().values():
        one = found.definition
        names = re.findall(r"sequences = (\w+)\.shape\[0\]\n", SCAFFOLDS["triton"].text("mine", [one]))
        shapes = {tensor.name: tensor.shape for tensor in (*one.inputs, *one.outputs)}
        for name in names:
            assert shapes[name][:1] == [roles.axis(one, "rows")], (one.name, name)
            counted += 1
    assert counted > 20


def test_a_parameter_is_no_word_of_cpp() -> None:
    text = SCAFFOLDS["cuda"].text("mine", [definition("kda_prefill_backward_k_last").definition])
    assert "Optional<tvm::ffi::TensorView> do_,\n" in text
    assert "// do [total_seq_len, " in text, "its description has the name of the definition"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
@pytest.mark.thorough
def test_every_cuda_scaffold_compiles(gdnspec: Run, tmp_path: Path) -> None:
    pytest.importorskip("tvm_ffi")
    from tvm_ffi.libinfo import find_dlpack_include_path, find_include_path

    made = gdnspec("new", "mine", "--language", "cuda", *_options(*DEFINITIONS), "--solutions-dir", tmp_path)
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


def test_a_scaffold_says_what_is_updated_in_place() -> None:
    commit, prefill = (definition(name).definition for name in ("gdn_commit_states_k_last", "gdn_prefill_pool_k_last"))
    for language in ("python", "triton", "cuda"):
        said = SCAFFOLDS[language].text("mine", [commit, prefill])
        assert "Updates pool in place." in said, f"{language}: it has no outputs"
        assert "NaN, and updates pool in place." in said or "Returns (output), and updates pool in place." in said
