"""Heads of keys and of values that differ in size, and write gates up to 2: the contracts, their reference, and what is
drawn for them. The layer stands in test_olmo_hybrid.py."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gdnspec.catalog.definitions import Found, definition, preset_of, presets
from gdnspec.catalog.families import family
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.materialise import InvalidWorkload, materialise
from gdnspec.model.errors import SpecError
from gdnspec.model.workload import Workload
from helpers_unit import (
    OF_CODES,
    OF_GRADIENTS,
    OF_ROWS_BY_HAND,
    OF_SEQUENCES,
    arguments,
    drawn,
    line,
    reference,
    run_reference,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

chunkwise, kv = reference("chunkwise"), reference("kv_dims")
F64 = torch.float64
Keywords = dict[str, Any]
NAMESAKES = {
    f"gdn_{stage}_k_last_kv_dims": f"gdn_{stage}_k_last" for stage in ("prefill", "decode", "decode_pool", "verify")
}
RAW = [name for name in NAMESAKES if "prefill" not in name]
LAYERS = {f"gdn_layer_{stage}_neg_eigval": f"gdn_layer_{stage}" for stage in ("prefill", "decode")}
WIDE, ONE_SIZE = "synthetic-mha-2x2-k96-v192", "synthetic-gva-2x4-d128"


REGIMES = family("gdn").about.regimes
# --- the contracts ------------------------------------------------------------------------------------------------


def renamed(found: Found) -> list[tuple[str, Any]]:
    """Every tensor, the two sizes called by the one name that their namesakes have."""
    two = ("key_head_dim", "value_head_dim")
    return [
        (t.name, ([("head_size" if x in two else x) for x in t.shape or []], t.dtype, t.optional, t.domain, t.mutates))
        for t in (*found.definition.inputs, *found.definition.outputs)
    ]


@pytest.mark.parametrize(("name", "namesake"), NAMESAKES.items())
def test_a_contract_is_its_namesakes_with_two_sizes_and_a_switch(name: str, namesake: str) -> None:
    found, other = definition(name), definition(namesake)
    mine = [item for item in renamed(found) if item[0] != "allow_neg_eigval"]
    assert mine == renamed(other)
    assert found.definition.conventions == other.definition.conventions
    assert [s.dimension for s in found.definition.symmetries] == [s.dimension for s in other.definition.symmetries]
    shapes = {t.name: t.shape for t in (*found.definition.inputs, *found.definition.outputs)}
    for tensor, sizes in (("q", ["key_head_dim"]), ("k", ["key_head_dim"]), ("v", ["value_head_dim"]),
                          ("output", ["value_head_dim"])):  # fmt: skip
        assert (shapes[tensor] or [])[-1:] == sizes
    states = [shape for tensor, shape in shapes.items() if tensor in ("state", "new_state", "pool", "final_state")]
    assert states
    assert all(shape is not None and shape[-2:] == ["value_head_dim", "key_head_dim"] for shape in states)
    assert {t.name: t.default for t in found.definition.inputs}["scale"] == "1 / sqrt(key_head_dim)"
    switches = [t for t in found.definition.inputs if t.name == "allow_neg_eigval"]
    assert [(t.dtype, t.optional, t.default) for t in switches] == [("bool", True, "False")] * (name in RAW)


@pytest.mark.parametrize(("name", "namesake"), LAYERS.items())
def test_the_layer_is_its_namesake_with_a_doubled_gate_and_an_epsilon(name: str, namesake: str) -> None:
    found, other = definition(name), definition(namesake)
    mine = [(t.name, t.shape, t.dtype) for t in found.definition.inputs]
    assert mine == [*((t.name, t.shape, t.dtype) for t in other.definition.inputs), ("eps", None, "float32")]
    assert found.definition.conventions.update_gate == "raw_doubled"
    assert found.definition.conventions == other.definition.conventions.model_copy(
        update={"update_gate": "raw_doubled"}
    )


@pytest.mark.parametrize(("degree", "heads"), [(1, 30), (2, 15)])
def test_the_presets_of_olmo_hybrid_divide_its_heads(degree: int, heads: int) -> None:
    assert presets()[f"olmo-hybrid-7b-tp{degree}"].axes == {
        "num_q_heads": heads, "num_k_heads": heads, "num_v_heads": heads, "key_head_dim": 96, "value_head_dim": 192,
        "kernel_width": 4, "hidden_size": 3840,
    }  # fmt: skip


def test_the_presets_of_olmo_hybrid_are_its_configuration() -> None:
    package = pytest.importorskip("transformers.models.olmo_hybrid.configuration_olmo_hybrid")
    config, axes = package.OlmoHybridConfig(), presets()["olmo-hybrid-7b-tp1"].axes
    assert (config.linear_num_key_heads, config.linear_num_value_heads) == (axes["num_k_heads"], axes["num_v_heads"])
    assert (config.linear_key_head_dim, config.linear_value_head_dim) == (axes["key_head_dim"], axes["value_head_dim"])
    assert (config.linear_conv_kernel_dim, config.hidden_size) == (axes["kernel_width"], axes["hidden_size"])
    assert config.linear_allow_neg_eigval is True


# --- the reference ------------------------------------------------------------------------------------------------

# Worked out by hand: K = 1, V = 2, alpha = 1/2, b = log 3, so that beta is 3/4, or 3/2 with the switch; scale 2.
# decay: S = [1, 2]. S k = [2, 4], v - S k = [2, -2]; u = [1.5, -1.5], or [3, -3]; u k = [3, -3], or [6, -6].
BY_HAND = {False: ([4.0, -1.0], [24.0, -6.0]), True: ([7.0, -4.0], [42.0, -24.0])}  # state; S q with q = 3, times 2


@pytest.mark.parametrize("negative", [False, True])
def test_a_token_worked_out_by_hand(negative: bool) -> None:
    def tensor(*values: float) -> Tensor:
        return torch.tensor(values, dtype=F64)[None, None, None]

    zero, b = torch.zeros(1, dtype=F64), torch.tensor([[[3.0]]], dtype=F64).log()
    state = torch.tensor([[2.0], [4.0]], dtype=F64)[None, None]
    given = (tensor(3.0), tensor(2.0), tensor(4.0, 2.0), state, zero, zero[None, None], zero, b)
    output, after = kv.decode_k_last_kv_dims(*given, 2.0, False, negative)
    for got, want in ((after[0, 0, :, 0], BY_HAND[negative][0]), (output[0, 0, 0], BY_HAND[negative][1])):
        torch.testing.assert_close(got, torch.tensor(want, dtype=F64), rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", NAMESAKES)
def test_with_one_size_and_without_the_switch_it_is_its_namesake(name: str) -> None:
    found, other = definition(name), definition(NAMESAKES[name])
    given = arguments(found, drawn(found, ONE_SIZE), F64)
    assert given.pop("allow_neg_eigval", False) is False
    want = run_reference(other, given)
    got = run_reference(found, given | ({"allow_neg_eigval": False} if name in RAW else {}))
    for tensor, value in want.items():
        assert torch.equal(got[tensor], value), tensor


@pytest.mark.parametrize("name", RAW)
def test_the_switch_doubles_the_write_strength(name: str) -> None:
    """sigmoid(b') = 2 sigmoid(b) wherever sigmoid(b) is below one half: the same call without the switch."""
    found = definition(name)
    given = arguments(found, drawn(found, WIDE), F64)
    half = torch.sigmoid(given["b"]) / 2
    once = run_reference(found, given)
    twice = run_reference(found, given | {"b": torch.logit(half), "allow_neg_eigval": True})
    for tensor, value in once.items():
        torch.testing.assert_close(twice[tensor], value, rtol=1e-10, atol=1e-12)
    assert not torch.equal(run_reference(found, given | {"allow_neg_eigval": True})["output"], once["output"])


@pytest.mark.parametrize("name", NAMESAKES)
def test_an_absent_scale_is_one_over_the_root_of_the_size_of_keys(name: str) -> None:
    found = definition(name)
    given = arguments(found, drawn(found, WIDE), F64)
    absent = run_reference(found, given | {"scale": None})
    said = run_reference(found, given | {"scale": 96**-0.5})
    assert absent["output"].any()
    torch.testing.assert_close(absent["output"], said["output"], rtol=1e-14, atol=0)
    assert not run_reference(found, given | {"scale": 0.0})["output"].any()


def prefill_inputs(seed: int, lengths: tuple[int, ...], heads: tuple[int, int, int], K: int, V: int) -> Keywords:
    """Keys of unit norm, alpha in [0, 1] and beta in [0, 2] with both ends."""
    generator = torch.Generator().manual_seed(seed)
    T, H = sum(lengths), max(heads)
    q, k, v = (
        torch.randn(T, n, size, generator=generator, dtype=F64) for n, size in zip(heads, (K, K, V), strict=True)
    )
    gates = torch.rand(2, T, H, generator=generator, dtype=F64)
    return {
        "q": q, "k": k / k.norm(dim=-1, keepdim=True).clamp(min=1e-9), "v": v, "scale": None,
        "g": (1.3 * gates[0] - 0.15).clamp(0, 1), "beta": (2.4 * gates[1] - 0.2).clamp(0, 2),
        "initial_state": torch.randn(len(lengths), H, V, K, generator=generator, dtype=F64),
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0),
    }  # fmt: skip


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    lengths=st.lists(st.sampled_from([0, 1, 16, 63, 65]) | st.integers(0, 100), min_size=1, max_size=3),
    heads=st.sampled_from([(1, 1, 1), (1, 1, 2), (2, 2, 6), (4, 2, 2)]),
    sizes=st.sampled_from([(3, 8), (8, 5), (1, 4), (4, 4)]),
    chunk_size=st.sampled_from([1, 16, 64]),
    omit=st.sets(st.sampled_from(["g", "beta", "initial_state"])),
)  # fmt: skip
def test_chunkwise_equals_the_recurrence(
    seed: int, lengths: list[int], heads: tuple[int, int, int], sizes: tuple[int, int], chunk_size: int, omit: set[str]
) -> None:
    inputs = prefill_inputs(seed, tuple(lengths), heads, *sizes) | dict.fromkeys(omit)
    expected = kv.prefill_k_last_kv_dims(**inputs)
    got = chunkwise.prefill_k_last_kv_dims(**inputs, chunk_size=chunk_size)
    assert expected[1].shape == (len(lengths), max(heads), sizes[1], sizes[0])
    for one, other in zip(got, expected, strict=True):
        assert (one.dtype, one.shape) == (F64, other.shape)
        assert float((one - other).norm() / other.norm().clamp(min=1e-300)) <= 1e-12


