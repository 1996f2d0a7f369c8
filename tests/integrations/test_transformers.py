"""Small models of transformers with random weights: on `gdnspec.ops` they choose the tokens of their own code."""

import importlib
import pickle
import re
import sys
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from conftest import ROOT
from gdnspec import ops
from torch import Tensor

transformers = pytest.importorskip("transformers")
from gdnspec.integrations.transformers import use  # noqa: E402
from helpers_transformers import COMMON, LINEAR, MODEL, MODELS, PROMPTS, logits_of, made, prompts  # noqa: E402
from transformers.utils import import_utils  # noqa: E402


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return made(request.param)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each operator is called."""
    counts: Counter[str] = Counter()

    def counted(name: str, operator: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return operator(*args, **kwargs)

        return call

    for name in dir(ops):
        monkeypatch.setattr(ops, name, counted(name, getattr(ops, name)))
    return counts


def generated(model: Any, steps: int = 64) -> Tensor:
    options = {"max_new_tokens": steps, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    return model.generate(**prompts(), **options)


def of_generation(model: Any) -> dict[str, int]:
    """The operators that a layer calls for 64 tokens. Those of several steps know neither heads of two sizes nor write
    strengths up to 2."""
    if isinstance(model, transformers.OlmoHybridForCausalLM):
        step = dict.fromkeys(("causal_conv1d_step", "gated_delta_rule_step_"), 63)
        return {"causal_conv1d": 1, "gated_delta_rule": 1, "gated_rms_norm": 64, **step}
    return {"causal_conv1d_gates": 1, "gated_delta_rule": 1, "gated_rms_norm": 1, "gated_delta_net_step_": 63}


def test_greedy_tokens_are_the_packages_own(model: Any, calls: Counter[str]) -> None:
    own = generated(model)
    assert not calls
    with use(model):
        ours = generated(model)
    assert torch.equal(ours.sequences, own.sequences)
    assert ours.sequences.shape == (PROMPTS, 9 + 64)
    assert len(ours.sequences[:, 9:].unique()) > 8
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(own.logits), rtol=1e-3, atol=1e-3)
    assert calls == {name: LINEAR * count for name, count in of_generation(model).items()}


@pytest.mark.parametrize("family", MODELS)
def test_bfloat16_logits_are_as_near_the_exact_ones_as_the_packages_own(family: str) -> None:
    model = made(family)
    exact = logits_of(model)
    model = model.bfloat16()
    own = logits_of(model).float()
    with use(model):
        ours = logits_of(model).float()
    real = prompts()["attention_mask"].bool()
    error, allowed = ((x - exact)[real].square().mean().sqrt() for x in (ours, own))
    assert not torch.equal(ours, own)
    assert error <= 1.25 * allowed
    assert allowed < 0.1 * exact[real].square().mean().sqrt()


def test_restore_gives_the_packages_own_path_back(model: Any, calls: Counter[str]) -> None:
    before = logits_of(model)
    attributes = [set(vars(module)) for module in model.modules()]
    handle = use(model)
    assert len(handle.layers) == LINEAR
    logits_of(model)
    used = calls.total()
    assert used == 3 * LINEAR
    handle.restore()
    handle.restore()
    assert torch.equal(logits_of(model), before)
    assert calls.total() == used
    assert [set(vars(module)) for module in model.modules()] == attributes
    with pytest.raises(RuntimeError, match="of the block"), use(model):
        raise RuntimeError("of the block")
    assert torch.equal(logits_of(model), before)
    assert calls.total() == used
    use(model)
    logits_of(model)
    assert calls.total() == 2 * used


def test_one_model_of_two_is_replaced(calls: Counter[str]) -> None:
    one, other = made(MODEL), made(MODEL)
    with use(one):
        logits_of(other)
    assert not calls


def test_a_deep_copy_keeps_the_operators_and_a_pickled_model_does_not(calls: Counter[str]) -> None:
    """Python pickles a method as the name of the class's own one."""
    model = made(MODEL)
    use(model)
    for copy, used in ((deepcopy(model), True), (pickle.loads(pickle.dumps(model)), False)):
        with torch.no_grad():
            for parameter in copy.parameters():
                parameter.mul_(0.5)  # its own weights
        calls.clear()
        found = logits_of(copy)
        assert bool(calls) == used
        wanted = made(MODEL)
        wanted.load_state_dict(copy.state_dict())
        torch.testing.assert_close(found, logits_of(wanted), rtol=1e-3, atol=1e-3)
    use(copy)
    assert logits_of(copy).shape == found.shape
    assert calls


