"""Gradients of what stands around the rule: both derivations against autograd through the forward reference."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers_unit import reference
from torch import Tensor

Keywords = dict[str, Any]
LENGTHS = (0, 5, 1, 0, 14)
GVA, GQA = (2, 2, 4), (4, 2, 2)
FILES = ("backward_around", "backward_second")


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def near(got: Tensor, wanted: Tensor) -> bool:
    return got.shape == wanted.shape and bool((got - wanted).norm() <= 1e-10 * wanted.norm().clamp(min=1e-10))


def by_autograd(
    forward: Callable[..., tuple[Tensor, ...]], inputs: Keywords, names: list[str], cotangents: list[Tensor]
) -> list[Tensor]:
    """The gradients of the named inputs, given those of what the forward pass returns."""
    leaves = {name: inputs[name].clone().requires_grad_() for name in names}
    outputs = forward(**inputs | leaves)
    loss = sum((x * dx).sum() for x, dx in zip(outputs, cotangents, strict=True))
    assert isinstance(loss, Tensor)
    return list(torch.autograd.grad(loss, [leaves[name] for name in names]))


def differentiable(
    forward: Callable[..., tuple[Tensor, ...]], backward: Callable[..., tuple[Tensor, ...]], inputs: Keywords,
    names: list[str], cotangents: list[str],
) -> Callable[..., Any]:  # fmt: skip
    """The forward pass with these gradients, as `gradcheck` takes it."""

    class Operator(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *leaves: Tensor) -> Any:
            ctx.save_for_backward(*leaves)
            return tuple(x.clone() for x in forward(**inputs | dict(zip(names, leaves, strict=True))))

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            given = dict(zip(names, ctx.saved_tensors, strict=True)) | dict(zip(cotangents, grads, strict=True))
            return backward(**inputs | given)

    return Operator.apply  # type: ignore[no-any-return]


# --- the gated norm ---------------------------------------------------------------------------------------------

NORM = ["x", "z", "weight"]


def norm_call() -> Keywords:
    """One vector near 1e-4, where eps counts, and output gates far from 0."""
    torch.manual_seed(5)
    made: Keywords = {"x": normal(5, 3, 7), "z": 4 * normal(5, 3, 7), "weight": normal(7), "eps": 1e-3}
    made["x"][1] *= 1e-4
    made["z"][2, 0], made["z"][2, 1] = 60.0, -60.0
    return made


def norm_forward(**inputs: Any) -> tuple[Tensor, ...]:
    return (reference("layer").gated_rms_norm(**inputs),)


@pytest.mark.parametrize("eps", [1e-3, 0.0, None])
@pytest.mark.parametrize("file", FILES)
def test_the_gated_norm_has_the_gradients_of_autograd(file: str, eps: float | None) -> None:
    inputs = norm_call() | {"eps": eps}
    do = normal(*inputs["x"].shape)
    found = reference(file).gated_rms_norm_backward(**inputs, do=do)
    wanted = by_autograd(norm_forward, inputs, NORM, [do])
    assert [name for name, got, want in zip(NORM, found, wanted, strict=True) if not near(got, want)] == []


def test_gradcheck_takes_those_of_the_gated_norm_for_the_gradient() -> None:
    inputs = norm_call() | {"x": normal(5, 3, 7)}
    backward = reference("backward_around").gated_rms_norm_backward
    operator = differentiable(norm_forward, backward, inputs, NORM, ["do"])
    assert torch.autograd.gradcheck(operator, [inputs[name].clone().requires_grad_() for name in NORM], fast_mode=True)


# --- the convolution --------------------------------------------------------------------------------------------

CONV = ["x", "weight", "bias", "initial_state"]


def conv_call(W: int) -> Keywords:
    """Sequences shorter and longer than the kernel, and empty ones."""
    torch.manual_seed(W)
    N, C = len(LENGTHS), 5
    made: Keywords = {"x": normal(sum(LENGTHS), C), "weight": normal(C, W), "bias": normal(C)}
    return made | {"cu_seqlens": torch.tensor([0, *LENGTHS]).cumsum(0), "initial_state": normal(N, C, W - 1)}


def conv_forward(
    x: Tensor, weight: Tensor, bias: Tensor, cu_seqlens: Tensor, initial_state: Tensor
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`convolve` of each sequence, as `conv1d_prefill` does it with stores that autograd does not see through."""
    bounds, outputs, states = cu_seqlens.tolist(), [], []
    for n, state in enumerate(initial_state):
        window = torch.cat([state.T, x[bounds[n] : bounds[n + 1]]])
        outputs.append(reference("convolution").convolve(window, weight, bias))
        states.append(window[bounds[n + 1] - bounds[n] :].T)
    return torch.cat(outputs), torch.stack(states)


