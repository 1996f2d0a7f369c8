"""The backend of FLA in a process where FLA is installed; test_fla.py starts it. Wanted values are FLA's own, of its
plain PyTorch."""

import importlib
import inspect
import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from conftest import ROOT
from fla.ops.gated_delta_rule import chunk as own
from fla.ops.gated_delta_rule import chunk_gated_delta_rule  # before the backend: the order is free
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
from gdnspec import ops
from gdnspec.integrations import fla as adapter
from gdnspec.integrations.fla import GdnspecBackend
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import conv1d, normalize, pad, silu, softplus

B, T, H, HV, K, V = 2, 70, 2, 4, 8, 16
STARTS = torch.tensor([0, 1, 66, 66, 70])
RULE = "chunk_gated_delta_rule"


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def inputs(rows: int = B) -> dict[str, Tensor]:
    """Keys that are not normalised, raw gates for what FLA calls g and beta."""
    return {
        "q": drawn(rows, T, H, K), "k": drawn(rows, T, H, K), "v": drawn(rows, T, HV, V),
        "g": drawn(rows, T, HV), "beta": drawn(rows, T, HV),
    }  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of the operator."""
    seen: list[Any] = []
    operator = ops.gated_delta_rule

    def counted(*args: Any, **kwargs: Any) -> Any:
        seen.append(args)
        return operator(*args, **kwargs)

    monkeypatch.setattr(ops, "gated_delta_rule", counted)
    return seen


def wanted(given: dict[str, Tensor], states: Tensor | None, scale: float | None, beta: Tensor) -> tuple[Tensor, Tensor]:
    """By FLA's own recurrence, from normalised queries and keys and finished gates, states [K, V]."""
    q, k = (normalize(given[name], dim=-1) for name in ("q", "k"))
    q, k = (x.repeat_interleave(HV // H, dim=2) for x in (q, k))
    g = -softplus(given["g"])
    return naive_recurrent_gated_delta_rule(q, k, given["v"], beta, g, scale, states, output_final_state=True)


@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("raw", [False, True])
def test_values_are_those_of_flas_own_recurrence(v_first: bool, ragged: bool, raw: bool, calls: list[Any]) -> None:
    """`raw`: FLA's options that activate gates. With them beta goes up to 2."""
    given = inputs(1 if ragged else B)
    states = drawn(len(STARTS) - 1 if ragged else B, HV, K, V)
    beta = given["beta"].sigmoid() * (2 if raw else 1)
    more: dict[str, Any] = {"cu_seqlens": STARTS} if ragged else {}
    asked = dict(given)
    if raw:
        more |= {"use_gate_in_kernel": True, "A_log": torch.zeros(HV), "dt_bias": torch.zeros(HV)}
        more |= {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
    else:
        asked |= {"g": -softplus(given["g"]), "beta": beta}
    output, final = chunk_gated_delta_rule(
        **asked, scale=0.3, initial_state=states.mT.contiguous() if v_first else states, output_final_state=True,
        use_qk_l2norm_in_kernel=True, state_v_first=v_first, **more,
    )  # fmt: skip
    assert len(calls) == 1
    pieces = [slice(a, b) for a, b in pairwise(STARTS.tolist())] if ragged else [slice(0, T)]
    for n, piece in enumerate(pieces):
        part = {name: x[:, piece] for name, x in given.items()}
        own_states = states[n : n + 1] if ragged else states
        o, S = wanted(part, own_states, 0.3, beta[:, piece])
        torch.testing.assert_close(output[:, piece], o, rtol=1e-4, atol=1e-4)
        S = S.mT if v_first else S
        torch.testing.assert_close(final[n : n + 1] if ragged else final, S, rtol=1e-4, atol=1e-4)


def finished() -> dict[str, Tensor]:
    given = inputs()
    return given | {"k": normalize(given["k"], dim=-1), "g": -given["g"].abs()} | {
        "beta": given["beta"].sigmoid()
    }  # fmt: skip


def test_types_are_flas(calls: list[Any]) -> None:
    """The output has q's type, a state is float32 whatever it was, and none comes where none is wanted."""
    given = {name: x.bfloat16() for name, x in finished().items()}
    state = drawn(B, HV, K, V).bfloat16()
    output, final = chunk_gated_delta_rule(*given.values(), None, state, True)  # by position
    assert (output.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    assert output.shape == (B, T, HV, V)
    exact, _ = chunk_gated_delta_rule(*(x.double() for x in given.values()), None, state.double(), True)
    assert exact.dtype == torch.float64
    assert (output - exact).norm() < 0.01 * exact.norm()
    output, final = chunk_gated_delta_rule(**given)
    assert final is None
    assert len(calls) == 3


def test_gradients_come_on_a_cpu(calls: list[Any]) -> None:
    given = {name: x.requires_grad_() for name, x in finished().items()}
    chunk_gated_delta_rule(**given)[0].square().sum().backward()
    assert all(x.grad is not None and x.grad.abs().sum() > 0 for x in given.values())
    assert len(calls) == 1


def test_views_that_are_not_contiguous_are_served() -> None:
    given = finished()
    turned = {name: x.transpose(0, 1).contiguous().transpose(0, 1) for name, x in given.items()}
    assert not turned["q"].is_contiguous()
    assert torch.equal(chunk_gated_delta_rule(**turned)[0], chunk_gated_delta_rule(**given)[0])


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[bool, str | None]]]:
    """What the verifier says of tensors on a GPU, which are fake."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    def asked(dtype: torch.dtype = torch.bfloat16, size: int = 128, device: str = "cuda:0", **more: Any) -> Any:
        q, k, v = (torch.empty(1, 64, h, size, dtype=dtype, device=device) for h in (2, 2, 4))
        g, beta = (torch.empty(1, 64, 4, device=device) for _ in range(2))
        given = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
        return GdnspecBackend().verify(RULE, **given | more)

    with FakeTensorMode():
        yield asked


def test_what_is_served_on_a_gpu(elsewhere: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    parameter = torch.empty(1, 4, 128, 128, device="cuda:0", requires_grad=True)
    assert elsewhere() == (True, None)
    assert elsewhere(size=256, use_gate_in_kernel=True, A_log=torch.empty(4, device="cuda:0")) == (True, None)
    with torch.no_grad():
        assert elsewhere(initial_state=parameter) == (True, None)
    assert elsewhere(initial_state=parameter) == (True, None)
    wide = torch.empty(1, 64, 4, 256, dtype=torch.bfloat16, device="cuda:0")
    assert elsewhere(v=wide) == (True, None)
    said = "gdnspec's kernels need heads of one size for gradients, got 128 and 256"
    assert elsewhere(v=wide.requires_grad_())[1] == said
    assert elsewhere(torch.float16)[1] == "gdnspec's kernels need bfloat16, got torch.float16"
    assert elsewhere(size=512)[1] == "gdnspec's kernels need heads of at most 256, got 512 and 512"
    assert elsewhere(device="cuda:1")[1] == "gdnspec's kernels need the current device, got cuda:1"
    assert elsewhere(device="xpu:0")[1] == "gdnspec has no kernels for xpu"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert elsewhere() == (True, None)
    assert elsewhere(A_log=parameter)[1] == "gdnspec's gradients were tried on Hopper alone"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert elsewhere()[1] == "gdnspec's kernels need compute capability 8.0"


REFUSED = {
    "divide a sequence": {"cp_context": object()},
    "only with use_beta_sigmoid": {"allow_neg_eigval": True},
    "needs A_log": {"use_gate_in_kernel": True},
    "one type for q, k and v": {"v": drawn(B, T, HV, V).double()},
    "with the heads of FLA": {"q": drawn(B, T, HV, K)},
    "a batch of one row": {"cu_seqlens": STARTS},
    "chunks of": {"chunk_size": 128},
    "as many initial states": {"initial_state": drawn(B + 1, HV, K, V)},
    "unexpected keyword argument 'newer'": {"newer": 1},
    "unexpected keyword argument 'transpose_state_layout'": {"transpose_state_layout": True},
}


@pytest.mark.parametrize("why", REFUSED)
def test_other_calls_fall_through_to_fla(why: str, calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    given = finished() | REFUSED[why]
    accepted, reason = GdnspecBackend().verify(RULE, **given)
    assert not accepted
    assert why in reason
    reached: list[Any] = []
    monkeypatch.setattr(own.ChunkGatedDeltaRuleFunction, "apply", lambda *a: reached.append(a) or (None, None))
    try:
        chunk_gated_delta_rule(**given)
    except (AssertionError, AttributeError, ValueError):  # FLA's own check of the call
        reached.append("refused by FLA")
    assert reached
    assert not calls


def test_the_variable_switches_it_off(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own.ChunkGatedDeltaRuleFunction, "apply", lambda *args: ("FLA's", None))
    monkeypatch.setenv("FLA_GDNSPEC", "0")
    assert chunk_gated_delta_rule(**finished())[0] == "FLA's"
    assert not calls
    monkeypatch.setenv("FLA_GDNSPEC", "1")
    chunk_gated_delta_rule(**finished())
    assert len(calls) == 1


def test_it_can_be_taken_back_and_registered_again(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own.ChunkGatedDeltaRuleFunction, "apply", lambda *args: ("FLA's", None))
    monkeypatch.setattr(GdnspecBackend, "registered", True)
    adapter.register()
    chunk_gated_delta_rule(**finished())
    assert len(calls) == 1
    for _ in range(2):
        adapter.unregister()
        assert chunk_gated_delta_rule(**finished())[0] == "FLA's"
    assert len(calls) == 1
    adapter.register()
    chunk_gated_delta_rule(**finished())
    assert len(calls) == 2


def test_fla_says_which_backend_it_took(caplog: pytest.LogCaptureFixture) -> None:
    from fla import backends

    registry = backends._operation_registries["gated_delta_rule"]
    assert isinstance(registry._get_sorted_backends()[1], GdnspecBackend)  # after the one of Ascend
    registry._logged.clear()
    with caplog.at_level(logging.INFO, logger="fla.backends"):
        chunk_gated_delta_rule(**finished())
    assert "gated_delta_rule.chunk_gated_delta_rule -> gdnspec" in caplog.text


@pytest.mark.gpu
def test_on_a_gpu_the_values_are_near_flas_own(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a CUDA graph records the call, after a first one."""
    q, k, v = (drawn(1, 300, h, 128).cuda() for h in (2, 2, 4))
    g, beta = (drawn(1, 300, 4).cuda() for _ in range(2))
    k = normalize(k, dim=-1)
    given = {"q": q.bfloat16(), "k": k.bfloat16(), "v": v.bfloat16(), "g": -g.abs(), "beta": beta.sigmoid()}
    starts = torch.tensor([0, 1, 130, 300], device="cuda")
    more = {"cu_seqlens": starts, "initial_state": drawn(3, 4, 128, 128).cuda(), "output_final_state": True}
    found = chunk_gated_delta_rule(**given, **more)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = chunk_gated_delta_rule(**given, **more)
    graph.replay()
    assert len(calls) == 2
    monkeypatch.setenv("FLA_GDNSPEC", "0")
    for ours, recorded, theirs in zip(found, again, chunk_gated_delta_rule(**given, **more), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert (ours.float() - theirs.float()).norm() < 0.02 * theirs.float().norm()
        assert torch.equal(ours, recorded)
    assert len(calls) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("size", [64, 128])
def test_on_a_gpu_gradients_are_those_of_a_cpu(size: int, calls: list[Any]) -> None:
    """Where FLA's own backward pass refuses to run, on Hopper with Triton 3.4.0 to 3.7.0."""
    if torch.cuda.get_device_capability()[0] != 9:
        return  # not served there
    found = []
    for device, dtype, wide in (("cuda", torch.bfloat16, torch.float32), ("cpu", torch.float64, torch.float64)):
        q, k, v = (drawn(1, 300, h, size).bfloat16().to(device, dtype) for h in (2, 2, 4))
        g, beta = (drawn(1, 300, 4).to(device, wide) for _ in range(2))
        state = drawn(3, 4, size, size).to(device, wide)
        inputs = [x.detach().requires_grad_() for x in (q, k, v, -g.abs(), beta.sigmoid(), state)]
        starts = torch.tensor([0, 1, 130, 300], device=device)
        output, final = chunk_gated_delta_rule(
            *inputs[:5], initial_state=inputs[5], output_final_state=True, use_qk_l2norm_in_kernel=True,
            cu_seqlens=starts,
        )  # fmt: skip
        cotangents = [drawn(*x.shape).bfloat16().to(device, x.dtype) for x in (output, final)]
        torch.autograd.backward([output, final], cotangents)
        found.append([x.grad.double().cpu() for x in inputs])
    assert len(calls) == 2
    # Normalising a query removes its gradient along the query. Little is left, so rounding shows. In float64, rounding
    # the normalised q and k to bfloat16, and nothing else, moves dq by 1.5% and the other gradients by at most 0.2%.
    for mine, exact, share in zip(*found, (0.04, 0.02, 0.02, 0.02, 0.02, 0.02), strict=True):
        assert (mine - exact).norm() < share * exact.norm()


@pytest.mark.thorough
def test_the_benchmark_calls_fla_by_the_arguments_that_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has a kernel for GPUs alone is replaced by plain PyTorch with the same arguments."""
    from fla.modules import causal_conv1d as convolutions
    from fla.modules.norm import fused_norm_gate as norms
    from fla.ops import gated_delta_rule as rules

    def convolution(x: Tensor, weight: Tensor, bias: None, activation: str, cu_seqlens: Tensor | None) -> Any:
        starts = [0, x.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
        pieces = [pad(x[:, a:b].mT, (weight.shape[1] - 1, 0)) for a, b in pairwise(starts)]
        y = torch.cat([conv1d(piece, weight[:, None], bias, groups=len(weight)) for piece in pieces], dim=-1)
        return silu(y).mT, None

    def convolution_step(x: Tensor, cache: Tensor, weight: Tensor, bias: None, activation: str) -> Any:
        cache.copy_(torch.cat([cache[:, :, 1:], x.mT], dim=-1))
        return silu((cache * weight).sum(-1))[:, None], cache

    def recurrent(q: Tensor, k: Tensor, v: Tensor, use_qk_l2norm_in_kernel: bool, **more: Any) -> Any:
        assert use_qk_l2norm_in_kernel
        assert more.pop("cu_seqlens") is None
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
        return naive_recurrent_gated_delta_rule(q, k, v, **more)

    def norm(x: Tensor, g: Tensor, weight: Tensor, bias: None, eps: float) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight * silu(g)

    for place, name, function in (
        (convolutions, "causal_conv1d", convolution), (convolutions, "causal_conv1d_update", convolution_step),
        (rules, "fused_recurrent_gated_delta_rule", recurrent), (norms, "rms_norm_gated", norm),
    ):  # fmt: skip
        monkeypatch.setattr(place, name, create_autospec(getattr(place, name), side_effect=function))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    importlib.import_module("end_to_end").main(["--tiny", "--device", "cpu", "--windows", "1"])
    printed = capsys.readouterr()
    rows = [line.strip("| ").split(" | ") for line in printed.out.splitlines() if line.startswith(("| pre", "| dec"))]
    assert [row[1] for row in rows] == ["transformers", "fla", "gdnspec", "fla", "gdnspec"] + [
        "transformers", "fla", "gdnspec"
    ] * 2, printed.err  # fmt: skip
    assert all(float(row[-1]) < 1e-4 for row in rows), printed.out
    assert [row[-2] for row in rows if row[1] == "fla"] == ["1.00x"] * 4


@pytest.mark.thorough
def test_a_model_of_transformers_gets_it(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers takes FLA's function wherever it finds it."""
    from transformers import Qwen3NextConfig, Qwen3NextModel
    from transformers.models.qwen3_next import modeling_qwen3_next as package

    sizes = {
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
    }  # fmt: skip
    torch.manual_seed(0)
    model, ids = Qwen3NextModel(Qwen3NextConfig(**sizes)).eval(), torch.arange(40).view(2, 20)
    with torch.no_grad():
        ours = model(ids, use_cache=False).last_hidden_state
        assert len(calls) == 3
        name = "torch_chunk_gated_delta_rule"
        monkeypatch.setattr(package, name, inspect.unwrap(getattr(package, name)))
        torch.testing.assert_close(ours, model(ids, use_cache=False).last_hidden_state, rtol=1e-3, atol=1e-4)
    assert len(calls) == 3
