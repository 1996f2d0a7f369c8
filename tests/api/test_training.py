"""What a training loop does with the operators of all families, on a CPU."""

from collections.abc import Callable, Iterator
from typing import Any

import helpers_kda_operators
import helpers_operators
import pytest
import torch
from gdnspec import ops
from gdnspec.api.precise import Precise
from helpers_operators import Call
from torch import Tensor

ROWS = ("q", "k", "v", "x", "qkv", "z", "a", "b", "g", "beta")
SLOTS = ("read_slots", "initial_slots", "slots", "conv_slots")


def every(dtype: torch.dtype) -> dict[str, Call]:
    """With heads of 16, gradients of bfloat16 come from solutions where a definition has them."""
    gates = torch.promote_types(dtype, torch.float32) if dtype != torch.bfloat16 else torch.float32
    gdn = helpers_operators.calls(dtype, gates, None if dtype == torch.bfloat16 else gates, K=16, V=16)
    kda = helpers_kda_operators.calls(dtype, gates, 16)
    return {**{f"gdn, {name}": call for name, call in gdn.items()}, **{f"kda, {name}": x for name, x in kda.items()}}


CALLS, TOKENS = every(torch.float32), every(torch.bfloat16)
POOLS = [name for name, call in CALLS.items() if call.pools]
BY_PYTORCH, BY_SOLUTION = CALLS["kda, raw gates"], TOKENS["gdn, ragged"]


def words(call: Call) -> list[str]:
    return [x.name for x in call.operator._schema.arguments]


def floats(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def gradients(call: Call, args: Any, change: Callable[[Tensor], Any] = lambda x: x) -> dict[str, Tensor]:
    """Those of all inputs, where all outputs have gradients."""
    given = [x.requires_grad_() if floats(x) else x for x in args]
    random = torch.Generator().manual_seed(2)
    outputs = call.outputs(*given)
    grads = [torch.randn(x.shape, generator=random, dtype=torch.float64).to(x.dtype) for x in outputs]
    torch.autograd.backward([change(x) for x in outputs], grads)
    return {name: x.grad for name, x in zip(words(call), given, strict=False) if floats(x)}


# --- values that are no numbers, or too large ---------------------------------------------------------------------


@pytest.mark.parametrize("large", [100.0, torch.inf])
@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if "A_log" in words(call)])
def test_a_forget_gate_whose_exponent_overflows_has_a_gradient_of_zero(name: str, large: float) -> None:
    """exp(100) is infinite in float32 and a number in float64. The gate is 0 in both."""
    call = CALLS[name]
    rates, found = words(call).index("A_log"), []
    for dtype, value in ((torch.float32, large), (torch.float64, 100.0)):
        args = [x.to(dtype) if floats(x) else x for x in call.copy()]
        args[rates][0] = value
        found.append(gradients(call, args))
    for word, gradient in found[0].items():
        assert (gradient - found[1][word]).norm() <= 1e-4 * found[1][word].norm(), word


def blank(call: Call, value: float) -> list[Any]:
    """The call with a skipped row and rows behind the last sequence, all of this value."""
    args = list(call.copy())
    given = dict(zip(words(call), args, strict=False))
    slots = next((given[name] for name in SLOTS if name in given), None)
    starts = given.get("cu_seqlens")
    gone = []
    if slots is not None and starts is not None:
        slots[-1] = -1
        starts[-1] -= 1
        gone += [slice(int(starts[-2]), None)]
    elif slots is not None:
        gone += [i for i, slot in enumerate(slots.tolist()) if slot == -1]
    elif starts is not None and "checkpoint_cu_starts" not in given:
        starts[-1] -= 1
        gone += [slice(int(starts[-1]), None)]
    for rows in gone:
        for name in ROWS:
            if given.get(name) is not None:
                given[name][rows] = value
    return args


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_rows_that_no_sequence_has_change_no_gradient_whatever_they_hold(name: str, dtype: torch.dtype) -> None:
    call = (CALLS if dtype == torch.float32 else TOKENS)[name]
    found, wanted = gradients(call, blank(call, torch.nan)), gradients(call, blank(call, 0.0))
    for word, gradient in found.items():
        assert torch.equal(gradient, wanted[word]), word


@pytest.mark.parametrize("layout", ["k_first", "k_last"])
def test_gates_behind_the_last_sequence_have_a_gradient_of_zero_whatever_they_hold(layout: str) -> None:
    """In bfloat16 too, where the gradient of a log gate is that of the gate times the gate."""
    q, k, v, g, beta, _, starts = TOKENS["gdn, ragged"].copy()
    starts[-1] -= 1
    g[-1] = torch.nan
    output, _ = ops.gated_delta_rule(q, k, v, g.requires_grad_(), beta, None, starts, state_layout=layout)
    output.float().sum().backward()
    assert g.grad is not None
    assert g.grad.isfinite().all()
    assert not g.grad[-1].any()


