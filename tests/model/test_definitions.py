"""The shipped definitions say what the contracts say, and a definition that is wrong is refused with its place."""

import copy
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import ROOT
from gdnspec import paths
from gdnspec.catalog.definitions import (
    Found,
    applies,
    definition,
    definitions,
    load_definition,
    loaded,
    preset_problems,
    presets,
)
from gdnspec.catalog.families import families, load_presets
from gdnspec.model.elements import ConstAxis, DerivedAxis, Scope, Tensor
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.roles import of_all

VARIANTS = (
    "gdn_decode_k_last_bf16_state", "gdn_decode_k_first_bf16_state", "gdn_decode_packed_k_last",
    "gdn_decode_pool_k_last", "gdn_decode_pool_k_last_bf16_state", "gdn_verify_k_last", "gdn_prefill_checkpoints",
    "gdn_prefill_from_conv_bf16_state", "gdn_prefill_from_conv_f32_qkv", "gdn_prefill_from_conv_f32_qkv_bf16_state",
    "gdn_decode_pool_k_last_fp8_state", "gdn_decode_pool_k_last_int8_state", "gdn_verify_k_last_fp8_state",
    "gdn_verify_k_last_int8_state",
)  # fmt: skip
AROUND = (
    "gdn_conv1d_prefill", "gdn_conv1d_decode", "gdn_gated_rms_norm", "gdn_chunk_wy", "gdn_chunk_state",
    "gdn_chunk_output", "gdn_prefill_from_conv", "gdn_layer_prefill", "gdn_layer_decode",
    "gdn_core_decode", "gdn_conv_gates_prefill",
)  # fmt: skip
TWO_SIZES = (
    "gdn_prefill_k_last_kv_dims", "gdn_decode_k_last_kv_dims", "gdn_decode_pool_k_last_kv_dims",
    "gdn_verify_k_last_kv_dims", "gdn_layer_prefill_neg_eigval", "gdn_layer_decode_neg_eigval",
)  # fmt: skip
GRADIENTS = ("gdn_prefill_backward_k_last", "gdn_prefill_backward_k_first")
GRADIENT_OF = {"initial_state": "dh0"}  # of other inputs x it is dx
GRADIENTS_AROUND = (
    "gdn_prefill_backward_checkpoints",
    "gdn_prefill_backward_raw_gates", "gdn_gated_rms_norm_backward", "gdn_conv1d_backward", "gdn_layer_backward",
    "gdn_conv_gates_backward",
)  # fmt: skip
SERVING = (
    "gdn_verify_drafts_k_last", "gdn_verify_drafts_k_last_bf16_state", "gdn_prefill_pool_k_last",
    "gdn_prefill_pool_k_last_bf16_state", "gdn_prefill_pool_k_last_slot_zero", "gdn_verify_tree_k_last",
    "gdn_verify_tree_k_last_bf16_state",
    "gdn_commit_states_k_last", "gdn_commit_states_k_last_bf16_state", "gdn_conv1d_verify",
    "gdn_conv1d_verify_tree",
    "gdn_prefill_checkpoints_absolute", "gdn_conv1d_checkpoints_absolute",
    "gdn_prefill_padded_k_first",
)  # fmt: skip
KDA = (
    "kda_prefill_k_last", "kda_prefill_k_first", "kda_prefill_raw_gates", "kda_decode_k_last",
    "kda_decode_k_last_bf16_state", "kda_decode_pool_k_last", "kda_decode_pool_k_last_bf16_state",
    "kda_prefill_checkpoints", "kda_verify_k_last", "kda_prefill_backward_k_last", "kda_decode_packed_k_last",
    "kda_decode_packed_k_last_bf16_state",
    "kda_layer_prefill", "kda_layer_decode", "kda_chunk_wy", "kda_chunk_state", "kda_chunk_output",
)  # fmt: skip
PREFILLS, DECODES = ("gdn_prefill_k_last", "gdn_prefill_k_first"), ("gdn_decode_k_last", "gdn_decode_k_first")


# --- the contracts ----------------------------------------------------------------------------------------------

# name: (shape, dtype, optional, domain). The gate's domain is put in by the tests below.
STATE = ("num_seqs num_sab_heads head_size head_size", "float32")
PREFILL_INPUTS = {
    "q": ("total_seq_len num_q_heads head_size", "bfloat16", False, None),
    "k": ("total_seq_len num_k_heads head_size", "bfloat16", False, None),
    "v": ("total_seq_len num_v_heads head_size", "bfloat16", False, None),
    "g": ("total_seq_len num_sab_heads", "float32", True, "gate"),
    "beta": ("total_seq_len num_sab_heads", "float32", True, [0, 2]),
    "cu_seqlens": ("num_seqs + 1", "int64", False, [0, None]),
    "initial_state": (*STATE, True, None),
    "scale": (None, "float32", True, None),
}
PREFILL_OUTPUTS = {"output": ("total_seq_len num_o_heads head_size", "bfloat16"), "final_state": STATE}
DECODE_STATE = ("batch_size num_sab_heads head_size head_size", "float32")
DECODE_INPUTS = {
    "q": ("batch_size 1 num_q_heads head_size", "bfloat16", False, None),
    "k": ("batch_size 1 num_k_heads head_size", "bfloat16", False, None),
    "v": ("batch_size 1 num_v_heads head_size", "bfloat16", False, None),
    "state": (*DECODE_STATE, False, None),
    "A_log": ("num_sab_heads", "float32", False, None),
    "a": ("batch_size 1 num_sab_heads", "bfloat16", False, None),
    "dt_bias": ("num_sab_heads", "bfloat16", False, None),
    "b": ("batch_size 1 num_sab_heads", "bfloat16", False, None),
    "scale": (None, "float32", True, None),
    "use_qk_l2norm": (None, "bool", True, None),
}
DECODE_OUTPUTS = {"output": ("batch_size 1 num_o_heads head_size", "bfloat16"), "new_state": DECODE_STATE}


