"""The layer around Kimi Delta Attention: its reference against the modules of two models, and what must hold."""

from typing import Any

import pytest
import torch
from gdnspec.build import reference as code
from gdnspec.catalog.families import family

layer, chunkwise = (code.module(family("kda"), name) for name in ("layer", "chunkwise"))
F64 = torch.float64
HIDDEN, LENGTHS = 24, (9, 1, 70, 3)
HEADS = {"linear_head_dim": 8, "linear_num_heads": 2, "linear_conv_kernel_dim": 4}
SLOTS = torch.tensor([3, 0, 4, 1], dtype=torch.int32)  # of five
Keywords = dict[str, Any]


def module(model: str) -> tuple[Any, Any, float | None]:
    """A model's module, small, with weights of its own in float32; its configuration; and the lower bound."""
    sizes = {"hidden_size": HIDDEN, "num_hidden_layers": 1, "layer_types": ["linear_attention"], **HEADS}
    if model == "kimi_linear":
        package = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
        config = package.KimiLinearConfig(mlp_layer_types=["dense"], **sizes)
        kind = package.KimiLinearDeltaAttention
    else:
        package = pytest.importorskip("transformers.models.glm5_next.modeling_glm5_next")
        config = package.Glm5NextTextConfig(mlp_layer_types=["dense"], **sizes)
        kind = package.Glm5NextTextLinearAttention
    torch.manual_seed(4)
    made = kind(config, 0).float().eval()
    with torch.no_grad():
        made.forget_gate.A_log.normal_()
        made.forget_gate.dt_bias.normal_()
        made.o_norm.weight.normal_(mean=1.0)
        for projection in (made.g_a_proj, made.g_b_proj, made.forget_gate.f_a_proj, made.forget_gate.f_b_proj):
            projection.weight.mul_(3)
    return made, config, getattr(config, "linear_lower_bound", None)


def weights_of(made: Any) -> Keywords:
    """The module's weights by our names."""
    gate, (H, D) = made.forget_gate, (made.num_heads, made.head_dim)
    found = {
        "qkv_weight": torch.cat([made.q_proj.weight, made.k_proj.weight, made.v_proj.weight]),
        "f_a_weight": gate.f_a_proj.weight, "f_b_weight": gate.f_b_proj.weight, "b_weight": made.b_proj.weight,
        "g_a_weight": made.g_a_proj.weight, "g_b_weight": made.g_b_proj.weight,
        "conv_weight": made.conv1d.weight[:, 0], "A_log": gate.A_log.flatten(), "dt_bias": gate.dt_bias.view(H, D),
        "norm_weight": made.o_norm.weight, "out_weight": made.o_proj.weight,
    }  # fmt: skip
    return {name: x.detach() for name, x in found.items()}


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)


@torch.no_grad()
@pytest.mark.parametrize("model", ["kimi_linear", "glm5_next"])
def test_prefill_then_decode_token_by_token_is_the_transformers_package(model: str) -> None:
    """From pools of NaN: what starts from zeros must not see them. An absent epsilon is that of both models."""
    from transformers import DynamicCache

    made, config, bound = module(model)
    assert bound == (-5.0 if model == "glm5_next" else None)
    call = weights_of(made) | {"conv_slots": SLOTS, "state_slots": SLOTS, "lower_bound": bound, "eps": None}
    hidden = [torch.randn(length + 3, HIDDEN) for length in LENGTHS]
    prompts = torch.cat([x[:length] for x, length in zip(hidden, LENGTHS, strict=True)])
    states = torch.full((5, 48, 3), torch.nan), torch.full((5, 2, 8, 8), torch.nan)
    output, conv, recurrent = layer.layer_prefill(
        prompts, **call, cu_seqlens=torch.tensor([0, *LENGTHS]).cumsum(0), conv_states=states[0],
        recurrent_states=states[1], has_initial_state=torch.zeros(4, dtype=torch.bool),
    )  # fmt: skip
    caches = []
    for x, rows, length in zip(hidden, output.split(LENGTHS), LENGTHS, strict=True):
        caches.append(DynamicCache(config=config))
        close(rows, made(x[None, :length], cache_params=caches[-1])[0])
    for t in range(3):
        tokens = torch.stack([x[length + t] for x, length in zip(hidden, LENGTHS, strict=True)])
        output, conv, recurrent = layer.layer_decode(tokens, **call, conv_states=conv, recurrent_states=recurrent)
        for n, cache in enumerate(caches):
            close(output[n], made(tokens[n][None, None], cache_params=cache)[0, 0])
    for n, cache in enumerate(caches):
        close(recurrent[SLOTS[n]], cache.layers[0].recurrent_states[0][0])
        close(conv[SLOTS[n]], cache.layers[0].conv_states[0][0, :, -3:])
    assert recurrent[2].isnan().all(), "the slot that nobody names"


def test_a_split_prompt_is_the_whole_one_and_empty_or_skipped_sequences_touch_nothing() -> None:
    """Groups of two value heads; the second derivation, too."""
    generator = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=F64) / shape[-1] ** 0.5

    H, D = 4, 8
    C = (2 + 2 + H) * D
    weights = {
        "qkv_weight": normal(C, HIDDEN), "f_a_weight": normal(D, HIDDEN), "f_b_weight": normal(H * D, D),
        "b_weight": normal(H, HIDDEN), "g_a_weight": normal(D, HIDDEN), "g_b_weight": normal(H * D, D),
        "conv_weight": normal(C, 3), "A_log": normal(H), "dt_bias": normal(H, D), "norm_weight": normal(D),
        "out_weight": normal(HIDDEN, H * D),
    }  # fmt: skip
    x, first = normal(20, HIDDEN), {"conv_states": normal(5, C, 2), "recurrent_states": normal(5, H, D, D)}
    slots = torch.tensor([2, 0, -1], dtype=torch.int32)
    shared = {"conv_slots": slots, "state_slots": slots, "lower_bound": None, "eps": 0.0}
    flags = torch.tensor([False, False, True])

    def call(rows: slice, bounds: list[int], flags: torch.Tensor, conv: torch.Tensor, S: torch.Tensor) -> Any:
        return layer.layer_prefill(
            x[rows], **weights, **shared, cu_seqlens=torch.tensor(bounds), conv_states=conv, recurrent_states=S,
            has_initial_state=flags,
        )  # fmt: skip

    whole, conv, S = call(slice(0, 20), [0, 17, 17, 20], flags, *first.values())
    assert not whole[17:].any(), "skipped"
    for pool, before in ((conv, first["conv_states"]), (S, first["recurrent_states"])):
        assert torch.equal(pool[[0, 1, 3, 4]], before[[0, 1, 3, 4]])
    head, *states = call(slice(0, 11), [0, 11, 11, 11], flags, *first.values())
    tail, conv_2, S_2 = call(slice(11, 17), [0, 6, 6, 6], torch.tensor([True, False, True]), *states)
    inputs = {"x": x, **weights, **shared, **first, "has_initial_state": flags}
    second = chunkwise.layer_prefill(**inputs, cu_seqlens=torch.tensor([0, 17, 17, 20]), chunk_size=4)
    pairs = [(torch.cat([head, tail]), whole[:17]), (conv_2, conv), (S_2, S)]
    for got, want in (*pairs, *zip(second, (whole, conv, S), strict=True)):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)
