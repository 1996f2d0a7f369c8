"""The stages of the chunkwise form: composed they are the prefill, and kernels refuse what they cannot do."""

from itertools import accumulate
from types import ModuleType
from typing import Any

import pytest
import torch
from conftest import ROOT
from gdnspec.build.loader import load_function
from helpers_unit import reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

gdn, stages = reference("gated_delta_net"), reference("chunk_stages")
F64, BF16 = torch.float64, torch.bfloat16
Keywords = dict[str, Any]


def inputs(seed: int, lengths: list[int], HK: int, HV: int, K: int, V: int) -> Keywords:
    """alpha in [0, 1] with exact zeros and ones, beta in [0, 2] with both ends; keys of unit norm."""
    generator = torch.Generator().manual_seed(seed)
    T = sum(lengths)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=F64)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(T, HV, generator=generator, dtype=F64)

    k = normal(T, HK, K)
    return {
        "q": normal(T, HK, K), "k": k / k.norm(dim=-1, keepdim=True), "v": normal(T, HV, V),
        "g": uniform(-0.15, 1.15).clamp(0, 1).log(), "beta": uniform(-0.2, 2.2).clamp(0, 2),
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0), "initial_state": normal(len(lengths), HV, V, K),
    }  # fmt: skip


def composed(x: Keywords, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Output and final state, by way of the three stages."""
    at = torch.tensor([0, *accumulate(-(-n // 64) for n in x["cu_seqlens"].diff().tolist())])
    u, w = stages.chunk_wy(x["k"], x["v"], x["g"], x["beta"], x["cu_seqlens"])
    kept, u_new, final = stages.chunk_state(x["k"], w, u, x["g"], x["cu_seqlens"], at, x["initial_state"])
    assert (kept.dtype, len(kept)) == (F64, at[-1])
    return stages.chunk_output(x["q"], x["k"], u_new, kept, x["g"], x["cu_seqlens"], at, scale), final


def token_by_token(x: Keywords, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """The recurrence itself, for heads of keys and values of any size."""
    T, HV, V = x["v"].shape
    factor = x["k"].shape[2] ** -0.5 if scale is None else scale
    Q, K = (gdn.expand_heads(x[name], HV) for name in ("q", "k"))
    output = torch.zeros(T, HV, V, dtype=F64)
    shape = (len(x["cu_seqlens"]) - 1, HV, V, K.shape[2])
    final = torch.zeros(shape, dtype=F64) if x["initial_state"] is None else x["initial_state"].clone()
    for n, t in stages.sequences(x["cu_seqlens"]):
        S = final[n]
        for i in range(t.start, t.stop):
            output[i], S = gdn.step(S, Q[i], K[i], x["v"][i], x["g"][i].exp(), x["beta"][i], factor)
        final[n] = S
    return output, final


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm().clamp(min=1e-300))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    lengths=st.lists(st.sampled_from([0, 1, 63, 64, 65, 128]) | st.integers(0, 150), min_size=1, max_size=3),
    heads=st.sampled_from([(1, 1), (1, 2), (2, 6)]),
    sizes=st.sampled_from([(8, 8), (3, 8), (8, 5)]),
    state=st.booleans(),
    scale=st.sampled_from([None, 0.0, -0.7]),
)  # fmt: skip
def test_composed_they_are_the_prefill(
    seed: int, lengths: list[int], heads: tuple[int, int], sizes: tuple[int, int], state: bool, scale: float | None
) -> None:
    x = inputs(seed, lengths, *heads, *sizes)
    if not state:
        x["initial_state"] = None
    got, expected = composed(x, scale), token_by_token(x, scale)
    for one, other in zip(got, expected, strict=True):
        assert torch.isfinite(one).all()
        assert relative_error(one, other) <= 1e-12
    for n in range(len(lengths)):  # no long sequence hides an error in a short one
        assert relative_error(got[1][n], expected[1][n]) <= 1e-12


@pytest.mark.parametrize("size", [60, 120])
def test_composed_they_are_the_prefill_of_the_definition(size: int) -> None:
    x = inputs(size, [70, 0, 129], 2, 4, size, size)
    x["g"][[0, 63, 64, 100]] = -torch.inf
    arguments = {name: x[name] for name in ("q", "k", "v", "beta", "cu_seqlens", "initial_state")}
    expected = gdn.prefill_k_last(**arguments, g=x["g"].exp(), scale=None)
    for one, other in zip(composed(x), expected, strict=True):
        assert relative_error(one, other) <= 1e-12


def test_a_padded_batch_is_a_ragged_one_with_tokens_that_do_nothing() -> None:
    ragged, size = inputs(3, [70, 100, 5], 1, 2, 8, 8), 100
    lengths = ragged["cu_seqlens"].diff().tolist()
    padded = {"cu_seqlens": torch.arange(4) * size, "initial_state": ragged["initial_state"]}
    for name, fill in {"q": 1.0, "k": 1.0, "v": 1.0, "g": 0.0, "beta": 0.0}.items():
        rows = ragged[name].split(lengths)
        tails = [row.new_full((size - len(row), *row.shape[1:]), fill) for row in rows]
        padded[name] = torch.cat([x for pair in zip(rows, tails, strict=True) for x in pair])
    output, final = composed(ragged)
    got, last = composed(padded)
    inside = torch.cat([torch.arange(length) + n * size for n, length in enumerate(lengths)])
    assert relative_error(got[inside], output) <= 1e-12
    assert relative_error(last, final) <= 1e-12


def test_a_reset_leaves_no_trace_of_what_was_before() -> None:
    x = inputs(4, [130], 1, 2, 8, 8)
    x["g"][64] = -torch.inf
    _, w = stages.chunk_wy(x["k"], x["v"], x["g"], x["beta"], x["cu_seqlens"])
    assert not w[64:128].any(), "nothing of the state at the chunk's start is seen after it"
    output, final = composed(x)
    again, last = composed(x | {"initial_state": 1e6 * x["initial_state"]})
    assert torch.equal(output[64:], again[64:])
    assert torch.equal(final, last)


# --- what kernels refuse -------------------------------------------------------------------------------------------

T, N, HK, H, K, V, CHUNKS = 140, 2, 1, 2, 16, 32, 4


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("triton")
    build = tmp_path_factory.mktemp("build")
    functions = ("chunk_wy", "chunk_state", "chunk_output")
    module = ModuleType("stages")
    for name in functions:
        setattr(module, name, load_function(ROOT / "solutions/triton_chunk_stages", f"kernel.py::{name}", build))
    return module


def arguments(entry: str) -> Keywords:
    def bf16(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=BF16)

    every: Keywords = {
        "q": bf16(T, HK, K), "k": bf16(T, HK, K), "v": bf16(T, H, V), "u": bf16(T, H, V), "w": bf16(T, H, K),
        "u_new": bf16(T, H, V), "output": bf16(T, H, V), "states": bf16(CHUNKS, H, V, K), "g": torch.zeros(T, H),
        "beta": torch.zeros(T, H), "initial_state": torch.zeros(N, H, V, K), "final_state": torch.zeros(N, H, V, K),
        "cu_seqlens": torch.tensor([0, 65, T]), "chunk_cu_starts": torch.tensor([0, 2, CHUNKS]), "scale": None,
    }  # fmt: skip
    names = {
        "chunk_wy": "k v g beta cu_seqlens u w",
        "chunk_state": "k w u g cu_seqlens chunk_cu_starts initial_state states u_new final_state",
        "chunk_output": "q k u_new states g cu_seqlens chunk_cu_starts scale output",
    }
    return {name: every[name] for name in names[entry].split()}


BAD = [
    ("chunk_wy", {"k": torch.zeros(T, HK, K)}, "k is torch.float32"),
    ("chunk_wy", {"v": torch.zeros(T, 4, V, dtype=BF16)[:, ::2]}, "v must be contiguous"),
    ("chunk_wy", {"k": torch.zeros(T, 3, K, dtype=BF16)}, "num_k_heads 3 does not divide num_v_heads 2"),
    ("chunk_wy", {"v": torch.zeros(T, H, 272, dtype=BF16)}, "heads of 16 and 272 elements are not served"),
    ("chunk_wy", {"g": torch.zeros(T, H, dtype=BF16)}, "g is torch.bfloat16"),
    ("chunk_wy", {"beta": torch.zeros(T, 2 * H)[:, ::2]}, "beta must be contiguous"),
    ("chunk_wy", {"w": torch.zeros(T, H, V, dtype=BF16)}, "w has shape"),
    ("chunk_wy", {"cu_seqlens": torch.tensor([0])}, "cu_seqlens has one entry more"),
    ("chunk_wy", {"cu_seqlens": torch.tensor([0, 65, T], dtype=torch.int32)}, "cu_seqlens is torch.int32"),
    ("chunk_state", {"initial_state": torch.zeros(N, H, K, V)}, "initial_state has shape"),
    ("chunk_state", {"initial_state": torch.zeros(N, H, V, K, dtype=BF16)}, "initial_state is torch.bfloat16"),
    ("chunk_state", {"states": torch.zeros(CHUNKS, H, K, V, dtype=BF16)}, "states has shape"),
    ("chunk_state", {"u": torch.zeros(T - 1, H, V, dtype=BF16)}, "u has shape"),
    ("chunk_state", {"chunk_cu_starts": torch.tensor([0, 4])}, "chunk_cu_starts has shape"),
    ("chunk_output", {"states": torch.zeros(CHUNKS, H, V, K)}, "states is torch.float32"),
    ("chunk_output", {"q": torch.zeros(T, H, K, dtype=BF16)}, "q has shape"),
    ("chunk_output", {"output": torch.zeros(T, H, K, dtype=BF16)}, "output has shape"),
]


@pytest.mark.parametrize(("entry", "changes", "says"), BAD)
def test_bad_input_is_refused(kernel: Any, entry: str, changes: Keywords, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        getattr(kernel, entry)(**arguments(entry) | changes)


@pytest.mark.parametrize("entry", ["chunk_state", "chunk_output"])
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cu_seqlens": torch.tensor([0, 141, T])}, "cu_seqlens must rise from 0 to 140"),
        ({"chunk_cu_starts": torch.tensor([0, 1, CHUNKS])}, r"chunk_cu_starts must be \[0, 2, 4\]"),
        ({"chunk_cu_starts": torch.tensor([0, 2, 5])}, r"chunk_cu_starts must be \[0, 2, 4\]"),
    ],
)
def test_bounds_that_lie_are_refused_when_asked_to_look(
    kernel: Any, entry: str, changes: Keywords, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kernel.chunk_wy.__globals__, "DEBUG", True)
    with pytest.raises(ValueError, match=says):
        getattr(kernel, entry)(**arguments(entry) | changes)
