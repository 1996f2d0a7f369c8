"""The operators of gdn: judged as any function is, differentiated, called wrongly."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gdnspec
import pytest
import torch
from gdnspec import ops
from gdnspec.build.reference import operators
from gdnspec.catalog.families import family
from helpers_operators import calls
from helpers_unit import reference

RULE = partial(ops.gated_delta_rule, gate="linear", state_layout="k_last")
FIRST = partial(ops.gated_delta_rule_step, state_layout="k_first")

EXPRESSED: dict[str, Callable[..., Any]] = {
    "gdn_prefill_k_last": RULE,
    "gdn_prefill_k_first": ops.gated_delta_rule,
    "gdn_prefill_k_last_kv_dims": RULE,
    "gdn_decode_k_last": ops.gated_delta_rule_step,
    "gdn_decode_k_last_bf16_state": ops.gated_delta_rule_step,
    "gdn_decode_k_last_kv_dims": ops.gated_delta_rule_step,
    "gdn_decode_k_first": FIRST,
    "gdn_decode_k_first_bf16_state": FIRST,
    "gdn_decode_pool_k_last": ops.gated_delta_rule_step_,
    "gdn_decode_pool_k_last_bf16_state": ops.gated_delta_rule_step_,
    "gdn_decode_pool_k_last_kv_dims": ops.gated_delta_rule_step_,
    "gdn_verify_k_last": ops.gated_delta_rule_verify,
    "gdn_verify_k_last_kv_dims": ops.gated_delta_rule_verify,
    "gdn_conv1d_prefill": ops.causal_conv1d,
    "gdn_conv1d_decode": ops.causal_conv1d_step,
    "gdn_conv_gates_prefill": ops.causal_conv1d_gates,
    "gdn_core_decode": ops.gated_delta_net_step_,
    "gdn_gated_rms_norm": ops.gated_rms_norm,
}
QUICK = (
    "gdn_prefill_k_first", "gdn_decode_pool_k_last_kv_dims", "gdn_verify_k_last_kv_dims", "gdn_conv_gates_prefill",
    "gdn_core_decode", "gdn_gated_rms_norm",
)  # fmt: skip
JUDGED = [
    pytest.param(name, suite, marks=() if suite == "smoke" and name in QUICK else pytest.mark.thorough)
    for suite in ("smoke", "conformance", "strict")
    for name in EXPRESSED
    if suite != "strict" or "prefill_k" in name
]


@pytest.mark.parametrize(("name", "suite"), JUDGED)
def test_the_judge_passes_it(name: str, suite: str) -> None:
    gdnspec.check(lambda **inputs: EXPRESSED[name](**inputs), name, suite=suite, device="cpu").raise_for_status()


def test_every_operator_is_judged() -> None:
    assert {getattr(of, "func", of).__name__ for of in EXPRESSED.values()} == set(operators(family("gdn")))


@pytest.mark.parametrize("name", calls())
def test_gradients_are_those_of_differences(name: str) -> None:
    call = calls(torch.float64)[name]
    args = [x.requires_grad_() if torch.is_tensor(x) and x.is_floating_point() else x for x in call.copy()]
    assert torch.autograd.gradcheck(call.outputs, args, fast_mode=True)


@pytest.mark.parametrize("name", calls())
def test_nothing_is_kept_where_no_gradient_is_wanted(name: str) -> None:
    call = calls()[name]
    args = [x.requires_grad_() if torch.is_tensor(x) and x.is_floating_point() else x for x in call.copy()]
    with torch.no_grad():
        assert not any(output.requires_grad for output in call.outputs(*args))
    plain = call.outputs(*call.copy())
    assert all(x.grad_fn is None for x in plain)
    for output, wanted in zip(call.outputs(*args), plain, strict=True):
        torch.testing.assert_close(output.detach(), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", calls())
def test_a_process_that_allows_short_products_gets_the_same(name: str) -> None:
    call = calls()[name]
    results = []
    for allowed in (False, True):
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium" if allowed else "highest")
        args = [x.requires_grad_() if torch.is_tensor(x) and x.is_floating_point() else x for x in call.copy()]
        with torch.autocast("cpu", torch.bfloat16, enabled=allowed):
            outputs = call.outputs(*args)
        sum(output.sum() for output in outputs).backward()
        results.append([*outputs, *(x.grad for x in args if torch.is_tensor(x) and x.is_floating_point())])
        torch.set_float32_matmul_precision(before)
    for found, wanted in zip(*reversed(results), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_nothing_to_do_is_no_fault(lengths: list[int]) -> None:
    q, state = torch.zeros(0, 2, 4), torch.randn(len(lengths), 2, 4, 4)
    output, final = ops.gated_delta_rule(q, q, q, None, None, state, torch.tensor([0, *lengths]).cumsum(0))
    assert output.shape == (0, 2, 4)
    assert torch.equal(final, state)
    assert final.data_ptr() != state.data_ptr() or not lengths
    padded = torch.zeros(len(lengths), 0, 2, 4)
    output, final = ops.gated_delta_rule(padded, padded, padded, None, None, state)
    assert output.shape == padded.shape
    assert torch.equal(final, state)


@pytest.mark.parametrize("gate", ["log", "linear"])
@pytest.mark.parametrize("layout", ["k_first", "k_last"])
def test_the_rule_is_the_recurrence(gate: str, layout: str) -> None:
    """In chunks as token by token, for lengths around that of a chunk; a reset forgets what was not finite."""
    lengths = [65, 0, 2, 130, 2]
    random = torch.Generator().manual_seed(3)
    normal = partial(torch.randn, generator=random, dtype=torch.float64)
    T, starts = sum(lengths), torch.tensor([0, *lengths]).cumsum(0)
    q, k, v = normal(T, 2, 8), torch.nn.functional.normalize(normal(T, 2, 8), dim=-1), normal(T, 4, 6)
    alpha, beta = (torch.rand(T, 4, generator=random, dtype=torch.float64) for _ in "ab")
    alpha[[3, 64, 100]] = 0.0
    state = normal(5, 4, 6, 8)
    expected = reference("gated_delta_net").prefill_k_last(q, k, v, alpha, beta, starts, state, None)
    turned = (lambda x: x.mT.contiguous()) if layout == "k_first" else lambda x: x
    g = alpha.log() if gate == "log" else alpha
    output, final = ops.gated_delta_rule(q, k, v, g, beta, turned(state), starts, gate=gate, state_layout=layout)
    torch.testing.assert_close(output, expected[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(turned(final), expected[1], rtol=0, atol=1e-12)


def test_a_padded_batch_is_sequences_of_one_length() -> None:
    call = calls(torch.float64)["padded"]
    q, k, v = call.args
    output, final = call.function(q, k, v)
    starts = torch.tensor([0, 5, 10, 15])
    each, states = ops.gated_delta_rule(*(x.flatten(0, 1) for x in (q, k, v)), cu_seqlens=starts)
    assert torch.equal(output.flatten(0, 1), each)
    assert torch.equal(final, states)


WRONG: dict[str, tuple[str, dict[int, Any], type[Exception], str]] = {
    # the call, the arguments that are replaced, what is said
    "a type": ("ragged", {2: torch.zeros(7, 4, 3, dtype=torch.int32)}, TypeError, "v has the type int32"),
    "a small type": (
        "ragged",
        {2: torch.zeros(7, 4, 3).to(torch.float8_e4m3fn)},
        TypeError,
        "float8_e4m3fn: float16, ",
    ),
    "no elements": (
        "ragged",
        {0: torch.zeros(7, 2, 0), 1: torch.zeros(7, 2, 0)},
        ValueError,
        "heads of size 0: sizes from 1 on",
    ),
    "no elements of a token": (
        "step",
        {0: torch.zeros(3, 1, 2, 0), 1: torch.zeros(3, 1, 2, 0)},
        ValueError,
        "heads of size 0: sizes from 1 on",
    ),
    "two devices": ("ragged", {1: torch.zeros(7, 2, 4, device="meta")}, ValueError, "k is on meta and q on cpu"),
    "tokens": ("ragged", {1: torch.zeros(6, 2, 4)}, ValueError, "k has the shape [6, 2, 4]: [T, heads, K], here"),
    "heads": ("ragged", {2: torch.zeros(7, 3, 3)}, ValueError, "2 query, 2 key and 3 value heads: served are"),
    "head sizes": ("ragged", {1: torch.zeros(7, 2, 5)}, ValueError, "here [7, any, 4], is served"),
    "a layout": ("ragged", {5: torch.zeros(3, 4, 3, 4)}, ValueError, "initial_state has the shape [3, 4, 3, 4]"),
    "no starts": ("ragged", {6: None}, ValueError, "[B, T, heads, K] without is served"),
    "starts": ("ragged", {6: torch.tensor([0, 5, 3, 7])}, ValueError, "cu_seqlens must rise from 0 and end within"),
    "float starts": ("ragged", {6: torch.tensor([0.0, 3, 3, 7])}, TypeError, "int32 and int64 are served"),
    "two tokens": ("step", {0: torch.zeros(3, 2, 2, 4)}, ValueError, "k has the shape [3, 1, 2, 4]"),
    "gates": ("step", {5: torch.zeros(3, 1, 3)}, ValueError, "a has the shape [3, 1, 3]: [B, T, heads]"),
    "a slot": ("pool", {4: torch.tensor([0, -1, 5])}, ValueError, "read_slots[2] is 5: slots 0 to 4 are served"),
    "a slot to write": (
        "pool",
        {5: torch.tensor([-1, -1, 2])},
        ValueError,
        "read_slots[0] is 0 and write_slots[0] is -1:",
    ),
    "no drafts": ("verify", {5: torch.zeros(3, 1, dtype=torch.int32)}, ValueError, "state_slots has the shape"),
    "no starts at all": (
        "convolution",
        {3: torch.zeros(0, dtype=torch.int64), 5: None, 6: torch.zeros(0, dtype=torch.bool)},
        ValueError,
        "cu_seqlens has the shape [0]: [N + 1] is served",
    ),
    "slots for none": ("convolution", {4: torch.zeros(2, 6, 3), 5: None}, ValueError, "conv_states has 2 slots"),
    "flags": ("convolution", {6: torch.ones(3)}, TypeError, "has_initial_state is float32 on cpu: bool on cpu is"),
    "a width": ("convolution", {1: torch.zeros(6, 3)}, ValueError, "here [any, 6, 2], is served"),
    "channels": ("convolution step", {1: torch.zeros(5, 4)}, ValueError, "weight has the shape [5, 4]"),
    "channels of heads": (
        "convolution and gates",
        {11: 5},
        ValueError,
        "x has 32 channels: those of 4 value heads of 5",
    ),
    "rates": ("convolution and gates", {5: torch.zeros(3)}, ValueError, "A_log has the shape [3]: [heads], here [4]"),
    "a key size": ("layer step", {11: torch.zeros(5, 4, 3, 5)}, ValueError, "qkv has 28 channels: those of 4 value"),
    "output gates": ("layer step", {1: torch.zeros(3, 8)}, ValueError, "z has the shape [3, 8]: [B, heads V], here"),
    "a state's slot": (
        "layer step",
        {12: torch.tensor([5, -1, 0])},
        ValueError,
        "state_slots[0] is 5: slots 0 to 4 are served",
    ),
    "a weight": ("norm", {2: torch.zeros(4)}, ValueError, "weight has the shape [4]: [V], here [3], is served"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_told_what_is_served(name: str) -> None:
    which, wrong, error, said = WRONG[name]
    call = calls()[which]
    args = [wrong.get(i, x) for i, x in enumerate(call.args)]
    with pytest.raises(error) as raised:
        call.function(*args)
    assert said in str(raised.value)
    assert str(raised.value).startswith(f"{call.name}: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("words", [{"gate": "raw"}, {"state_layout": "last"}])
def test_a_wrong_word_is_told_which_are_served(words: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"'raw': 'log' and 'linear'|'last': 'k_first' and 'k_last'"):
        ops.gated_delta_rule(*calls()["ragged"].args, **words)
