"""A small Kimi Linear of transformers, and a layer of GLM-5.3-Flash: on `gdnspec.ops` they compute the same."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gdnspec import ops

transformers = pytest.importorskip("transformers")
from gdnspec.integrations.transformers import use  # noqa: E402
from helpers_kimi_linear import LINEAR, model  # noqa: E402
from helpers_transformers import PROMPTS, logits_of, prompts  # noqa: E402


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each operator is called."""
    counts: Counter[str] = Counter()
    for name in dir(ops):
        operator = getattr(ops, name)

        def counted(*args: Any, name: str = name, operator: Any = operator, **kwargs: Any) -> Any:
            counts[name] += 1
            return operator(*args, **kwargs)

        monkeypatch.setattr(ops, name, counted)
    return counts


def test_greedy_tokens_are_the_packages_own(calls: Counter[str]) -> None:
    """Two prompts, one of them padded on its left."""
    small = model()
    options = {"max_new_tokens": 16, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    own = small.generate(**prompts(), **options)
    assert not calls
    with use(small) as handle:
        ours = small.generate(**prompts(), **options)
    assert len(handle.layers) == LINEAR
    assert torch.equal(ours.sequences, own.sequences)
    assert len(ours.sequences[:, 9:].unique()) > 6
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(own.logits), rtol=1e-3, atol=1e-3)
    each = {"causal_conv1d": 1, "kimi_delta_attention_raw_gates": 1}
    each |= dict.fromkeys(("causal_conv1d_step", "kimi_delta_attention_step_"), 15)
    assert calls == {name: LINEAR * count for name, count in each.items()}
    assert torch.equal(small.generate(**prompts(), **options).sequences, own.sequences)
    assert calls.total() == LINEAR * 32


def test_the_states_of_the_cache_are_the_pools() -> None:
    """Nothing is copied between the cache and the operators, and the package's own code goes on from there."""
    small = model()
    ids = prompts(padded=False)["input_ids"]
    with torch.no_grad():
        whole = small(input_ids=ids).logits
        handle, found = use(small), []
        cache = transformers.DynamicCache(config=small.config)
        for part in ids[:, :7].split([2, 1, 3, 1], dim=1):
            found.append(small(input_ids=part, past_key_values=cache, use_cache=True).logits)
            assert cache.layers[0].recurrent_states[0].mT.is_contiguous()
        handle.restore()
        for part in ids[:, 7:].split([1, 1], dim=1):
            found.append(small(input_ids=part, past_key_values=cache, use_cache=True).logits)
    torch.testing.assert_close(torch.cat(found, dim=1), whole, rtol=1e-3, atol=1e-3)
    assert len(ids) == PROMPTS


def test_gradients_are_the_packages_own() -> None:
    small = model().train()

    def gradients() -> list[torch.Tensor]:
        small.zero_grad()
        small(**prompts(), labels=prompts()["input_ids"]).loss.backward()
        return [weight.grad.clone() for weight in small.parameters() if weight.grad is not None]

    own = gradients()
    with use(small):
        ours = gradients()
    torch.testing.assert_close(ours, own, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("bound", [None, -5.0])
def test_a_layer_of_glm_has_its_lower_bound(bound: float | None, calls: Counter[str]) -> None:
    from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextLinearAttention

    torch.manual_seed(1)
    config = SimpleNamespace(
        hidden_size=32, linear_num_heads=2, linear_head_dim=16, linear_conv_kernel_dim=4, hidden_act="silu",
        rms_norm_eps=1e-6, linear_lower_bound=bound, layer_types=["linear_attention"],
    )  # fmt: skip
    layer = Glm5NextTextLinearAttention(config, 0)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    hidden = torch.randn(2, 21, 32)
    own = layer(hidden)
    with use(layer):
        ours = layer(hidden)
    assert calls["kimi_delta_attention_raw_gates"] == 1
    torch.testing.assert_close(ours, own, rtol=1e-3, atol=1e-4)


def test_bfloat16_logits_are_as_near_the_exact_ones_as_the_packages_own() -> None:
    small = model()
    exact = logits_of(small)
    small = small.bfloat16()
    own = logits_of(small).float()
    with use(small):
        ours = logits_of(small).float()
    real = prompts()["attention_mask"].bool()
    error, allowed = ((x - exact)[real].square().mean().sqrt() for x in (ours, own))
    assert not torch.equal(ours, own)
    assert error <= 1.25 * allowed