# --- outputs are a caller's own -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_outputs_may_be_changed_in_place(name: str, dtype: torch.dtype) -> None:
    call = (CALLS if dtype == torch.float32 else TOKENS)[name]
    found = gradients(call, call.copy(), lambda x: x.mul_(2.0))
    wanted = gradients(call, call.copy(), lambda x: x * 2.0)
    assert all(torch.equal(found[word], wanted[word]) for word in wanted)


@pytest.mark.parametrize("name", CALLS)
def test_outputs_of_frozen_layers_may_be_changed_in_place(name: str) -> None:
    """A view that was made under no_grad could not."""
    call, weight = CALLS[name], torch.ones((), requires_grad=True)
    with torch.no_grad():
        outputs = call.function(*call.copy(), **call.words)
    for output in outputs if isinstance(outputs, tuple) else (outputs,):
        output.mul_(weight).sum().backward()


@pytest.mark.parametrize("name", [name for name in CALLS if name not in POOLS])
def test_the_graph_names_the_operator(name: str) -> None:
    call = CALLS[name]
    args = [x.requires_grad_() if floats(x) else x for x in call.copy()]
    assert {x.grad_fn.name() for x in call.outputs(*args) if x.grad_fn} == {f"{call.name}Backward"}


# --- what a process has set ---------------------------------------------------------------------------------------


@pytest.fixture
def matmul() -> Iterator[Any]:
    """PyTorch's newer settings of products, which are put back."""
    backends: Any = torch.backends
    kinds = (backends.cuda.matmul, backends.mkldnn.matmul)
    before, legacy = [x.fp32_precision for x in kinds], torch.get_float32_matmul_precision()
    yield backends
    for kind in kinds:
        kind.fp32_precision = "ieee"
    torch.set_float32_matmul_precision(legacy)
    for kind, found in zip(kinds, before, strict=True):
        kind.fp32_precision = found


@pytest.mark.parametrize(("backend", "short"), [("cuda", "tf32"), ("mkldnn", "bf16")])
@pytest.mark.parametrize("call", [BY_PYTORCH, BY_SOLUTION], ids=["by PyTorch", "by a solution"])
def test_short_products_may_be_allowed_by_the_newer_setting(matmul: Any, call: Call, backend: str, short: str) -> None:
    """After which PyTorch refuses to say what the older one is."""
    wanted = gradients(call, call.copy())
    getattr(matmul, backend).matmul.fp32_precision = short
    found = gradients(call, call.copy())
    assert all(torch.equal(found[word], wanted[word]) for word in wanted)
    assert getattr(matmul, backend).matmul.fp32_precision == short


def test_what_is_not_shortened_is_not_set(matmul: Any) -> None:
    """Or a later setting of all of PyTorch would not reach products."""
    for kind in (matmul.cuda, matmul.mkldnn):
        kind.matmul.fp32_precision = "none"
    gradients(BY_PYTORCH, BY_PYTORCH.copy())
    assert matmul.cuda.matmul.fp32_precision == matmul.mkldnn.matmul.fp32_precision == "none"


def test_threads_that_overlap_put_the_setting_back(matmul: Any) -> None:
    torch.set_float32_matmul_precision("medium")
    shared = Precise()
    shared.__enter__()
    shared.__enter__()  # by a second thread
    shared.__exit__()
    assert torch.get_float32_matmul_precision() == "highest"  # the second one computes still
    shared.__exit__()
    assert torch.get_float32_matmul_precision() == "medium"


# --- transforms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(BY_PYTORCH, id="by PyTorch", marks=pytest.mark.thorough),
        pytest.param(BY_SOLUTION, id="by a solution"),
    ],
)
def test_compiled_autograd_has_the_same_gradients(call: Call) -> None:
    """It traces the backward pass of the graph, and runs it with autograd left out."""
    torch._dynamo.reset()
    wanted = gradients(call, call.copy())
    compiler = torch.compile(backend="aot_eager", fullgraph=True)
    with torch._dynamo.compiled_autograd._enable(compiler):  # type: ignore[attr-defined]
        found = gradients(call, call.copy())
    assert all(torch.equal(found[word], wanted[word]) for word in wanted)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("name", CALLS)
def test_vmap_is_one_call_after_the_other_or_refused(name: str) -> None:
    call = CALLS[name]
    many = torch.stack([call.args[0], -call.args[0]])
    if call.pools:
        with pytest.raises(RuntimeError, match=f"^{call.name}: vmap is not served, because pools change in place"):
            torch.vmap(lambda x: call.function(x, *call.copy()[1:], **call.words))(many)
        return
    found = torch.vmap(lambda x: call.outputs(x, *call.args[1:]))(many)
    for i, x in enumerate(many):
        for outputs, wanted in zip(found, call.outputs(x, *call.args[1:]), strict=True):
            torch.testing.assert_close(outputs[i], wanted)
