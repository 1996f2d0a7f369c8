"""The layer of OLMo Hybrid beside the transformers package, and what kernels for two head sizes refuse."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT
from gdnspec.build.loader import load_function
from helpers_unit import reference
from torch import Tensor

layer = reference("layer")
BF16 = torch.bfloat16
Keywords = dict[str, Any]

# --- the layer of OLMo Hybrid -------------------------------------------------------------------------------------

HEADS = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 16}
LENGTHS = (9, 1, 70, 3)


def olmo_config() -> Any:
    package = pytest.importorskip("transformers.models.olmo_hybrid.configuration_olmo_hybrid")
    return package.OlmoHybridConfig(
        hidden_size=24, intermediate_size=32, num_attention_heads=4, num_hidden_layers=2, vocab_size=64,
        pad_token_id=0, eos_token_id=1, layer_types=["linear_attention", "full_attention"],
        linear_allow_neg_eigval=True, **HEADS,
    )  # fmt: skip


def olmo_module(seed: int = 0) -> Any:
    """The gated delta net of OLMo Hybrid, small, with its own initialisation and float32."""
    package = pytest.importorskip("transformers.models.olmo_hybrid.modeling_olmo_hybrid")
    torch.manual_seed(seed)
    made = package.OlmoHybridGatedDeltaNet(olmo_config(), 0).float().eval()
    with torch.no_grad():
        made.dt_bias.normal_()
        made.b_proj.weight.normal_()  # write strengths on both sides of 1
        made.o_norm.weight.normal_(mean=1.0)
    return made


def weights_of(made: Any) -> Keywords:
    """The module's weights by our names: three projections are rows of one, and its norm adds 1e-5."""
    found = {
        "qkv_weight": torch.cat([made.q_proj.weight, made.k_proj.weight, made.v_proj.weight]),
        "z_weight": made.g_proj.weight, "a_weight": made.a_proj.weight, "b_weight": made.b_proj.weight,
        "conv_weight": made.conv1d.weight[:, 0], "A_log": made.A_log, "dt_bias": made.dt_bias,
        "norm_weight": made.o_norm.weight, "out_weight": made.o_proj.weight,
    }  # fmt: skip
    assert made.conv1d.bias is None
    return {name: x.detach() for name, x in found.items()} | {"eps": made.o_norm.variance_epsilon}


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=5e-5, atol=5e-6)


@torch.no_grad()
def test_prefill_then_decode_token_by_token_is_olmo_hybrid_of_the_transformers_package() -> None:
    made = olmo_module()
    from transformers import DynamicCache

    weights = weights_of(made)
    assert weights["eps"] == 1e-5
    hidden = [torch.randn(length + 5, 24) for length in LENGTHS]
    assert (torch.cat(hidden) @ weights["b_weight"].T).abs().max() > 3, "2 sigmoid(b) near 0 and near 2"
    slots = torch.tensor([3, 0, 4, 1], dtype=torch.int32)
    both = {"conv_slots": slots, "state_slots": slots}
    channels, width = weights["conv_weight"].shape
    state = {"conv_states": torch.full((5, channels, width - 1), torch.nan),
             "recurrent_states": torch.full((5, 4, 8, 16), torch.nan)}  # fmt: skip
    prompts = torch.cat([x[:length] for x, length in zip(hidden, LENGTHS, strict=True)])
    output, conv, recurrent = layer.layer_prefill_neg_eigval(
        prompts, **weights, **both, **state, cu_seqlens=torch.tensor([0, *LENGTHS]).cumsum(0),
        has_initial_state=torch.zeros(4, dtype=torch.bool),
    )  # fmt: skip
    caches = []
    for x, rows, length in zip(hidden, output.split(LENGTHS), LENGTHS, strict=True):
        caches.append(DynamicCache(config=olmo_config()))
        close(rows, made(x[None, :length], cache_params=caches[-1])[0])
    for t in range(5):
        tokens = torch.stack([x[length + t] for x, length in zip(hidden, LENGTHS, strict=True)])
        output, conv, recurrent = layer.layer_decode_neg_eigval(
            tokens, **weights, **both, conv_states=conv, recurrent_states=recurrent
        )  # fmt: skip
        for n, cache in enumerate(caches):
            close(output[n], made(tokens[n][None, None], cache_params=cache)[0, 0])
    for n, cache in enumerate(caches):
        close(recurrent[slots[n]], cache.layers[0].recurrent_states[0][0])
        close(conv[slots[n]], cache.layers[0].conv_states[0][0, :, -3:])
    assert recurrent[2].isnan().all(), "the slot that nobody names"


