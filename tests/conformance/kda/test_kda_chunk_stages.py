"""The stages of the chunkwise form: composed they are the prefill, and borders between tokens change nothing."""

import math
from itertools import accumulate
from typing import Any

import pytest
import torch
from gdnspec.build import reference as code
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.families import family
from helpers_unit import drawn
from torch import Tensor

kda, stages, borders = (code.module(family("kda"), n) for n in ("kimi_delta_attention", "chunk_stages", "borders"))
F64, LENGTHS = torch.float64, (0, 65, 1, 0, 64, 130)


def inputs() -> dict[str, Any]:
    """Gates from none to such as overflow where they are divided by, resets of single channels and of all; beta in
    [0, 2] with both ends; two value heads a key head."""
    draw, T, H, D = torch.Generator().manual_seed(11), sum(LENGTHS), 2, 6
    normal = lambda *shape: torch.randn(*shape, generator=draw, dtype=F64)  # noqa: E731
    g = -torch.rand(T, H, D, generator=draw, dtype=F64) * torch.logspace(-3, 2, D, dtype=F64)
    g[torch.rand(T, H, D, generator=draw) < 0.05] = -math.inf
    g[7::16, 0], g[9::16] = -math.inf, 0.0
    return {
        "q": normal(T, 1, D), "k": torch.nn.functional.normalize(normal(T, 1, D), dim=-1), "v": normal(T, H, D), "g": g,
        "beta": (2.4 * torch.rand(T, H, generator=draw, dtype=F64) - 0.2).clamp(0, 2),
        "cu_seqlens": torch.tensor([0, *LENGTHS]).cumsum(0), "initial_state": normal(len(LENGTHS), H, D, D),
    }  # fmt: skip


@pytest.mark.parametrize("file", [stages, borders], ids=["chunk_stages", "borders"])
@pytest.mark.parametrize("more", [{}, {"initial_state": None, "scale": -0.7}], ids=["", "from_zeros"])
def test_composed_they_are_the_prefill(file: Any, more: dict[str, Any]) -> None:
    x = {"scale": None} | inputs() | more
    at = torch.tensor([0, *accumulate(-(-n // 64) for n in LENGTHS)])
    u, w = file.chunk_wy(x["k"], x["v"], x["g"], x["beta"], x["cu_seqlens"])
    kept, u_new, final = file.chunk_state(x["k"], w, u, x["g"], x["cu_seqlens"], at, x["initial_state"])
    output = file.chunk_output(x["q"], x["k"], u_new, kept, x["g"], x["cu_seqlens"], at, x["scale"])
    assert len(kept) == at[-1]
    for got, want in zip((output, final), kda.prefill_k_last(**x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_what_a_stage_is_given_is_what_the_one_before_makes() -> None:
    """Of the same keys and gates, which the two definitions draw alike; u and w are rounded."""
    first, second = (definition(f"kda_chunk_{name}") for name in ("wy", "state"))
    given, made = (drawn(found, regime="hard_reset", lengths=(70, 3)) for found in (first, second))

    def tensor(inputs: Any, name: str) -> Tensor:
        return torch.from_numpy(inputs.tensors[name].values()).to(torch.int64 if name == "cu_seqlens" else F64)

    for name in ("k", "g"):
        assert torch.equal(tensor(given, name), tensor(made, name))
    wanted = stages.chunk_wy(**{name: tensor(given, name) for name in ("k", "v", "g", "beta", "cu_seqlens")})
    for name, want in zip("uw", wanted, strict=True):
        torch.testing.assert_close(tensor(made, name), want.bfloat16().to(F64), rtol=1e-2, atol=0)
