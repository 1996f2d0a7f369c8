"""cuda_kda_decode on a CPU: a row's blocks with all of their threads emulated, against the rule in float64.

The emulator takes the place of the kernel's instructions.cuh. Threads run in random order, and what is shared is NaNs
until it is written, so a decay that is read before the block has met shows in numbers.
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
KERNEL, HERE = ROOT / "solutions/cuda_kda_decode", ROOT / "tests/kernels"
DEVICE = ("problem", "words", "rule", "slots", "rows", "launch_rows")
SHARED = "(shared_of(block_of(running))"
pytestmark = [pytest.mark.skipif(GXX is None, reason="no g++ here"), pytest.mark.slow]


def once(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old} is not once there: this test is out of date"
    return text.replace(old, new)


def built(folder: Path, meeting: str = "__syncthreads();") -> Path:
    """The device's part of the kernel as a library, with `meeting` where the block meets to share decays."""
    files = {name: (KERNEL / f"{name}.cuh").read_text() for name in DEVICE}
    decays = "__shared__ alignas(16) float alphas[D];"
    files["rows"] = once(files["rows"], decays, f"auto& alphas = *reinterpret_cast<float(*)[D]>{SHARED});")
    files["rows"] = once(files["rows"], "__syncthreads();", meeting)
    assert "__shared__" not in files["rows"]
    end = files["launch_rows"].index("template <class E, int D, Slots slots>\nvoid launch_k_last")
    files["launch_rows"] = files["launch_rows"][:end].replace('#include "start.cuh"\n', "") + "}  // namespace\n"
    files["problem"] = re.sub(r"#include <cuda.*\n", "", files["problem"])
    for name, text in files.items():
        (folder / f"{name}.cuh").write_text(text)
    emulators = (HERE / "cuda_kda_decode/block_emulation", HERE / "fused_decode_step/cluster_emulation",
                 HERE / "hopper_prefill/hopper_emulation")  # fmt: skip
    includes = [f"-I{path}" for path in (folder, *emulators)]
    command = [str(GXX), "-std=c++20", "-O1", "-fno-strict-aliasing", "-w", "-shared", "-fPIC", *includes]
    source = HERE / "cuda_kda_decode/block_emulation/kda_decode.cpp"
    subprocess.run([*command, "-o", folder / "kernel.so", source], check=True)
    return folder / "kernel.so"


def emulated(library: Path) -> list[dict[str, object]]:
    script = HERE / "cuda_kda_decode/kda_decode_emulation.py"
    done = forked_command.run([str(library)], dict(os.environ), script=script)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def right(found: dict[str, object]) -> bool:
    output, state = found["errors"]  # type: ignore[misc]
    return output < 3e-3 and state < (3e-3 if found["halves"] else 2e-7) and bool(found["kept"])


def test_every_kernel_computes_the_rule(tmp_path: Path) -> None:
    found = emulated(built(tmp_path))
    assert len(found) == 6
    assert all(right(one) for one in found), found


@pytest.mark.thorough
def test_a_block_that_does_not_meet_is_found_out(tmp_path: Path) -> None:
    assert not any(right(one) for one in emulated(built(tmp_path, meeting="")))
