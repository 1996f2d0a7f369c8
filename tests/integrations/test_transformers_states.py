"""The states in the cache of transformers: where they lie, who may go on from them, what a step costs."""

from collections import Counter
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

transformers = pytest.importorskip("transformers")
from gdnspec.integrations import layer_states as adapter  # noqa: E402
from gdnspec.integrations.transformers import use  # noqa: E402
from helpers_transformers import MODEL, MODELS, logits_of, made, prompts  # noqa: E402

# Copies of heads for Qwen3-Next: of q and k, of v, of z, of both gates. OLMo Hybrid puts q, k and v together and apart.
MOST_CALLS = {"qwen3_next": 5, "qwen3_5": 1, "qwen3_5_moe": 1, "olmo_hybrid": 7}
NO_WORK = ("aten.mm", "aten._unsafe_view", "aten.new_empty")  # projections, and what launches nothing


class Calls(TorchDispatchMode):
    """The calls of PyTorch that compute or copy something, without those of projections."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not call.is_view and not str(call).startswith(NO_WORK):
            self.counts[str(call)] += 1
        return call(*args, **(kwargs or {}))


def begun(model: Any) -> tuple[Any, Any, Tensor]:
    """The first layer, a cache in which it has computed nine tokens, and the next ones."""
    layer, cache = model.model.layers[0].linear_attn, transformers.DynamicCache(config=model.config)
    weight = next(model.parameters())
    drawn = torch.randn(2, 9, model.config.hidden_size, generator=torch.Generator().manual_seed(5))
    hidden = drawn.to(weight.device, weight.dtype)
    with torch.no_grad():
        layer(hidden, cache_params=cache)
    return layer, cache, hidden[:, :1]


@pytest.mark.parametrize("family", MODELS)
def test_a_step_is_few_calls(family: str) -> None:
    model = made(family)
    with use(model), torch.no_grad():
        layer, cache, token = begun(model)
        with Calls() as calls:
            layer(token, cache_params=cache)
    assert calls.counts.total() <= MOST_CALLS[family], calls.counts


@pytest.mark.parametrize("family", MODELS)
def test_the_states_of_the_cache_are_the_pools(family: str) -> None:
    """Nothing is copied between the cache and the operators, which take states [V, K]."""
    model = made(family)
    with use(model), torch.no_grad():
        layer, cache, token = begun(model)
        held = cache.layers[0]
        states = (held.conv_states[0], held.recurrent_states[0])
        before = [x.clone() for x in states]
        assert states[0].shape[-1] == layer.conv_kernel_size - 1
        assert states[1].mT.is_contiguous()
        for tokens in (token, token.expand(-1, 5, -1)):
            layer(tokens, cache_params=cache)
            assert held.conv_states[0] is states[0]
            assert held.recurrent_states[0] is states[1]
    assert not any(torch.equal(x, y) for x, y in zip(states, before, strict=True))


@pytest.mark.parametrize("first", ["ours", "own"])
@pytest.mark.parametrize("family", MODELS)
def test_a_cache_goes_on_by_the_other_code(family: str, first: str) -> None:
    """One token or several, after one token or several, each part by the code that did not compute the one before."""
    model = made(family)
    ids = prompts(padded=False)["input_ids"]
    whole = logits_of(model, input_ids=ids)
    found, cache, ours = [], transformers.DynamicCache(config=model.config), first == "ours"
    for part in ids.split([2, 1, 3, 1, 1, 1], dim=1):
        with use(model) if ours else nullcontext():
            found.append(logits_of(model, input_ids=part, past_key_values=cache, use_cache=True))
        ours = not ours
    torch.testing.assert_close(torch.cat(found, dim=1), whole, rtol=1e-3, atol=1e-3)


def test_beams_change_places() -> None:
    """The cache lays its states anew whenever they do."""
    model = made(MODEL)
    options = {"max_new_tokens": 12, "num_beams": 3, "do_sample": False}
    own = model.generate(**prompts(), **options)
    with use(model):
        assert torch.equal(model.generate(**prompts(), **options), own)


def test_an_eps_of_its_own_is_kept() -> None:
    """The operator of a whole step has one eps."""
    model = made(MODEL)
    for layer in (0, 2):
        model.model.layers[layer].linear_attn.norm.variance_epsilon = 0.5
    own = model.generate(**prompts(), max_new_tokens=12, do_sample=False)
    with use(model):
        assert torch.equal(model.generate(**prompts(), max_new_tokens=12, do_sample=False), own)


def test_what_inference_has_made_serves_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots and bounds are kept, and calls with gradients save them."""
    kept: dict[Any, Any] = {}
    monkeypatch.setattr(adapter, "KEPT", kept)
    model = made(MODEL).train()
    with use(model):
        with torch.inference_mode():
            model(**prompts())
        assert [count for count, _ in kept] == [2]
        before = kept[2, torch.device("cpu")]
        model(**prompts(), labels=prompts()["input_ids"]).loss.backward()
    assert kept[2, torch.device("cpu")] is before
    assert model.model.layers[0].linear_attn.A_log.grad is not None