@pytest.mark.parametrize("W", [2, 4])
@pytest.mark.parametrize("file", FILES)
def test_the_convolution_has_the_gradients_of_autograd(file: str, W: int) -> None:
    inputs = conv_call(W)
    given = {"do": normal(*inputs["x"].shape), "dht": normal(*inputs["initial_state"].shape)}
    run = reference(file).conv1d_backward
    wanted = by_autograd(conv_forward, inputs, CONV, [*given.values()])
    found = run(**inputs, **given)
    assert [name for name, got, want in zip(CONV, found, wanted, strict=True) if not near(got, want)] == []
    for name in ("bias", "initial_state", "do", "dht"):  # what is absent counts as zeros
        zeros = {name: torch.zeros_like((inputs | given)[name])}
        both = (run(**inputs | given | absent) for absent in ({name: None}, zeros))
        assert all(near(a, b) for a, b in zip(*both, strict=True)), name


def test_gradcheck_takes_those_of_the_convolution_for_the_gradient() -> None:
    inputs = conv_call(4)
    backward = reference("backward_around").conv1d_backward
    operator = differentiable(conv_forward, backward, inputs, CONV, ["do", "dht"])
    assert torch.autograd.gradcheck(operator, [inputs[name].clone().requires_grad_() for name in CONV], fast_mode=True)


@pytest.mark.parametrize("file", FILES)
def test_rows_behind_the_last_sequence_have_no_part_in_the_gradients_of_a_convolution(file: str) -> None:
    inputs, run = conv_call(3), reference(file).conv1d_backward
    given = {"do": normal(*inputs["x"].shape), "dht": normal(*inputs["initial_state"].shape)}
    whole, tokens = run(**inputs, **given), len(inputs["x"])
    longer = {"x": torch.cat([inputs["x"], normal(3, 5)]), "do": torch.cat([given["do"], normal(3, 5)])}
    found = run(**inputs | given | longer)
    assert not found[0][tokens:].any()
    assert all(near(x, y) for x, y in zip((found[0][:tokens], *found[1:]), whole, strict=True))


# --- prefill from raw gates -------------------------------------------------------------------------------------

RAW = ["q", "k", "v", "a", "b", "A_log", "dt_bias", "initial_state"]


def raw_call(heads: tuple[int, int, int] = GVA, norm: bool = True, lengths: tuple[int, ...] = LENGTHS) -> Keywords:
    """Inputs in float64, raw gates saturated at both ends among them."""
    torch.manual_seed(4)
    T, H, K, N = sum(lengths), max(heads), 4, len(lengths)
    made: Keywords = {name: normal(T, count, K) for name, count in zip("qkv", heads, strict=True)}
    made["q"][::5] *= 1e-4  # where the epsilon counts
    made |= {"a": normal(T, H), "b": normal(T, H), "A_log": 0.3 * normal(H), "dt_bias": normal(H)}
    made["a"][::7], made["a"][3::7], made["b"][1::5], made["b"][2::5] = 1e6, -100.0, 128.0, -128.0
    made |= {"cu_seqlens": torch.tensor([0, *lengths]).cumsum(0), "initial_state": normal(N, H, K, K)}
    made |= {"scale": 0.7, "use_qk_l2norm": norm}
    return made


def raw_cotangents(inputs: Keywords) -> Keywords:
    states = inputs["initial_state"]
    return {"do": normal(len(inputs["q"]), *states.shape[1:3]), "dht": normal(*states.shape)}


