"""Kimi Delta Attention: with equal channels it is gated delta net, and its two derivations agree."""

import importlib
import math
from types import ModuleType
from typing import Any

import pytest
import torch
from gdnspec.build.reference import judged
from gdnspec.catalog.families import family

GATED = torch.tensor([0, 30, 30, 50])  # lengths 30, 0, 20
H, D, F64 = 2, 16, torch.float64


def module(name: str, of: str = "kda") -> ModuleType:
    judged(family(of))
    return importlib.import_module(f"gdnspec_reference_{of}.{name}")


def inputs(resets: bool = True) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(7)
    normal = lambda *shape: torch.randn(*shape, generator=draw, dtype=F64)  # noqa: E731
    T = int(GATED[-1])
    q, k = (torch.nn.functional.normalize(normal(T, 1, D), dim=-1) for _ in range(2))
    g = -torch.rand(T, H, D, generator=draw, dtype=F64) * torch.logspace(-3, 2, D, dtype=F64)
    if resets:
        g[torch.rand(T, H, D, generator=draw) < 0.1] = -math.inf
    beta, states = torch.rand(T, H, generator=draw, dtype=F64), normal(3, H, D, D)
    return {
        "q": q, "k": k, "v": normal(T, H, D), "g": g, "beta": beta, "cu_seqlens": GATED, "initial_state": states,
        "scale": None,
    }  # fmt: skip


def test_with_equal_channels_it_is_gated_delta_net_bit_for_bit() -> None:
    call = inputs()
    gate = call["g"][..., :1]
    own = module("kimi_delta_attention").prefill_k_last(**call | {"g": gate.expand(-1, -1, D).contiguous()})
    other = module("gated_delta_net", "gdn").prefill_k_last(**call | {"g": gate[..., 0].exp()})
    assert all(torch.equal(x, y) for x, y in zip(own, other, strict=True))


@pytest.mark.parametrize("layout", ["k_last", "k_first"])
@pytest.mark.parametrize("chunk_size", [1, 7, 16, 64])
def test_recurrence_and_chunks_agree(layout: str, chunk_size: int) -> None:
    expected = getattr(module("kimi_delta_attention"), f"prefill_{layout}")(**inputs())
    found = getattr(module("chunkwise"), f"prefill_{layout}")(**inputs(), chunk_size=chunk_size)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def test_the_two_gates_by_hand() -> None:
    gate = module("kimi_delta_attention").log_gate
    A_log, a, bias = (
        torch.tensor([math.log(2.0)], dtype=F64),
        torch.zeros(1, 2, dtype=F64),
        torch.zeros(1, 2, dtype=F64),
    )
    bias[0, 1] = 1.0
    softplus = [math.log(2.0), math.log1p(math.e)]
    torch.testing.assert_close(gate(A_log, a, bias, None), torch.tensor([[-2 * x for x in softplus]], dtype=F64))
    sigmoid = [0.5, 1 / (1 + math.exp(-2.0))]  # of the rate times a + dt_bias
    torch.testing.assert_close(gate(A_log, a, bias, -5.0), torch.tensor([[-5 * x for x in sigmoid]], dtype=F64))
    assert float(gate(A_log, a + 1e4, bias, -5.0).min()) == -5.0


def test_decode_of_each_token_in_turn_is_prefill() -> None:
    """From raw gates of either kind, with the norm taken before."""
    kda, call = module("kimi_delta_attention"), inputs(resets=False)
    a, A_log, bias = torch.randn(20, H, D, dtype=F64), torch.randn(H, dtype=F64), torch.randn(H, D, dtype=F64)
    b = torch.randn(20, H, dtype=F64)
    q, k, v = (call[name][30:] for name in ("q", "k", "v"))
    for bound in (None, -5.0):
        S, outputs = call["initial_state"][:1], []
        for t in range(20):
            one = [x[None, t : t + 1] for x in (q, k, v)]
            o, S = kda.decode_k_last(*one, S, A_log, a[None, t : t + 1], bias, b[None, t : t + 1], bound, None, True)
            outputs.append(o[0, 0])
        norms = kda.l2_normalise(q), kda.l2_normalise(k)
        g, lengths = kda.log_gate(A_log, a, bias, bound), torch.tensor([0, 20])
        output, state = kda.prefill_k_last(*norms, v, g, torch.sigmoid(b), lengths, call["initial_state"][:1], None)
        torch.testing.assert_close(torch.stack(outputs), output, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(S, state, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bound", [None, -5.0])
@pytest.mark.parametrize("normed", [True, False])
def test_raw_gates_are_log_gates_of_either_kind(bound: float | None, normed: bool) -> None:
    kda, call = module("kimi_delta_attention"), inputs(resets=False)
    a, A_log, bias = 20 * torch.randn(50, H, D, dtype=F64), torch.randn(H, dtype=F64), torch.randn(H, D, dtype=F64)
    b = torch.randn(50, H, dtype=F64)
    gates = {"A_log": A_log, "a": a, "dt_bias": bias, "b": b, "lower_bound": bound, "use_qk_l2norm": normed}
    rest = {name: x for name, x in call.items() if name not in ("g", "beta")}
    vectors = {name: kda.l2_normalise(3 * call[name]) if normed else 3 * call[name] for name in "qk"}
    logs = {"g": kda.log_gate(A_log, a, bias, bound), "beta": torch.sigmoid(b)}
    expected = kda.prefill_k_last(**call | vectors | logs)
    for own in (kda, module("chunkwise")):
        given = rest | gates | {name: 3 * call[name] for name in "qk"}
        for x, y in zip(own.prefill_raw_gates(**given), expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)
