"""The layer around the rule: its reference by hand and against another package, and what kernels refuse."""

import json
import os
from pathlib import Path
from typing import Any

import forked_command
import pytest
import torch
from conftest import ROOT
from gdnspec.build.loader import load_function
from helpers_unit import reference

layer, chunkwise = reference("layer"), reference("chunkwise")
F64, BF16 = torch.float64, torch.bfloat16
Keywords = dict[str, Any]

# --- the norm ---------------------------------------------------------------------------------------------------


def test_a_norm_worked_out_by_hand() -> None:
    x, z = torch.tensor([[3.0, -4.0]], dtype=F64), torch.tensor([[0.0, 2.0]], dtype=F64)
    # Mean of squares 12.5, and eps 3.5 makes it 16: x / 4 = [0.75, -1]; silu(0) = 0; weight 5.
    got = layer.gated_rms_norm(x, z, torch.tensor([1.0, 5.0], dtype=F64), 3.5)
    silu = 2 / (1 + torch.exp(torch.tensor(-2.0, dtype=F64)))
    torch.testing.assert_close(got, torch.tensor([[0.0, -5.0]], dtype=F64) * silu, rtol=1e-15, atol=0)


def test_an_absent_eps_is_1e_6_and_0_is_0() -> None:
    x = torch.full((1, 4), 1e-3, dtype=F64)
    one, gate = torch.ones(4, dtype=F64), torch.full((1, 4), 50.0, dtype=F64)
    assert float(layer.gated_rms_norm(x, gate, one, None)[0, 0]) == pytest.approx(50 * 0.5**0.5)
    assert float(layer.gated_rms_norm(x, gate, one, 0.0)[0, 0]) == pytest.approx(50)


def test_the_transformers_package_norms_alike() -> None:
    package = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    norm = package.Qwen3NextRMSNormGated(24, eps=1e-6)
    generator = torch.Generator().manual_seed(1)
    norm.weight.data = torch.randn(24, generator=generator)
    x, z = torch.randn(2, 9, 3, 24, generator=generator).unbind()
    x[0] *= 1e-4
    torch.testing.assert_close(layer.gated_rms_norm(x, z, norm.weight.data, None), norm(x, z), rtol=2e-6, atol=1e-7)


@pytest.fixture(scope="module")
def norm_kernel(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("triton")
    build = tmp_path_factory.mktemp("build")
    return load_function(ROOT / "solutions/triton_layer", "gated_norm.py::gated_rms_norm", build)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x": torch.ones(3, 16, dtype=BF16)}, "x has 2 dimensions, not 3"),
        ({"x": torch.ones(3, 2, 16, dtype=torch.int32)}, "x is torch.int32"),
        ({"z": torch.ones(3, 2, 16)}, "z is torch.float32"),
        ({"z": torch.ones(3, 1, 16, dtype=BF16)}, "z has shape"),
        ({"z": torch.ones(3, 16, 2, dtype=BF16).mT}, "z must be contiguous"),
        ({"weight": torch.ones(2, 16, dtype=BF16)}, "weight has shape"),
        ({"output": torch.ones(2, 2, 16, dtype=BF16)}, "output has shape"),
    ],
)
def test_what_the_norm_cannot_serve_it_refuses(norm_kernel: Any, changes: Keywords, says: str) -> None:
    rows = {name: torch.ones(3, 2, 16, dtype=BF16) for name in ("x", "z", "output")}
    with pytest.raises(ValueError, match=says):
        norm_kernel(**rows | {"weight": torch.ones(16, dtype=BF16), "eps": None} | changes)


# --- the whole layer ----------------------------------------------------------------------------------------------

HEADS = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12}
LENGTHS = (9, 1, 70, 3)


def module(seed: int = 0) -> Any:
    """The Qwen3-Next gated delta net of the transformers package, small, with its own initialisation and float32."""
    package = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    config = package.Qwen3NextConfig(
        hidden_size=24, linear_conv_kernel_dim=4, num_hidden_layers=1, layer_types=["linear_attention"], **HEADS
    )
    torch.manual_seed(seed)
    made = package.Qwen3NextGatedDeltaNet(config, 0).float().eval()
    with torch.no_grad():
        made.dt_bias.normal_()
        made.norm.weight.normal_(mean=1.0)
    return made


