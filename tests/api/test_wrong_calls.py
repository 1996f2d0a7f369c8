"""Wrong calls of the operators of all families: whichever argument is wrong, one line says so."""

from collections.abc import Callable, Iterator
from typing import Any

import helpers_kda_operators
import helpers_operators
import pytest
import torch
from gdnspec import ops
from gdnspec.catalog.families import families
from gdnspec.registration.registry import KERNELS
from helpers_operators import Call
from torch import Tensor

CALLS: dict[str, Call] = {
    **{f"gdn, {name}": call for name, call in helpers_operators.calls().items()},
    **{f"kda, {name}": call for name, call in helpers_kda_operators.calls().items()},
}
WRONG: dict[str, Callable[[Tensor], Any]] = {
    "no axis": lambda x: x.new_zeros(()),
    "one axis more": lambda x: x[None],
    "the other kind of number": lambda x: x.int() if x.is_floating_point() else x.float(),
    "complex numbers": lambda x: x.to(torch.complex64),
    "another device": lambda x: x.to("meta"),
    "a list": lambda x: x.tolist(),
    "an array": lambda x: x.numpy(),
    "sparse": lambda x: x.to_sparse(),
    "nested": lambda x: torch.nested.nested_tensor([x.flatten(), x.flatten()[:1]]),
    "quantised": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.quint8),
}


def refused(call: Call, args: list[Any], function: Callable[..., Any]) -> str:
    with pytest.raises((ValueError, TypeError)) as raised:
        function(*args, **call.words)
    said = str(raised.value)
    assert said.startswith(f"{call.name}: "), said
    assert "\n" not in said
    return said


def replaced(call: Call, change: Callable[[Tensor], Any]) -> Iterator[list[Any]]:
    for i, x in enumerate(call.args):
        if isinstance(x, Tensor):
            yield [change(x) if j == i else y for j, y in enumerate(call.copy())]


def test_every_operator_is_called_here() -> None:
    every = {name for name in dir(ops) if not name.startswith("toy_")}
    assert {call.name for call in CALLS.values()} == every, [*families()]


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch, about nested and quantised tensors
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_tensor_is_named(name: str, wrong: str) -> None:
    call = CALLS[name]
    names = [x.name for x in call.operator._schema.arguments]
    tensors = [x for x, value in zip(names, call.args, strict=False) if isinstance(value, Tensor)]
    for argument, args in zip(tensors, replaced(call, WRONG[wrong]), strict=True):
        assert argument in refused(call, args, call.function)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_needed_is_not_none(name: str) -> None:
    call = CALLS[name]
    for i, argument in enumerate(call.operator._schema.arguments):
        if str(argument.type) == "Tensor":
            args = [None if j == i else x for j, x in enumerate(call.copy())]
            assert (
                refused(call, args, call.function) == f"{call.name}: {argument.name} is None: a dense tensor is served"
            )


POOLS = [
    (name, i)
    for name, call in CALLS.items()
    for i, x in enumerate(call.operator._schema.arguments)
    if x.alias_info is not None and x.alias_info.is_write
]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(("name", "place"), POOLS)
def test_a_pool_whose_slots_share_memory_is_refused(name: str, place: int, grad: bool) -> None:
    """What one row writes, another would read."""
    call = CALLS[name]
    args = list(call.copy())
    args[0] = args[0].requires_grad_(grad)
    args[place] = args[place][:1].expand_as(args[place])
    said = refused(call, args, call.function)
    assert f"{call.operator._schema.arguments[place].name} is written to, and elements of it share memory" in said


@pytest.mark.parametrize(("name", "place"), POOLS)
def test_a_pool_that_is_a_parameter_is_refused_where_gradients_are_wanted(name: str, place: int) -> None:
    call = CALLS[name]
    args = list(call.copy())
    args[place] = torch.nn.Parameter(args[place])
    said = refused(call, args, call.function)
    assert f"{call.operator._schema.arguments[place].name} is written to, and requires gradients itself" in said
    with torch.no_grad():
        call.function(*args, **call.words)