def shape_of(tensor: Tensor) -> str | None:
    return None if tensor.shape is None else " ".join(map(str, tensor.shape))


def inputs_of(found: Found) -> list[tuple[str, Any]]:
    return [(t.name, (shape_of(t), t.dtype, t.optional, t.domain)) for t in found.definition.inputs]


def outputs_of(found: Found) -> list[tuple[str, Any]]:
    return [(t.name, (shape_of(t), t.dtype)) for t in found.definition.outputs]


def test_exactly_these_contracts_are_shipped() -> None:
    forward = {*PREFILLS, *DECODES, *VARIANTS, *AROUND, *TWO_SIZES, *SERVING}
    shipped = {name for name, found in definitions().items() if found.family.name in ("gdn", "kda")}
    assert shipped == {*forward, *GRADIENTS, *GRADIENTS_AROUND, *KDA}


@pytest.mark.parametrize(("name", "forward"), [*zip(GRADIENTS, PREFILLS, strict=True)])
def test_gradients_have_the_shapes_of_what_they_are_gradients_of(name: str, forward: str) -> None:
    own, whole = definition(name), definition(forward)
    inputs, outputs = dict(inputs_of(own)), dict(outputs_of(own))
    cotangents = [inputs.pop(key) for key in ("do", "dht")]
    assert [*inputs.items()] == inputs_of(whole)
    assert [(shape, dtype) for shape, dtype, _, _ in cotangents] == [of for _, of in outputs_of(whole)]
    assert all(optional for _, _, optional, _ in cotangents)
    gradients = {"dq": "q", "dk": "k", "dv": "v", "dg": "g", "dbeta": "beta", "dh0": "initial_state"}
    assert outputs == {key: inputs[of][:2] for key, of in gradients.items()}


@pytest.mark.parametrize("name", GRADIENTS_AROUND)
def test_every_input_that_is_no_cotangent_or_residual_has_its_gradient(name: str) -> None:
    """In its own shape. What a parameter gets is float32: a sum over all tokens."""
    own = definition(name)
    given = {t.name: t for t in own.definition.inputs if t.is_drawn and t.draw not in ("cotangents", "states_between")}
    found = {t.name: t for t in own.definition.outputs}
    assert [*found] == [GRADIENT_OF.get(name, f"d{name}") for name in given]
    for gradient, of in zip(found.values(), given.values(), strict=True):
        assert gradient.shape == of.shape
        summed = of_all(own.definition, gradient) or of.draw == "states"
        assert gradient.dtype == ("float32" if summed else of.dtype), gradient.name


@pytest.mark.parametrize("name", [n for n in VARIANTS if n.endswith("bf16_state")])
def test_a_bf16_state_changes_the_type_of_states_alone(name: str) -> None:
    found, other = definition(name), definition(name.removesuffix("_bf16_state"))
    for mine, theirs in zip(
        (*inputs_of(found), *outputs_of(found)), (*inputs_of(other), *outputs_of(other)), strict=True
    ):
        assert mine[0] == theirs[0]
        if mine[0] in ("state", "new_state", "pool", "recurrent_state"):
            assert (mine[1][1], theirs[1][1]) == ("bfloat16", "float32")
            mine, theirs = ((name, (form[0], *form[2:])) for name, form in (mine, theirs))
        assert mine == theirs


@pytest.mark.parametrize("name", [n for n in VARIANTS if "_f32_qkv" in n])
def test_float32_rows_change_the_type_of_rows_alone(name: str) -> None:
    found, other = definition(name), definition(name.replace("_f32_qkv", ""))
    rows, *rest = inputs_of(found)
    other_rows, *other_rest = inputs_of(other)
    assert rows == ("qkv", (other_rows[1][0], "float32", False, None))
    assert other_rows[1][1] == "bfloat16"
    assert [*rest, *outputs_of(found)] == [*other_rest, *outputs_of(other)]
    assert found.definition.symmetries == other.definition.symmetries
    assert found.definition.conventions == other.definition.conventions


@pytest.mark.parametrize(
    ("name", "domain", "default"),
    [("gdn_prefill_k_last", [0, 1], "1"), ("gdn_prefill_k_first", [None, 0], "0")],
)
def test_prefill_takes_and_returns_what_its_contract_says_in_order(name: str, domain: list[Any], default: str) -> None:
    found = definition(name)
    gate = (*PREFILL_INPUTS["g"][:3], domain)
    assert inputs_of(found) == list((PREFILL_INPUTS | {"g": gate}).items())
    assert outputs_of(found) == list(PREFILL_OUTPUTS.items())
    defaults = {t.name: t.default for t in found.definition.inputs if t.optional}
    assert defaults == {"g": default, "beta": "1", "initial_state": "0", "scale": "1 / sqrt(head_size)"}


