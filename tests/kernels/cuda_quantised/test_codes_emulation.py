"""cuda_quantised on a CPU: all threads of a block emulated, against the reference in float64 on rows of the suites.

The emulator takes the place of the kernel's files that have instructions of a GPU in them. Threads run in random order,
and copies come late or early.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked_command
import pytest
from conftest import ROOT

pytest.importorskip("torch")

GXX = shutil.which("g++")
KERNEL, HERE = ROOT / "solutions/cuda_quantised", ROOT / "tests/kernels"
DEVICE = (
    "problem", "words", "rule", "slots", "place", "codes", "units", "code_rows", "in_turn", "head_rows", "whole_heads",
    "tiles",
)  # fmt: skip
AT_ONCE, IN_TURN, WHOLE, VERIFY = range(4)
E4M3, INT8 = "gdn_decode_pool_k_last_fp8_state", "gdn_decode_pool_k_last_int8_state"
VERIFY_E4M3, VERIFY_INT8 = "gdn_verify_k_last_fp8_state", "gdn_verify_k_last_int8_state"
EVERYWHERE = ("in_place", "skips", "zero_states", "rounding_ties", "regime_hard_reset", "regime_tiny_keys", "strided")
CASES = {
    AT_ONCE: [(E4M3, "in_place"), (E4M3, "shared"), (E4M3, "head_size_256"), (INT8, "skips"), (INT8, "zero_states")],
    IN_TURN: [*((E4M3, row) for row in EVERYWHERE[:4]), (INT8, "in_place")],
    WHOLE: [
        *((E4M3, row) for row in (*EVERYWHERE, "codes_at_ends", "regime_decayed_large_state", "groups_of_three")),
        *((INT8, row) for row in ("in_place", "resets", "regime_large_steps", "regime_fast_decay")),
    ],
    VERIFY: [*((VERIFY_E4M3, row) for row in ("four_tokens", "resets", "skips")), (VERIFY_INT8, "four_tokens")],
}
pytestmark = [
    pytest.mark.skipif(GXX is None, reason="no g++ here"), pytest.mark.slow,
    pytest.mark.xdist_group("codes"),  # all call one library
]  # fmt: skip


def once(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old} is not once there: this test is out of date"
    return text.replace(old, new)


def built(folder: Path, edits: dict[str, tuple[str, str]] | None = None) -> Path:
    """The device's part of the solution as a library; `edits`: a text of a file, and what stands in its place."""
    for name in DEVICE:
        text = (KERNEL / f"{name}.cuh").read_text()
        if edits and name in edits:
            text = once(text, *edits[name])
        (folder / f"{name}.cuh").write_text(re.sub(r"#include <cuda_(bf16|runtime|pipeline)\S*\n", "", text))
    emulators = (HERE / "cuda_quantised/codes_emulation", HERE / "hopper_prefill/hopper_emulation")
    includes = [f"-I{path}" for path in (folder, *emulators)]
    command = [str(GXX), "-std=c++20", "-O1", "-fno-strict-aliasing", "-w", "-shared", "-fPIC", *includes]
    source = HERE / "cuda_quantised/codes_emulation/emulate.cpp"
    subprocess.run([*command, "-o", folder / "kernel.so", source], check=True)
    return folder / "kernel.so"


def answers(library: Path, which: int, rows: list[tuple[str, str]]) -> tuple[list[dict[str, Any]], str]:
    """Of each row, and what the emulator complained about."""
    script = HERE / "cuda_quantised/codes_emulated.py"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, sys.path)])}
    done = forked_command.run([str(library), str(which), *map(":".join, rows)], environment, script=script)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def right(found: dict[str, Any]) -> bool:
    """Ties between two codes may go either way: of a row that was zero, a whole column has them."""
    near = found["output"] < 3e-3 and found["scales"] < 2e-6 and found["steps"] <= 1 and found["moved"] < 6e-3
    return near and found["zeros"] and found["kept"] and found["alone"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("codes"))


@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("which", [*CASES])
def test_every_kernel_computes_the_rule(library: Path, which: int, share: int) -> None:
    rows = CASES[which][::share]
    found, said = answers(library, which, rows)
    assert len(found) == len(rows), said
    assert all(right(one) for one in found), found


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("file", "correct", "wrong"),
    [
        ("whole_heads", "barrier_wait(arrival, 0);", ""),
        ("units", "unit * largest < kLeast ? 0.f : divide", "divide"),
        ("head_rows", " && fabsf(add) <= 0x1p15f", ""),
        ("head_rows", "if (is_usual_row(kept, write, write * x.k_unit * inverse_of(kept))) return;", ""),
        ("head_rows", "const float rest = add[r] -", "const float rest = 0.f * add[r] *"),
    ],
)
def test_what_would_be_wrong_is_found(tmp_path: Path, file: str, correct: str, wrong: str) -> None:
    library = built(tmp_path, {file: (correct, wrong)})
    found, said = answers(library, WHOLE, [(E4M3, row) for row in ("in_place", "zero_states", "regime_fast_decay")])
    assert "under way" in said or not all(right(one) for one in found)
