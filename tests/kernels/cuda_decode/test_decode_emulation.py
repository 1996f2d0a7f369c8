"""cuda_decode, one token, [V, K] states, on a CPU: blocks with all of their threads emulated, against a float64 rule.

The emulator takes the place of the kernel's instructions.cuh. Threads run in random order, in rows that are written in
place, moved, skipped, or whose slots are none. A tile is chosen for more pairs of a row and a head than are emulated.
"""

from functools import partial
from pathlib import Path
from typing import Any

import emulated_decode
import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.skipif(emulated_decode.GXX is None, reason="no g++ here"), pytest.mark.slow]
ADDED = "sum_halves<Tile::kLanes>(sums);"
STAGE = "std::conditional_t<kVerify, Stage<D, Tile::kChannels>, char>"
right = partial(emulated_decode.right, state_error=3e-7)


# Lanes in a row, loads a thread, warps a block; from which pairs on.
TILES = {
    ("dense", False): {0: [16, 4, 4], 160: [16, 2, 4], 257: [16, 4, 4]},
    ("dense", True): {0: [16, 4, 4], 64: [8, 8, 4], 97: [16, 4, 4], 240: [8, 8, 4], 257: [16, 4, 4], 1024: [8, 8, 4]},
    ("pool", False): {0: [32, 4, 4], 1024: [16, 4, 4]},
    ("pool", True): {0: [8, 8, 4], 1024: [8, 8, 2]},
}


def emulated(folder: Path, added: str = ADDED) -> dict[str, Any]:
    """All calls, and the tiles at each threshold, with `added` where the lanes of a row add what they have."""
    of_verify = f"auto& stage = *reinterpret_cast<{STAGE}*>{emulated_decode.SHARED});"
    in_rows = {f"__shared__ {STAGE} stage;": of_verify, ADDED: added}
    library = emulated_decode.built(folder, "cuda_decode", "cuda_decode/decode_emulation/decode.cpp", in_rows)
    (found,) = emulated_decode.emulated(library, "cuda_decode/decode_emulation.py")
    return found


def digests(cases: list[dict[str, Any]]) -> dict[tuple[bool, bool], set[str]]:
    """What tiles of head size 128 leave of the same rows, dense or in a pool: by states and normalisation."""
    found: dict[tuple[bool, bool], set[str]] = {}
    for one in cases:
        if one["D"] == 128:
            found.setdefault((one["halves"], one["normalise"]), set()).add(one["digest"])
    return found


def test_every_kernel_computes_the_rule_with_the_same_bits(tmp_path: Path) -> None:
    found = emulated(tmp_path)
    cases = found["cases"]
    assert len(cases) == 13
    assert all(right(one) for one in cases), cases
    assert {len(own) for own in digests(cases).values()} == {1}, "bits depend on the tile, so on the batch"
    ran = {(one["halves"], *one["tile"]) for one in cases if one["D"] == 128}
    assert ran == {(halves, *tile) for (_, halves), tiles in TILES.items() for tile in tiles.values()}
    for edge in found["edges"]:
        tiles = TILES[edge["kind"], edge["halves"]]
        wanted = tiles[max(low for low in tiles if low <= edge["pairs"])]
        if edge["D"] == 128:
            assert edge["tile"] == wanted, edge
    others = {(edge["kind"], edge["halves"], edge["D"], *edge["tile"]) for edge in found["edges"] if edge["D"] != 128}
    assert len(others) == 8, "only head size 128 has several tiles"


@pytest.mark.thorough
@pytest.mark.parametrize("added", ["sum_halves<Tile::kLanes / 2>(sums);", "sum_lanes<1, Tile::kLanes>(sums);"])
def test_faults_in_a_sum_are_found_out(tmp_path: Path, added: str) -> None:
    """Lanes that are left out; and lanes in another order, which leaves every row right, and its bits to the tile."""
    cases = emulated(tmp_path, added)["cases"]
    if "/ 2" in added:
        assert not any(right(one) for one in cases)
    else:
        assert all(right(one) for one in cases)
        assert len(digests(cases)[False, True]) > 1  # what bfloat16 states round away may be all of it in so few rows