def test_checkpoints_are_asked_for_by_two_inputs_more_and_given_as_one_output_more() -> None:
    found, other = definition("gdn_prefill_checkpoints"), definition("gdn_prefill_k_last")
    starts, interval = ("num_seqs + 1", "int64", False, [0, None]), (None, "int64", False, None)
    more = [("checkpoint_cu_starts", starts), ("checkpoint_interval", interval)]
    assert inputs_of(found) == [*inputs_of(other), *more]
    states = ("num_checkpoints num_sab_heads head_size head_size", "float32")
    assert outputs_of(found) == [*outputs_of(other), ("checkpoints", states)]
    assert found.definition.conventions == other.definition.conventions
    assert {axis.name: axis.minimum for axis in found.definition.var_axes()}["num_checkpoints"] == 0
    # As the final state does, so does every checkpoint; and nothing else differs from prefill.
    for mine, theirs in zip(found.definition.symmetries, other.definition.symmetries, strict=True):
        assert mine.dimension == theirs.dimension | {"checkpoints": mine.dimension["final_state"]}


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 0),
        ({"checkpoint_interval": 128, "checkpoint_cu_starts": [0, 0, 0, 1], "num_checkpoints": 1}, 0),
        ({"checkpoint_interval": 192, "checkpoint_cu_starts": [0, 0, 0, 0], "num_checkpoints": 0}, 0),
        ({"checkpoint_interval": 96}, 2),  # and other counts follow from it
        ({"checkpoint_interval": 0}, 2),
        ({"checkpoint_interval": -64}, 2),
        ({"checkpoint_cu_starts": [1, 2, 2, 4], "num_checkpoints": 4}, 1),
        ({"checkpoint_cu_starts": [0, 2, 2, 4], "num_checkpoints": 4}, 1),  # one for a last piece that is shorter
        ({"checkpoint_cu_starts": [0, 0, 1, 3]}, 1),  # of another sequence
        ({"checkpoint_cu_starts": [0, 1, 3]}, 1),
        ({"num_checkpoints": 2}, 1),
    ],
)
def test_checkpoint_constraints(changes: Scope, count: int) -> None:
    lengths = {"total_seq_len": 196, "num_seqs": 3, "cu_seqlens": [0, 66, 66, 196]}
    kept = {"checkpoint_interval": 64, "checkpoint_cu_starts": [0, 1, 1, 3], "num_checkpoints": 3}
    assert len(broken("gdn_prefill_checkpoints", {**GVA, **lengths, **kept, **changes})) == count


def test_a_checkpoint_is_written_once() -> None:
    contract, other = (definition(name).definition for name in ("gdn_prefill_checkpoints", "gdn_prefill_k_last"))
    scope = contract.bind({**GVA, "total_seq_len": 196, "num_seqs": 3, "num_checkpoints": 3})
    assert contract.bytes_moved(scope) - other.bytes_moved(scope) == 4 * 3 * 6 * 64 * 64 + 8 * 4


@pytest.mark.parametrize("name", DECODES)
def test_decode_takes_and_returns_what_its_contract_says_in_order(name: str) -> None:
    found = definition(name)
    assert inputs_of(found) == list(DECODE_INPUTS.items())
    assert outputs_of(found) == list(DECODE_OUTPUTS.items())
    defaults = {t.name: t.default for t in found.definition.inputs if t.optional}
    assert defaults == {"scale": "1 / sqrt(head_size)", "use_qk_l2norm": "True"}


@pytest.mark.parametrize(
    ("name", "conventions"),
    [
        ("gdn_prefill_k_last", ("k_last", "linear", "sigmoid", "none", "ragged", "functional")),
        ("gdn_prefill_k_first", ("k_first", "log", "sigmoid", "none", "ragged", "functional")),
        ("gdn_decode_k_last", ("k_last", "raw", "raw", "optional_l2", "one_token", "functional")),
        ("gdn_decode_k_first", ("k_first", "raw", "raw", "optional_l2", "one_token", "functional")),
    ],
)
def test_conventions(name: str, conventions: tuple[str, ...]) -> None:
    fields = ("state_layout", "decay_gate", "update_gate", "qk_norm", "packing", "state_update")
    defaults = {"state_scale": "none", "padding_slot": "minus_one", "residuals": "none"}
    expected = dict(zip(fields, conventions, strict=True)) | defaults
    assert definition(name).definition.conventions.model_dump() == expected


@pytest.mark.parametrize("name", [*PREFILLS, *DECODES])
def test_axes(name: str) -> None:
    axes = definition(name).definition.axes
    variable = {axis.name: axis.minimum for axis in definition(name).definition.var_axes()}
    assert variable == ({"total_seq_len": 0, "num_seqs": 1} if name in PREFILLS else {"batch_size": 1})
    const = [axis.name for axis in axes if isinstance(axis, ConstAxis)]
    assert const == ["num_q_heads", "num_k_heads", "num_v_heads", "head_size"]
    assert {axis.name for axis in axes if isinstance(axis, DerivedAxis)} == {"num_sab_heads", "num_o_heads"}


GVA = {"num_q_heads": 2, "num_k_heads": 2, "num_v_heads": 6, "head_size": 64}
GQA = {"num_q_heads": 6, "num_k_heads": 2, "num_v_heads": 2, "head_size": 64}


def test_state_gates_and_output_have_the_larger_number_of_heads() -> None:
    for heads in (GVA, GQA):
        bound = definition("gdn_prefill_k_last").definition.bind(heads)
        assert (bound["num_sab_heads"], bound["num_o_heads"]) == (6, 6)
    bound = definition("gdn_decode_k_last").definition.bind(GVA)
    assert (bound["num_sab_heads"], bound["num_o_heads"]) == (6, 6)


