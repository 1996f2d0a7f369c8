"""The gradients of operators that a definition has: bfloat16 tokens, and a kernel of that definition."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from gdnspec import ops
from gdnspec.registration import by_kernel
from gdnspec.registration.registry import KERNELS
from helpers_gpu_operators import same_gradients
from helpers_operators import Call, calls, gradients, leaves
from sampled import one_in
from torch import Tensor

CALLS = calls(torch.bfloat16, torch.float32, torch.float32, K=16, V=16)
RULE, CONVOLUTION, NORM, GATES = (CALLS[x] for x in ("ragged", "convolution", "norm", "convolution and gates"))


def rule(gate: str, layout: str, args: tuple[Any, ...] = RULE.args) -> Call:
    """With a reset, whose gate has a gradient of its own in a linear gate."""
    q, k, v, g, beta, state, *more = args
    g = g.clone()
    g[4, 1] = -torch.inf
    state = state.mT.contiguous() if layout == "k_last" else state
    words = {"gate": gate, "state_layout": layout}
    return replace(RULE, args=(q, k, v, g if gate == "log" else g.exp(), beta, state, *more), words=words)


def padded(gate: str, layout: str) -> Call:
    """Two sequences of three tokens in the place of ragged ones."""
    q, k, v, g, beta, state, _ = rule(gate, layout).args
    batch = [x[:6].unflatten(0, (2, 3)) for x in (q, k, v, g, beta)]
    return replace(RULE, args=(*batch, state[:2].bfloat16()), words={"gate": gate, "state_layout": layout})


def convolution(lengths: tuple[int, ...], slots: tuple[int, ...] | None, bias: bool = True) -> Call:
    x, weight, b, _, states, *_ = CONVOLUTION.args
    starts, carried = torch.tensor([0, *lengths]).cumsum(0), torch.tensor([True, False, True, True])
    named = None if slots is None else torch.tensor(slots)
    return replace(CONVOLUTION, args=(x[: sum(lengths)], weight, b if bias else None, starts, states, named, carried))


def gates(slots: tuple[int, ...] | None, bias: bool = True) -> Call:
    """Of the convolution, norms and gates: sequences of 3, 2 and 0 tokens, the second one without a state."""
    x, weight, b, *gates, _, states, _, _, size = GATES.args
    starts, carried = torch.tensor([0, 3, 5, 5]), torch.tensor([True, False, True])
    args = (
        x,
        weight,
        b if bias else None,
        *gates,
        starts,
        states,
        None if slots is None else torch.tensor(slots, dtype=torch.int32),
        carried,
        size,
    )
    return replace(GATES, args=args)


def norm(*lead: int) -> Call:
    x, z, weight = NORM.args
    return replace(
        NORM, args=(x.reshape(-1, 16)[:4].reshape(*lead, 16), z.reshape(-1, 16)[:4].reshape(*lead, 16), weight)
    )


SERVED = {
    **{f"{gate} {layout}": (rule(gate, layout), definition) for gate, layout, definition in (
        ("log", "k_first", "gdn_prefill_backward_k_first"), ("linear", "k_last", "gdn_prefill_backward_k_last"),
        ("log", "k_last", "gdn_prefill_backward_k_last"), ("linear", "k_first", "gdn_prefill_backward_k_last"),
    )},
    "padded": (padded("linear", "k_first"), "gdn_prefill_backward_k_last"),
    "absent": (replace(RULE, args=(*RULE.args[:3], None, None, None, RULE.args[6])), "gdn_prefill_backward_k_first"),
    "convolution": (convolution((2, 1, 0, 4), (0, 2, 1, -1)), "gdn_conv1d_backward"),
    "without bias": (convolution((1, 3, 0, 3), (3, -1, 0, 4), bias=False), "gdn_conv1d_backward"),
    "convolution without slots": (convolution((2, 1, 0, 4), None), "gdn_conv1d_backward"),
    "convolution and gates": (gates((0, 1, 4)), "gdn_conv_gates_backward"),
    "gates without slots": (gates(None), "gdn_conv_gates_backward"),
    "gates of a skipped sequence": (gates((3, -1, 0), bias=False), "gdn_conv_gates_backward"),
    "norm": (norm(2, 2), "gdn_gated_rms_norm_backward"),
    "norm of rows": (norm(4), "gdn_gated_rms_norm_backward"),
    "norm of a batch": (norm(1, 2, 2), "gdn_gated_rms_norm_backward"),
}  # fmt: skip
KINDS = ("log k_last", "convolution", "norm")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The definitions of which a kernel is asked for."""
    names: list[str] = []
    kernel = by_kernel.kernel
    monkeypatch.setattr(by_kernel, "kernel", lambda name, *more: names.append(name) or kernel(name, *more))
    by_kernel.CHOSEN.clear()
    return names


