"""The operators of kda: judged as any function is, differentiated, called wrongly; the path of a GPU, on a CPU."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import gdnspec
import pytest
import torch
from gdnspec import ops
from gdnspec.build.reference import operators
from gdnspec.catalog.families import family
from gdnspec.registration import by_kernel
from gdnspec.registration.registry import KERNELS
from helpers_gpu_operators import same_gradients, same_outputs
from helpers_kda_operators import calls
from helpers_operators import Call
from torch import Tensor

FAMILY = family("kda")
NAMES = list(calls())


def checkpoints(checkpoint_cu_starts: Tensor, **inputs: Any) -> Any:
    count = int(checkpoint_cu_starts[-1])
    return ops.kimi_delta_attention_checkpoints(
        **inputs, checkpoint_cu_starts=checkpoint_cu_starts, num_checkpoints=count
    )  # fmt: skip


EXPRESSED: dict[str, Callable[..., Any]] = {
    "kda_prefill_k_last": partial(ops.kimi_delta_attention, state_layout="k_last"),
    "kda_prefill_k_first": ops.kimi_delta_attention,
    "kda_prefill_raw_gates": ops.kimi_delta_attention_raw_gates,
    "kda_prefill_checkpoints": checkpoints,
    "kda_decode_k_last": ops.kimi_delta_attention_step,
    "kda_decode_k_last_bf16_state": ops.kimi_delta_attention_step,
    "kda_decode_pool_k_last": ops.kimi_delta_attention_step_,
    "kda_decode_pool_k_last_bf16_state": ops.kimi_delta_attention_step_,
    "kda_verify_k_last": ops.kimi_delta_attention_verify,
}
QUICK = ("kda_prefill_raw_gates", "kda_decode_pool_k_last_bf16_state")
JUDGED = [
    pytest.param(name, suite, marks=() if suite == "smoke" and name in QUICK else pytest.mark.thorough)
    for suite in ("smoke", "conformance")
    for name in EXPRESSED
]


@pytest.mark.parametrize(("name", "suite"), JUDGED)
def test_the_judge_passes_it(name: str, suite: str) -> None:
    gdnspec.check(lambda **inputs: EXPRESSED[name](**inputs), name, suite=suite, device="cpu").raise_for_status()


def test_every_operator_is_called_here() -> None:
    assert {call.name for call in calls().values()} == set(operators(FAMILY))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_differences(name: str) -> None:
    call = calls(torch.float64, size=3, V=2)[name]
    args = [x.requires_grad_() if _floats(x) else x for x in call.copy()]
    assert torch.autograd.gradcheck(call.outputs, args, fast_mode=True)


@pytest.mark.parametrize("layout", ["k_first", "k_last"])
def test_gradients_of_bfloat16_are_those_of_the_definition(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the same call in float64; a reset among its gates."""
    asked: list[str] = []
    kernel = by_kernel.kernel
    monkeypatch.setattr(by_kernel, "kernel", lambda name, *more: asked.append(name) or kernel(name, *more))
    by_kernel.CHOSEN.clear()
    call = replace(calls(torch.bfloat16, torch.float32, size=16)["ragged"], words={"state_layout": layout})
    call.args[3][4, 1, 2] = -torch.inf
    found = []
    for dtype in (None, torch.float64):
        args = [x.to(dtype or x.dtype).requires_grad_() if _floats(x) else x for x in call.copy()]
        output, final = call.function(*args, **call.words)
        (output.double().square().sum() + final.double().square().sum()).backward()
        found.append([x.grad for x in args if _floats(x)])
    for mine, theirs in zip(*found, strict=True):
        assert (mine.double() - theirs).norm() < 1e-2 * theirs.norm()
    assert found[0][3][4, 1, 2] == found[1][3][4, 1, 2] == 0
    assert asked == ["kda_prefill_backward_k_last"]


@pytest.mark.parametrize(
    "name", [x if x == "checkpoints" else pytest.param(x, marks=pytest.mark.thorough) for x in NAMES]
)
def test_opcheck_finds_nothing(name: str) -> None:
    call = calls()[name]
    args = [x.requires_grad_(i not in call.pools) if _floats(x) else x for i, x in enumerate(call.copy())]
    assert set(torch.library.opcheck(call.operator, (*args, *_words(call))).values()) == {"SUCCESS"}


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_function_computes_the_same(name: str) -> None:
    torch._dynamo.reset()
    call = calls()[name]
    compiled = torch.compile(call.outputs, fullgraph=True, backend="aot_eager")
    for output, wanted in zip(compiled(*call.copy()), call.outputs(*call.copy()), strict=True):
        assert torch.equal(output, wanted)