def broken(name: str, scope: Scope) -> list[str]:
    """The constraints that fail."""
    contract = definition(name).definition
    return [constraint.expression for _, constraint, _ in contract.broken(contract.bind(scope))]


@pytest.mark.parametrize("name", PREFILLS)
@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 0),
        (GQA, 0),
        ({"num_v_heads": 2}, 0),
        ({"num_q_heads": 1, "num_k_heads": 2, "num_v_heads": 2}, 1),
        ({"num_q_heads": 3, "num_k_heads": 2, "num_v_heads": 2}, 1),
        ({"num_v_heads": 3}, 1),
        ({"num_q_heads": 4, "num_k_heads": 2, "num_v_heads": 8}, 1),
        ({"cu_seqlens": [1, 3, 3, 8]}, 1),
        ({"cu_seqlens": [0, 5, 3, 8]}, 1),
        ({"cu_seqlens": [0, 3, 3, 7]}, 1),
        ({"cu_seqlens": [0, 3, 8]}, 1),
        ({"cu_seqlens": [1, 0, 7]}, 4),
        ({"total_seq_len": 0, "num_seqs": 1, "cu_seqlens": [0, 0]}, 0),
    ],
)
def test_prefill_constraints(name: str, changes: Scope, count: int) -> None:
    scope = {**GVA, "total_seq_len": 8, "num_seqs": 3, "cu_seqlens": [0, 3, 3, 8], **changes}
    assert len(broken(name, scope)) == count


@pytest.mark.parametrize("name", DECODES)
@pytest.mark.parametrize(
    ("changes", "count"),
    [({}, 0), ({"num_v_heads": 2}, 0), ({"num_v_heads": 3}, 1), ({"num_k_heads": 1}, 1), (GQA, 2)],
)
def test_decode_constraints(name: str, changes: Scope, count: int) -> None:
    assert len(broken(name, {**GVA, "batch_size": 1, **changes})) == count


def test_bytes_moved_count_each_tensor_once_and_no_omitted_one() -> None:
    contract = definition("gdn_decode_k_last").definition
    scope = contract.bind({**GVA, "batch_size": 3})
    vectors = 2 * 3 * 64 * (2 + 2 + 6 + 6)  # q, k, v, output
    states = 2 * 4 * 3 * 6 * 64 * 64
    gates = 4 * 6 + 2 * 6 + 2 * 2 * 3 * 6  # A_log, dt_bias, a and b
    assert contract.bytes_moved(scope) == vectors + states + gates
    prefill = definition("gdn_prefill_k_last").definition
    scope = prefill.bind({**GVA, "total_seq_len": 8, "num_seqs": 3})
    state = 4 * 3 * 6 * 64 * 64
    assert prefill.bytes_moved(scope) - prefill.bytes_moved(scope, {"initial_state"}) == state


def test_every_definition_says_what_each_field_is() -> None:
    for found in definitions().values():
        contract = found.definition
        for item in (*contract.axes, *contract.inputs, *contract.outputs, *contract.symmetries):
            assert len(item.description) > 3, (contract.name, item.name)
        assert all(constraint.message for constraint in contract.constraints)


# --- the JSON schema --------------------------------------------------------------------------------------------

SCHEMA = ROOT / "definitions" / "definition.schema.json"


def test_the_schema_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from make_schema import schema

    sys.modules.pop("make_schema")
    assert SCHEMA.read_text() == schema(), "stale: run `make schema`"


