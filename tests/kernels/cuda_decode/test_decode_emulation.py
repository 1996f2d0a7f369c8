"""cuda_decode, one token, [V, K] states, on a CPU: blocks with all of their threads emulated, against a float64 rule.

The emulator takes the place of the kernel's instructions.cuh. Threads run in random order, in rows that are written in
place, moved, skipped, or whose slots are none.
"""

from functools import partial
from pathlib import Path

import emulated_decode
import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.skipif(emulated_decode.GXX is None, reason="no g++ here"), pytest.mark.slow]
ADDED = "sum_lanes<1, Tile::kLanes>(sums);"
STAGE = "std::conditional_t<kVerify, Stage<D, Tile::kChannels>, char>"
right = partial(emulated_decode.right, state_error=3e-7)


def emulated(folder: Path, added: str = ADDED) -> list[dict[str, object]]:
    """All calls, with `added` where the lanes of a row add what they have."""
    of_verify = f"auto& stage = *reinterpret_cast<{STAGE}*>{emulated_decode.SHARED});"
    in_rows = {f"__shared__ {STAGE} stage;": of_verify, ADDED: added}
    library = emulated_decode.built(folder, "cuda_decode", "cuda_decode/decode_emulation/decode.cpp", in_rows)
    return emulated_decode.emulated(library, "cuda_decode/decode_emulation.py")


def test_every_kernel_computes_the_rule(tmp_path: Path) -> None:
    found = emulated(tmp_path)
    assert len(found) == 7
    assert all(right(one) for one in found), found


@pytest.mark.thorough
def test_a_sum_that_leaves_lanes_out_is_found_out(tmp_path: Path) -> None:
    assert not any(right(one) for one in emulated(tmp_path, added="sum_lanes<1, Tile::kLanes / 2>(sums);"))
