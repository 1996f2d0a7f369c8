"""Where blocks of hopper_prefill have one slice of a state or two, by lengths and their number: the verdict."""

from pathlib import Path

import pytest
from conftest import Run

DEFINITION, PRESET = "gdn_prefill_k_last", "qwen3-next-80b-a3b-tp1"
# 96 (sequence, head) pairs: 132 multiprocessors are too few for two blocks of each, but where one is so much longer.
# And 160: the last 28 have two, or those of the longest. And 224, and 1280 of more sequences than a warp has lanes:
# several waves.
LENGTHS = {
    "one": "700,40,0",
    "two": "200,200,200",
    "both": "200,130,65,300,1",
    "longest": "1500,130,65,300,1",
    "waves": "200,130,65,300,1,0,90",
    "many": ",".join(str(37 * i % 211) for i in range(40)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("slices", LENGTHS)
@pytest.mark.parametrize("solution", ["hopper_prefill", "hopper_prefill:strict"])
def test_slices(solution: str, slices: str, gdnspec: Run, tmp_path: Path) -> None:
    file = tmp_path / "workloads.jsonl"
    drawn = gdnspec("workloads", "generate", DEFINITION, "--preset", PRESET, "--lengths", LENGTHS[slices], "-o", file)
    assert drawn.returncode == 0, drawn.stderr
    done = gdnspec("check", DEFINITION, "--solution", solution, "--workloads", file, "--device", "cuda")
    assert done.returncode == 0, done.stdout + done.stderr