def test_how_many_checkpoints_there_are_is_not_read_from_their_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading would wait for the GPU, and no CUDA graph could record the call."""
    call, bound = calls(torch.bfloat16, torch.float32, size=16)["checkpoints"], []
    found = by_kernel.kernel("kda_prefill_checkpoints", call.args[:3])
    bind = found.bind
    monkeypatch.setattr(found, "bind", lambda *inputs, **more: bound.append(more) or bind(*inputs, **more))
    monkeypatch.setattr(by_kernel, "kernel", lambda *_: found)
    args = [*call.copy(), *_words(call)]
    output, _, kept = KERNELS["kimi_delta_attention_checkpoints"]["CUDA"](*args)
    assert bound == [{"axes": {"num_checkpoints": len(kept)}}]
    wanted = call.outputs(*call.copy())
    for found_here, value in ((output, wanted[0]), (kept, wanted[-1])):
        torch.testing.assert_close(found_here.to(value.dtype), value, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("turned", [False, True])
def test_kernels_get_what_their_definition_says(name: str, turned: bool) -> None:
    """The function for CUDA tensors, with the solution in PyTorch that `gdnspec.kernel` gives on a CPU."""
    call = calls(torch.bfloat16, torch.float32, size=16)[name]
    layouts = {"ragged": "k_last", "padded": "k_last", "raw gates": "k_first", "bounded": "k_first", "step": "k_first"}
    if turned and name not in layouts:
        pytest.skip("it has one layout")
    words = call.words | ({"state_layout": layouts[name]} if turned else {})
    call = replace(call, words=words)
    mine, theirs = (replace(call, args=call.args).copy() for _ in range(2))
    served = KERNELS[call.name]["CUDA"]
    wanted = [*_tuple(call.operator(*mine, *_words(call))), *(mine[i] for i in call.pools)]
    found = [*_tuple(served(*theirs, *_words(call))), *(theirs[i] for i in call.pools)]
    for output, value in zip(found, wanted, strict=True):
        assert (output.dtype, output.shape) == (value.dtype, value.shape)
        torch.testing.assert_close(output, value, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("layout", ["k_first", "k_last"])
def test_one_gate_for_all_channels_is_the_gated_delta_rule(layout: str) -> None:
    q, k, v, g, beta, state, starts = calls(torch.float64)["ragged"].args
    same = g[..., :1].expand_as(g)
    found = ops.kimi_delta_attention(q, k, v, same, beta, state, starts, state_layout=layout)
    wanted = ops.gated_delta_rule(q, k, v, g[..., 0], beta, state, starts, state_layout=layout)
    for output, value in zip(found, wanted, strict=True):
        torch.testing.assert_close(output, value, rtol=0, atol=1e-12)


WRONG: dict[str, tuple[str, dict[int, Any], type[Exception], str]] = {
    # the call, the arguments that are replaced, what is said
    "one gate": ("ragged", {3: torch.zeros(20, 4)}, ValueError, "g has the shape [20, 4]: [T, heads, K]"),
    "a layout": ("ragged", {5: torch.zeros(3, 4, 4, 3)}, ValueError, "[sequences, heads, K, V], here [3, 4, 4, 4]"),
    "more queries": ("ragged", {0: torch.zeros(20, 4, 4)}, ValueError, "4 query, 2 key and 4 value heads: served are"),
    "starts": ("ragged", {6: torch.tensor([0, 5, 3, 20])}, ValueError, "cu_seqlens must rise from 0 and end within"),
    "a flat bias": ("raw gates", {5: torch.zeros(16)}, ValueError, "dt_bias has the shape [16]: [heads, K] is"),
    "a rate with axes": ("step", {4: torch.zeros(1, 1, 4, 1)}, ValueError, "A_log has the shape [1, 1, 4, 1]: [heads]"),
    "a slot": ("pool", {4: torch.tensor([0, -1, 5])}, ValueError, "read_slots[2] is 5: slots 0 to 4 are served"),
    "an interval": ("checkpoints", {9: 65}, ValueError, "checkpoint_interval=65: positive multiples of 64 are served"),
    "a checkpoint": ("checkpoints", {8: 2}, ValueError, "checkpoint_cu_starts must be [0, 1, 1], as many as whole"),
    "a bound": ("bounded", {9: 5.0}, ValueError, "lower_bound=5.0: None, 0 and finite negative numbers are served"),
    "an infinite bound": ("bounded", {9: float("-inf")}, ValueError, "lower_bound=-inf: None, 0 and finite negative"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_told_what_is_served(name: str) -> None:
    which, wrong, error, said = WRONG[name]
    call = calls()[which]
    args = [*call.args, *_words(call)]
    for i, value in wrong.items():
        args[i] = value
    with pytest.raises(error) as raised:
        call.operator(*args)
    assert said in str(raised.value)
    assert str(raised.value).startswith(f"{call.name}: ")
    assert "\n" not in str(raised.value)


def test_two_head_sizes_are_refused_on_a_gpu() -> None:
    for name in ("ragged", "raw gates", "checkpoints", "step", "pool", "verify"):
        call = calls(torch.bfloat16, torch.float32, size=16, V=8)[name]
        served = KERNELS[call.name]["CUDA"]
        with pytest.raises(ValueError, match="heads of size 16 in q and k and 8 in v: on a GPU one size of all is"):
            served(*call.copy(), *_words(call))


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_computes_the_same_and_so_does_its_graph(name: str) -> None:
    same_outputs(calls(torch.bfloat16, torch.float32, size=128)[name])


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_has_the_same_gradients(name: str) -> None:
    same_gradients(calls(torch.bfloat16, torch.float32, size=128)[name])


def _words(call: Call) -> list[Any]:
    """The arguments behind those of a call, by position."""
    names = call.operator._schema.arguments[len(call.args) :]
    return [call.words.get(x.name, x.default_value) for x in names]


def _tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _floats(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
