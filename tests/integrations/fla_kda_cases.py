"""The backend of FLA's chunk_kda in a process where FLA is installed; test_fla.py starts it. Wanted values are FLA's
own, of its plain PyTorch."""

import inspect
from itertools import pairwise
from typing import Any

import gdnspec.integrations.fla_kda as adapter
import pytest
import torch
from fla.ops.kda import chunk_kda
from fla.ops.kda.gate import naive_kda_gate, naive_kda_lowerbound_gate
from fla.ops.kda.naive import naive_recurrent_kda
from gdnspec import ops
from gdnspec.integrations.fla_kda import Call
from torch import Tensor
from torch.nn.functional import normalize

B, T, H, HV, K, V = 2, 70, 2, 4, 8, 16
STARTS = torch.tensor([0, 1, 66, 66, 70])


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def inputs(rows: int = B) -> dict[str, Tensor]:
    """Keys that are not normalised, raw gates for what FLA calls g and beta."""
    return {
        "q": drawn(rows, T, H, K), "k": drawn(rows, T, H, K), "v": drawn(rows, T, HV, V),
        "g": drawn(rows, T, HV, K), "beta": drawn(rows, T, HV),
    }  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of the operator."""
    seen: list[Any] = []
    operator = ops.kimi_delta_attention
    monkeypatch.setattr(ops, "kimi_delta_attention", lambda *x, **y: seen.append(x) or operator(*x, **y))
    return seen


# Each kind of gates with two of the four layouts, in turns.
QUICKLY = {("finished", False), ("raw", True), ("bounded", False), ("without a rate", True)}
SAMPLED = [
    pytest.param(gate, ragged, v_first, marks=[pytest.mark.thorough] * ((gate, ragged != v_first) not in QUICKLY))
    for gate in ("finished", "raw", "bounded", "without a rate")
    for ragged in (False, True)
    for v_first in (False, True)
]


@pytest.mark.parametrize(("gate", "ragged", "v_first"), SAMPLED)
def test_values_are_those_of_flas_own_recurrence(v_first: bool, ragged: bool, gate: str, calls: list[Any]) -> None:
    given = inputs(1 if ragged else B)
    states = drawn(len(STARTS) - 1 if ragged else B, HV, K, V)
    A_log, dt_bias, raw = torch.linspace(-1, 1, HV), drawn(HV * K), gate != "finished"
    if gate in ("finished", "raw"):
        g = naive_kda_gate(given["g"], A_log, dt_bias)
    else:
        g = naive_kda_lowerbound_gate(given["g"], None if gate == "without a rate" else A_log, dt_bias, -3.0)
    beta = given["beta"].sigmoid()
    more: dict[str, Any] = {"cu_seqlens": STARTS} if ragged else {}
    asked = given if raw else given | {"g": g, "beta": beta}
    if raw:
        more |= {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "dt_bias": dt_bias}
        more |= {} if gate == "raw" else {"lower_bound": -3.0, "safe_gate": True}
        more |= {} if gate == "without a rate" else {"A_log": A_log}
    output, final = chunk_kda(
        **asked, scale=0.3, initial_state=states.mT.contiguous() if v_first else states, output_final_state=True,
        use_qk_l2norm_in_kernel=True, state_v_first=v_first, **more,
    )  # fmt: skip
    assert len(calls) == 1
    bounds = STARTS.tolist() if ragged else None
    parts = pairwise(bounds) if bounds else ((0, T),)
    for n, (start, stop) in enumerate(parts):
        rows = slice(n, n + 1) if bounds else slice(None)
        token = (slice(None), slice(start, stop))
        q, k = (normalize(given[name], dim=-1).repeat_interleave(HV // H, dim=2)[token] for name in ("q", "k"))
        wanted, state = naive_recurrent_kda(
            q, k, given["v"][token], g[token], beta[token], 0.3, states[rows], output_final_state=True
        )  # fmt: skip
        torch.testing.assert_close(output[token], wanted, rtol=1e-4, atol=1e-4)
        found = final[rows].mT if v_first else final[rows]
        torch.testing.assert_close(found, states[rows] if start == stop else state, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("gate", ["finished", "raw", "bounded"])
def test_on_a_gpu_the_values_are_near_flas_own(gate: str, calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a CUDA graph records the call, after a first one."""
    q, k, v = (drawn(1, 300, h, 128).bfloat16().cuda() for h in (2, 2, 4))
    g, beta = drawn(1, 300, 4, 128).cuda(), drawn(1, 300, 4).cuda()
    more: dict[str, Any] = {
        "cu_seqlens": torch.tensor([0, 1, 130, 300], device="cuda"), "initial_state": drawn(3, 4, 128, 128).cuda(),
        "output_final_state": True, "use_qk_l2norm_in_kernel": True,
    }  # fmt: skip
    if gate == "finished":
        g, beta = -g.abs(), beta.sigmoid()
    else:
        more |= {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
        more |= {"A_log": torch.linspace(-1, 1, 4, device="cuda"), "dt_bias": drawn(4 * 128).cuda()}
        more |= {"lower_bound": -5.0, "safe_gate": True} if gate == "bounded" else {}
    found = chunk_kda(q, k, v, g, beta, **more)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = chunk_kda(q, k, v, g, beta, **more)
    graph.replay()
    assert len(calls) == 2
    monkeypatch.setenv("FLA_GDNSPEC", "0")
    for ours, recorded, theirs in zip(found, again, chunk_kda(q, k, v, g, beta, **more), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert (ours.float() - theirs.float()).norm() < 0.02 * theirs.float().norm()
        assert torch.equal(ours, recorded)
    assert len(calls) == 2


def test_the_arguments_are_those_of_flas_function() -> None:
    named = [x for x in inspect.signature(chunk_kda).parameters.values() if x.kind is x.POSITIONAL_OR_KEYWORD]
    mine = list(inspect.signature(Call).parameters.values())
    assert [x.name for x in mine[: len(named)]] == [x.name for x in named]
    assert [x.default for x in mine[: len(named)]] == [x.default for x in named]
    assert [x.name for x in mine[len(named) :]] == ["A_log", "dt_bias", "chunk_size"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"return_intermediate_states": True}, "no states of chunks"),
        ({"chunk_size": 16}, "chunks of"),
        ({"use_gate_in_kernel": True}, "needs A_log or lower_bound"),
        ({"use_gate_in_kernel": True, "lower_bound": -7.0, "safe_gate": True}, "lower bound from -5 on"),
        ({"allow_neg_eigval": True}, "only with use_beta_sigmoid_in_kernel"),
        ({"initial_state": drawn(3, HV, K, V)}, "as many initial states"),
    ],
)
def test_a_call_that_is_not_served_says_why(more: dict[str, Any], said: str) -> None:
    accepted, why = adapter.GdnspecBackend().chunk_kda_verifier(**inputs(), **more)
    assert not accepted
    assert said in str(why)


def test_it_can_be_switched_off(calls: list[Any]) -> None:
    adapter.unregister()
    try:
        with pytest.raises(Exception):  # noqa: B017  FLA's own kernels need a GPU
            chunk_kda(**inputs())
    finally:
        adapter.register()
    assert not calls
    chunk_kda(**inputs() | {"g": -inputs()["g"].abs()})
    assert len(calls) == 1
