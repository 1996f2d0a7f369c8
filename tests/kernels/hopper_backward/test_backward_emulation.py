"""hopper_backward on a CPU: its device code with every thread and instruction emulated, against a float64 recurrence.

The emulator is that of hopper_prefill, with two instructions more. It forgives less than a GPU: threads run in random
order, and what is under way, not fenced or not waited for holds NaNs or ends the program.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from patience import PATIENCE

GXX = shutil.which("g++")
KERNEL = ROOT / "solutions/hopper_backward"
HERE = ROOT / "tests/kernels/hopper_backward/backward_emulation"
OF_PREFILL = ROOT / "tests/kernels/hopper_prefill"
RUNS = 21
THOROUGH_RUNS = {1: RUNS + 3 * (7 * 4 + 6 * 4 + 3 * 4), 2: RUNS - 5 + 3 * (7 * 2 + 6 * 2 + 3 * 4)}  # by terms

pytestmark = pytest.mark.skipif(GXX is None, reason="no g++ here")

Edit = tuple[str, str, str]  # file, what stands there, what shall stand there


def device_code(folder: Path, edit: Edit | None) -> None:
    """The kernel's files into `folder`, less the instructions. main.cpp includes none of the host's."""
    files = {file.name: file.read_text() for file in KERNEL.iterdir() if file.suffix == ".cuh"}
    if edit:
        name, old, new = edit
        assert files[name].count(old) == 1, f"{old} is not once in {name}: this test is out of date"
        files[name] = files[name].replace(old, new)
    descriptors = re.findall(
        r"^__device__ __forceinline__ uint64_t descriptor.*?^}\n", files.pop("instructions.cuh"), re.M | re.S
    )
    assert len(descriptors) == 2
    files["descriptors.h"] = "".join(descriptors)
    for name, text in files.items():
        (folder / name).write_text(text)


def emulate(
    folder: Path, *flags: str, edit: Edit | None = None, thorough: bool = False, share: int = 1
) -> subprocess.CompletedProcess[str]:
    """Builds, and makes one run in `share`."""
    device_code(folder, edit)
    includes = [f"-I{x}" for x in (folder, HERE, OF_PREFILL, OF_PREFILL / "hopper_emulation")]
    program = folder / "emulate"
    command = [str(GXX), "-std=c++20", "-fno-strict-aliasing", "-w", *flags, *includes]
    subprocess.run([*command, "-o", program, HERE / "main.cpp"], check=True)
    environment = dict(os.environ) | ({"THOROUGH": "1"} if thorough else {})
    return subprocess.run([program, str(share)], capture_output=True, text=True, timeout=PATIENCE, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.thorough)])
def test_the_gradients_are_right(tmp_path: Path, share: int) -> None:
    # To build for -O2 takes longer than it saves, and for a few runs so does -O1.
    done = emulate(tmp_path, "-Og" if share > 1 else "-O1", share=share)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == RUNS // share
    assert all(line.startswith("right: ") for line in lines)


@pytest.mark.thorough
@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("seed", [2, 3])
def test_the_gradients_are_right_in_other_orders(tmp_path: Path, seed: int, terms: int) -> None:
    done = emulate(tmp_path, "-O2", f"-DSEED={seed}", f"-DGDN_TERMS={terms}", thorough=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == THOROUGH_RUNS[terms]


TAIL = "if (rows >= kChunk) {\n      const"
TO_TMA = "fence_async();  // for warps that walk, which have written it"
OWN_PLACE = "barrier_wait(shared_address(&s.empty[i % Stages]), i / Stages & 1);"
STATES_TAKEN = "barrier_wait(shared_address(&s.taken), ((behind + turn) & 1) ^ 1);"
FORWARD_TAKEN = "barrier_wait(shared_address(&s.taken), (c & 1) ^ 1);"
DECAYED = "      scale_state(S, end);\n      pass_on"
TO_END = "(at_warp == kSumsToEnd)"
OF_PART = "if (round > 0) barrier_wait(shared_address(&s.left[place]), (round - 1) & 1);\n          if (lane"
END_OF_WALKS = "if (lane_here() == 0) end_walk_back<Groups>(walk);"
TILE_THERE = "if (lane == 0) store_released(p.prepared + at, 1);"
FROM_BEHIND = "chunks - 1 - nth / 2"
FORWARD_OVER = "store_released(forward_over(p, s.work), 1);"
SECOND_TILE = "if (p.reverse_tiles.second > 0) copy_tile"
OF_BRIEF = "fence_async();\n      __syncthreads();\n      if (threadIdx.x == 0) bring_next"
OF_BETAS = "barrier_wait(shared_address(&s.betas_read), at.parities >> kOfBetas & 1);"
OF_MATRICES = "named_barrier(kMatrices, kGradientThreads);\n    multiply"
ERASED = "wgmma<E, 1>(dS[half], bits[i], descriptor(k + half * kBoxBytes, along_column(i)), true);"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "old", "new", "says"),
    [
        pytest.param("forward.cuh", DECAYED, "      pass_on", "WRONG: ragged", id="no decay"),
        pytest.param("forward.cuh", FORWARD_TAKEN, ";", "changed|WRONG|while|fence|deadlock", id="and forward"),
        pytest.param("gradients.cuh", TO_END, "(false)", "WRONG", id="nothing through the end of a chunk"),
        pytest.param("reverse.cuh", ERASED, "", "WRONG: ragged", id="nothing erased"),
        pytest.param("walk.cuh", TO_TMA, "", "a write without fence_async", id="no fence"),
        pytest.param("walk.cuh", OWN_PLACE, "", "changed|WRONG|fence_async|deadlock", id="a place not left yet"),
        pytest.param("gradients.cuh", OF_PART, "if (lane", "changed|WRONG|too many arrivals", id="a part not left yet"),
        pytest.param("gradients.cuh", OF_MATRICES, "multiply", "WRONG|fence_async", id="matrices too early"),
        pytest.param("reverse.cuh", STATES_TAKEN, ";", "changed|WRONG|while|fence|deadlock", id="states too early"),
        pytest.param("segments.cuh", "? all.turned :", "? all.transfers :", "WRONG: cut", id="not turned back"),
        pytest.param("operands.cuh", "(gradient ? kStateRows : 0)", "0", "WRONG: cut", id="one state over another"),
        pytest.param("between.cuh", "before[r] += all[m - first][r]", "before[r] += 0", "WRONG", id="columns alone"),
        pytest.param("decays.cuh", "g < kSteep ? 0.f : g", "g < kSteep ? 1.f : g", "WRONG: resets", id="a gate of 0"),
        pytest.param("between.cuh", "if ((t <= i) == of", "if ((t < i) == of", "WRONG: ragged", id="a gate too late"),
        pytest.param("reverse.cuh", "kDivides<E> && small != 0.f", "false", "WRONG: ragged", id="a beta of 0"),
        pytest.param("reverse.cuh", TAIL, "if (true) {\n const", "WRONG", id="a tail over the next sequence"),
        pytest.param("products.cuh", "wgmma_shared<E, 1, 1>", "wgmma_shared<E, 1, 0>", "WRONG", id="not turned"),
        pytest.param("invert.cuh", "x[0][j + e] *= beta[e] * inverse[0];", ";", "WRONG", id="E as M"),
        pytest.param("prepare.cuh", TILE_THERE, "", "deadlock", id="nobody says that a tile is there"),
        pytest.param("first.cuh", FORWARD_OVER, ";", "deadlock", id="nor that the forward walk is over"),
        pytest.param("forward.cuh", FORWARD_OVER, ";", "deadlock", id="nor where both walks are apart"),
        pytest.param("first.cuh", FROM_BEHIND, "chunks - 2 - nth / 2", "deadlock", id="a chunk that nobody prepares"),
        pytest.param("prepare.cuh", SECOND_TILE, "if (false) copy_tile", "WRONG: cut", id="no second tile"),
        pytest.param("brief.cuh", "if (valid == kChunk) return;", "return;", "WRONG", id="a short tail"),
        pytest.param("brief.cuh", OF_BRIEF, "__syncthreads();", "without fence_async", id="no fence in a short one"),
        pytest.param("brief.cuh", "fmaf(end, dS[i], update[i])", "update[i]", "WRONG: some", id="a short dh0"),
        pytest.param("together.cuh", "even &= count", "even |= count", "WRONG|deadlock", id="lengths not compared"),
        pytest.param("together.cuh", "bool even = true", "bool even = false", "WRONG|deadlock", id="never alike"),
        pytest.param("together.cuh", END_OF_WALKS, "", "to where a barrier is", id="barriers that stay"),
    ],
)  # fmt: skip
def test_errors_are_found(tmp_path: Path, name: str, old: str, new: str, says: str) -> None:
    done = emulate(tmp_path, "-O1", "-DSTOP_AT_FIRST", edit=(name, old, new))
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert re.search(says, said), said