def test_what_has_no_values_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "KEPT", {})
    with FakeTensorMode():
        assert adapter.rows_of(3, torch.empty(3)).bounds.shape == (4,)
    assert not adapter.KEPT


# --- bfloat16, and graphs of a GPU ------------------------------------------------------------------------------

# Head sizes that CUDA kernels serve. All experts count: a choice among them that rounding turns is no small error.
LARGE = {"hidden_size": 256, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
MORE = {
    "olmo_hybrid": {"linear_value_head_dim": 256},
    "qwen3_next": {"num_experts_per_tok": 2},
    "qwen3_5_moe": {"num_experts_per_tok": 2},
}


def large(family: str) -> Any:
    return made(family, **LARGE | MORE.get(family, {}))


def step_by_step(model: Any) -> Tensor:
    """The logits of 16 prompts, then of six tokens one by one."""
    ids = torch.randint(1, 64, (16, 30), generator=torch.Generator().manual_seed(9)).to(model.device)
    cache, found = transformers.DynamicCache(config=model.config), []
    for part in ids.split([24, *[1] * 6], dim=1):
        found.append(logits_of(model, input_ids=part, past_key_values=cache, use_cache=True))
    return torch.cat(found, dim=1).float().cpu()


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.thorough), pytest.param("cuda", marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize("family", MODELS)
def test_bfloat16_logits_of_each_step_are_as_near_as_the_packages_own(family: str, device: str) -> None:
    """Of half of the tokens: where a head reads almost nothing, its norm magnifies whatever was rounded."""
    model = large(family)
    with use(model):  # in PyTorch, whatever else is installed
        exact = step_by_step(model)
    model = model.bfloat16().to(device)
    own = step_by_step(model)
    with use(model):
        ours = step_by_step(model)
    for part in (slice(24), slice(24, None)):
        error, allowed = ((x - exact)[:, part].square().mean(dim=-1).sqrt().median() for x in (ours, own))
        assert error <= 1.25 * allowed
        assert allowed < 0.1 * exact.square().mean().sqrt()


@pytest.mark.gpu
@pytest.mark.parametrize("kept", [False, True])
def test_a_graph_of_a_step_computes_the_same(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether slots were made before it was recorded or inside it."""
    monkeypatch.setattr(adapter, "KEPT", {})
    model = large(MODEL).bfloat16().cuda()
    with use(model), torch.no_grad():
        layer, cache, token = begun(model)
        wanted_cache, warm = deepcopy(cache), deepcopy(cache)
        wanted = [layer(token, cache_params=wanted_cache) for _ in "ab"]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            layer(token, cache_params=warm)
        torch.cuda.current_stream().wait_stream(stream)
        if not kept:
            monkeypatch.setattr(adapter, "KEPT", {})
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = layer(token, cache_params=cache)
        assert len(adapter.KEPT) == kept
        for each in wanted:
            graph.replay()
            torch.testing.assert_close(output, each, rtol=1e-2, atol=1e-2)
