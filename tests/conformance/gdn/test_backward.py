"""The gradients of prefill: both derivations against autograd through the forward reference, and what must hold."""

from typing import Any

import pytest
import torch
from gdnspec.build.reference import function
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.families import family
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.materialise import materialise
from gdnspec.numerics.torch_arrays import to_torch
from torch import Tensor

GDN = family("gdn")
LENGTHS = (0, 5, 1, 0, 19)
GVA, GQA, MHA = (1, 1, 2), (4, 2, 2), (2, 2, 2)
NAMES = ("q", "k", "v", "g", "beta", "initial_state")
LAYOUTS = ("k_last", "k_first")
IN_CHUNKS = [1, 4, 16, 64]


def reference(file: str, name: str) -> Any:
    return function(GDN, f"{file}.py::{name}")


def call(layout: str, heads: tuple[int, int, int] = GVA, lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    """Inputs in float64 with resets (alpha = 0), alpha = 1, and beta 0, 1 and 2."""
    torch.manual_seed(3)
    tokens, H, K, V = sum(lengths), max(heads), 6, 6
    made: dict[str, Any] = {
        name: torch.randn(tokens, count, K, dtype=torch.float64) for name, count in zip("qkv", heads, strict=True)
    }
    made["k"] /= made["k"].norm(dim=-1, keepdim=True)
    alpha = torch.rand(tokens, H, dtype=torch.float64)
    alpha[::7], alpha[3::7] = 0.0, 1.0
    beta = 2 * torch.rand(tokens, H, dtype=torch.float64)
    beta[1::5], beta[2::5], beta[4::5] = 0.0, 1.0, 2.0
    made |= {"g": alpha if layout == "k_last" else alpha.log(), "beta": beta}
    made["cu_seqlens"] = torch.tensor((0, *lengths)).cumsum(0)
    made["initial_state"] = torch.randn(len(lengths), H, V, K, dtype=torch.float64)
    made["scale"] = 0.7
    made["do"] = torch.randn(tokens, H, V, dtype=torch.float64)
    made["dht"] = torch.randn(len(lengths), H, V, K, dtype=torch.float64)
    return made


def forward(layout: str, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The forward reference, its `step` over the tokens: without the stores that autograd does not see through."""
    step, H = reference("gated_delta_net", "step"), inputs["g"].shape[1]
    Q, K, V = (inputs[name].repeat_interleave(H // inputs[name].shape[1], dim=1) for name in "qkv")
    alpha = inputs["g"] if layout == "k_last" else inputs["g"].exp()
    bounds, rows, states = inputs["cu_seqlens"].tolist(), [], []
    for n, S in enumerate(inputs["initial_state"] if layout == "k_last" else inputs["initial_state"].mT):
        for t in range(bounds[n], bounds[n + 1]):
            o, S = step(S, Q[t], K[t], V[t], alpha[t], inputs["beta"][t], inputs["scale"])
            rows.append(o)
        states.append(S if layout == "k_last" else S.mT)
    return torch.stack(rows), torch.stack(states)


def by_autograd(layout: str, inputs: dict[str, Any]) -> list[Tensor]:
    leaves = {name: inputs[name].clone().requires_grad_() for name in NAMES}
    output, state = forward(layout, inputs | leaves)
    loss = (output * inputs["do"]).sum() + (state * inputs["dht"]).sum()
    return list(torch.autograd.grad(loss, [leaves[name] for name in NAMES]))


def near(got: Tensor, wanted: Tensor) -> bool:
    return got.shape == wanted.shape and bool((got - wanted).norm() <= 1e-10 * wanted.norm().clamp(min=1e-10))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("heads", [GVA, GQA, MHA])
def test_the_recurrence_is_what_autograd_finds(layout: str, heads: tuple[int, int, int]) -> None:
    inputs = call(layout, heads)
    found = reference("backward", f"prefill_backward_{layout}")(**inputs)
    assert all(bool(x.isfinite().all()) for x in found)  # among them those at alpha = 0
    for name, got, wanted in zip(NAMES, found, by_autograd(layout, inputs), strict=True):
        assert near(got, wanted), name


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunk_size", IN_CHUNKS)
def test_the_derivation_by_chunks_is_the_recurrence(layout: str, chunk_size: int) -> None:
    inputs = call(layout)
    found = reference("backward_chunkwise", f"prefill_backward_{layout}")(**inputs, chunk_size=chunk_size)
    for name, got, wanted in zip(
        NAMES, found, reference("backward", f"prefill_backward_{layout}")(**inputs), strict=True
    ):
        assert near(got, wanted), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_left_out_counts_as_its_default(layout: str) -> None:
    inputs = call(layout)
    run = reference("backward", f"prefill_backward_{layout}")
    ones = torch.ones_like(inputs["g"])
    zeros = torch.zeros_like(inputs["dht"])
    given = inputs | {
        "g": ones if layout == "k_last" else 0 * ones, "beta": ones, "initial_state": zeros, "dht": zeros,
        "do": torch.zeros_like(inputs["do"]), "scale": 6**-0.5,
    }  # fmt: skip
    for name in ("g", "beta", "initial_state", "dht", "do", "scale"):
        wanted = run(**inputs | {name: given[name]})
        for file in ("backward", "backward_chunkwise"):
            got = reference(file, f"prefill_backward_{layout}")(**inputs | {name: None})
            assert all(near(a, b) for a, b in zip(got, wanted, strict=True)), (file, name)


def test_gradcheck_takes_it_for_the_gradient() -> None:
    inputs = call("k_last", lengths=(4, 0, 3))
    inputs["g"] = inputs["g"].clamp(0.1, 0.9)  # a difference on either side of 0 leaves the domain

    class Rule(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *leaves: Tensor) -> Any:
            ctx.save_for_backward(*leaves)
            return forward("k_last", inputs | dict(zip(NAMES, leaves, strict=True)))

        @staticmethod
        def backward(ctx: Any, do: Tensor, dht: Tensor) -> Any:
            given = inputs | dict(zip(NAMES, ctx.saved_tensors, strict=True)) | {"do": do, "dht": dht}
            return reference("backward", "prefill_backward_k_last")(**given)

    leaves = [inputs[name].clone().requires_grad_() for name in NAMES]
    assert torch.autograd.gradcheck(Rule.apply, leaves, fast_mode=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_identities_hold(layout: str) -> None:
    inputs = call(layout)
    output, state = forward(layout, inputs)
    dq, _, dv, _, _, dh0 = reference("backward", f"prefill_backward_{layout}")(**inputs)
    start = 0
    for n, length in enumerate(LENGTHS):
        t = slice(start, start + length)
        read, start = (output[t] * inputs["do"][t]).sum(), start + length
        assert torch.isclose((inputs["q"][t] * dq[t]).sum(), read)
        given = (inputs["v"][t] * dv[t]).sum() + (inputs["initial_state"][n] * dh0[n]).sum()
        assert torch.isclose(given, read + (state[n] * inputs["dht"][n]).sum())
    run = reference("backward", f"prefill_backward_{layout}")
    without = run(**inputs | {"initial_state": None})
    assert not without[3][torch.tensor([0, 5, 6])].any()  # the first token of each sequence
    assert without[5].any()
    last = torch.zeros_like(inputs["do"])
    last[8] = inputs["do"][8]  # in the last sequence
    alone = run(**inputs | {"do": last, "dht": None})
    assert not any(x[9:].any() or x[:6].any() for x in alone[:5])


@pytest.mark.parametrize("file", ["backward", "backward_chunkwise"])
def test_edges(file: str) -> None:
    """Empty sequences hand dht on; rows behind the last sequence have zero gradients."""
    inputs = call("k_last")
    inputs["cu_seqlens"] = torch.tensor([0, 0, 5, 6, 6, 20])  # five rows less
    found = reference(file, "prefill_backward_k_last")(**inputs)
    assert torch.equal(found[5][[0, 3]], inputs["dht"][[0, 3]])
    assert not any(x[20:].any() for x in found[:5])
    assert all(x[:20].any() for x in found[:5])


# --- states that the forward pass has left -------------------------------------------------------------------------

KEPT = "gdn_prefill_backward_checkpoints"


@pytest.mark.parametrize("heads", [GVA, GQA])
@pytest.mark.parametrize("interval", [64, 128])
def test_states_of_the_forward_pass_change_no_gradient(heads: tuple[int, int, int], interval: int) -> None:
    """Neither by tokens nor in chunks, whichever of them a piece begins with."""
    lengths = (0, 65, 128, 30)
    inputs = call("k_last", heads, lengths)
    whole = reference("backward", "prefill_backward_k_last")(**inputs)
    starts = torch.tensor([0, *(length // interval for length in lengths)]).cumsum(0)
    of_forward = {name: x for name, x in inputs.items() if name not in ("do", "dht")}
    kept = {"checkpoint_cu_starts": starts, "checkpoint_interval": interval}
    checkpoints = reference("gated_delta_net", "prefill_checkpoints")(**of_forward, **kept)[2]
    for name in ("prefill_backward_checkpoints", "prefill_backward_checkpoints_in_chunks"):
        found = reference("backward_residuals", name)(**inputs, checkpoints=checkpoints, **kept)
        assert all(near(got, wanted) for got, wanted in zip(found, whole, strict=True)), name


@pytest.mark.parametrize("row", ["ragged", "only_required", "gqa"])
def test_drawn_states_are_those_of_the_forward_pass(row: str) -> None:
    found = definition(KEPT)
    inputs = materialise(found, next(w for w in workloads(found) if w.name == row))
    given = {name: to_torch(x) for name, x in inputs.tensors.items()} | inputs.scalars
    drawn = given.pop("checkpoints")
    exact = {name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for name, x in given.items()}
    absent = dict.fromkeys(("g", "beta", "initial_state", "scale"))
    of_forward = {name: x for name, x in (absent | exact).items() if name not in ("do", "dht")}
    checkpoints = reference("gated_delta_net", "prefill_checkpoints")(**of_forward)[2]
    assert len(drawn) > 0
    assert float((drawn - checkpoints).norm()) <= 2.0**-24 * float(checkpoints.norm())