def weights_of(made: Any) -> Keywords:
    """The module's weights by our names: its projections have a key head's rows, of all kinds, side by side."""
    HK, group = made.num_k_heads, made.num_v_heads // made.num_k_heads
    K, V = made.head_k_dim, made.head_v_dim
    mixed = made.in_proj_qkvz.weight.unflatten(0, (HK, -1)).split([K, K, group * V, group * V], dim=1)
    q, k, v, z = (rows.flatten(0, 1) for rows in mixed)
    b, a = (rows.flatten(0, 1) for rows in made.in_proj_ba.weight.unflatten(0, (HK, -1)).split([group, group], dim=1))
    found = {
        "qkv_weight": torch.cat([q, k, v]), "z_weight": z, "a_weight": a, "b_weight": b,
        "conv_weight": made.conv1d.weight[:, 0], "A_log": made.A_log, "dt_bias": made.dt_bias,
        "norm_weight": made.norm.weight, "out_weight": made.out_proj.weight,
    }  # fmt: skip
    return {name: x.detach() for name, x in found.items()}


def pools(weights: Keywords, slots: int) -> Keywords:
    """Of NaN: what starts from zeros must not see them."""
    H, (K, V) = len(weights["A_log"]), (HEADS["linear_key_head_dim"], HEADS["linear_value_head_dim"])
    channels, width = weights["conv_weight"].shape
    return {
        "conv_states": torch.full((slots, channels, width - 1), torch.nan),
        "recurrent_states": torch.full((slots, H, K, V), torch.nan),
    }


def both(slots: torch.Tensor) -> Keywords:
    return {"conv_slots": slots, "state_slots": slots}


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-6)


@torch.no_grad()
def test_prefill_then_decode_token_by_token_is_the_transformers_package() -> None:
    from transformers import DynamicCache

    made = module()
    weights = weights_of(made)
    hidden = [torch.randn(length + 5, 24) for length in LENGTHS]
    state = pools(weights, len(LENGTHS) + 1)
    slots = torch.tensor([3, 0, 4, 1], dtype=torch.int32)
    prompts = torch.cat([x[:length] for x, length in zip(hidden, LENGTHS, strict=True)])
    bounds = torch.tensor([0, *LENGTHS]).cumsum(0)
    flags = torch.zeros(len(LENGTHS), dtype=torch.bool)
    output, conv, recurrent = layer.layer_prefill(prompts, **weights, cu_seqlens=bounds, **both(slots),
                                                  has_initial_state=flags, **state)  # fmt: skip
    caches = []
    for x, rows, length in zip(hidden, output.split(LENGTHS), LENGTHS, strict=True):
        caches.append(DynamicCache(config=package_config(made)))
        close(rows, made(x[None, :length], cache_params=caches[-1])[0])
    for t in range(5):
        tokens = torch.stack([x[length + t] for x, length in zip(hidden, LENGTHS, strict=True)])
        output, conv, recurrent = layer.layer_decode(tokens, **weights, conv_states=conv, recurrent_states=recurrent,
                                                     **both(slots))  # fmt: skip
        for n, cache in enumerate(caches):
            close(output[n], made(tokens[n][None, None], cache_params=cache)[0, 0])
    for n, cache in enumerate(caches):
        close(recurrent[slots[n]], cache.layers[0].recurrent_states[0][0])
        close(conv[slots[n]], cache.layers[0].conv_states[0][0, :, -3:])
    assert recurrent[2].isnan().all(), "the slot that nobody names"


def package_config(made: Any) -> Any:
    from transformers import Qwen3NextConfig

    return Qwen3NextConfig(
        hidden_size=made.hidden_size, linear_conv_kernel_dim=4, num_hidden_layers=1, layer_types=["linear_attention"],
        **HEADS,
    )  # fmt: skip