def raw_forward(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, cu_seqlens: Tensor,
    initial_state: Tensor, scale: float, use_qk_l2norm: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`step` over the tokens, as `prefill_k_last` does it with stores that autograd does not see through."""
    rule = reference("gated_delta_net")
    q, k = (rule.l2_normalise(x) if use_qk_l2norm else x for x in (q, k))
    H, bounds, rows, states = a.shape[1], cu_seqlens.tolist(), [], []
    Q, K, V = (rule.expand_heads(x, H) for x in (q, k, v))
    alpha, beta = rule.forget_gate_raw(A_log, a, dt_bias), torch.sigmoid(b)
    for n, S in enumerate(initial_state):
        for t in range(bounds[n], bounds[n + 1]):
            o, S = rule.step(S, Q[t], K[t], V[t], alpha[t], beta[t], scale)
            rows.append(o)
        states.append(S)
    return torch.stack(rows), torch.stack(states)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(("heads", "norm"), [(GVA, True), (GQA, True), (GVA, False)])
def test_raw_gates_have_the_gradients_of_autograd(file: str, heads: tuple[int, int, int], norm: bool) -> None:
    inputs = raw_call(heads, norm)
    given = raw_cotangents(inputs)
    found = reference(file).prefill_backward_raw_gates(**inputs, **given)
    wanted = by_autograd(raw_forward, inputs, RAW, [given["do"], given["dht"]])
    assert all(bool(x.isfinite().all()) for x in found)
    assert [name for name, got, want in zip(RAW, found, wanted, strict=True) if not near(got, want)] == []


def test_gradcheck_takes_those_of_raw_gates_for_the_gradient() -> None:
    inputs = raw_call(lengths=(3, 0, 2))
    inputs |= {name: inputs[name].clamp(-2, 2) for name in ("a", "b")} | {"q": normal(*inputs["q"].shape)}
    backward = reference("backward_around").prefill_backward_raw_gates
    operator = differentiable(raw_forward, backward, inputs, RAW, ["do", "dht"])
    leaves = [inputs[name].clone().requires_grad_() for name in RAW]
    assert torch.autograd.gradcheck(operator, leaves, fast_mode=True)


@pytest.mark.parametrize("file", FILES)
def test_rows_behind_the_last_sequence_have_no_part_in_any_gradient(file: str) -> None:
    inputs = raw_call()
    given, run = raw_cotangents(inputs), reference(file).prefill_backward_raw_gates
    whole = run(**inputs, **given)
    more = {name: torch.cat([inputs[name], normal(3, *inputs[name].shape[1:])]) for name in ("q", "k", "v", "a", "b")}
    longer = torch.cat([given["do"], normal(3, *given["do"].shape[1:])])
    found = run(**inputs | more, **given | {"do": longer})
    tokens = len(inputs["q"])
    assert not any(x[tokens:].any() for x in found[:5])
    assert all(near(x[:tokens], y) for x, y in zip(found[:5], whole[:5], strict=True))
    assert all(near(x, y) for x, y in zip(found[5:], whole[5:], strict=True))


# --- the layer --------------------------------------------------------------------------------------------------

WEIGHTS = [
    "qkv_weight", "z_weight", "a_weight", "b_weight", "conv_weight", "A_log", "dt_bias", "norm_weight", "out_weight",
]  # fmt: skip
LAYER = ["x", *WEIGHTS, "conv_state", "initial_state"]
LAYER_GRADS = ["do", "dconv_ht", "dht"]


def layer_call(lengths: tuple[int, ...] = LENGTHS) -> Keywords:
    """One key head, two value heads, keys and values of different sizes."""
    torch.manual_seed(6)
    (H, K, V, D, W), N = (2, 3, 4, 5, 3), len(lengths)
    C = 2 * K + H * V
    shapes = {"x": (sum(lengths), D), "qkv_weight": (C, D), "z_weight": (H * V, D), "a_weight": (H, D)}
    shapes |= {"b_weight": (H, D), "conv_weight": (C, W), "A_log": (H,), "dt_bias": (H,), "norm_weight": (V,)}
    shapes |= {"out_weight": (D, H * V), "conv_state": (N, C, W - 1), "initial_state": (N, H, K, V)}
    made: Keywords = {name: 0.5 * normal(*shape) for name, shape in shapes.items()}
    return made | {"cu_seqlens": torch.tensor([0, *lengths]).cumsum(0)}


def layer_grads(inputs: Keywords) -> Keywords:
    return {name: normal(*inputs[like].shape) for name, like in zip(LAYER_GRADS, ("x", *LAYER[-2:]), strict=True)}


def layer_forward(**inputs: Tensor) -> tuple[Tensor, ...]:
    """The layer of its parts, each where autograd sees through it."""
    weights, norm = {name: inputs[name] for name in WEIGHTS}, reference("layer")
    qkv, z, a, b = (inputs["x"] @ weights[name].T for name in WEIGHTS[:4])
    zeros = torch.zeros(len(weights["conv_weight"]), dtype=qkv.dtype)
    mixed, conv = conv_forward(qkv, weights["conv_weight"], zeros, inputs["cu_seqlens"], inputs["conv_state"])
    H, K, V = inputs["initial_state"].shape[1:]
    q, k, v = reference("gated_delta_net").split_channels(mixed, H, K, V)
    gates = (a, b, weights["A_log"], weights["dt_bias"])
    o, S = raw_forward(q, k, v, *gates, inputs["cu_seqlens"], inputs["initial_state"].mT, K**-0.5, True)
    y = norm.gated_rms_norm(o, z.unflatten(1, (H, V)), weights["norm_weight"], None).flatten(1)
    return y @ weights["out_weight"].T, conv, S.mT


@pytest.mark.parametrize("function", ["layer_backward", "layer_backward_in_chunks"])
def test_the_layer_has_the_gradients_of_autograd(function: str) -> None:
    inputs = layer_call()
    given = layer_grads(inputs)
    run = getattr(reference("backward_layer"), function)
    found, wanted = run(**inputs, **given), by_autograd(layer_forward, inputs, LAYER, [*given.values()])
    assert [name for name, got, want in zip(LAYER, found, wanted, strict=True) if not near(got, want)] == []
    for name in LAYER_GRADS[1:]:
        both = (run(**inputs, **given | {name: value}) for value in (None, torch.zeros_like(given[name])))
        assert all(near(x, y) for x, y in zip(*both, strict=True)), name


def test_the_layer_that_is_differentiated_is_that_of_prefill() -> None:
    inputs = layer_call()
    N = len(LENGTHS)
    each = torch.arange(N)
    pools = {"conv_states": inputs["conv_state"], "conv_slots": each, "recurrent_states": inputs["initial_state"]}
    weights = {name: inputs[name] for name in ("x", *WEIGHTS, "cu_seqlens")}
    kept = torch.ones(N, dtype=torch.bool)
    wanted = reference("layer").layer_prefill(**weights, **pools, state_slots=each, has_initial_state=kept)
    assert all(near(x, y) for x, y in zip(layer_forward(**inputs), wanted, strict=True))


def test_gradcheck_takes_those_of_the_layer_for_the_gradient() -> None:
    inputs = layer_call((3, 0, 2))
    operator = differentiable(layer_forward, reference("backward_layer").layer_backward, inputs, LAYER, LAYER_GRADS)
    assert torch.autograd.gradcheck(operator, [inputs[name].clone().requires_grad_() for name in LAYER], fast_mode=True)


@pytest.mark.parametrize("function", ["layer_backward", "layer_backward_in_chunks"])
def test_rows_behind_the_last_sequence_have_no_part_in_the_gradients_of_a_layer(function: str) -> None:
    inputs, run = layer_call(), getattr(reference("backward_layer"), function)
    given = layer_grads(inputs)
    whole, tokens = run(**inputs, **given), len(inputs["x"])
    longer = {"x": torch.cat([inputs["x"], normal(3, 5)]), "do": torch.cat([given["do"], normal(3, 5)])}
    found = run(**inputs | given | longer)
    assert not found[0][tokens:].any()
    assert all(near(x, y) for x, y in zip((found[0][:tokens], *found[1:]), whole, strict=True))
