"""Convolution, norms and gates in one pass: the reference is those it is made of, and what the prefill reads."""

from typing import Any

import pytest
import torch
from conftest import ROOT
from gdnspec.build.loader import load_function
from gdnspec.catalog.definitions import definition, preset_of
from gdnspec.inputs.fresh import fresh
from gdnspec.inputs.materialise import materialise
from helpers_unit import arguments, drawn, reference

conv, gdn = reference("convolution"), reference("gated_delta_net")
F64, BF16 = torch.float64, torch.bfloat16
Keywords = dict[str, Any]
FOUND = definition("gdn_conv_gates_prefill")
LENGTHS = (1, 0, 2, 3, 9, 5)


def inputs(preset: str = "synthetic-gva-2x4-d64", lengths: tuple[int, ...] = LENGTHS) -> Keywords:
    """In float64; the last sequence but one is skipped."""
    given = arguments(FOUND, drawn(FOUND, preset, lengths=lengths), F64)
    N = len(lengths)
    slots = torch.arange(N, dtype=torch.int32).flip(0)
    slots[N - 2] = -1
    return given | {"slots": slots, "has_initial_state": torch.arange(N) % 2 == 0}


# GVA of two and of three, a kernel of four, three and two tokens.
PRESETS = ("synthetic-gva-2x4-d64", "synthetic-gva-2x6-d128", "synthetic-mha-2x2-d120")


