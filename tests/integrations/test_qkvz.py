"""Rows of Qwen3-Next's projection taken apart, against PyTorch's split and cat."""

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")
from gdnspec.integrations.qkvz import Sizes, apart

SIZES = {"words": Sizes(3, 16, 32), "no words": Sizes(2, 3, 5), "one head": Sizes(1, 8, 24)}


def by_split(qkvz: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    H, K, V = sizes
    *parts, z = (x.flatten(-2) for x in qkvz.unflatten(-1, (H, -1)).split([K, K, V, V], dim=-1))
    return torch.cat(parts, dim=-1), z


def drawn(sizes: Sizes, dtype: torch.dtype = torch.float32, lead: tuple[int, ...] = (2, 5)) -> Tensor:
    H, K, V = sizes
    return torch.randn(*lead, H * (2 * K + 2 * V)).to(dtype).requires_grad_()


def gradient(outputs: tuple[Tensor, Tensor], of: Tensor) -> Tensor:
    weights = [torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view_as(x) for x in outputs]
    (found,) = torch.autograd.grad(outputs, of, weights)
    return found


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_and_their_gradients_are_those_of_split_and_cat(sizes: Sizes, dtype: torch.dtype) -> None:
    whole = drawn(sizes, dtype)
    turned = whole.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    for qkvz in (whole, turned):
        found, wanted = apart(qkvz, sizes), by_split(qkvz, sizes)
        assert all(map(torch.equal, found, wanted))
        assert all(x.is_contiguous() for x in found)
        assert torch.equal(gradient(found, qkvz), gradient(wanted, qkvz))
    with torch.no_grad():
        assert all(map(torch.equal, apart(whole.detach(), sizes), wanted))


def test_a_projection_that_begins_within_a_word_is_taken_apart_too() -> None:
    sizes = SIZES["words"]
    rows = drawn(sizes, lead=(7,))
    qkvz = rows.detach().flatten()[rows.shape[1] + 1 :][: 3 * rows.shape[1]].view(3, -1)
    assert qkvz.storage_offset() % 4
    assert all(map(torch.equal, apart(qkvz, sizes), by_split(qkvz, sizes)))


def test_one_row_of_wider_ones_is_taken_apart_too() -> None:
    """A tensor of one row counts as contiguous, however far the next row would be."""
    sizes = Sizes(2, 4, 8)
    qkvz = torch.randn(5, 49)[:1, :48].requires_grad_()
    found = apart(qkvz, sizes)
    assert all(map(torch.equal, found, by_split(qkvz, sizes)))
    wide = torch.cat([*found, found[1].new_zeros(1, 1)], -1)  # whose gradient has such a row for z
    assert torch.equal(torch.autograd.grad(wide.sin().sum(), qkvz)[0], qkvz.detach().cos())


def test_gates_that_nobody_reads_have_gradients_of_zero() -> None:
    sizes = SIZES["words"]
    qkvz = drawn(sizes)
    apart(qkvz, sizes)[0].sum().backward()
    wanted = drawn(sizes)
    by_split(wanted, sizes)[0].sum().backward()
    assert torch.equal(qkvz.grad, wanted.grad)


@pytest.mark.parametrize("sizes", [Sizes(2, 2, 4), Sizes(2, 1, 3)], ids=["words", "no words"])
def test_second_derivatives_are_right(sizes: Sizes) -> None:
    qkvz = drawn(sizes, torch.float64, (2,))
    call: Any = lambda x: tuple(y.sin() for y in apart(x, sizes))  # noqa: E731
    assert torch.autograd.gradcheck(call, qkvz)
    assert torch.autograd.gradgradcheck(call, qkvz)


def test_a_layer_copies_each_element_once_each_way() -> None:
    """What training on a GPU would wait for: 400 us of 2,100 were a `cat`."""
    sizes = SIZES["words"]
    qkvz = drawn(sizes, torch.bfloat16)
    with torch.profiler.profile() as told:
        gradient(apart(qkvz, sizes), qkvz)
    names = [event.key for event in told.key_averages()]
    assert "aten::cat" not in names
    assert sum(event.count for event in told.key_averages() if event.key == "aten::copy_") <= 8
