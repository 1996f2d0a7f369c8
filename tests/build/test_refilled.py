"""A loop that fills a tile again while a product reads it is found in what Triton compiles."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from gdnspec.build.refilled import refilled  # noqa: E402
from gdnspec.build.resources import triton_resources  # noqa: E402

KERNEL = '''
import triton
import triton.language as tl


@triton.jit
def products_kernel(x_ptr, y_ptr, out_ptr, sums_ptr, D: tl.constexpr, STAGES: tl.constexpr, SUMS: tl.constexpr):
    """X Y^T, and the sums of X's rows, which take its tiles into registers."""
    t, d = tl.arange(0, 64), tl.arange(0, 64)
    S = tl.zeros([64, 64], dtype=tl.float32)
    sums = tl.zeros([64], dtype=tl.float32)
    for first in tl.range(0, D, 64, num_stages=STAGES):
        at = t[:, None] * D + first + d[None, :]
        X = tl.load(x_ptr + at)
        S = tl.dot(X, tl.trans(tl.load(y_ptr + at)), acc=S)
        if SUMS:
            sums += tl.sum(X.to(tl.float32), axis=1)
    tl.store(out_ptr + t[:, None] * 64 + t[None, :], S)
    tl.store(sums_ptr + t, sums)


def launch(stages, sums):
    return lambda x, y, out, totals: products_kernel[(1,)](x, y, out, totals, 256, stages, sums)


three_turns_ahead, one_at_a_time, without_sums = launch(3, True), launch(1, True), launch(3, False)
'''

LOOP = """
    %x = ttg.local_alloc : () -> !ttg.memdesc<{places}x64x64xbf16, #shared, #smem, mutable>
    %first = ttg.memdesc_index %x[%c0] : !ttg.memdesc<{places}x64x64xbf16> -> !ttg.memdesc<64x64xbf16>
    %a = ttg.async_copy_global_to_local %p0, %first mask %m : tensor<64x64x!tt.ptr<bf16>> -> <64x64xbf16>
    %second = ttg.memdesc_index %x[%c1] : !ttg.memdesc<{places}x64x64xbf16> -> !ttg.memdesc<64x64xbf16>
    %b = ttg.async_copy_global_to_local %p1, %second mask %m : tensor<64x64x!tt.ptr<bf16>> -> <64x64xbf16>
    %S:2 = scf.for %i = %c0 to %c4 step %c1 iter_args(%acc = %zero) -> (tensor<64x64xf32>) {{
      %tile = ttg.memdesc_index %x[%i] : !ttg.memdesc<{places}x64x64xbf16> -> !ttg.memdesc<64x64xbf16>
      %turned = ttg.memdesc_trans %tile {{order = array<i32: 1, 0>}} : !ttg.memdesc<64x64xbf16>
      %s = ttng.warp_group_dot %tile, %turned, %acc {{isAsync = true}} : !ttg.memdesc<64x64xbf16> -> tensor<64x64xf32>
      %w:2 = ttng.warp_group_dot_wait %s, %tile {{pendings = {pendings} : i32}} : tensor<64x64xf32>
      %next = ttg.memdesc_index %x[%j] : !ttg.memdesc<{places}x64x64xbf16> -> !ttg.memdesc<64x64xbf16>
      %c = ttg.async_copy_global_to_local %p2, %next mask %m : tensor<64x64x!tt.ptr<bf16>> -> <64x64xbf16>
      scf.yield %w#0 : tensor<64x64xf32>
    }}
"""


@pytest.mark.parametrize(("places", "pendings", "found"), [(2, 1, ["%x"]), (3, 1, []), (2, 0, []), (1, 2, ["%x"])])
def test_a_ring_needs_one_place_more_than_are_filled_ahead(places: int, pendings: int, found: list[str]) -> None:
    assert refilled(LOOP.format(places=places, pendings=pendings)) == found


def test_a_wait_on_a_condition_ends_no_product() -> None:
    """It comes behind the copy, and not in every turn."""
    wait = "      %z:2 = ttng.warp_group_dot_wait %w#0, %tile {pendings = 0 : i32} : tensor<64x64xf32>\n"
    behind = f"      scf.if %last {{\n  {wait}      }}\n      scf.yield"
    for places, found in ((2, ["%x"]), (3, [])):
        assert refilled(LOOP.format(places=places, pendings=1).replace("      scf.yield", behind)) == found
        assert (
            refilled(LOOP.format(places=places, pendings=1).replace("      scf.yield", f"{wait}      scf.yield"))
            == found
        )


def test_names_of_one_loop_mean_something_else_in_the_next() -> None:
    other = LOOP.format(places=3, pendings=1).replace("%x", "%y")
    assert refilled(LOOP.format(places=3, pendings=1) + other) == []
    assert refilled(LOOP.format(places=2, pendings=1) + other) == ["%x"]
    assert refilled(LOOP.format(places=3, pendings=1) + other.replace("<3x", "<2x")) == ["%y"]


def test_compiled_kernels_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Triton 3.6. Where a later one gives that tile a place more, the first number is to be 0."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # must not reach the process that compiles
    (tmp_path / "kernel.py").write_text(KERNEL)
    x, out = (torch.empty(64, n, dtype=kind, device="meta") for n, kind in ((256, torch.bfloat16), (64, torch.float32)))
    given = {"x": x, "y": x, "out": out, "totals": out[0]}
    entries = ("three_turns_ahead", "one_at_a_time", "without_sums")
    found = triton_resources(tmp_path, [(f"kernel.py::{entry}", given) for entry in entries])
    assert [kernel.refilled for (kernel,) in found] == [1, 0, 0]