@pytest.mark.parametrize("preset", PRESETS)
def test_the_prefill_of_it_is_the_prefill_from_the_convolution(preset: str) -> None:
    given = inputs(preset)
    q, k, v, g, beta, pool = conv.conv_gates_prefill(**given)
    N, (H, D) = len(LENGTHS), v.shape[1:]
    states = torch.randn(N + 1, H, D, D, generator=torch.Generator().manual_seed(3), dtype=F64)  # [.., V, K]
    at = given["slots"].long() % (N + 1)  # of the skipped sequence, the last one, which nobody else has
    output, final = gdn.prefill_k_last(q, k, v, g, beta, given["cu_seqlens"], states[at], None)

    one = {"weight": "conv_weight", "bias": "conv_bias"}
    same = ("x", "cu_seqlens", "conv_states", "slots", "has_initial_state")
    qkv, after = conv.conv1d_prefill(**{x: given[one.get(x, x)] for x in (*same, *one)})
    alpha = gdn.forget_gate_raw(given["A_log"], given["a"], given["dt_bias"])
    rows, left = gdn.prefill_from_conv(
        qkv, alpha, given["b"].sigmoid(), states.mT.contiguous(), given["slots"], given["cu_seqlens"]
    )  # fmt: skip
    torch.testing.assert_close(output.flatten(1), rows, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(final, left.mT[at], rtol=1e-12, atol=1e-13)
    assert torch.equal(pool, after)


def test_tokens_of_a_skipped_sequence_leave_a_state_alone() -> None:
    given = inputs(lengths=(3, 4))
    given["slots"] = torch.tensor([-1, 0], dtype=torch.int32)
    q, k, v, g, beta, pool = conv.conv_gates_prefill(**given)
    assert not any(x[:3].any() for x in (q, k, v, beta))
    assert torch.equal(g[:3], torch.ones_like(g[:3]))
    assert all(x[3:].all() for x in (q, k, v, beta))
    assert torch.equal(pool[1:], given["conv_states"][1:])


def test_one_token_worked_out_by_hand() -> None:
    # One head of two channels, width 2, the token itself alone: x times 2, plus 0.
    given = {
        "x": torch.tensor([[0.0, 1.0, 3.0, 3.0, 5.0, 0.0]], dtype=F64),
        "conv_weight": torch.tensor([[7.0, 2.0]] * 6, dtype=F64), "conv_bias": None,
        "a": torch.tensor([[1.0]], dtype=F64), "b": torch.tensor([[0.0]], dtype=F64),
        "A_log": torch.log(torch.tensor([2.0], dtype=F64)), "dt_bias": torch.tensor([-1.0], dtype=F64),
        "cu_seqlens": torch.tensor([0, 1]), "conv_states": torch.full((1, 6, 1), 9.0, dtype=F64),
        "slots": torch.tensor([0], dtype=torch.int32), "has_initial_state": torch.tensor([False]), "head_dim": 2,
    }  # fmt: skip
    q, k, v, g, beta, pool = conv.conv_gates_prefill(**given)
    silu = lambda x: x / (1 + torch.exp(torch.tensor(-x, dtype=F64)))  # noqa: E731
    torch.testing.assert_close(q[0, 0], torch.tensor([0.0, 1.0], dtype=F64), rtol=0, atol=1e-6)
    torch.testing.assert_close(k[0, 0], torch.tensor([0.5**0.5] * 2, dtype=F64), rtol=0, atol=1e-7)
    torch.testing.assert_close(v[0, 0], torch.stack([silu(10.0), silu(0.0)]), rtol=1e-14, atol=0)
    assert float(g[0, 0]) == pytest.approx(0.25)  # exp(-2 log 2)
    assert float(beta[0, 0]) == 0.5
    assert torch.equal(pool[0, :, 0], given["x"][0])


@pytest.mark.parametrize("seed", range(5))
def test_the_size_of_a_head_always_arrives(seed: int) -> None:
    for line in fresh(FOUND, seed, "cpu"):
        assert line.scalars == {}
        assert materialise(FOUND, line).scalars == {"head_dim": preset_of(FOUND, line).axes["head_size"]}


# --- what the Triton kernel refuses -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("triton")
    folder = ROOT / "solutions/triton_layer"
    return load_function(folder, "conv_gates.py::conv_gates_prefill", tmp_path_factory.mktemp("build"))


def call(**changes: Any) -> Keywords:
    T, HK, H, D, W, N = 7, 1, 2, 8, 4, 2
    C = (2 * HK + H) * D
    tensor = lambda *shape, dtype=BF16: torch.ones(shape, dtype=dtype)  # noqa: E731
    return {
        "x": tensor(T, C), "conv_weight": tensor(C, W), "conv_bias": tensor(C), "a": tensor(T, H), "b": tensor(T, H),
        "A_log": tensor(H, dtype=torch.float32), "dt_bias": tensor(H), "cu_seqlens": torch.tensor([0, 3, T]),
        "conv_states": tensor(3, C, W - 1), "slots": torch.tensor([2, 0], dtype=torch.int32),
        "has_initial_state": torch.ones(N, dtype=torch.bool), "head_dim": D, "q": tensor(T, HK, D),
        "k": tensor(T, HK, D), "v": tensor(T, H, D), "g": tensor(T, H, dtype=torch.float32),
        "beta": tensor(T, H, dtype=torch.float32),
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"head_dim": 16}, "rows of 32 channels are not q, k and v of 2 value heads of 16"),
        ({"head_dim": 512}, "heads of 512 elements are not served"),
        ({"head_dim": 0}, "heads of 0 elements are not served"),
        ({"conv_weight": torch.ones(32, 5, dtype=BF16)}, "kernel width 5 is not served"),
        ({"x": torch.ones(7, 40, dtype=BF16)}, "rows of 40 channels"),
        ({"a": torch.ones(6, 2, dtype=BF16)}, "x has shape"),
        ({"b": torch.ones(7, 2)}, "b is torch.float32"),
        ({"A_log": torch.ones(2, dtype=BF16)}, "A_log is torch.bfloat16"),
        ({"dt_bias": torch.ones(3, dtype=BF16)}, "dt_bias has shape"),
        ({"g": torch.ones(7, 2, dtype=BF16)}, "g is torch.bfloat16"),
        ({"q": torch.ones(7, 2, 8, dtype=BF16)}, "q has shape"),
        ({"v": torch.ones(2, 7, 8, dtype=BF16).transpose(0, 1)}, "v must be contiguous"),
        ({"cu_seqlens": torch.tensor([0])}, "none is none"),
        ({"cu_seqlens": torch.tensor([0, 3, 7], dtype=torch.int32)}, "cu_seqlens is torch.int32"),
        ({"slots": torch.zeros(3, dtype=torch.int32)}, "slots has shape"),
    ],
)
def test_bad_input_is_refused_on_the_host(kernel: Any, changes: Keywords, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        kernel(**call(**changes))


# --- what the CUDA kernel refuses, and what it does with values that lie --------------------------------------------


def apart(pool: torch.Tensor, elements: int) -> torch.Tensor:
    """Slots so far apart, beyond their length."""
    slot = pool.flatten(1)
    return torch.cat([slot, slot[:, :elements]], 1)[:, : slot.shape[1]].view(pool.shape)


ON_GPU: dict[str, Any] = {
    **{f"{name} float64": {name: lambda x: x.double()} for name in ("x", "conv_weight", "a", "A_log", "q", "g")},
    **{f"{name} short": {name: lambda x: x[:-1]} for name in ("x", "conv_bias", "b", "dt_bias", "slots", "v", "beta")},
    **{f"{name} strided": {name: lambda x: x.repeat_interleave(2, 0)[::2]} for name in ("x", "conv_weight", "k", "g")},
    **{f"{name} on a CPU": {name: lambda x: x.cpu()} for name in ("x", "a", "cu_seqlens", "has_initial_state", "q")},
    "bounds int32": {"cu_seqlens": lambda x: x.int()},
    "flags int32": {"has_initial_state": lambda x: x.int()},
    "head_dim 64": {"head_dim": lambda _: 64},
    "head_dim 96": {"head_dim": lambda _: 96},
    "states channels last": {"conv_states": lambda x: x.mT.contiguous().mT},
    "states in steps of 4": {"conv_states": lambda x: apart(x, 4)},
}  # fmt: skip


def on_gpu() -> Keywords:
    given = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in call(head_dim=128).items()}
    for name in ("x", "conv_weight", "conv_bias", "conv_states", "q", "k", "v"):
        dimension = given[name].ndim - 1 if name in "xqkv" else 1 if name == "conv_states" else 0
        given[name] = given[name].repeat_interleave(16, dimension).contiguous()
    return given


@pytest.mark.gpu
def test_the_cuda_kernel_refuses_bad_input_and_survives_bounds_that_lie(tmp_path: Any) -> None:
    kernel = load_function(ROOT / "solutions/fused_conv_prefill", "kernel.cu::gdn_conv_gates_prefill", tmp_path)
    kernel(*on_gpu().values())
    for what, change in ON_GPU.items():
        given = on_gpu()
        ((name, changed),) = change.items()
        with pytest.raises(ValueError):
            kernel(*(given | {name: changed(given[name])}).values())
            pytest.fail(what)
    for bounds in ([0, 9, 7], [-(2**40), 2**40, 3], [5, 5, 5], [7, 0, 0]):
        kernel(*(on_gpu() | {"cu_seqlens": torch.tensor(bounds).cuda()}).values())
    torch.cuda.synchronize()
    given = on_gpu() | {"slots": torch.tensor([99, -7], dtype=torch.int32).cuda()}
    kernel(*given.values())
    assert not any(given[name].any() for name in ("q", "k", "v", "beta"))
    assert bool(given["g"].eq(1).all() and given["conv_states"].eq(1).all())
