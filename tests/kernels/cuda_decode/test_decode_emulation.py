"""cuda_decode, one token, [V, K] states, on a CPU: blocks with all of their threads emulated, against a float64 rule.

The emulator takes the place of the kernel's instructions.cuh. Threads run in random order, in rows that are written in
place, moved, skipped, or whose slots are none.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import forked_command
import pytest
from conftest import ROOT

pytest.importorskip("torch")

GXX = shutil.which("g++")
KERNEL, HERE = ROOT / "solutions/cuda_decode", ROOT / "tests/kernels"
DEVICE = ("problem", "words", "rule", "slots", "rows", "launch_rows")
SHARED = "(shared_of(block_of(running))"
pytestmark = [pytest.mark.skipif(GXX is None, reason="no g++ here"), pytest.mark.slow]


def once(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old} is not once there: this test is out of date"
    return text.replace(old, new)


def built(folder: Path, levels: str = "sum_lanes<1, Tile::kLanes>(sums);") -> Path:
    """The device's part of the kernel as a library, with `levels` where the lanes of a row add what they have."""
    files = {name: (KERNEL / f"{name}.cuh").read_text() for name in DEVICE}
    tokens = "__shared__ std::conditional_t<kVerify, Stage<D, Tile::kChannels>, char> stage;"
    of_verify = (
        f"auto& stage = *reinterpret_cast<std::conditional_t<kVerify, Stage<D, Tile::kChannels>, char>*>{SHARED});"
    )
    files["rows"] = once(files["rows"], tokens, of_verify)
    files["rows"] = once(files["rows"], "sum_lanes<1, Tile::kLanes>(sums);", levels)
    assert not any("__shared__" in text for text in files.values())
    end = files["launch_rows"].index("template <class E, int D, Slots slots>\nvoid launch_k_last")
    files["launch_rows"] = files["launch_rows"][:end].replace('#include "start.cuh"\n', "") + "}  // namespace\n"
    for name, text in files.items():
        (folder / f"{name}.cuh").write_text(re.sub(r"#include <cuda.*\n", "", text))
    emulators = (HERE / "cuda_kda_decode/block_emulation", HERE / "fused_decode_step/cluster_emulation",
                 HERE / "hopper_prefill/hopper_emulation")  # fmt: skip
    includes = [f"-I{path}" for path in (folder, *emulators)]
    command = [str(GXX), "-std=c++20", "-O1", "-fno-strict-aliasing", "-w", "-shared", "-fPIC", *includes]
    source = HERE / "cuda_decode/decode_emulation/decode.cpp"
    subprocess.run([*command, "-o", folder / "kernel.so", source], check=True)
    return folder / "kernel.so"


def emulated(library: Path) -> list[dict[str, object]]:
    script = HERE / "cuda_decode/decode_emulation.py"
    done = forked_command.run([str(library)], dict(os.environ), script=script)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def right(found: dict[str, object]) -> bool:
    output, state = found["errors"]  # type: ignore[misc]
    return output < 3e-3 and state < (3e-3 if found["halves"] else 3e-7) and bool(found["kept"])


def test_every_kernel_computes_the_rule(tmp_path: Path) -> None:
    found = emulated(built(tmp_path))
    assert len(found) == 7
    assert all(right(one) for one in found), found


@pytest.mark.thorough
def test_a_sum_that_leaves_lanes_out_is_found_out(tmp_path: Path) -> None:
    found = emulated(built(tmp_path, levels="sum_lanes<1, Tile::kLanes / 2>(sums);"))
    assert not any(right(one) for one in found)