@pytest.mark.parametrize("name", SERVED)
def test_they_are_those_of_the_same_call_in_float64(name: str, asked: list[str]) -> None:
    """Which test_operators.py compares with differences."""
    call, definition = SERVED[name]
    for without in (None, *range(len(call.outputs(*call.args)))):
        if name.startswith("norm") and without is not None:
            continue  # it has one output
        found, wanted = gradients(call, without=without), gradients(call, torch.float64, without)
        for i, gradient in found.items():
            assert (gradient.dtype, gradient.shape) == (call.args[i].dtype, call.args[i].shape)
            far = (gradient.double() - wanted[i]).norm() / wanted[i].norm().clamp(min=1e-30)
            assert far < 5e-3, (without, i, float(far))
    assert set(asked) == {definition}


IN_ORDER = {
    "convolution": (convolution((2, 1, 0, 4), None), convolution((2, 1, 0, 4), (0, 1, 2, 3))),
    "gates": (gates(None), gates((0, 1, 2))),
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_without_slots_they_are_those_of_one_slot_after_the_other(name: str) -> None:
    """And so are the outputs, and the states that a call leaves."""
    found, wanted = IN_ORDER[name]
    assert all(map(torch.equal, found.outputs(*found.copy()), wanted.outputs(*wanted.copy())))
    one, other = gradients(found), gradients(wanted)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[i], other[i]) for i in one)


def test_a_kernel_is_chosen_once_for_a_form_and_none_for_other_types(asked: list[str]) -> None:
    for _ in range(2):
        gradients(RULE)
        gradients(RULE, torch.float32)
    assert asked == ["gdn_prefill_backward_k_first"]


@pytest.mark.parametrize("width", [1, 5])
def test_widths_that_no_definition_has_get_their_gradients_from_pytorch(width: int, asked: list[str]) -> None:
    x, weight, bias, starts, states, *more = convolution((2, 1, 0, 4), (0, 2, 1, -1)).args
    more_taps, more_columns = weight.repeat(1, 2)[:, :width], states.repeat(1, 1, 2)[..., : width - 1]
    call = replace(CONVOLUTION, args=(x, more_taps, bias, starts, more_columns, *more))
    found, wanted = gradients(call), gradients(call, torch.float64)
    for i, gradient in found.items():
        assert (gradient.double() - wanted[i]).norm() <= 5e-3 * wanted[i].norm()
    assert asked == []


@pytest.mark.parametrize("name", one_in(3, KINDS))
def test_opcheck_finds_nothing(name: str) -> None:
    call, _ = SERVED[name]
    names = call.operator._schema.arguments
    args = [x.requires_grad_(i not in call.pools) if _floats(x) else x for i, x in enumerate(call.copy())]
    args += [call.words.get(x.name, x.default_value) for x in names[len(args) :]]
    assert set(torch.library.opcheck(call.operator, tuple(args)).values()) == {"SUCCESS"}


