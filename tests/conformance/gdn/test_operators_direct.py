"""Calls of one form pass PyTorch's dispatcher by, and no others do. On a CPU, as a GPU has it."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gdnspec.registration import direct, registry
from helpers_operators import Call, calls
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

NUMBERS = itertools.count()  # operators need names of their own


class Seen(TorchDispatchMode):
    """Does nothing."""

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(*args, **(kwargs or {}))


class Counted:
    """An operator whose kernel on a CPU is what the real one calls on a GPU, and how many calls the dispatcher saw."""

    def __init__(self, name: str) -> None:
        self.call: Call = calls(torch.bfloat16, torch.float32, torch.float32, K=32, V=32)[name]
        assert self.call.function  # registers it
        schema = str(self.call.operator._schema).partition("::")[2]
        served = registry.KERNELS[self.call.name]["CUDA"]
        operator = registry.operator(f"counted{next(NUMBERS)}_{schema}", None, {"CPU": served}, self.call.operator)
        self.count = 0

        def seen(*args: Any) -> Any:
            self.count += 1
            return operator(*args)

        self.function = direct.direct(seen, served, "CPU")

    def known(self) -> "Counted":
        """With a form that is known."""
        for _ in range(2):
            self.function(*self.call.copy())
        assert self.count == 2
        return self


@pytest.mark.parametrize("name", list(calls()))
def test_the_third_call_of_a_form_goes_to_its_kernel(name: str) -> None:
    counted = Counted(name).known()
    args, wanted_args = counted.call.copy(), counted.call.copy()
    found, wanted = counted.function(*args), counted.call.operator(*wanted_args)
    assert counted.count == 2
    pairs = zip(_tuple(found), _tuple(wanted), strict=True)
    for x, y in (*pairs, *((args[i], wanted_args[i]) for i in counted.call.pools)):
        torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)
    assert all(args[i]._version > 0 for i in counted.call.pools), "autograd knows that a pool has changed"


CHANGES: dict[str, Callable[[list[Any]], None]] = {
    "a stride": lambda args: args.__setitem__(2, args[2].repeat_interleave(2, 0)[::2]),
    "a type": lambda args: args.__setitem__(3, args[3].bfloat16()),
    "a value": lambda args: args.__setitem__(8, 0.25),
    "a wanted gradient": lambda args: args.__setitem__(0, args[0].requires_grad_()),
    "a parameter": lambda args: args.__setitem__(4, nn.Parameter(args[4])),
    "a negative view": lambda args: args.__setitem__(2, args[2]._neg_view()),
    "no value": lambda args: args.__delitem__(slice(9, None)),
    "rows": lambda args: args.__setitem__(slice(0, 8), [x[:2] if x.dim() > 1 else x for x in args[:8]]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_form_goes_to_the_dispatcher(change: str) -> None:
    counted = Counted("step").known()
    args = [*counted.call.copy(), None, True, False, "k_last"]
    for _ in range(2):
        counted.function(*args)
    counted.count = 0
    counted.function(*args)
    assert counted.count == 0
    CHANGES[change](args)
    found, wanted = counted.function(*args), counted.call.operator(*args)
    assert counted.count == 1
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)
        assert x.requires_grad == y.requires_grad


@pytest.mark.parametrize("state", [Seen, torch.inference_mode, forward_ad.dual_level, lambda: torch.device("cpu")])
def test_another_state_of_the_thread_goes_to_the_dispatcher(state: Callable[[], Any]) -> None:
    counted = Counted("pool").known()
    with state():
        counted.function(*counted.call.copy())
    assert counted.count == 3


@pytest.mark.parametrize("state", [Seen, lambda: torch.device("cpu")])
def test_no_form_is_learned_where_something_takes_part(state: Callable[[], Any]) -> None:
    counted = Counted("norm")
    with state():
        for _ in range(4):
            counted.function(*counted.call.args)
    assert counted.count == 4


def test_calls_that_want_gradients_ask_for_no_form(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, asked = Counted("norm").known(), []
    monkeypatch.setattr(direct, "form_of", lambda *args: asked.append(args))
    x, *rest = counted.call.copy()
    for _ in range(3):
        assert counted.function(x.requires_grad_(), *rest).requires_grad
    assert asked == []


def test_a_compiled_function_calls_the_operator() -> None:
    counted = Counted("norm").known()
    operator = counted.call.operator
    served = registry.KERNELS["gated_rms_norm"]["CUDA"]
    called = direct.direct(operator, served, "CPU")
    graphs: list[Any] = []
    torch.compile(called, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph)(*counted.call.args)
    assert any(node.target is operator for node in graphs[0].graph.nodes)


def _tuple(found: Any) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)
