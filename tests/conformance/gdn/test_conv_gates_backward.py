"""The gradients of convolution, norms and gates in one pass, against autograd through the forward reference."""

from typing import Any

import pytest
import torch
from helpers_unit import reference
from torch import Tensor

Keywords = dict[str, Any]
LENGTHS = (0, 5, 1, 0, 2, 14)
HK, HV, D = 2, 6, 4
FILES = ("backward_conv_gates", "backward_second")
INPUTS = ["x", "conv_weight", "conv_bias", "a", "b", "A_log", "dt_bias", "initial_state"]
COTANGENTS = ["dq", "dk", "dv", "dg", "dbeta", "dht"]
GRADIENTS = ["dx", "dconv_weight", "dconv_bias", "da", "db", "dA_log", "ddt_bias", "dh0"]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def near(got: Tensor, wanted: Tensor) -> bool:
    return got.shape == wanted.shape and bool((got - wanted).norm() <= 1e-10 * wanted.norm().clamp(min=1e-10))


def call(W: int = 4, lengths: tuple[int, ...] = LENGTHS) -> Keywords:
    """Channels of the first query head near 1e-3, where the epsilon counts; gates saturated at both ends among them."""
    torch.manual_seed(W)
    T, N, C = sum(lengths), len(lengths), (2 * HK + HV) * D
    made: Keywords = {"x": normal(T, C), "conv_weight": normal(C, W), "conv_bias": normal(C)}
    made["conv_weight"][:D] *= 1e-3
    made["conv_bias"][:D] *= 1e-3
    made |= {"a": normal(T, HV), "b": normal(T, HV), "A_log": 0.3 * normal(HV), "dt_bias": normal(HV)}
    made["a"][::7], made["a"][3::7], made["b"][1::5], made["b"][2::5] = 1e6, -100.0, 128.0, -128.0
    return made | {"cu_seqlens": torch.tensor([0, *lengths]).cumsum(0), "initial_state": normal(N, C, W - 1)}


def cotangents(inputs: Keywords) -> Keywords:
    T = len(inputs["x"])
    given = {"dq": normal(T, HK, D), "dk": normal(T, HK, D), "dv": normal(T, HV, D)}
    return given | {"dg": normal(T, HV), "dbeta": normal(T, HV), "dht": normal(*inputs["initial_state"].shape)}


def forward(cu_seqlens: Tensor, **given: Tensor) -> tuple[Tensor, ...]:
    """`conv_gates_prefill` of each sequence, and its state afterwards, without stores that autograd does not see."""
    conv, rule = reference("convolution"), reference("gated_delta_net")
    bounds, rows, states = cu_seqlens.tolist(), [], []
    for n, state in enumerate(given["initial_state"]):
        window = torch.cat([state.T, given["x"][bounds[n] : bounds[n + 1]]])
        rows.append(conv.convolve(window, given["conv_weight"], given["conv_bias"]))
        states.append(window[bounds[n + 1] - bounds[n] :].T)
    q, k, v = rule.split_channels(torch.cat(rows), HV, D, D)
    alpha = rule.forget_gate_raw(given["A_log"], given["a"], given["dt_bias"])
    return rule.l2_normalise(q), rule.l2_normalise(k), v, alpha, torch.sigmoid(given["b"]), torch.stack(states)


def by_autograd(inputs: Keywords, given: Keywords) -> list[Tensor]:
    leaves = {name: inputs[name].clone().requires_grad_() for name in INPUTS}
    outputs = forward(**inputs | leaves)
    loss = sum((x * given[dx]).sum() for x, dx in zip(outputs, COTANGENTS, strict=True))
    assert isinstance(loss, Tensor)
    return list(torch.autograd.grad(loss, [leaves[name] for name in INPUTS]))


def wrong(found: tuple[Tensor, ...], wanted: list[Tensor]) -> list[str]:
    """The gradients that differ. Each has a norm of its own, so a small one is as exact as a large one."""
    return [name for name, got, want in zip(GRADIENTS, found, wanted, strict=True) if not near(got, want)]


def test_the_forward_pass_of_these_tests_is_the_reference() -> None:
    inputs = call()
    (N, C, kept), slots = inputs["initial_state"].shape, torch.arange(len(LENGTHS), dtype=torch.int32)
    given = {name: x for name, x in inputs.items() if name != "initial_state"}
    flags = torch.ones(N, dtype=torch.bool)
    pool = {"conv_states": inputs["initial_state"], "slots": slots, "has_initial_state": flags, "head_dim": D}
    wanted = reference("convolution").conv_gates_prefill(**given, **pool)
    for got, want in zip(forward(**inputs), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)
    assert wanted[-1].shape == (N, C, kept)


@pytest.mark.parametrize("W", [2, 3, 4])
@pytest.mark.parametrize("file", FILES)
def test_it_has_the_gradients_of_autograd(file: str, W: int) -> None:
    inputs = call(W)
    given = cotangents(inputs)
    found = reference(file).conv_gates_backward(**inputs, **given)
    assert wrong(found, by_autograd(inputs, given)) == []
    assert all(x.dtype == torch.float64 for x in found)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", COTANGENTS)
def test_each_cotangent_alone_has_the_gradients_of_autograd(file: str, name: str) -> None:
    inputs = call()
    given = {other: x * (other == name) for other, x in cotangents(inputs).items()}
    found = reference(file).conv_gates_backward(**inputs, **given)
    assert wrong(found, by_autograd(inputs, given)) == []


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", ["conv_bias", "initial_state", "dht"])
def test_what_is_absent_counts_as_zeros(file: str, name: str) -> None:
    inputs, run = call(), reference(file).conv_gates_backward
    given = inputs | cotangents(inputs)
    zeros, absent = run(**given | {name: torch.zeros_like(given[name])}), run(**given | {name: None})
    assert all(torch.equal(x, y) for x, y in zip(zeros, absent, strict=True))