class Layer(torch.nn.Module):
    """Convolution, rule and norm, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        weight, bias = CALLS["convolution and gates"].args[1:3]
        self.weight, self.bias, self.norm = (torch.nn.Parameter(x.clone()) for x in (weight, bias, NORM.args[2]))

    def forward(self, x: Tensor, z: Tensor, g: Tensor, beta: Tensor, starts: Tensor, states: Tensor) -> Tensor:
        slots = torch.arange(len(starts) - 1)
        mixed = ops.causal_conv1d(x, self.weight, self.bias, starts, states, slots, slots >= 0)
        q, k, v = (part.unflatten(1, (-1, 16)) for part in mixed.split([32, 32, 64], dim=1))
        output, _ = ops.gated_delta_rule(q, torch.nn.functional.normalize(k, dim=-1), v, g, beta, None, starts)
        return ops.gated_rms_norm(output, z, self.norm)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)])
def test_a_compiled_layer_trains_as_it_does_without_the_compiler(backend: str) -> None:
    torch._dynamo.reset()
    layer = Layer()
    x, *_, states, _, _, _ = CALLS["convolution and gates"].args
    _, _, z, g, beta, _, starts = RULE.args
    found = []
    for function in (torch.compile(layer, fullgraph=True, backend=backend), layer):
        layer.zero_grad()
        inputs = x.clone().requires_grad_()
        function(inputs, z, g, beta, starts, states[:3].clone()).float().square().sum().backward()
        found.append([inputs.grad, *(p.grad for p in layer.parameters())])
    assert len(found[0]) == 4
    for mine, theirs in zip(*found, strict=True):
        assert (mine - theirs).norm() <= 0.02 * theirs.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", KINDS)
def test_a_second_derivative_is_refused_where_it_is_asked_for(name: str, dtype: torch.dtype) -> None:
    call, _ = SERVED[name]
    args = leaves(call, dtype)
    wanted = [x for x in args if _floats(x)]
    first = torch.autograd.grad(call.outputs(*args)[0].sum(), wanted, create_graph=True)
    assert all(x.isfinite().all() for x in first)
    with pytest.raises(RuntimeError, match=rf"^{call.name}: second derivatives are not served: leave create_graph out"):
        (first[0].sum() + first[1].sum()).backward()
    first = torch.autograd.grad(call.outputs(*args)[0].sum(), wanted, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives are not served"):
        torch.autograd.grad(first[1].sum(), wanted[:1])


@pytest.mark.parametrize("name", ["log k_first", "linear k_last"])
def test_inputs_may_lie_as_the_forward_pass_takes_them(name: str) -> None:
    """Transposed states and heads ahead of tokens, of which a definition's kernel would want contiguous copies."""
    call, _ = SERVED[name]
    turned = [x.mT.contiguous().mT if isinstance(x, Tensor) and x.dim() > 1 else x for x in call.args]
    assert not turned[2].is_contiguous() and not turned[5].is_contiguous()
    found, wanted = gradients(replace(call, args=tuple(turned))), gradients(call)
    assert all(torch.equal(found[i], wanted[i]) for i in wanted)


# --- the path of a GPU ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log k_last", "padded", "convolution", "norm of a batch"])
def test_a_call_with_gradients_runs_the_kernel_of_the_forward_pass(name: str, asked: list[str]) -> None:
    """The function for CUDA tensors, with the solution in PyTorch that `gdnspec.kernel` gives on a CPU."""
    call, definition = SERVED[name]
    assert call.function  # registers it
    forward = KERNELS[f"{call.name}_forward"]["CUDA"]
    arguments = call.operator._schema.arguments
    args = [*call.copy(), *(call.words.get(x.name, x.default_value) for x in arguments[len(call.args) :])]
    kept = [args[i].clone() for i in call.pools]
    for dtype, kernels in ((torch.float64, 0), (None, 1)):
        given = [x.to(dtype or x.dtype) if _floats(x) else x for x in args]
        found = forward(*given)
        found = found if isinstance(found, tuple) else (found,)
        wanted = call.outputs(*given[: len(call.args)])
        for output, value in zip(found, wanted, strict=True):
            torch.testing.assert_close(output, value, rtol=1e-2, atol=1e-2)
        assert len(asked) == kernels
    assert all(torch.equal(args[i], x) for i, x in zip(call.pools, kept, strict=True))
    assert asked == [definition.replace("_backward", "_prefill" if "conv" in definition else "")]


@pytest.mark.gpu
@pytest.mark.parametrize("name", SERVED)
def test_a_gpu_has_the_same_gradients(name: str) -> None:
    same_gradients(SERVED[name][0])


def _floats(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