def test_use_called_twice_says_what_to_do() -> None:
    model = made(MODEL)
    handle = use(model)
    for part in (model, model.model):
        with pytest.raises(
            ValueError, match=r"uses gdnspec already: call restore\(\) of what use\(\) returned"
        ) as error:
            use(part)
        assert "\n" not in str(error.value)
    assert repr(handle) == "<gdnspec: 2 layers, in use>"
    handle.restore()
    assert repr(handle) == "<gdnspec: 2 layers, restored>"
    use(model).restore()


def test_a_model_without_linear_attention_is_named() -> None:
    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    with pytest.raises(ValueError, match=r"^LlamaForCausalLM has no linear attention .* models of Qwen3-Next,.*$"):
        use(transformers.LlamaForCausalLM(config))
    with pytest.raises(TypeError, match=r"takes a model, which is a torch\.nn\.Module, not a str"):
        use("Qwen/Qwen3-Next-80B-A3B-Instruct")


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gdnspec.integrations.transformers")
    monkeypatch.setitem(sys.modules, "transformers.integrations.accelerate", None)
    with pytest.raises(ImportError, match=r"needs transformers 5.17, pip install 'gdnspec\[transformers\]'"):
        importlib.import_module("gdnspec.integrations.transformers")


def test_another_activation_is_refused() -> None:
    model = made(MODEL)
    model.model.layers[2].linear_attn.activation = "gelu"
    with pytest.raises(ValueError, match="has a convolution with the activation 'gelu': gdnspec serves silu"):
        use(model)
    logits_of(model)


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_the_text_part_of_a_model_with_vision(family: str, calls: Counter[str]) -> None:
    name, _, more = MODELS[family]
    eyes = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    config = getattr(transformers, f"{name}Config")(text_config=COMMON | more, vision_config=eyes)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    before = logits_of(model)
    with use(model):
        torch.testing.assert_close(logits_of(model), before, rtol=1e-3, atol=1e-5)
    assert calls["gated_delta_rule"] == LINEAR


def test_packed_sequences_are_as_if_alone() -> None:
    """The package's own PyTorch path lets the state run on over the bounds."""
    model = made(MODEL)
    ids, lengths = torch.randint(1, 64, (1, 30), generator=torch.Generator().manual_seed(2)), [7, 3, 20]
    starts = torch.tensor([0, 7, 10, 30], dtype=torch.int32)
    places = torch.cat([torch.arange(n) for n in lengths])[None]
    alone = torch.cat([logits_of(model, input_ids=part) for part in ids.split(lengths, dim=1)], dim=1)
    packing = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 20, "max_length_k": 20}
    packed = {"input_ids": ids, "position_ids": places, "use_cache": False, **packing}
    own = logits_of(model, **packed)
    with use(model):
        ours = logits_of(model, **packed)
    torch.testing.assert_close(ours, alone, rtol=1e-3, atol=1e-3)
    assert (own - alone).abs().max() > 0.1