def test_chained_decode_steps_with_doubled_gates_equal_one_prefill() -> None:
    inputs = prefill_inputs(3, (20,), (2, 2, 4), 3, 5)
    generator = torch.Generator().manual_seed(4)
    A_log, dt_bias = (torch.randn(4, generator=generator, dtype=F64) for _ in range(2))
    a, b = (torch.randn(20, 1, 4, generator=generator, dtype=F64) for _ in range(2))
    state, rows = inputs["initial_state"], []
    for t in range(20):
        q, k, v = (inputs[name][t][None, None] for name in "qkv")
        row, state = kv.decode_k_last_kv_dims(
            q, k, v, state, A_log, a[t : t + 1], dt_bias, b[t : t + 1], None, False, True
        )  # fmt: skip
        rows.append(row[:, 0])
    alpha = torch.exp(-A_log.exp() * torch.nn.functional.softplus(a[:, 0] + dt_bias))
    output, final = kv.prefill_k_last_kv_dims(**inputs | {"g": alpha, "beta": 2 * b[:, 0].sigmoid()})
    torch.testing.assert_close(torch.cat(rows), output, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(state, final, rtol=1e-12, atol=1e-13)


def test_a_sequence_past_256_tokens_is_judged_by_the_twin() -> None:
    from gdnspec.numerics.expected import oracle

    for name in ("gdn_prefill_k_last_kv_dims", "gdn_layer_prefill_neg_eigval"):
        found = definition(name)
        short, long = oracle(found, 256), oracle(found, 257)
        assert (long.__module__.split(".")[1], long.__name__) == ("chunkwise", short.__name__)
        inputs = arguments(found, drawn(found, WIDE, lengths=(70, 0, 20)), F64)
        for one, other in zip(long(**inputs), short(**inputs), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_no_derivation_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of the same name elsewhere may be of another operator: the definition says which is its second."""
    from gdnspec.numerics.expected import oracle

    found = definition("gdn_verify_k_last_kv_dims")
    assert found.definition.second_reference is None
    name = found.definition.reference.split("::")[1]
    monkeypatch.setattr(chunkwise, name, lambda **inputs: None, raising=False)
    assert oracle(found, 1 << 20).__module__.endswith(".kv_dims")


# --- what is drawn ------------------------------------------------------------------------------------------------


def beta_of(found: Found, scalars: Keywords, regime: str) -> Tensor:
    b = arguments(found, drawn(found, WIDE, regime, batch=40, scalars=scalars), F64)["b"]
    return torch.sigmoid(b) * (2 if scalars.get("allow_neg_eigval") else 1)


@pytest.mark.parametrize("name", RAW)
def test_a_doubled_gate_reaches_write_strengths_up_to_two(name: str) -> None:
    found, on = definition(name), {"allow_neg_eigval": True}
    assert (beta_of(found, on, "beta_two") == 2).all()
    assert (beta_of(found, on, "beta_one") == 1).all()
    assert beta_of(found, on, "beta_zero").max() < 1e-50
    wide = beta_of(found, on, "repeated_keys")
    assert wide.max() > 1.5
    assert wide.max() <= 1.96
    assert wide.min() < 0.4
    typical = beta_of(found, on, "typical")
    assert torch.equal(typical, 2 * beta_of(found, {}, "typical")), "what the projection says is the same"


@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("scalars", [{}, {"allow_neg_eigval": False}], ids=["absent", "false"])
def test_without_the_switch_it_is_said_that_the_switch_is_missing(name: str, scalars: Keywords) -> None:
    with pytest.raises(InvalidWorkload, match=r"beta_two needs beta up to 2.*allow_neg_eigval it ends at 2"):
        drawn(definition(name), WIDE, "beta_two", scalars=scalars)


def with_key_of_norm(found: Found, size: float, scalars: Keywords, folder: Path) -> tuple[Found, Workload]:
    """One recorded call, b = 0 everywhere and one key of this norm."""
    from gdnspec.numerics.torch_arrays import to_torch
    from safetensors.torch import save_file

    workload = line(found, WIDE, scalars={"use_qk_l2norm": False, **scalars})
    tensors = {name: to_torch(array).clone() for name, array in materialise(found, workload).tensors.items()}
    tensors["b"].zero_()
    tensors["k"][1, 0, 0] = 0.0
    tensors["k"][1, 0, 0, 0] = size
    save_file(tensors, folder / "recorded.safetensors")
    row = workload.model_dump(exclude_defaults=True, exclude={"regime", "seed"})
    return Found(found.definition, folder, found.family), Workload.model_validate(
        row | {"tensors": "recorded.safetensors"}
    )


def test_the_bound_of_the_recurrence_is_that_of_the_doubled_gate(tmp_path: Path) -> None:
    """beta |k|^2 <= 2: a key of norm 1.75 may be written with beta 1/2, and not with twice that."""
    found = definition("gdn_decode_k_last_kv_dims")
    materialise(*with_key_of_norm(found, 1.75, {}, tmp_path))  # 0.5 * 3.06
    with pytest.raises(InvalidWorkload, match=r"reaches 3\.06"):
        materialise(*with_key_of_norm(found, 1.75, {"allow_neg_eigval": True}, tmp_path))
    materialise(*with_key_of_norm(found, 1.25, {"allow_neg_eigval": True}, tmp_path))  # 1 * 1.56


@pytest.mark.parametrize("name", [*NAMESAKES, *LAYERS])
def test_the_suites_cover_sizes_switches_and_scalars(name: str) -> None:
    found = definition(name)
    lines = [w for w in workloads(found) if w.suite in ("smoke", "conformance", "strict")]
    sizes = {(p["key_head_dim"], p["value_head_dim"]) for p in (preset_of(found, w).axes for w in lines)}
    assert (96, 192) in sizes, "those of OLMo Hybrid"
    assert any(K > V for K, V in sizes)
    assert any(K < V for K, V in sizes)
    assert any(K == V for K, V in sizes)
    assert any(K & (K - 1) and V & (V - 1) and K < 64 for K, V in sizes), "no power of two divides either"
    if name in LAYERS:
        assert {None, 0.0, 1e-5} <= {w.scalars.get("eps") for w in lines}
        return
    assert {(256, 48), (40, 256)} <= sizes
    assert {None, 0.0, -1.5, 1.0} <= {w.scalars.get("scale") for w in lines}
    some = OF_GRADIENTS | OF_CODES | OF_ROWS_BY_HAND | (set() if "prefill" in name else OF_SEQUENCES)
    assert {w.regime for w in lines} >= set(REGIMES) - {"strict_keys"} - some
    assert "olmo-hybrid-7b-tp1" in {w.preset for w in lines}
    if name in RAW:
        assert {w.scalars.get("allow_neg_eigval") for w in lines} == {None, False, True}
        both = {(w.scalars.get("use_qk_l2norm", True), w.scalars.get("allow_neg_eigval", False)) for w in lines}
        assert both >= {(True, True), (True, False), (False, True)}
    for workload in lines[:4]:
        materialise(found, workload)  # raises where the tensors are not those of the line's hash


def test_a_fresh_draw_has_the_heads_of_olmo_hybrid_or_of_the_others() -> None:
    from gdnspec.inputs.fresh import fresh

    for name in (*NAMESAKES, *LAYERS):
        found, seen, switches = definition(name), set(), set()
        for seed in range(30):
            for workload in fresh(found, seed, "cuda"):
                axes = preset_of(found, workload).axes
                seen.add((workload.name, axes["key_head_dim"], axes["value_head_dim"]))
                switches.add(workload.scalars.get("allow_neg_eigval"))
        assert {("fresh_typical", 96, 192), ("fresh_typical", 128, 128), ("fresh_large", 96, 192)} <= seen, name
        assert switches == ({True, False} if name in RAW else {None})


@pytest.mark.parametrize("name", NAMESAKES)
def test_a_format_with_one_head_size_says_that_it_has_one(name: str) -> None:
    from gdnspec.interop.outward import definition_json

    said = "updates pool in place" if "pool" in name or "verify" in name else "has two head sizes"
    with pytest.raises(SpecError, match=said):
        definition_json(definition(name), presets()["olmo-hybrid-7b-tp1"])


def test_numbers_of_a_published_gate_are_on_the_grid() -> None:
    """b of a doubled gate as of any other: the same on every machine."""
    found = definition("gdn_decode_k_last_kv_dims")
    b = drawn(found, WIDE, "repeated_keys", scalars={"allow_neg_eigval": True}).tensors["b"].values()
    assert np.isfinite(b).all()
    assert (b.astype(np.float64) * 2.0**20 % 1 == 0).all()