@pytest.mark.parametrize("name", [*PREFILLS, *DECODES])
def test_the_schema_accepts_a_shipped_definition_and_no_misspelt_key(name: str) -> None:
    schema = json.loads(SCHEMA.read_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    data = json.loads(definition(name).file.read_text())
    assert list(validator.iter_errors(data)) == []
    named = [data[key] for key in ("inputs", "axes", "symmetries") if key in data]  # by name where it extends another
    entries = [next(iter(each.values())) if isinstance(each, dict) else each[0] for each in named]
    assert entries
    for place in (data, data["conventions"], *entries):
        place["descripton"] = "x"
        assert not validator.is_valid(data)
        del place["descripton"]
    data["schema_version"] = 2
    assert not validator.is_valid(data)


# --- presets ----------------------------------------------------------------------------------------------------

MODELS = {  # query and key heads, value heads
    "qwen3-next-80b-a3b": (16, 32),
    "qwen3.5-35b-a3b": (16, 32),
    "qwen3.5-9b": (16, 32),
    "qwen3.5-4b": (16, 32),
    "qwen3.5-397b-a17b": (16, 64),
    "qwen3.5-122b-a10b": (16, 64),
    "qwen3.5-27b": (16, 48),
    "qwen3.5-2b": (16, 16),
    "qwen3.5-0.8b": (16, 16),
    "qwen3.6-35b-a3b": (16, 32),
    "qwen3.6-27b": (16, 48),
    "qwen3.8-2.4t-a95b": (16, 128),
    "qwen3.8-flash-next": (16, 48),
    "qwen3.8-27b": (16, 48),
}
HIDDEN = {  # where the source of a preset has it
    "qwen3-next-80b-a3b": 2048,
    "qwen3.6-35b-a3b": 2048,
    "qwen3.6-27b": 5120,
    "qwen3.8-2.4t-a95b": 8192,
    "qwen3.8-flash-next": 2560,
    "qwen3.8-27b": 5120,
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_the_preset_of_a_real_model_divides_its_heads(model: str, degree: int) -> None:
    key, value = MODELS[model]
    axes = presets()[f"{model}-tp{degree}"].axes
    assert axes == {
        "num_q_heads": key // degree,
        "num_k_heads": key // degree,
        "num_v_heads": value // degree,
        "head_size": 128,
        "key_head_dim": 128,
        "value_head_dim": 128,
        "kernel_width": 4,
    } | ({"hidden_size": HIDDEN[model]} if model in HIDDEN else {})


def test_every_preset_names_its_source() -> None:
    assert all(len(preset.source) > 10 for preset in presets().values())
    for name, preset in presets().items():
        model = re.match("[a-z]+", name)
        assert model is not None, name
        assert model[0] in ("synthetic", "toy") or model[0] in preset.source.lower(), name


def test_no_preset_is_without_use_and_none_breaks_a_constraint() -> None:
    for name, preset in presets().items():
        own = [found for found in definitions().values() if found.family.presets.get(name) == preset]
        users = [found for found in own if applies(preset, found.definition)]
        assert users, name
        for found in users:
            assert preset_problems(found, {name: preset}, Path("presets.json")) == []


def test_presets_of_a_model_serve_its_layer_only_where_a_definition_expresses_it() -> None:
    """Kimi-K3 projects to its output gate by one matrix, and the layers here by two of low rank."""
    for name, preset in presets().items():
        if name.startswith("kimi-k3-"):
            assert preset.stages is not None, name
            assert "layer" not in preset.stages


def test_a_gqa_preset_is_no_preset_of_decode() -> None:
    gqa = [p for p in presets().values() if p.axes["num_q_heads"] > p.axes["num_v_heads"]]
    assert gqa
    for preset in gqa:
        for name in ("gdn_decode_k_last", "gdn_decode_k_last_kv_dims"):
            assert not applies(preset, definition(name).definition)
        prefills = ("gdn_prefill_k_last", "gdn_prefill_k_last_kv_dims")
        assert any(applies(preset, definition(name).definition) for name in prefills)


# --- what is refused --------------------------------------------------------------------------------------------

NAME = "gdn_prefill_k_last"
ORIGINAL = json.loads(definition(NAME).file.read_text())
PART = {"name": "first", "shape": ["num_k_heads"], "description": "some of them"}
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a changed copy of gdn_prefill_k_last is to be written."""
    (tmp_path / NAME).mkdir()
    return tmp_path / NAME / "definition.json"


def problems_of(file: Path) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        load_definition(file)
    for problem in caught.value.problems:
        assert problem.file == file
        assert str(problem).startswith(paths.shown(file))
        assert "\n" not in str(problem)
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))
    return caught.value.problems


def problem_after(file: Path, change: Change) -> Problem:
    """The one problem of the changed copy."""
    data = copy.deepcopy(ORIGINAL)
    change(data)
    file.write_text(json.dumps(data))
    problems = problems_of(file)
    assert len(problems) == 1, problems
    return problems[0]


def put(pointer: str, value: Any) -> Change:
    """Sets, appends nothing: `pointer` is a JSON pointer into the definition."""

    def change(data: Any) -> None:
        *way, last = pointer.strip("/").split("/")
        for part in way:
            data = data[int(part) if isinstance(data, list) else part]
        data[int(last) if isinstance(data, list) else last] = value

    return change


def drop(pointer: str) -> Change:
    def change(data: Any) -> None:
        *way, last = pointer.strip("/").split("/")
        for part in way:
            data = data[int(part) if isinstance(data, list) else part]
        del data[last]

    return change


def rename(pointer: str, to: str) -> Change:
    def change(data: Any) -> None:
        *way, last = pointer.strip("/").split("/")
        for part in way:
            data = data[int(part) if isinstance(data, list) else part]
        data[to] = data.pop(last)

    return change


def test_an_unchanged_copy_loads(file: Path) -> None:
    file.write_text(json.dumps(ORIGINAL))
    assert load_definition(file).definition == definition(NAME).definition


@pytest.mark.parametrize(
    ("change", "place", "message", "hint"),
    [
        (rename("/constraints", "constrains"), "/constrains", "unknown key 'constrains'", "'constraints'"),
        (rename("/inputs/3/optional", "optinal"), "/inputs/3/optinal", "unknown key 'optinal'", "'optional'"),
        (
            rename("/conventions/decay_gate", "decaygate"),
            "/conventions/decaygate",
            "unknown key 'decaygate'",
            "'decay_gate'",
        ),
        (rename("/constraints/1/message", "mesage"), "/constraints/1/mesage", "unknown key 'mesage'", "'message'"),
        (put("/inputs/0/shape/0", "total_seqlen"), "/inputs/0/shape/0", "'total_seqlen'", "'total_seq_len'"),
        (put("/outputs/1/shape/1", "num_sab_head"), "/outputs/1/shape/1", "'num_sab_head'", "'num_sab_heads'"),
        (put("/constraints/2/expression", "0 < cu_seqlen"), "/constraints/2/expression", "'cu_seqlen'", "'cu_seqlens'"),
        (put("/flops", "7 * total_seq"), "/flops", "'total_seq'", "'total_seq_len'"),
        (put("/axes/6/expression", "num_q_head + 1"), "/axes/6/expression", "'num_q_head'", "'num_q_heads'"),
        (put("/inputs/7/default", "1 / sqrt(head)"), "/inputs/7/default", "'head'", "head_size"),
        (put("/symmetries/0/dimension", {"vv": 2}), "/symmetries/0/dimension/vv", "'vv' is not a tensor", "'v'"),
        (put("/symmetries/0/dimension", {"output.w": 2}), "/symmetries/0/dimension/output.w", "'output.w' is no", ""),
        (put("/symmetries/4/groups", "num_k_head"), "/symmetries/4/groups", "'num_k_head'", "'num_k_heads'"),
        (put("/axes/6/parts", [PART | {"shape": ["num_k_head"]}]), "/axes/6/parts/0/shape/0", "'num_k_head'",
         "'num_k_heads'"),
        (put("/symmetries/4/when", "num_vheads > 1"), "/symmetries/4/when", "'num_vheads'", "'num_v_heads'"),
        (
            put("/reference", "gated_delta_net.py::prefil_k_last"),
            "/reference",
            "no function 'prefil_k_last'",
            "'prefill_k_last'",
        ),
    ],
)  # fmt: skip
def test_a_misspelt_word_is_named_with_its_place_and_the_nearest(
    file: Path, change: Change, place: str, message: str, hint: str
) -> None:
    problem = problem_after(file, change)
    assert problem.place == place
    assert message in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("change", "place", "message"),
    [
        (drop("/flops"), "/flops", "missing key 'flops'"),
        (drop("/inputs/0/dtype"), "/inputs/0/dtype", "missing key 'dtype'"),
        (drop("/conventions/packing"), "/conventions/packing", "missing key 'packing'"),
        (drop("/axes/0/kind"), "/axes/0", "kind"),
        (put("/inputs/3/optional", "true"), "/inputs/3/optional", "true or false"),
        (put("/inputs/3/optional", 1), "/inputs/3/optional", "true or false"),
        (put("/inputs/0/dtype", "bf16"), "/inputs/0/dtype", "bfloat16"),
        (put("/conventions/decay_gate", "linaer"), "/conventions/decay_gate", "'linear'"),
        (put("/stage", "prefil"), "/stage", "'prefill'"),
        (put("/name", 3), "/name", "text in quotes"),
        (put("/inputs", {}), "/inputs", "array|list"),
        (put("/symmetries/0/dimension/v", "2"), "/symmetries/0/dimension/v", "whole number"),
        (put("/axes", []), "/axes", "at least 1"),
        (put("/schema_version", 2), "/schema_version", "1"),
        (put("/schema_version", "1"), "/schema_version", "1"),
        (put("/schema_version", True), "/schema_version", "1"),
        (put("/constraints/0/expression", "cu_seqlens[0 == 0"), "/constraints/0/expression", "cannot read"),
        (put("/constraints/0/expression", ""), "/constraints/0/expression", "cannot read the expression ''$"),
        (put("/constraints/0/expression", "num_seqs = 1"), "/constraints/0/expression", ": == compares, = does not"),
        (put("/constraints/0/expression", "g[0] == 1"), "/constraints/0/expression", "'g' is not an axis or value"),
        (put("/constraints/0/expression", "open('x') == 0"), "/constraints/0/expression", "functions are"),
        (put("/axes/6/expression", "num_o_heads"), "/axes/6/expression", "not an axis named before it"),
        (put("/axes/6/expression", "num_sab_heads"), "/axes/6/expression", "not an axis named before it"),
        (put("/inputs/1/name", "q"), "/inputs/1/name", "'q' occurs twice"),
        (put("/outputs/1/name", "output"), "/outputs/1/name", "'output' occurs twice"),
        (put("/axes/1/name", "total_seq_len"), "/axes/1/name", "'total_seq_len' occurs twice"),
        (put("/outputs/0/name", "q"), "/outputs", "'q' is already the name of an input"),
        (put("/symmetries/0/dimension/v", 3), "/symmetries/0/dimension/v", "'v' has no dimension 3: it has 3"),
        (put("/symmetries/0/dimension", {"scale": 0}), "/symmetries/0/dimension/scale", "it has 0"),
        (put("/symmetries/0/dimension", {}), "/symmetries/0/dimension", "no tensor"),
        (put("/symmetries/0/exact", "no"), "/symmetries/0/exact", "true or false"),
        (put("/axes/6/parts", []), "/axes/6/parts", "at least 1"),
        (put("/axes/6/parts", [PART, PART]), "/axes/6/parts/1/name", "'first' occurs twice"),
        (put("/axes/5/parts", [PART]), "/axes/5/parts", "unknown key 'parts'"),
        (put("/inputs/3/domain", [1, 0]), "/inputs/3/domain", "above"),
        (drop("/inputs/3/default"), "/inputs/3", "default"),
        (drop("/inputs/3/optional"), "/inputs/3", "default"),
        (put("/outputs/0/optional", True), "/outputs/0", "output"),
        (put("/reference", "gated_delta.py::prefill"), "/reference", "no file 'gated_delta.py'"),
        (put("/reference", "gated_delta_net.py::decode_k_last"), "/reference", "but the inputs are \\(q, k, v, g"),
        (
            put("/inputs", [ORIGINAL["inputs"][i] for i in (1, 0, 2, 3, 4, 5, 6, 7)]),
            "/reference",
            "but the inputs are \\(k, q, v",
        ),
        (put("/reference", "../gated_delta_net.py::step"), "/reference", "file.py::function"),
        (put("/second_reference/function", "chunkwise.py::prefill"), "/second_reference/function", "no function"),
        (put("/second_reference/function", "chunks.py::prefill_k_last"), "/second_reference/function", "no file"),
        (
            put("/second_reference/function", "chunkwise.py::prefill_from_conv"),
            "/second_reference/function",
            "but the inputs are \\(q, k, v, g",
        ),
        (put("/second_reference/above_tokens", 0), "/second_reference/above_tokens", "at least 1"),
        (put("/second_reference/above", 9), "/second_reference/above", "unknown key 'above'"),
        (put("/name", "another"), "/name", "differs from its folder's, 'gdn_prefill_k_last'"),
    ],
)
def test_a_wrong_definition_is_refused_with_its_place(file: Path, change: Change, place: str, message: str) -> None:
    problem = problem_after(file, change)
    assert problem.place == place
    assert re.search(message, problem.message), problem.message


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (put("/axes/0/minimum", "3"), "/axes/0/minimum"),
        (put("/axes/0/minimum", True), "/axes/0/minimum"),
        (put("/axes/0/minimum", 1.0), "/axes/0/minimum"),
        (drop("/axes/0/minimum"), "/axes/0/minimum"),
        (rename("/axes/0/minimum", "minumum"), "/axes/0/minumum"),
        (put("/inputs/0/shape/0", True), "/inputs/0/shape/0"),
        (put("/inputs/0/shape/0", 1.5), "/inputs/0/shape/0"),
    ],
)
def test_the_place_in_a_union_is_a_json_pointer_into_the_file(file: Path, change: Change, place: str) -> None:
    """An axis is one of three kinds, a size a name or a number: which was tried is no part of the place."""
    data = copy.deepcopy(ORIGINAL)
    change(data)
    file.write_text(json.dumps(data))
    assert {problem.place for problem in problems_of(file)} == {place}


def test_a_symmetry_over_dimensions_of_different_sizes_is_refused(file: Path) -> None:
    problem = problem_after(file, put("/symmetries/0/dimension", {"v": 0, "output": 2}))
    assert problem.place.startswith("/symmetries/0")


def test_only_one_factor_for_all_indices_goes_with_dimensions_of_any_size(file: Path) -> None:
    scale = {"name": "all", "transform": "scale_groups", "dimension": {"v": 0, "output": 2}, "description": "all of it"}
    data = copy.deepcopy(ORIGINAL)
    data["symmetries"] = [scale]
    file.write_text(json.dumps(data))
    load_definition(file)
    for changed in ({"groups": "num_k_heads"}, {"transform": "scale_power_of_two"}, {"dimension": {}}):
        problem = problem_after(file, put("/symmetries", [scale | changed]))
        assert problem.place == "/symmetries/0/dimension", changed


SOURCE = definition(NAME).file.read_text()
DEEP = 100_000


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (SOURCE.replace('"stage": "prefill",', '"stage": "prefill"'), "line 7, column 3", "comma"),
        (SOURCE[:505], "line 14", "not JSON"),
        ("", "line 1", "not JSON"),
        ("\n\n", "", "not JSON"),
        ("\ufeff" + SOURCE, "line 1", "byte order mark"),
        (SOURCE.replace('"minimum": 0', '"minimum": NaN'), "", "NaN is not a number in JSON"),
        (SOURCE.replace('"minimum": 0', '"minimum": -Infinity'), "", "-Infinity is not a number in JSON"),
        (SOURCE.replace('"stage"', '"name"'), "", "'name' occurs twice"),
        (SOURCE.replace('"minimum": 0', '"minimum": ' + "9" * 5000), "", "digits"),
        (SOURCE.replace("queries", "\\ud800"), "", "not JSON|Invalid JSON"),
        ("[]", "", "object"),
        ("null", "", "object"),
        ('"text"', "", "object"),
        ("[" * DEEP + "]" * DEEP, "", "nested too deeply"),
        ('{"a":' * DEEP + "1" + "}" * DEEP, "", "nested too deeply"),
        ('{"a":' * 300 + "1" + "}" * 300, "", "recursion|nested too deeply"),
    ],
    ids=lambda x: repr(x[:20]),
)
def test_text_that_is_no_json_object_is_refused_with_its_line(file: Path, text: str, place: str, message: str) -> None:
    file.write_text(text, encoding="utf-8")
    (problem,) = problems_of(file)
    assert problem.place.startswith(place)
    assert re.search(message, problem.message), problem.message
    assert len(problem.message) < 300


def test_bytes_that_are_no_utf8_are_refused(file: Path) -> None:
    file.write_bytes(SOURCE.encode().replace(b"queries", b"\xff\xfe"))
    (problem,) = problems_of(file)
    assert "not UTF-8" in problem.message


def test_a_missing_file_and_a_folder_in_its_place_are_refused(file: Path) -> None:
    assert problems_of(file)[0].message == "no such file"
    file.mkdir()
    assert problems_of(file)[0].message == "is a folder"


def test_all_problems_of_a_file_are_told_together(file: Path) -> None:
    data = copy.deepcopy(ORIGINAL)
    for change in (drop("/flops"), put("/stage", "x"), put("/inputs/0/dtype", "x")):
        change(data)
    file.write_text(json.dumps(data))
    assert {problem.place for problem in problems_of(file)} == {"/flops", "/stage", "/inputs/0/dtype"}


# --- presets that are refused -----------------------------------------------------------------------------------

PRESET: dict[str, Any] = {"axes": GVA, "source": "a test"}


def presets_of(tmp_path: Path, content: Any) -> Any:
    file = tmp_path / "presets.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_presets(file)


@pytest.mark.parametrize(
    ("content", "place", "message"),
    [
        ({"a": {"axes": GVA}}, "/a/source", "missing key 'source'"),
        ({"a": PRESET | {"source": ""}}, "/a/source", "at least 1"),
        ({"a": {"axs": GVA, "source": "x"}}, "/a/axs", "unknown key 'axs'"),
        ({"a": PRESET | {"axes": GVA | {"head_size": 0}}}, "/a/axes/head_size", "at least 1"),
        ({"a": PRESET | {"axes": GVA | {"head_size": "64"}}}, "/a/axes/head_size", "whole number"),
        ({"a": PRESET | {"axes": GVA | {"head_size": True}}}, "/a/axes/head_size", "whole number"),
        ({"A_b": PRESET}, "/A_b", "small letters"),
        ([], "", "object"),
        ("{", "line 1", "not JSON"),
        ('{"a": 1, "a": 2}', "", "'a' occurs twice"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "", "nested too deeply"),
        ('{"a":' * 300 + "1" + "}" * 300, "", "recursion|nested too deeply"),
    ],
    ids=lambda x: repr(x)[:30],
)
def test_a_wrong_preset_is_refused_with_its_place(tmp_path: Path, content: Any, place: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        presets_of(tmp_path, content)
    (problem,) = caught.value.problems
    assert problem.file == tmp_path / "presets.json"
    assert problem.place.startswith(place)
    assert re.search(message, problem.message), problem.message


def test_a_preset_for_a_stage_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        presets_of(tmp_path, {"a": PRESET | {"stages": ["prefil"]}})


@pytest.mark.parametrize("name", [*PREFILLS, *DECODES])
def test_a_preset_that_breaks_a_constraint_is_named_with_the_constraint(tmp_path: Path, name: str) -> None:
    known = presets_of(tmp_path, {"good": PRESET, "bad": PRESET | {"axes": GVA | {"num_v_heads": 5}}})
    file = tmp_path / "presets.json"
    (problem,) = preset_problems(definition(name), known, file)
    assert (problem.file, problem.place) == (file, "/bad/axes")
    assert name in problem.message
    assert "num_v_heads % num_q_heads == 0" in problem.message


@pytest.mark.parametrize(
    ("place", "draw", "where", "hint"),
    [
        (("inputs", 1), "kyes", "/inputs/1/draw", "did you mean 'keys'?"),
        (("inputs", 1), None, "/inputs/1", "draw: valid: activations, "),
        (("outputs", 0), "values", "/outputs/0/draw", ""),
        (("inputs", 5), "keys", "/inputs/5/draw", ""),  # cu_seqlens, which follows from the lengths of sequences
    ],
)
def test_an_input_names_a_generator_of_its_family(
    place: tuple[str, int], draw: str | None, where: str, hint: str, file: Path
) -> None:
    data = json.loads(json.dumps(ORIGINAL))
    holder = data[place[0]][place[1]]
    holder.pop("draw", None)
    file.write_text(json.dumps(data if draw is None else data | {place[0]: _with(data[place[0]], place[1], draw)}))
    (problem,) = problems_of(file)
    assert problem.place == where
    assert problem.hint.startswith(hint)


def _with(entries: list[dict[str, Any]], at: int, draw: str) -> list[dict[str, Any]]:
    return [entry | {"draw": draw} if i == at else entry for i, entry in enumerate(entries)]


def test_parts_say_how_they_are_drawn(file: Path) -> None:
    """Each by itself; the packed input says nothing, and a part of an axis is nothing that is drawn."""
    packed = json.loads(definition("gdn_prefill_from_conv").file.read_text())
    at = next(i for i, tensor in enumerate(packed["inputs"]) if "parts" in tensor)
    packed["inputs"][at]["parts"][2]["draw"] = "valeus"
    home = file.parents[1] / packed["name"] / file.name
    home.parent.mkdir()
    home.write_text(json.dumps(packed))
    (problem,) = problems_of(home)
    assert (problem.place, problem.hint) == (f"/inputs/{at}/parts/2/draw", "did you mean 'values'?")
    packed["inputs"][at]["draw"] = "values"
    home.write_text(json.dumps(packed))
    assert [problem.place for problem in problems_of(home)] == [f"/inputs/{at}/draw"]


def test_one_bad_definition_is_reported_beside_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "definitions" / "gdn"
    for name, found in definitions().items():
        if found.family.name != "gdn":
            continue
        (folder / name).mkdir(parents=True)
        (folder / name / "definition.json").write_text(found.file.read_text())
    for name in ("presets.json", "family.json"):
        (folder / name).write_text((paths.definitions_dir() / "gdn" / name).read_text())
    (tmp_path / "reference").symlink_to(ROOT / "reference")
    for name in DECODES:
        (folder / name / "definition.json").write_text("{")
    monkeypatch.setattr(paths, "definitions_dir", lambda: folder.parent)
    families.cache_clear()
    try:
        with pytest.raises(SpecError) as caught:
            loaded.cache_clear()
            definitions()
    finally:
        monkeypatch.undo()
        families.cache_clear()
        loaded.cache_clear()
    problems = caught.value.problems
    assert [p.file.parent.name for p in problems if p.place != "/extends"] == sorted(DECODES)
    extending = {p.file.parent.name for p in problems if p.place == "/extends"}
    assert extending == {n for n, found in definitions().items() if found.definition.extends in DECODES} - {*DECODES}


def test_an_unknown_definition_is_answered_with_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"gdn_prefill_k_lst.*did you mean 'gdn_prefill_k_last'"):
        definition("gdn_prefill_k_lst")