@pytest.mark.parametrize("record_past", [False, True])
def test_tokens_after_a_cache_come_one_or_several_at_a_time(model: Any, record_past: bool) -> None:
    """`record_past` keeps all tokens of the convolution, so that guessed ones can be dropped."""
    ids = prompts(padded=False)["input_ids"]
    whole = logits_of(model, input_ids=ids)
    with use(model), torch.no_grad():
        found, cache = [], transformers.DynamicCache(config=model.config)
        if record_past:
            cache.activate_past_recording()
        for part in ids.split([2, 1, 4, 1, 1], dim=1):  # the first is shorter than the convolution
            found.append(model(input_ids=part, past_key_values=cache, use_cache=True).logits)
    torch.testing.assert_close(torch.cat(found, dim=1), whole, rtol=1e-3, atol=1e-3)


def test_a_cache_may_change_hands() -> None:
    """Prefill on the operators, decode by the package, and the other way round."""
    model, tokens = made(MODEL), generated(made(MODEL), 8).sequences
    for first in (True, False):
        with torch.no_grad():
            handle = use(model) if first else None
            cache = model(input_ids=prompts()["input_ids"], attention_mask=prompts()["attention_mask"]).past_key_values
            handle = use(model) if handle is None else handle.restore()
            mask = torch.cat([prompts()["attention_mask"], torch.ones(PROMPTS, 1, dtype=torch.int64)], dim=1)
            said = model(input_ids=tokens[:, 9:10], attention_mask=mask, past_key_values=cache).logits
            if handle is not None:
                handle.restore()
        assert torch.equal(said[:, -1].argmax(dim=-1), tokens[:, 10])


def test_gradients_are_the_packages_own(model: Any) -> None:
    def gradients() -> list[Tensor]:
        model.zero_grad()
        model(**prompts(), labels=prompts()["input_ids"]).loss.backward()
        return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]

    model.train()
    own = gradients()
    with use(model):
        ours = gradients()
    assert len(ours) == len(own)
    torch.testing.assert_close(ours, own, rtol=1e-3, atol=1e-4)


def test_hooks_of_accelerate_stay_around_the_forward(calls: Counter[str]) -> None:
    """As accelerate puts them there, before and after."""
    model = made(MODEL)
    layer = model.model.layers[0].linear_attn
    seen: list[str] = []

    def hook() -> None:
        layer._old_forward, layer._hf_hook = layer.forward, object()
        layer.forward = lambda *args, **kwargs: seen.append("hook") or layer._old_forward(*args, **kwargs)

    before = logits_of(model)
    hook()
    with use(model):
        logits_of(model)
        assert calls["gated_delta_rule"] == LINEAR
    assert torch.equal(logits_of(model), before)
    assert len(seen) == 2
    layer.forward = layer._old_forward
    del layer._hf_hook, layer._old_forward
    with use(model):
        hook()
    assert torch.equal(logits_of(model), before)
    assert len(seen) == 3
    assert calls["gated_delta_rule"] == LINEAR


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_the_mapping_of_kernels_has_the_layer(family: str, calls: Counter[str]) -> None:
    """A model with `use_kernels` takes all forwards from it again whenever it changes its mode."""
    if not import_utils.is_kernels_available():
        pytest.skip("transformers has no `kernels` of a version that it takes")
    model = made(family)
    model.use_kernels = True
    before = logits_of(model)
    handle = use(model)
    logits_of(model.train().eval())
    assert calls["gated_delta_rule"] == LINEAR
    with pytest.raises(ValueError, match="uses gdnspec already"):
        use(model)
    handle.restore()
    assert torch.equal(logits_of(model.train().eval()), before)
    assert calls["gated_delta_rule"] == LINEAR


def test_the_page_runs(calls: Counter[str]) -> None:
    page = (ROOT / "docs/how-to/use-with-transformers.md").read_text()
    shown: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        before = calls.total()
        exec(block, shown)
        assert calls.total() > before
    assert torch.equal(shown["ours"], shown["own"])


@pytest.mark.thorough
def test_a_compiled_model_gives_the_same_logits() -> None:
    model = made(MODEL)
    before = logits_of(model)
    with use(model):
        compiled = torch.compile(model, backend="aot_eager")
        torch.testing.assert_close(logits_of(compiled), before, rtol=1e-3, atol=1e-3)
    torch._dynamo.reset()
