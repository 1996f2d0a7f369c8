"""Rings are filled and verified exactly: what the fused kernels write and find is what plain products say."""

import os
import subprocess
import sys

import pytest
import torch
from gdnspec.bench.multiples import _spread, differing, write
from gdnspec.numerics.torch_arrays import comparable, times
from patience import PATIENCE

SHAPES = [  # of a ring, and of factors
    ((3, 5, 4, 7), (3, 1, 4, 1)),
    ((7, 2, 3, 16, 16), (7, 1, 3, 1, 16)),  # two factors with a dimension between them
    ((4, 1030), (4, 1030)),
    ((2, 33, 65), None),
    ((40, 3, 1), (40, 1, 1)),
]
BEHIND = 104.0  # every type has it
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CODES = [torch.float8_e4m3fn, torch.int8]  # their factors are signs


def _case(shape: tuple[int, ...], factor_shape: tuple[int, ...] | None, dtype: torch.dtype, device: str):
    generator = torch.Generator().manual_seed(sum(shape))
    base = (torch.randn(shape[1:], generator=generator) * (20 if dtype in CODES else 1)).to(device, dtype)
    powers = None
    if factor_shape is not None:
        powers = 2.0 ** torch.randint(-4, 5, factor_shape, generator=generator)
        powers = torch.ones(factor_shape) if dtype in CODES else powers
        powers = (powers * (torch.randint(0, 2, factor_shape, generator=generator) * 2 - 1)).to(device)
    # Rows farther apart than they are long, as in a ring.
    ring = torch.full((shape[0], base.numel() + 64), BEHIND, device=device).to(dtype)
    views = ring[:, : base.numel()].view(shape)
    want = base.expand(shape) if powers is None else times(base, powers)
    return base, powers, ring, views, want


def _look(shape, factor_shape, dtype, device, write, differing) -> None:
    base, factors, ring, views, want = _case(shape, factor_shape, dtype, device)
    write(views, base, factors)
    assert torch.equal(comparable(views), comparable(want))
    assert (comparable(ring[:, base.numel() :]) == BEHIND).all(), "written between the rows"
    assert not differing(views, base, factors).any()
    for place in (0, base.numel() - 1):
        one = shape[0] // 2
        kept = views[one].flatten()[place].clone()
        for wrong in (comparable(kept) + 8,) if dtype in CODES else (torch.nan, kept + 1, torch.inf):
            views[one].view(-1)[place] = wrong
            found = differing(views, base, factors)
            assert found.nonzero().flatten().tolist() == [one]
        views[one].view(-1)[place] = kept


@pytest.mark.parametrize("dtype", DTYPES + CODES, ids=str)
@pytest.mark.parametrize(("shape", "factors"), SHAPES, ids=str)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_is_written_is_the_product_and_one_wrong_element_is_found(shape, factors, dtype, device) -> None:
    _look(shape, factors, dtype, device, write, differing)


@pytest.mark.thorough
def test_the_fused_kernels_do_so_too() -> None:
    """Here by the interpreter; on a GPU the test above runs them."""
    code = "import test_multiples; test_multiples.interpreted()"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr


def interpreted() -> None:
    from gdnspec.bench import multiples_cuda
    from gdnspec.build.interpreter import correct_interpreter

    correct_interpreter()

    def write_fused(out, base, factors, rows=None):
        spread = _spread(factors, base, len(rows if rows is not None else out))
        multiples_cuda.write(out, base, *spread, rows)

    def differing_fused(got, base, factors, rows=None):
        spread = _spread(factors, base, len(rows if rows is not None else got))
        return multiples_cuda.differing(got, base, *spread, rows)

    for dtype in DTYPES + CODES:
        for shape, factors in SHAPES:
            _look(shape, factors, dtype, "cpu", write_fused, differing_fused)
        _look_at_rows(dtype, "cpu", write_fused, differing_fused)


def _look_at_rows(dtype, device, write, differing) -> None:
    """Rows that lie anywhere in a pool whose slots stand apart."""
    base, factors, *_ = _case((3, 4, 2, 32, 32), (3, 1, 2, 1, 32), dtype, device)
    pool = torch.full((40, 2 * 32 * 32 + 128), BEHIND, device=device).to(dtype)
    slots = pool[:, : 2 * 32 * 32].view(40, 2, 32, 32)
    rows = torch.randperm(40, generator=torch.Generator().manual_seed(1))[:12].view(3, 4).to(device)
    write(slots, base, factors, rows)
    assert torch.equal(comparable(slots[rows]), comparable(times(base, factors)))
    unwritten = torch.ones(40, dtype=torch.bool, device=device).index_fill(0, rows.flatten(), False)
    assert (comparable(pool[unwritten]) == BEHIND).all(), "written elsewhere"
    assert (comparable(pool[:, 2 * 32 * 32 :]) == BEHIND).all(), "written elsewhere"
    assert not differing(slots, base, factors, rows).any()
    one = slots[rows[1, 3], 1, 31]
    one[31] = comparable(one[31]) + 8
    assert differing(slots, base, factors, rows).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", DTYPES + CODES, ids=str)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_rows_of_a_multiple_may_lie_anywhere(dtype, device) -> None:
    _look_at_rows(dtype, device, write, differing)


def test_integers_are_copied_and_compared() -> None:
    base = torch.tensor([0, 5, 2**40])
    out = torch.zeros(4, 3, dtype=torch.int64)
    write(out, base, None)
    assert out.tolist() == [base.tolist()] * 4
    out[2, 2] += 1
    assert differing(out, base, None).tolist() == [False, False, True, False]