@pytest.mark.parametrize("file", FILES)
def test_gradcheck_takes_it_for_the_gradient(file: str) -> None:
    inputs = call(lengths=(2, 0, 5))
    inputs["a"], inputs["b"] = normal(*inputs["a"].shape), normal(*inputs["b"].shape)  # none at an end of its range
    run = reference(file).conv_gates_backward

    class Operator(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *leaves: Tensor) -> Any:
            ctx.save_for_backward(*leaves)
            return tuple(x.clone() for x in forward(**inputs | dict(zip(INPUTS, leaves, strict=True))))

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            leaves = dict(zip(INPUTS, ctx.saved_tensors, strict=True))
            return run(**inputs | leaves | dict(zip(COTANGENTS, grads, strict=True)))

    leaves = [inputs[name].clone().requires_grad_() for name in INPUTS]
    assert torch.autograd.gradcheck(Operator.apply, leaves, fast_mode=True)


@pytest.mark.parametrize("file", FILES)
def test_rows_behind_the_last_sequence_have_no_part_in_it(file: str) -> None:
    inputs, run = call(3), reference(file).conv_gates_backward
    given = inputs | cotangents(inputs)
    whole, tokens = run(**given), len(inputs["x"])
    of_tokens = ("x", "a", "b", "dq", "dk", "dv", "dg", "dbeta")
    longer = {name: torch.cat([given[name], normal(3, *given[name].shape[1:])]) for name in of_tokens}
    found = run(**given | longer)
    rows = ("dx", "da", "db")
    for name, got, want in zip(GRADIENTS, found, whole, strict=True):
        assert near(got[:tokens] if name in rows else got, want), name
        assert name not in rows or not got[tokens:].any(), name


@pytest.mark.parametrize("file", FILES)
def test_a_rate_that_overflows_has_gradients_of_zero_and_tokens_of_zeros_finite_ones(file: str) -> None:
    inputs = {name: x if name == "cu_seqlens" else x.float() for name, x in call().items()}
    inputs |= {"x": torch.zeros_like(inputs["x"]), "initial_state": None, "conv_bias": None}
    inputs["A_log"] = torch.tensor([102.0, 0.0] * (HV // 2))
    inputs["a"] = inputs["a"].clamp(min=-5)
    given = {name: x.float() for name, x in cotangents(call()).items()}
    found = dict(zip(GRADIENTS, reference(file).conv_gates_backward(**inputs, **given), strict=True))
    assert all(bool(x.isfinite().all()) for x in found.values())
    assert not any(found[name][..., ::2].any() for name in ("da", "dA_log", "ddt_bias"))
    assert all(found[name][..., 1::2].any() for name in ("da", "dA_log", "ddt_bias"))


def test_one_token_worked_out_by_hand() -> None:
    # One head of two channels, width 2, weights of the token itself alone. silu'(0) = 1 / 2; q = (0, y) has the norm of
    # y but for the epsilon, so its gradient is rstd along the first channel and almost nothing along the second.
    F64 = torch.float64
    given = {
        "x": torch.tensor([[0.0, 40.0, 0.0, 40.0, 0.0, 40.0]], dtype=F64),
        "conv_weight": torch.tensor([[7.0, 2.0]] * 6, dtype=F64), "conv_bias": None,
        "a": torch.tensor([[1.0]], dtype=F64), "b": torch.tensor([[0.0]], dtype=F64),
        "A_log": torch.log(torch.tensor([2.0], dtype=F64)), "dt_bias": torch.tensor([-1.0], dtype=F64),
        "cu_seqlens": torch.tensor([0, 1]), "initial_state": torch.zeros(1, 6, 1, dtype=F64),
        "dq": torch.tensor([[[3.0, 5.0]]], dtype=F64), "dk": torch.tensor([[[0.0, 5.0]]], dtype=F64),
        "dv": torch.tensor([[[3.0, 5.0]]], dtype=F64), "dg": torch.tensor([[8.0]], dtype=F64),
        "dbeta": torch.tensor([[4.0]], dtype=F64), "dht": None,
    }  # fmt: skip
    made = reference("backward_conv_gates").conv_gates_backward(**given)
    found = dict(zip(GRADIENTS, made, strict=True))
    # p = 2 x = (0, 80): y = (0, 80), rstd = 1 / 80; silu' = (1 / 2, 1).
    bias = torch.tensor([3 / 80 / 2, 0.0, 0.0, 0.0, 3 / 2, 5.0], dtype=F64)
    torch.testing.assert_close(found["dconv_bias"], bias, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found["dx"][0], 2 * bias, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found["dh0"][0, :, 0], 7 * bias, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found["dconv_weight"][:, 1], given["x"][0] * bias, rtol=1e-9, atol=1e-7)
    # alpha = exp(-2 log 2) = 1 / 4, d alpha / d a = alpha (-2) (1 / 2), d alpha / d A_log = alpha log alpha.
    assert float(found["da"]) == float(found["ddt_bias"]) == pytest.approx(-2.0)
    assert float(found["dA_log"]) == pytest.approx(8 / 4 * -1.3862943611198906)
    assert float(found["db"]) == pytest.approx(1.0)