@torch.no_grad()
def test_the_other_layer_and_the_other_epsilon_are_not_olmo_hybrid() -> None:
    made = olmo_module(1)
    weights = weights_of(made)
    x, eps = torch.randn(12, 24), weights.pop("eps")
    given = {
        "x": x, **weights, "cu_seqlens": torch.tensor([0, 12]), "conv_slots": torch.zeros(1, dtype=torch.int32),
        "state_slots": torch.zeros(1, dtype=torch.int32), "has_initial_state": torch.zeros(1, dtype=torch.bool),
        "conv_states": torch.zeros(1, 2 * 2 * 8 + 4 * 16, 3), "recurrent_states": torch.zeros(1, 4, 8, 16),
    }  # fmt: skip
    want = made(x[None])[0]
    close(layer.layer_prefill_neg_eigval(**given, eps=eps)[0], want)
    for wrong in (layer.layer_prefill(**given)[0], layer.layer_prefill_neg_eigval(**given, eps=None)[0]):
        assert float((wrong - want).norm() / want.norm()) > 1e-3


# --- kernels ------------------------------------------------------------------------------------------------------


def decode_call(K: int, V: int) -> Keywords:
    def bf16(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=BF16)

    return {
        "q": bf16(3, 1, 2, K), "k": bf16(3, 1, 2, K), "v": bf16(3, 1, 2, V), "state": torch.zeros(3, 2, V, K),
        "A_log": torch.zeros(2), "a": bf16(3, 1, 2), "dt_bias": bf16(2), "b": bf16(3, 1, 2), "scale": None,
        "use_qk_l2norm": True, "allow_neg_eigval": True, "output": bf16(3, 1, 2, V),
        "new_state": torch.zeros(3, 2, V, K),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"state": torch.zeros(3, 2, 16, 24)}, "q has shape"),
        ({"new_state": torch.zeros(3, 2, 16, 24)}, "new_state has shape"),
        ({"v": torch.zeros(3, 1, 2, 16, dtype=BF16)}, "v has shape"),
        ({"output": torch.zeros(3, 1, 2, 16, dtype=BF16)}, "output has shape"),
        ({"state": torch.zeros(3, 2, 24)}, r"state has shape \(3, 2, 24\), not .*value_head_dim, key_head_dim"),
        ({"state": torch.zeros(3, 2, 24, 272)}, "key_head_dim 272 is not served"),
        ({"state": torch.zeros(3, 2, 272, 16)}, "value_head_dim 272 is not served"),
    ],
)
def test_what_the_decode_cannot_serve_it_refuses(tmp_path: Path, changes: Keywords, says: str) -> None:
    pytest.importorskip("triton")
    entry = load_function(ROOT / "solutions/triton_decode", "two_sizes.py::decode_k_last_kv_dims", tmp_path)
    with pytest.raises(ValueError, match=says):
        entry(**decode_call(16, 24) | changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"initial_state": torch.zeros(2, 2, 16, 24)}, "initial_state has shape"),
        ({"final_state": torch.zeros(2, 2, 16, 24)}, "final_state has shape"),
        ({"output": torch.zeros(9, 2, 16, dtype=BF16)}, "output has shape"),
        ({"k": torch.zeros(9, 2, 24, dtype=BF16)}, "k has shape"),
        ({"v": torch.zeros(9, 2, 272, dtype=BF16)}, "value_head_dim 272 is not served"),
        ({"q": torch.zeros(9, 2, 272, dtype=BF16)}, "key_head_dim 272 is not served"),
    ],
)
def test_what_the_prefill_cannot_serve_it_refuses(tmp_path: Path, changes: Keywords, says: str) -> None:
    pytest.importorskip("triton")
    entry = load_function(ROOT / "solutions/triton_chunkwise", "kernel.py::prefill_k_last_kv_dims", tmp_path)
    given = {
        "q": torch.zeros(9, 2, 16, dtype=BF16), "k": torch.zeros(9, 2, 16, dtype=BF16),
        "v": torch.zeros(9, 2, 24, dtype=BF16), "g": None, "beta": None, "cu_seqlens": torch.tensor([0, 4, 9]),
        "initial_state": None, "scale": None, "output": torch.zeros(9, 2, 24, dtype=BF16),
        "final_state": torch.zeros(2, 2, 24, 16),
    }  # fmt: skip
    with pytest.raises(ValueError, match=says):
        entry(**given | changes)


def test_one_size_is_asked_for_where_the_definition_has_one(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    entry = load_function(ROOT / "solutions/triton_decode", "kernel.py::decode_k_last", tmp_path)
    given = decode_call(16, 24)
    del given["allow_neg_eigval"]
    with pytest.raises(ValueError, match=r"state has shape .*head_size, head_size"):
        entry(**given)