@torch.no_grad()
def test_a_padded_batch_of_the_transformers_package_is_a_ragged_one() -> None:
    made = module(1)
    weights = weights_of(made)
    rows = [torch.randn(length, 24) for length in LENGTHS]
    longest = max(LENGTHS)
    padded = torch.stack([torch.cat([torch.randn(longest - len(x), 24), x]) for x in rows])
    mask = torch.tensor([[0] * (longest - len(x)) + [1] * len(x) for x in rows])
    expected = made(padded, attention_mask=mask)
    output, _, _ = layer.layer_prefill(
        torch.cat(rows), **weights, **pools(weights, 4), cu_seqlens=torch.tensor([0, *LENGTHS]).cumsum(0),
        **both(torch.arange(4, dtype=torch.int32)), has_initial_state=torch.zeros(4, dtype=torch.bool),
    )  # fmt: skip
    for got, want in zip(output.split(LENGTHS), expected, strict=True):
        close(got, want[longest - len(got) :])


def test_a_split_prompt_is_the_whole_one_and_empty_or_skipped_sequences_touch_nothing() -> None:
    generator = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=F64) / shape[-1] ** 0.5

    C = 2 * 2 * 8 + 4 * 12
    weights = {
        "qkv_weight": normal(C, 24), "z_weight": normal(48, 24), "a_weight": normal(4, 24), "b_weight": normal(4, 24),
        "conv_weight": normal(C, 3), "A_log": normal(4), "dt_bias": normal(4), "norm_weight": normal(12),
        "out_weight": normal(24, 48),
    }  # fmt: skip
    x, first = normal(20, 24), {"conv_states": normal(5, C, 2), "recurrent_states": normal(5, 4, 8, 12)}
    slots = torch.tensor([2, 0, -1], dtype=torch.int32)
    flags = torch.tensor([False, False, True])

    def call(rows: slice, bounds: list[int], flags: torch.Tensor, conv: torch.Tensor, S: torch.Tensor) -> Any:
        return layer.layer_prefill(x[rows], **weights, cu_seqlens=torch.tensor(bounds), conv_states=conv,
                                   recurrent_states=S, **both(slots), has_initial_state=flags)  # fmt: skip

    whole, conv, S = call(slice(0, 20), [0, 17, 17, 20], flags, *first.values())
    assert not whole[17:].any(), "skipped"
    for pool, before in ((conv, first["conv_states"]), (S, first["recurrent_states"])):
        assert torch.equal(pool[[0, 1, 3, 4]], before[[0, 1, 3, 4]])
    head, conv_1, S_1 = call(slice(0, 11), [0, 11, 11, 11], flags, *first.values())
    tail, conv_2, S_2 = call(slice(11, 17), [0, 6, 6, 6], torch.tensor([True, False, True]), conv_1, S_1)
    torch.testing.assert_close(torch.cat([head, tail]), whole[:17], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(S_2, S, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(conv_2, conv, rtol=1e-12, atol=1e-14)
    inputs = {"x": x, **weights, **first, **both(slots), "has_initial_state": flags}
    inputs["cu_seqlens"] = torch.tensor([0, 17, 17, 20])
    for got, want in zip(chunkwise.layer_prefill(**inputs, chunk_size=4), (whole, conv, S), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)


# --- without its projections --------------------------------------------------------------------------------------


def core_inputs() -> Keywords:
    """Two key heads of 8 and four value heads of 12, a bias, rows 0 and 3 of five skipped."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=F64)

    C = 2 * 2 * 8 + 4 * 12
    return {
        "qkv": normal(5, C), "z": normal(5, 48), "a": normal(5, 4), "b": normal(5, 4), "conv_weight": normal(C, 3),
        "conv_bias": normal(C), "A_log": normal(4), "dt_bias": normal(4), "norm_weight": normal(12),
        "conv_states": normal(7, C, 2), "conv_slots": torch.tensor([-1, 6, 2, -1, 0]),
        "recurrent_states": normal(7, 4, 12, 8), "state_slots": torch.tensor([-1, 3, 4, -1, 5]),
    }  # fmt: skip


def test_the_core_is_convolution_rule_and_norm_in_a_row() -> None:
    gdn, convolution, given = reference("gated_delta_net"), reference("convolution"), core_inputs()
    output, conv, S = layer.core_decode(**given)
    live = given["conv_slots"] >= 0
    mixed, conv_wanted = convolution.conv1d_decode(
        given["qkv"], given["conv_weight"], given["conv_bias"], given["conv_states"], given["conv_slots"]
    )  # fmt: skip
    q, k, v = (x.flatten(1) for x in gdn.split_channels(mixed, 4, 8, 12))
    q, k, v = q.unflatten(1, (2, 8)), k.unflatten(1, (2, 8)), v.unflatten(1, (4, 12))
    q, k = (gdn.l2_normalise(x).repeat_interleave(2, 1) for x in (q, k))
    alpha = gdn.forget_gate_raw(given["A_log"], given["a"], given["dt_bias"])
    slots = given["state_slots"]
    before = given["recurrent_states"][slots.clamp(min=0)]
    o, after = gdn.step(before, q, k, v, alpha, torch.sigmoid(given["b"]), 8**-0.5)
    wanted = layer.gated_rms_norm(o, given["z"].unflatten(1, (4, 12)), given["norm_weight"], None).flatten(1)
    torch.testing.assert_close(output, torch.where(live[:, None], wanted, 0.0), rtol=1e-12, atol=1e-14)
    assert torch.equal(conv, conv_wanted)
    expected = given["recurrent_states"].clone()
    expected[slots[live]] = after[live]
    torch.testing.assert_close(S, expected, rtol=1e-12, atol=1e-14)


def test_the_layer_is_the_core_between_projections() -> None:
    given = core_inputs() | {"conv_bias": None}
    generator = torch.Generator().manual_seed(4)
    x, out_weight = (torch.randn(*shape, generator=generator, dtype=F64) for shape in ((5, 24), (24, 48)))
    rows = ("qkv", "z", "a", "b")
    weights = {f"{name}_weight": torch.randn(given.pop(name).shape[1], 24, generator=generator, dtype=F64) / 5
               for name in rows}  # fmt: skip
    projected = {name: x @ weights[f"{name}_weight"].T for name in rows}
    core, conv, S = layer.core_decode(**projected, **given)
    given["recurrent_states"] = given["recurrent_states"].mT  # [K, V]
    del given["conv_bias"]
    output, conv_2, S_2 = layer.layer_decode(x, **weights, out_weight=out_weight, **given)
    torch.testing.assert_close(output, core @ out_weight.T, rtol=1e-12, atol=1e-13)
    assert torch.equal(conv, conv_2)
    assert torch.equal(S, S_2.mT)


# --- straight from the convolution --------------------------------------------------------------------------------

T, N, HK, H, K, V, SLOTS = 70, 2, 1, 2, 16, 32, 4


@pytest.fixture(scope="module")
def from_conv(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("triton")
    build = tmp_path_factory.mktemp("build")
    return load_function(ROOT / "solutions/triton_layer", "from_conv.py::prefill_from_conv", build)


def from_conv_arguments() -> Keywords:
    return {
        "qkv": torch.ones(T, 2 * HK * K + H * V, dtype=BF16), "decay": torch.ones(T, H), "beta": torch.ones(T, H),
        "recurrent_state": torch.zeros(SLOTS, H, K, V), "slots": torch.tensor([3, 0], dtype=torch.int32),
        "row_offsets": torch.tensor([0, 5, T], dtype=torch.int32), "output": torch.zeros(T, H * V),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"qkv": torch.ones(T, 2 * HK * K + H * V + 8, dtype=BF16)}, "rows of 104 channels are not q, k and v of 2"),
        ({"qkv": torch.ones(T, H * V, dtype=BF16)}, "rows of 64 channels are not q, k and v"),
        ({"qkv": torch.ones(T, 6 * K + H * V, dtype=BF16)}, "are not q, k and v of 2 value heads of 32"),
        ({"qkv": torch.ones(T, 96, dtype=torch.int32)}, "qkv is torch.int32"),
        ({"decay": torch.ones(T, H, dtype=BF16)}, "decay is torch.bfloat16"),
        ({"beta": torch.ones(T - 1, H)}, "beta has shape"),
        ({"recurrent_state": torch.zeros(SLOTS, H, V, K).mT}, "must be contiguous but for its first dimension"),
        (
            {"recurrent_state": torch.zeros(1, H, K, V).expand(SLOTS, -1, -1, -1)},
            "must be contiguous but for its first",
        ),
        ({"recurrent_state": torch.zeros(SLOTS, H, 272, V)}, "heads of 272 and 32 elements are not served"),
        ({"slots": torch.tensor([3, 0])}, "slots is torch.int64"),
        ({"slots": torch.tensor([3], dtype=torch.int32)}, "slots has shape"),
        ({"row_offsets": torch.tensor([0, 5, T])}, "row_offsets is torch.int64"),
        ({"row_offsets": torch.tensor([0], dtype=torch.int32)}, "row_offsets has one entry more"),
        ({"output": torch.zeros(T, H * V, dtype=BF16)}, "output is torch.bfloat16"),
    ],
)
def test_what_it_cannot_serve_it_refuses(from_conv: Any, changes: Keywords, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        from_conv(**from_conv_arguments() | changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"slots": torch.tensor([SLOTS, 0], dtype=torch.int32)}, "slot 4 is none of the pool's 4"),
        ({"slots": torch.tensor([2, 2], dtype=torch.int32)}, "slot 2 is named twice"),
        ({"row_offsets": torch.tensor([0, 71, T], dtype=torch.int32)}, "row_offsets must rise from 0 to 70"),
    ],
)
def test_values_that_lie_are_refused_when_asked_to_look(
    from_conv: Any, changes: Keywords, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(from_conv.__globals__, "DEBUG", True)
    with pytest.raises(ValueError, match=says):
        from_conv(**from_conv_arguments() | changes)


ROWS = """
import json, sys
from pathlib import Path

import torch
from gdnspec.build.interpreter import correct_interpreter
from gdnspec.build.loader import load_function

correct_interpreter()
HK, H, K, V, T = 1, 2, 16, 32, 70
generator = torch.Generator().manual_seed(3)
rows = torch.randn(T, 2 * HK * K + H * V, generator=generator)
gates, pool = torch.rand(2, T, H, generator=generator), torch.randn(4, H, K, V, generator=generator)
slots, offsets = (torch.tensor(x, dtype=torch.int32) for x in ([3, 0], [0, 5, T]))


def call(function, qkv, out):
    states = pool.clone()
    given = (qkv, gates[0], gates[1], states, slots, offsets)
    output = torch.full((T, H * V), float("nan"))
    if out:
        function(*given, output)
    else:
        output = function(*given)
    return torch.cat([output.flatten(), states.flatten()])


said = {}
for name, entry, out in (("torch_layer", "kernel.py", False), ("triton_layer", "from_conv.py", True)):
    function = load_function(Path(sys.argv[1]) / name, f"{entry}::prefill_from_conv", Path(sys.argv[2]))
    rounded = call(function, rows.bfloat16(), out)
    said[name] = [
        torch.equal(call(function, rows.bfloat16().float(), out), rounded),
        float((call(function, rows, out) - rounded).norm() / rounded.norm()),
    ]
print(json.dumps(said))
"""


def test_rows_that_bfloat16_holds_give_the_same_bits_in_float32_and_others_do_not(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (tmp_path / "program.py").write_text(ROWS)
    given, environment = [str(ROOT / "solutions"), str(tmp_path)], os.environ | {"TRITON_INTERPRET": "1"}
    done = forked_command.run(given, environment, script=tmp_path / "program.py")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said.keys() == {"torch_layer", "triton_layer"}
    for same, moved in said.values():
        assert same
        assert 1e-5 < moved < 1e-2  # a rounding to bfloat16 is worth 2^-9


# --- the layer's kernels --------------------------------------------------------------------------------------------

HIDDEN, C = 24, 2 * HK * K + H * V


def layer_arguments(entry: str) -> Keywords:
    def bf16(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=BF16)

    rows, count = (T, N) if entry == "layer_prefill" else (3, 3)
    slots = torch.tensor([3, 0, 1][:count], dtype=torch.int32)
    first = {"cu_seqlens": torch.tensor([0, 5, T]), "has_initial_state": torch.ones(N, dtype=torch.bool)}
    return {
        "x": bf16(rows, HIDDEN), "qkv_weight": bf16(C, HIDDEN), "z_weight": bf16(H * V, HIDDEN),
        "a_weight": bf16(H, HIDDEN), "b_weight": bf16(H, HIDDEN), "conv_weight": bf16(C, 4), "A_log": torch.zeros(H),
        "dt_bias": bf16(H), "norm_weight": bf16(V), "out_weight": bf16(HIDDEN, H * V),
        "conv_states": bf16(SLOTS, C, 3), "conv_slots": slots, "recurrent_states": torch.zeros(SLOTS, H, K, V),
        "state_slots": slots, "output": bf16(rows, HIDDEN),
    } | (first if entry == "layer_prefill" else {})  # fmt: skip


@pytest.mark.parametrize("entry", ["layer_prefill", "layer_decode"])
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"qkv_weight": torch.zeros(C + 8, HIDDEN, dtype=BF16)}, "qkv_weight has 104 rows, which are not q, k and v"),
        ({"x": torch.zeros(T, HIDDEN)}, "x is torch.float32"),
        ({"z_weight": torch.zeros(HIDDEN, H * V, dtype=BF16).T}, "z_weight must be contiguous"),
        ({"out_weight": torch.zeros(H * V, HIDDEN, dtype=BF16)}, "out_weight has shape"),
        ({"A_log": torch.zeros(H, dtype=BF16)}, "A_log is torch.bfloat16"),
        ({"conv_weight": torch.zeros(C, 5, dtype=BF16)}, "kernel width 5 is not served"),
        ({"conv_weight": torch.zeros(C, 3, dtype=BF16)}, "conv_states has shape"),
        ({"conv_weight": torch.zeros(8, 4, dtype=BF16), "conv_states": torch.zeros(4, 8, 3, dtype=BF16)}, "8 channels"),
        ({"conv_states": torch.zeros(SLOTS, 3, C, dtype=BF16).mT}, "conv_states must be contiguous but for its first"),
        ({"recurrent_states": torch.zeros(SLOTS, H, V, K).mT}, "recurrent_states must be contiguous but for its first"),
        ({"recurrent_states": torch.zeros(SLOTS, H, 272, V)}, "heads of 272 and 32 elements are not served"),
        ({"conv_slots": torch.tensor([0, 1])}, "conv_slots is torch.int64"),
        ({"state_slots": torch.zeros(4, dtype=torch.int32)}, "state_slots has shape"),
        ({"output": torch.zeros(1, HIDDEN, dtype=BF16)}, "output has shape"),
    ],
)
def test_what_the_layer_cannot_serve_it_refuses(tmp_path: Path, entry: str, changes: Keywords, says: str) -> None:
    pytest.importorskip("triton")
    function = load_function(ROOT / "solutions/triton_layer", f"block.py::{entry}", tmp_path)
    with pytest.raises(ValueError, match=says):
        function(**layer_arguments(entry) | changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"qkv": torch.zeros(3, C + 8, dtype=BF16)}, "rows of 104 channels, which are not q, k and v of 2 value heads"),
        ({"qkv": torch.zeros(3, C)}, "qkv is torch.float32"),
        ({"z": torch.zeros(3, H, V, dtype=BF16)}, "z has shape"),
        ({"conv_bias": torch.zeros(8, dtype=BF16)}, "bias has shape"),
        ({"conv_weight": torch.zeros(C, 5, dtype=BF16)}, "kernel width 5 is not served"),
        ({"recurrent_states": torch.zeros(SLOTS, H, K, V)}, "z has shape"),
        ({"recurrent_states": torch.zeros(SLOTS, H, K, V).mT}, "recurrent_states must be contiguous but for its first"),
        ({"conv_slots": torch.tensor([0, 1, 2])}, "conv_slots is torch.int64"),
        ({"output": torch.zeros(3, H * V)}, "output is torch.float32"),
    ],
)
def test_what_the_core_cannot_serve_it_refuses(tmp_path: Path, changes: Keywords, says: str) -> None:
    pytest.importorskip("triton")
    function = load_function(ROOT / "solutions/triton_layer", "block.py::core_decode", tmp_path)
    given = layer_arguments("layer_decode")
    kept = ("conv_weight", "A_log", "dt_bias", "norm_weight", "conv_states", "conv_slots", "state_slots")
    rows = {"qkv": C, "z": H * V, "a": H, "b": H, "output": H * V}
    arguments = {name: torch.zeros(3, size, dtype=BF16) for name, size in rows.items()}
    arguments |= {name: given[name] for name in kept} | {"conv_bias": None}
    arguments["recurrent_states"] = torch.zeros(SLOTS, H, V, K)
    with pytest.raises(ValueError, match=says):
        function(**arguments | changes)
