"""cuda_kda_decode on a CPU: a row's blocks with all of their threads emulated, against the rule in float64.

The emulator takes the place of the kernel's instructions.cuh. Threads run in random order, and what is shared is NaNs
until it is written, so a decay that is read before the block has met shows in numbers.
"""

from functools import partial
from pathlib import Path

import emulated_decode
import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.skipif(emulated_decode.GXX is None, reason="no g++ here"), pytest.mark.slow]
right = partial(emulated_decode.right, state_error=2e-7)


def emulated(folder: Path, meeting: str = "__syncthreads();") -> list[dict[str, object]]:
    """All calls, with `meeting` where the block meets to share decays."""
    shared = f"auto& alphas = *reinterpret_cast<float(*)[D]>{emulated_decode.SHARED});"
    decays = {"__shared__ alignas(16) float alphas[D];": shared, "__syncthreads();": meeting}
    source = "cuda_kda_decode/block_emulation/kda_decode.cpp"
    library = emulated_decode.built(folder, "cuda_kda_decode", source, decays)
    return emulated_decode.emulated(library, "cuda_kda_decode/kda_decode_emulation.py")


def test_every_kernel_computes_the_rule(tmp_path: Path) -> None:
    found = emulated(tmp_path)
    assert len(found) == 8
    assert all(right(one) for one in found), found


@pytest.mark.thorough
def test_a_block_that_does_not_meet_is_found_out(tmp_path: Path) -> None:
    assert not any(right(one) for one in emulated(tmp_path, meeting=""))
