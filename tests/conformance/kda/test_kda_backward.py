"""The gradients of prefill: both derivations against autograd through the forward reference, and what must hold."""

from typing import Any

import pytest
import torch
from gdnspec.build import reference as code
from gdnspec.catalog.families import family
from torch import Tensor

KDA = family("kda")
LENGTHS = (0, 5, 1, 0, 19)
NAMES = ("q", "k", "v", "g", "beta", "initial_state")
F64 = torch.float64


def run(file: str, inputs: dict[str, Any], **more: Any) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = code.module(KDA, file).prefill_backward_k_last(**inputs, **more)
    return found


def call(lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    """Inputs in float64, two value heads a key head: resets of single channels and of all, alpha = 1, deep decay."""
    torch.manual_seed(3)
    tokens, H, D = sum(lengths), 2, 6
    made: dict[str, Any] = {
        name: torch.randn(tokens, n, D, dtype=F64) for name, n in zip("qkv", (1, 1, H), strict=True)
    }
    made["k"] /= made["k"].norm(dim=-1, keepdim=True)
    g = -torch.rand(tokens, H, D, dtype=F64) * torch.logspace(-3, 2, D, dtype=F64)
    g[:, :, 1:][torch.rand(tokens, H, D - 1) < 0.1] = -torch.inf
    g[3::7, 0], g[4::7, :, 0] = -torch.inf, 0.0
    beta = 2 * torch.rand(tokens, H, dtype=F64)
    beta[1::5], beta[4::5] = 0.0, 2.0
    states = torch.randn(2, len(lengths), H, D, D, dtype=F64)
    return made | {
        "g": g, "beta": beta, "cu_seqlens": torch.tensor((0, *lengths)).cumsum(0), "initial_state": states[0],
        "scale": 0.7, "do": torch.randn(tokens, H, D, dtype=F64), "dht": states[1],
    }  # fmt: skip


def forward(inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The forward reference, its `step` over the tokens: without the stores that autograd does not see through."""
    step, H = code.module(KDA, "kimi_delta_attention").step, inputs["v"].shape[1]
    Q, K = (inputs[name].repeat_interleave(H, dim=1) for name in "qk")
    bounds, rows, states = inputs["cu_seqlens"].tolist(), [], []
    for n, S in enumerate(inputs["initial_state"]):
        for t in range(bounds[n], bounds[n + 1]):
            gates = inputs["g"][t].exp(), inputs["beta"][t]
            o, S = step(S, Q[t], K[t], inputs["v"][t], *gates, inputs["scale"])
            rows.append(o)
        states.append(S)
    return torch.stack(rows), torch.stack(states)


def near(got: Tensor, wanted: Tensor) -> bool:
    return got.shape == wanted.shape and bool((got - wanted).norm() <= 1e-10 * wanted.norm().clamp(min=1e-10))


def test_the_recurrence_is_what_autograd_finds() -> None:
    inputs = call()
    leaves = {name: inputs[name].clone().requires_grad_() for name in NAMES}
    output, state = forward(inputs | leaves)
    loss = (output * inputs["do"]).sum() + (state * inputs["dht"]).sum()
    found = run("backward", inputs)
    for name, got, wanted in zip(NAMES, found, torch.autograd.grad(loss, [*leaves.values()]), strict=True):
        assert near(got, wanted), name
    assert not found[3][inputs["g"].isinf()].any()


@pytest.mark.parametrize("chunk_size", [1, 4, 16, 64])
def test_the_derivation_by_chunks_is_the_recurrence(chunk_size: int) -> None:
    inputs = call()
    for name, got, wanted in zip(
        NAMES, run("backward_chunkwise", inputs, chunk_size=chunk_size), run("backward", inputs), strict=True
    ):
        assert near(got, wanted), name


def test_gradcheck_takes_it_for_the_gradient() -> None:
    inputs = call(lengths=(4, 0, 3))
    inputs["g"] = inputs["g"].clamp(-3.0, -0.1)  # a difference on either side of 0 leaves the domain

    class Rule(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *leaves: Tensor) -> Any:
            ctx.save_for_backward(*leaves)
            return forward(inputs | dict(zip(NAMES, leaves, strict=True)))

        @staticmethod
        def backward(ctx: Any, do: Tensor, dht: Tensor) -> Any:
            given = inputs | dict(zip(NAMES, ctx.saved_tensors, strict=True)) | {"do": do, "dht": dht}
            return run("backward", given)

    leaves = [inputs[name].clone().requires_grad_() for name in NAMES]
    assert torch.autograd.gradcheck(Rule.apply, leaves, fast_mode=True)


def test_what_is_left_out_counts_as_its_default() -> None:
    inputs = call()
    zeros = torch.zeros_like(inputs["dht"])
    given = {
        "g": torch.zeros_like(inputs["g"]), "beta": torch.ones_like(inputs["beta"]), "initial_state": zeros,
        "dht": zeros, "do": torch.zeros_like(inputs["do"]), "scale": 6**-0.5,
    }  # fmt: skip
    for name, value in given.items():
        wanted = run("backward", inputs | {name: value})
        for file in ("backward", "backward_chunkwise"):
            got = run(file, inputs | {name: None})
            assert all(near(a, b) for a, b in zip(got, wanted, strict=True)), (file, name)


def test_with_equal_channels_the_channels_of_dg_sum_to_that_of_gated_delta_net() -> None:
    """There the gate is alpha itself: dg is alpha times its gradient."""
    inputs = call()
    gate = inputs["g"][..., :1].exp().clamp(min=0.1)
    own = run("backward", inputs | {"g": gate.log().expand(-1, -1, 6).contiguous()})
    other = code.module(family("gdn"), "backward").prefill_backward_k_last(**inputs | {"g": gate[..., 0]})
    assert near(own[3].sum(-1), gate[..., 0] * other[3])
    assert all(near(own[i], other[i]) for i in (0, 1, 2, 4, 5))
