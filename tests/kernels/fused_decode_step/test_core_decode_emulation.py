"""fused_decode_step on a CPU: a cluster of blocks with all of its threads emulated, against the reference in float64.

The emulator takes the place of the kernel's instructions.cuh. Threads run in random order, what is shared is NaNs until
it is written, and messages between blocks come late: a state that is written before all have read it shows in numbers.
"""

import os
import shutil
import subprocess
from pathlib import Path

import forked_command
import pytest
from conftest import ROOT

pytest.importorskip("torch")

GXX = shutil.which("g++")
KERNEL = ROOT / "solutions/fused_decode_step"
DEVICE = [f"{name}.cuh" for name in ("step", "state", "tile", "convolution", "gates", "problem", "words")]
SHARED = "__shared__ Shared<T, D, Warps> shared;"
# Preset, blocks a head at most (none: a block a group), rows, regime.
CASES = (
    "synthetic-gva-1x2-d64:2:3:typical", "synthetic-mha-2x2-d64:1:4:typical", "synthetic-gva-1x2-d128:4:3:hard_reset",
    "synthetic-gva-2x6-d128:2:3:typical", "synthetic-gva-1x4-d128:1:3:large_steps",
    "synthetic-gva-1x4-d128:0:2:typical", "synthetic-gva-1x2-d256:4:2:tiny_keys",
)  # fmt: skip

pytestmark = pytest.mark.skipif(GXX is None, reason="no g++ here")


def built(folder: Path, old: str = "", new: str = "") -> Path:
    """The device's part of the kernel as a library, `old` in it replaced by `new`."""
    files = {name: (KERNEL / name).read_text() for name in DEVICE}
    (place,) = (name for name, text in files.items() if (old or SHARED) in text)
    assert files[place].count(old or SHARED) == 1, f"{old} is not once in {place}: this test is out of date"
    files[place] = files[place].replace(old, new) if old else files[place]
    of_block = "auto& shared = *reinterpret_cast<Shared<T, D, Warps>*>(shared_of(block_of(running)));"
    assert files["step.cuh"].count(SHARED) == 1
    files["step.cuh"] = files["step.cuh"].replace(SHARED, of_block)
    for name, text in files.items():
        (folder / name).write_text(text)
    here = ROOT / "tests/kernels"
    emulators = (here / "fused_decode_step/cluster_emulation", here / "hopper_prefill/hopper_emulation")
    includes = [f"-I{path}" for path in (folder, *emulators)]
    command = [str(GXX), "-std=c++20", "-Og", "-fno-strict-aliasing", "-w", "-shared", "-fPIC", *includes]
    subprocess.run(
        [*command, "-o", folder / "kernel.so", here / "fused_decode_step/cluster_emulation/core_decode.cpp"], check=True
    )
    return folder / "kernel.so"


def emulated(library: Path, seed: int, *cases: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / "tools"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    script = ROOT / "tests/kernels/fused_decode_step/core_decode_emulation.py"
    return forked_command.run([str(library), str(seed), *cases], environment, script=script)


@pytest.mark.slow
@pytest.mark.parametrize("cases", [CASES[::4], pytest.param(CASES, marks=pytest.mark.thorough)], ids=["some", "all"])
def test_a_cluster_of_blocks_does_what_the_reference_does(tmp_path: Path, cases: tuple[str, ...]) -> None:
    done = emulated(built(tmp_path), 1, *cases)
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [[case, "right:"] for case in cases], done.stdout


EARLY = "if (T::kCluster && blockIdx.x == 0) pair[0].store_state(conv_state, channel_of(first_pair, h));"
GATES, WAIT = "    const Gates gate(raw);", "cluster_wait();  // for the others to have begun"
MESSAGES = "if constexpr (T::kParts > 1) wait_for_bytes(&shared.all_squares);"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        pytest.param(GATES, EARLY + GATES, "WRONG", id="written before all have read it"),
        pytest.param(WAIT, "", "may not have begun", id="sent to a block that has not begun"),
        pytest.param(MESSAGES, "", "messages under way", id="not waited for"),
    ],
)
def test_errors_are_found(tmp_path: Path, old: str, new: str, says: str) -> None:
    done = emulated(built(tmp_path, old, new), 2, "synthetic-gva-1x2-d128:4:3:typical")
    assert says in done.stdout + done.stderr
