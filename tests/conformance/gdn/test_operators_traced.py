"""The operators of gdn as PyTorch's compiler, exporter and dispatcher see them; the path of a GPU, on a CPU."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from gdnspec.registration import by_kernel
from gdnspec.registration.registry import KERNELS
from helpers_gpu_operators import same_outputs
from helpers_operators import Call, calls
from sampled import one_in
from torch import Tensor

NAMES = list(calls())
QUICK = ("ragged", "pool", "norm")
LAYOUTS = ("k_first", "k_last")


def equal(found: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True) if isinstance(x, Tensor))


@pytest.mark.parametrize("wanted", [pytest.param(False, marks=pytest.mark.thorough), True], ids=["plain", "gradients"])
@pytest.mark.parametrize("name", one_in(2, NAMES))
def test_opcheck_finds_nothing(name: str, wanted: bool) -> None:
    call = calls()[name]
    args = [x.requires_grad_(wanted and i not in call.pools) if _floats(x) else x for i, x in enumerate(call.copy())]
    assert set(torch.library.opcheck(call.operator, tuple(args)).values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(x, marks=pytest.mark.thorough) for x in NAMES if x not in QUICK)]
)
def test_a_compiled_function_computes_the_same(name: str) -> None:
    _compiled(calls()[name], "aot_eager")


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_a_function_compiled_to_code_computes_the_same(name: str) -> None:
    _compiled(calls()[name], "inductor")


def _compiled(call: Call, backend: str) -> None:
    """With sizes that differ from call to call, without and with gradients, as one graph."""
    torch._dynamo.reset()
    compiled = torch.compile(call.outputs, fullgraph=True, dynamic=True, backend=backend)
    assert equal(compiled(*call.copy()), call.outputs(*call.copy()))
    found = []
    for function in (compiled, call.outputs):
        args = [x.requires_grad_() if _floats(x) else x for x in call.copy()]
        sum(output.square().sum() for output in function(*args)).backward()
        found.append(tuple(x.grad for x in args if _floats(x)))
    assert len(found[0]) > 1
    assert equal(*found)


class Module(torch.nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, *args: Any) -> Any:
        return self.call.function(*args)


@pytest.mark.parametrize("name", NAMES)
def test_an_exported_program_takes_other_sizes(name: str) -> None:
    call = calls()[name]
    sizes = tuple({0: torch.export.Dim.AUTO} if isinstance(x, Tensor) else None for x in call.args)
    program = torch.export.export(Module(call), call.copy(), dynamic_shapes=(sizes,))
    assert [str(node.target) for node in program.graph.nodes if "gdnspec" in str(node.target)] == [str(call.operator)]
    longer = calls(times=3)[name]
    assert longer.args[0].shape != call.args[0].shape
    found = longer.copy()
    wanted, pools = longer.outputs(*longer.args), tuple(found[i] for i in call.pools)
    assert equal((*_tuple(program.module()(*found)), *pools), wanted)


# --- the path of a GPU ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, {}) for name in NAMES),
        *(("ragged", {"gate": gate, "state_layout": layout}) for gate in ("log", "linear") for layout in LAYOUTS),
        ("padded", {"state_layout": "k_last"}),
        ("step", {"allow_neg_eigval": True}),
    ],
)
@pytest.mark.parametrize("V", [32, pytest.param(16, marks=pytest.mark.thorough)])
def test_kernels_get_what_their_definition_says(name: str, words: dict[str, Any], V: int) -> None:
    """The function for CUDA tensors, with the solution in PyTorch that `gdnspec.kernel` gives on a CPU."""
    call = replace(calls(torch.bfloat16, torch.float32, torch.float32, K=32, V=V)[name], words=words)
    parsed = call.operator._schema.arguments
    given = [*call.args] + [words.get(x.name, x.default_value) for x in parsed[len(call.args) :]]
    if words.get("state_layout") == "k_last" and name == "ragged":
        given[5] = given[5].mT.contiguous()
    if words.get("gate") == "linear":
        given[3] = given[3].exp()
    given = tuple(given)
    mine = replace(call, args=given).copy()
    wanted = [*_tuple(call.operator(*mine)), *(mine[i] for i in call.pools)]
    served = _served(call)
    for count in {len(given), len(call.args) if not words else len(given)}:  # the dispatcher leaves out defaults
        args = replace(call, args=given[:count]).copy()
        found = [*_tuple(served(*args)), *(args[i] for i in call.pools)]
        for output, value in zip(found, wanted, strict=True):
            torch.testing.assert_close(output, value, rtol=1e-2, atol=1e-3)


def test_a_kernel_is_chosen_once_for_each_form_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    kernel = by_kernel.kernel
    monkeypatch.setattr(by_kernel, "kernel", lambda name, *more: asked.append(name) or kernel(name, *more))
    call = calls(torch.bfloat16, torch.float32, torch.float32, K=24, V=24)["ragged"]  # sizes of no other test
    served = _served(call)
    for args in (call.args, call.copy(), (*call.args, 0.5), (*call.args[:5], None, call.args[6]), call.args):
        served(*args)
    assert asked == ["gdn_prefill_k_first"] * 3
    with pytest.raises(ValueError, match="is served"):
        served(*call.args[:6])


def test_one_tensor_given_twice_is_no_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call has one tensor in two places, the next two tensors of the same form."""
    call = calls(torch.bfloat16, torch.float32, torch.float32, K=40, V=40)["step"]
    served = _served(call)
    q, k, *rest = call.args
    served(q, q, *rest)
    for found, wanted in zip(served(q, k, *rest), call.outputs(*call.args), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("device", ["CPU", "CUDA"])
def test_autograd_knows_that_a_pool_has_changed(device: str) -> None:
    call = calls(torch.bfloat16, torch.float32, torch.float32, K=32, V=32)["pool"]
    args = call.copy()
    _served(call)
    KERNELS[call.name][device](*args)
    assert args[3]._version > 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_computes_the_same_and_so_does_its_graph(name: str) -> None:
    same_outputs(calls(torch.bfloat16, torch.float32, torch.float32, K=128, V=128)[name])


def _served(call: Call) -> Any:
    """What the operator calls for CUDA tensors."""
    assert call.function  # registers it
    return KERNELS[call.name]["CUDA"]


def _tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _floats(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