def test_an_integer_past_64_bits_and_a_negative_eps_are_named() -> None:
    call = CALLS["gdn, convolution and gates"]
    assert refused(call, [*call.copy()[:-1], 2**70], call.function).endswith("an integer of 64 bits is served")
    call = CALLS["gdn, norm"]
    for eps in (-1e-6, float("nan")):
        said = refused(call, [*call.copy()[:3], eps], call.function)
        assert said == f"gated_rms_norm: eps={eps}: None, 0 and positive numbers are served"


@pytest.mark.parametrize(
    ("name", "word"),
    [("gdn, ragged", "scale"), ("gdn, step", "scale"), ("gdn, norm", "eps"), ("kda, step", "lower_bound")],
)
def test_a_number_that_wants_a_gradient_is_told_that_it_has_none(name: str, word: str) -> None:
    """PyTorch would take its value, and a model would train without it."""
    call, number = CALLS[name], torch.nn.Parameter(torch.tensor(-0.5 if word == "lower_bound" else 0.5))
    with pytest.raises(TypeError) as raised:
        call.function(*call.copy(), **{**call.words, word: number})
    assert str(raised.value) == f"{call.name}: {word} requires gradients, and has none: pass {word}.item()"
    wanted = call.function(*call.copy(), **{**call.words, word: number.item()})
    with torch.no_grad():
        found = call.function(*call.copy(), **{**call.words, word: number})
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("word", "value", "said"),
    [
        ("scale", "1", "scale is of the type str: a number is served"),
        ("state_layout", None, "state_layout is None: a word is served"),
        ("state_layout", "V, K", "state_layout='V, K': 'k_last' and 'k_first' are served"),
        ("use_qk_l2norm", "no", "use_qk_l2norm is of the type str: True or False is served"),
    ],
)
def test_a_wrong_word_is_named(word: str, value: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        ops.gated_delta_rule_step(*CALLS["gdn, step"].args, **{word: value})
    assert str(raised.value) == f"gated_delta_rule_step: {said}"


# --- values -----------------------------------------------------------------------------------------------------


def slots(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


STEP: list[tuple[dict[int, Tensor], str]] = [
    ({4: slots(0, -1, 99)}, "read_slots[2] is 99: slots 0 to 4 are served, and -1, which skips a row"),
    ({4: slots(0, -2, 2)}, "read_slots[1] is -2: slots 0 to 4 are served, and -1, which skips a row"),
    ({5: slots(1, -1, 1)}, "write_slots names slot 1 twice: no slot is written twice"),
    ({5: slots(1, 3, 2)}, "read_slots[1] is -1 and write_slots[1] is 3: a row is skipped by -1 in all of its slots"),
    ({4: slots(0, 3, 2)}, "read_slots[1] is 3 and write_slots[1] is -1: a row is skipped by -1 in all of its slots"),
    (
        {5: slots(2, -1, 3)},
        "read_slots[2] is 2, which row 0 has in write_slots: no row reads a slot that another row writes",
    ),
]
VERIFY: list[tuple[dict[int, Tensor], str]] = [
    ({6: slots(0, 3, 0)}, "accepted[1] is 3: 0 to 2 are served"),
    ({6: slots(-1, 1, 0)}, "accepted[0] is -1: 0 to 2 are served"),
    (
        {5: slots([2, 3], [4, 8], [-1, -1])},
        "state_slots[1, 1] is 8: slots 0 to 7 are served, and -1, which skips a row",
    ),
    ({5: slots([2, 3], [2, 5], [-1, -1])}, "state_slots names slot 2 twice: no slot is written twice"),
    (
        {5: slots([2, 3], [4, -1], [-1, -1])},
        "initial_slots[1] is 1 and state_slots[1, 1] is -1: a row is skipped by -1 in all of its slots",
    ),
    (
        {4: slots(4, 1, -1)},
        "initial_slots[0] is 4, which row 1 has in state_slots: no row reads a slot that another row writes",
    ),
]
LAYER: list[tuple[dict[int, Tensor], str]] = [
    ({10: slots(3, -1, 3)}, "conv_slots names slot 3 twice: no slot is written twice"),
    ({12: slots(0, -1, 0)}, "state_slots names slot 0 twice: no slot is written twice"),
    ({10: slots(3, -1, -1)}, "conv_slots[2] is -1 and state_slots[2] is 4: a row is skipped by -1 in all of its slots"),
    ({10: slots(3, -1, 5)}, "conv_slots[2] is 5: slots 0 to 4 are served, and -1, which skips a row"),
]
VALUES: dict[str, list[tuple[dict[int, Tensor], str]]] = {
    "gdn, pool": STEP,
    "kda, pool": STEP,
    "gdn, verify": VERIFY,
    "kda, verify": VERIFY,
    "gdn, layer step": LAYER,
    "gdn, convolution": [
        ({3: torch.tensor([0, 3, 2, 7])}, "cu_seqlens must rise from 0 and end within the number of tokens, 7"),
        ({5: slots(0, 0, 4)}, "slots names slot 0 twice: no slot is written twice"),
        ({5: slots(0, 1, 5)}, "slots[2] is 5: slots 0 to 4 are served, and -1, which skips a row"),
    ],
    "gdn, convolution step": [
        ({4: slots(0, 0, 4)}, "slots names slot 0 twice: no slot is written twice"),
        ({4: slots(0, -2, 4)}, "slots[1] is -2: slots 0 to 4 are served, and -1, which skips a row"),
    ],
    "gdn, convolution and gates": [
        ({9: slots(0, 0, -1)}, "slots names slot 0 twice: no slot is written twice"),
        ({8: torch.zeros(0, 32, 3)}, "slots[0] is 0: the pool has no slots"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "wrong", "said"), [(name, *case) for name, cases in VALUES.items() for case in cases]
)  # fmt: skip
def test_wrong_slots_and_counts_change_nothing(name: str, wrong: dict[int, Tensor], said: str) -> None:
    call = CALLS[name]
    args = [wrong.get(i, x) for i, x in enumerate(call.copy())]
    before = [args[i].clone() for i in call.pools]
    assert refused(call, args, call.function) == f"{call.name}: {said}"
    assert all(torch.equal(args[i], x) for i, x in zip(call.pools, before, strict=True))


def test_a_slot_may_be_read_twice_and_a_row_may_write_where_it_reads() -> None:
    args = [*CALLS["gdn, pool"].copy()]
    args[4], args[5] = slots(0, -1, 0), slots(1, -1, 2)
    ops.gated_delta_rule_step_(*args)
    args = [*CALLS["gdn, verify"].copy()]
    args[4] = slots(2, 1, -1)
    ops.gated_delta_rule_verify(*args)


@pytest.mark.parametrize("count", [-1, 2])
def test_checkpoints_are_counted(count: int) -> None:
    call = CALLS["kda, checkpoints"]
    args = [count if i == 8 else x for i, x in enumerate(call.copy())]
    assert f"{count}" in refused(call, args, call.function)


# --- the way of a GPU, on a CPU ---------------------------------------------------------------------------------


def test_a_tensor_on_another_device_is_refused_after_a_call_of_the_same_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU runs checks the first call of a form. A later one with one tensor on the CPU is of another form."""
    monkeypatch.setattr(Tensor, "get_device", lambda x: 0 if x.device.type == "cpu" else -1, raising=False)
    calls = helpers_operators.calls(torch.bfloat16, torch.float32, torch.float32, K=16, V=16)
    for name in ("ragged", "pool", "convolution"):
        call = calls[name]
        served = KERNELS[call.name]["CUDA"]
        served(*call.copy())
        for args in replaced(call, lambda x: x.to("meta")):
            assert "meta" in refused(call, args, served)


@pytest.mark.parametrize("name", ["gdn, ragged", "gdn, convolution", "gdn, norm", "kda, ragged"])
def test_a_wrong_call_with_gradients_is_told_on_a_gpu_too(name: str) -> None:
    """Whether a definition has the gradients is asked before anything is checked."""
    call = CALLS[name]
    rest = [x.default_value for x in call.operator._schema.arguments[len(call.args) :]]
    forward = KERNELS[f"{call.name}_forward"]["CUDA"]
    for args in replaced(call, WRONG["no axis"]):
        refused(call, [*args, *rest], forward)
