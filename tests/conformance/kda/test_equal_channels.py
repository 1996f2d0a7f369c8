"""With equal channels Kimi Delta Attention is gated delta net: the float64 references are equal bit for bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gdnspec.build import reference as code
from gdnspec.catalog.families import family
from torch import Tensor

KDA, GDN = family("kda"), family("gdn")
H, D, F64 = 4, 16, torch.float64  # value heads; two share a key head
Keywords = dict[str, Any]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def channels(x: Tensor) -> Tensor:
    """What a head has, for each of its key channels."""
    return x[..., None].expand(*x.shape, D).contiguous()


def packed_rows() -> tuple[Keywords, Keywords]:
    raw = {"a": 3 * normal(1, 5, H), "dt_bias": normal(2, H)}
    call = {
        "mixed_qkv": normal(3, 5, (2 + 2 + H) * D), "state": normal(4, 5, H, D, D), "A_log": normal(5, H),
        "b": normal(6, 5, H), "scale": None, "use_qk_l2norm": True,
    }  # fmt: skip
    own = {name: channels(x) for name, x in raw.items()} | {"lower_bound": None}
    return call | own, call | raw


CASES: dict[str, tuple[str, str, Callable[[], tuple[Keywords, Keywords]]]] = {
    "decode_packed_k_last": ("serving", "gated_delta_net", packed_rows),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_with_equal_channels_it_is_gated_delta_net_bit_for_bit(name: str) -> None:
    own_file, other_file, calls = CASES[name]
    own, other = calls()
    found = getattr(code.module(KDA, own_file), name)(**own)
    wanted = getattr(code.module(GDN, other_file), name)(**other)
    pairs = list(zip(found, wanted, strict=True)) if isinstance(found, tuple) else [(found, wanted)]
    assert all(torch.equal(x, y) for x, y in pairs)
    assert all(x.abs().sum() > 0 for x, _ in pairs)
