"""The shipped suites: that they load, draw the same bytes everywhere, and cover what they are to cover."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gdnspec import paths
from gdnspec.catalog.definitions import Found, definition, definitions, preset_of
from gdnspec.catalog.families import family
from gdnspec.catalog.workloads import load_workloads, workloads
from gdnspec.inputs.materialise import materialise
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.workload import Workload
from helpers_unit import OF_CODES, OF_GRADIENTS, OF_ROWS_BY_HAND, OF_SEQUENCES

REGIMES = family("gdn").about.regimes
PREFILLS = ("gdn_prefill_k_first", "gdn_prefill_k_last")
DECODES = ("gdn_decode_k_first", "gdn_decode_k_last")
ALL = [*PREFILLS, *DECODES]
BACKWARDS = ["gdn_prefill_backward_k_last", "gdn_prefill_backward_k_first"]
DRAWN = [*ALL, "gdn_prefill_checkpoints", *BACKWARDS]


def suite(name: str, *suites: str) -> list[Workload]:
    return [w for w in workloads(definition(name)) if w.suite in suites]


def test_checkpoints_are_tried_on_every_length_interval_and_regime() -> None:
    lines = suite("gdn_prefill_checkpoints", "conformance")
    alone = [w.sequence_lengths or [] for w in lines if w.axes["num_seqs"] == 1]
    assert {0, 1, 63, 64, 65, 127, 128, 129, 1000} <= {x for row in alone for x in row}
    assert {w.scalars["checkpoint_interval"] for w in lines} >= {64, 128, 192, 256, 512}
    assert {w.regime for w in lines} >= OF_THE_RULE - {"strict_keys"}
    assert any(w.axes["num_checkpoints"] == 0 and w.axes["total_seq_len"] > 1000 for w in lines), "none is reached"
    assert any(w.axes["num_checkpoints"] >= 32 for w in lines)
    assert {w.regime for w in suite("gdn_prefill_checkpoints", "strict")} == {"strict_keys"}
    assert len(suite("gdn_prefill_checkpoints", "performance")) == 4


# --- the cross-machine promise ----------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("part", ["smoke", "conformance", "strict"])
def test_every_line_draws_the_inputs_of_its_hash(name: str, part: str, share: int) -> None:
    """Of the longest suite every fourth line; a thorough run draws each."""
    found = definition(name)
    lines = [w for w in suite(name, part) if w.drawn is None]
    for workload in lines[:: share if part == "conformance" else 1]:
        assert workload.sha256 is not None, workload.name
        assert materialise(found, workload.model_copy(update={"sha256": None})).sha256 == workload.sha256, workload.name


def size(workload: Workload) -> int:
    return workload.axes.get("total_seq_len", 0) + workload.axes.get("batch_size", 0)


@pytest.mark.parametrize("name", ALL)
def test_the_smallest_line_of_the_performance_suite_draws_the_inputs_of_its_hash(name: str) -> None:
    found = definition(name)
    lines = suite(name, "performance")
    assert all(workload.sha256 for workload in lines)
    least = min(lines, key=size)
    assert materialise(found, least.model_copy(update={"sha256": None})).sha256 == least.sha256


@pytest.mark.parametrize("name", ALL)
def test_names_are_unique_and_no_two_lines_draw_the_same_inputs(name: str) -> None:
    lines = workloads(definition(name))
    assert len({w.name for w in lines}) == len(lines)
    with_data = [w for w in lines if w.axes.get("total_seq_len") != 0 and w.drawn is None]
    assert len({w.sha256 for w in with_data}) == len(with_data)


@pytest.mark.parametrize(("first", "last"), [PREFILLS, DECODES])
def test_both_layouts_have_the_same_lines(first: str, last: str) -> None:
    def lines(name: str) -> list[dict[str, Any]]:
        return [w.model_dump(exclude={"sha256", "budget", "emulators", "seed"}) for w in workloads(definition(name))]

    assert lines(first) == lines(last)


# --- coverage ---------------------------------------------------------------------------------------------------

OF_MANY_TOKENS = OF_SEQUENCES | {"repeated_keys", "near_parallel_keys", "strict_keys", "beta_two"}
OF_THE_RULE = set(REGIMES) - OF_GRADIENTS - OF_CODES - OF_ROWS_BY_HAND
ONE_TOKEN = OF_THE_RULE - OF_MANY_TOKENS


@pytest.mark.parametrize("name", ALL)
def test_conformance_covers_every_regime(name: str) -> None:
    wanted = OF_THE_RULE - {"strict_keys"} if name in PREFILLS else ONE_TOKEN
    assert {w.regime for w in suite(name, "conformance")} - {None} == wanted


def on_a_cpu(name: str) -> list[Workload]:
    return [w for w in suite(name, "smoke", "conformance") if w.drawn is None]


@pytest.mark.parametrize("name", [name for name in definitions() if any(w.sequence_lengths for w in on_a_cpu(name))])
def test_some_sequences_are_all_equally_long(name: str) -> None:
    """A check calls again with the bounds moved, and of unequal lengths it keeps the longest: a kernel that keeps that
    from an earlier call shows on equal ones alone."""
    lengths = [w.sequence_lengths or [] for w in on_a_cpu(name)]
    assert any(len(row) > 1 and row[0] > 1 and len(set(row)) == 1 for row in lengths)


# A layer's weights grow with the square of its heads, and gradients of many short sequences are little beside rounding.
HEADS = {name: 6 if "layer" in name else 32 for name in definitions()}
SEQUENCES = {name: 34 if name == "gdn_layer_backward" else 65 for name in definitions()}


@pytest.mark.parametrize("name", definitions())
def test_sizes_go_past_those_that_a_kernel_is_tried_on(name: str) -> None:
    rows = on_a_cpu(name)
    scopes = [w.scope(definition(name).definition, preset_of(definition(name), w)) for w in rows]
    assert max(w.axes.get("batch_size", len(w.sequence_lengths or [])) for w in rows) >= SEQUENCES[name]
    values = [scope["num_v_heads"] for scope in scopes if "num_v_heads" in scope]
    assert not values or max(values) >= HEADS[name]
    groups = {scope["num_v_heads"] // scope["num_k_heads"] for scope in scopes if "num_k_heads" in scope}
    assert not groups or max(groups) > 2


def test_every_definition_but_a_commit_of_states_has_tokens_of_zeros() -> None:
    asked = {name for name, found in definitions().items() if "blank_tokens" in {w.regime for w in workloads(found)}}
    assert {name for name in definitions() if name not in asked} == {
        "gdn_commit_states_k_last", "gdn_commit_states_k_last_bf16_state",
    }  # fmt: skip


@pytest.mark.parametrize("name", BACKWARDS)
def test_gradients_are_tried_in_their_regimes(name: str) -> None:
    assert len(OF_GRADIENTS) == 3
    kinds = OF_GRADIENTS | {"typical", "slow_decay", "fast_decay", "hard_reset", "beta_zero", "beta_one", "beta_two"}
    assert {w.regime for w in suite(name, "conformance")} >= kinds | {"long_memory"}
    assert {w.regime for w in suite(name, "strict")} >= {"repeated_keys", "near_parallel_keys"}


@pytest.mark.parametrize("name", ALL)
def test_strict_keys_stand_in_the_strict_suite_alone(name: str) -> None:
    strict = {w.name for w in suite(name, "strict")}
    assert {w.name for w in workloads(definition(name)) if w.regime == "strict_keys"} == strict
    assert bool(strict) == (name in PREFILLS)


@pytest.mark.parametrize("name", PREFILLS)
def test_conformance_covers_every_length(name: str) -> None:
    lengths = [w.sequence_lengths or [] for w in suite(name, "conformance")]
    assert {0, 1, 63, 64, 65, 127, 1000} <= {x for row in lengths if len(row) == 1 for x in row}
    assert any(len(row) > 1 and row[0] == 0 and any(row) for row in lengths), "empty first"
    assert any(0 in row[1:-1] and row[0] and row[-1] for row in lengths), "empty in the middle"
    assert any(len(row) > 1 and row[-1] == 0 and any(row) for row in lengths), "empty last"
    assert any(len(row) > 1 and not any(row) for row in lengths), "all empty"
    assert any(len(set(row)) > 5 for row in lengths), "ragged"
    assert {w.regime for w in suite(name, "conformance") if size(w) >= 16384} >= {
        "long_memory",
        "slow_decay",
        "typical",
    }


@pytest.mark.parametrize("name", ALL)
def test_conformance_leaves_out_every_optional_input_and_gives_every_scalar(name: str) -> None:
    contract = definition(name).definition
    lines = suite(name, "conformance")
    for tensor in contract.inputs:
        if tensor.optional and not tensor.is_scalar:
            assert any(w.omit == [tensor.name] for w in lines), tensor.name
            assert any(tensor.name not in w.omit for w in lines), tensor.name
    scales = {w.scalars.get("scale") for w in lines}
    assert {None, 0.0} < scales
    assert any(scale and scale < 0 for scale in scales)
    if name in DECODES:
        assert {w.scalars.get("use_qk_l2norm") for w in lines} == {None, True, False}
    else:
        assert any(set(w.omit) == {"g", "beta", "initial_state"} for w in lines)


@pytest.mark.parametrize("name", PREFILLS)
def test_an_empty_sequence_without_initial_state_is_covered(name: str) -> None:
    assert any("initial_state" in w.omit and 0 in (w.sequence_lengths or []) for w in suite(name, "conformance"))


@pytest.mark.parametrize("name", ALL)
def test_conformance_covers_heads_and_head_sizes(name: str) -> None:
    heads = [preset_of(definition(name), w).axes for w in suite(name, "conformance")]
    assert {x["head_size"] for x in heads} >= {8, 64, 96, 120, 128, 256}
    ratios = {x["num_v_heads"] / x["num_q_heads"] for x in heads}
    assert ratios >= ({0.5, 1, 2, 3, 4} if name in PREFILLS else {1, 2, 3, 4})
    # Only two groups or more tell h // n from h % n.
    assert any(x["num_k_heads"] > 1 and x["num_v_heads"] > x["num_k_heads"] for x in heads)
    assert {w.preset for w in suite(name, "conformance")} >= {"qwen3-next-80b-a3b-tp1", "qwen3.5-397b-a17b-tp1"}
    assert {w.preset for w in suite(name, "performance")} >= {"qwen3-next-80b-a3b-tp1", "qwen3.5-397b-a17b-tp1"}


@pytest.mark.parametrize("name", DECODES)
def test_decode_covers_batches_from_one_up(name: str) -> None:
    assert {1, 2, 3, 17, 64} <= {w.axes["batch_size"] for w in suite(name, "conformance")}


@pytest.mark.parametrize("name", ALL)
def test_a_real_model_stands_in_the_smoke_suite(name: str) -> None:
    (workload,) = [w for w in workloads(definition(name)) if w.tensors is not None and w.suite == "smoke"]
    assert workload.suite == "smoke"
    assert (definition(name).folder / str(workload.tensors)).stat().st_size < 2_000_000


def token_programs(name: str, workload: Workload) -> int:
    """What an interpreted kernel goes through: one program a (token, head)."""
    axes = preset_of(definition(name), workload).axes
    return size(workload) * max(axes["num_q_heads"], axes["num_v_heads"])


@pytest.mark.parametrize("name", ALL)
def test_smoke_is_sized_for_an_interpreter(name: str) -> None:
    total = sum(token_programs(name, w) for w in suite(name, "smoke"))
    low, high = (1500, 2500) if name in PREFILLS else (250, 500)
    assert low <= total <= high
    assert all(token_programs(name, w) <= 2000 for w in suite(name, "smoke"))


@pytest.mark.parametrize("name", ALL)
def test_smoke_meets_what_goes_wrong_most(name: str) -> None:
    lines = suite(name, "smoke")
    assert any(w.regime == "hard_reset" for w in lines)
    heads = [preset_of(definition(name), w).axes for w in lines]
    assert any(x["num_v_heads"] > x["num_k_heads"] > 1 for x in heads)
    if name in PREFILLS:
        assert any(x["num_q_heads"] > x["num_v_heads"] for x in heads)
        assert any(0 in (w.sequence_lengths or []) for w in lines)
        assert any(w.omit for w in lines)
        assert any(max(w.sequence_lengths or [0]) > 64 for w in lines)
    else:
        assert any(w.scalars.get("use_qk_l2norm") is False for w in lines)
        assert any(w.scalars.get("scale") == 0.0 for w in lines)


@pytest.mark.parametrize("name", ALL)
def test_only_what_is_drawn_there_and_the_performance_suite_ask_for_a_gpu(name: str) -> None:
    assert {w.device for w in suite(name, "smoke", "conformance", "strict") if w.drawn is None} == {"any"}
    assert {w.device for w in workloads(definition(name)) if w.drawn is not None} == {"cuda"}
    assert {w.device for w in suite(name, "performance")} == {"cuda"}


# --- lines that are refused -------------------------------------------------------------------------------------

PREFILL_LINE: dict[str, Any] = {
    "name": "one",
    "suite": "smoke",
    "preset": "synthetic-gva-1x2-d64",
    "axes": {"total_seq_len": 5, "num_seqs": 2},
    "sequence_lengths": [2, 3],
    "regime": "typical",
    "seed": 1,
}
DECODE_LINE = {k: v for k, v in PREFILL_LINE.items() if k != "sequence_lengths"} | {"axes": {"batch_size": 2}}
FILE_LINE = {k: v for k, v in PREFILL_LINE.items() if k not in ("regime", "seed", "sequence_lengths")}
LEAVE_OUT = object()


def problems_of(found: Found, file: Path, *rows: dict[str, Any] | str) -> list[Problem]:
    """What loading a file of these lines complains of."""
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    with pytest.raises(SpecError) as caught:
        load_workloads(file, found)
    for problem in caught.value.problems:
        assert problem.file == file
        assert str(problem).startswith(f"{paths.shown(file)}: line ")
        assert "\n" not in str(problem)
    return caught.value.problems


def test_the_lines_that_the_cases_below_change_are_right(tmp_path: Path) -> None:
    for name, row in (("gdn_prefill_k_last", PREFILL_LINE), ("gdn_decode_k_last", DECODE_LINE)):
        (tmp_path / "right.jsonl").write_text("\n" + json.dumps(row) + "\n\n")
        (workload,) = load_workloads(tmp_path / "right.jsonl", definition(name))
        assert workload.name == "one"


def cases() -> Iterator[tuple[dict[str, Any], dict[str, Any], str, str, str]]:
    p, d, f = PREFILL_LINE, DECODE_LINE, FILE_LINE
    yield p, {"sequence_lengths": [2, 4]}, "", "total_seq_len == cu_seqlens[-1]", ""
    yield p, {"sequence_lengths": [2, 1, 2]}, "", "num_seqs == len(cu_seqlens) - 1", ""
    yield p, {"sequence_lengths": LEAVE_OUT}, "", "sequence_lengths", ""
    yield p, {"sequence_lengths": [6, -1]}, "/sequence_lengths/1", "at least 0", ""
    yield d, {"sequence_lengths": [1, 1]}, "/sequence_lengths", "takes no sequences", ""
    yield p, {"preset": "synthetic-gva-1x2-d6"}, "/preset", "no preset", "'synthetic-gva-1x2-d64'"
    yield d, {"preset": "synthetic-gqa-4x2-d64"}, "/preset", "is for prefill", ""
    yield p, {"regime": "typcal"}, "/regime", "no regime 'typcal'", "'typical'"
    yield p, {"axes": {"total_seqlen": 5, "num_seqs": 2}}, "/axes/total_seqlen", "not a var axis", "'total_seq_len'"
    yield p, {"axes": {**p["axes"], "head_size": 64}}, "/axes/head_size", "not a var axis", ""
    yield p, {"axes": {"num_seqs": 2}}, "/axes", "'total_seq_len' has no value", ""
    yield p, {"axes": {"total_seq_len": 0, "num_seqs": 0}, "sequence_lengths": []}, "/axes/num_seqs", "minimum, 1", ""
    yield d, {"axes": {"batch_size": 0}}, "/axes/batch_size", "minimum, 1", ""
    yield d, {"axes": {"batch_size": "2"}}, "/axes/batch_size", "whole number", ""
    yield p, {"omit": ["q"]}, "/omit/0", "'q' is not an optional input", "initial_state"
    yield p, {"omit": ["g", "bta"]}, "/omit/1", "'bta'", "'beta'"
    yield p, {"scalars": {"scale": True}}, "/scalars/scale", "takes a float32", ""
    yield p, {"scalars": {"scale": -1e39}}, "/scalars/scale", "is -1e+39, which is -inf as a float32", ""
    yield p, {"scalars": {"scale": 10**12 * 1e30}}, "/scalars/scale", "which is inf as a float32", ""
    yield p, {"scalars": {"scale": 1e-46}}, "/scalars/scale", "is 1e-46, which is 0.0 as a float32", ""
    yield d, {"scalars": {"use_qk_l2norm": 1.0}}, "/scalars/use_qk_l2norm", "takes a bool", ""
    yield p, {"scalars": {"scal": 1.0}}, "/scalars/scal", "not a scalar input", "'scale'"
    yield p, {"scalars": {"g": 1.0}}, "/scalars/g", "not a scalar input", ""
    yield f, {"tensors": "../other/x.safetensors"}, "/tensors", "is not a path inside the definition's folder", ""
    yield f, {"tensors": "tensors/../../x"}, "/tensors", "is not a path inside the definition's folder", ""
    yield f, {"tensors": "/etc/passwd"}, "/tensors", "is not a path inside the definition's folder", ""
    yield f, {"tensors": "tensors/none.safetensors"}, "/tensors", "no file 'tensors/none.safetensors'", ""
    yield f, {"tensors": "tensors"}, "/tensors", "no file 'tensors'", ""
    yield p, {"tensors": "tensors/qwen3_next.safetensors"}, "/tensors", "leave out regime and seed", ""
    yield f, {}, "", "a regime and a seed, or a tensors file", ""
    yield p, {"seed": LEAVE_OUT}, "", "a regime and a seed", ""
    yield p, {"seed": -1}, "/seed", "at least 0", ""
    yield p, {"seed": "1"}, "/seed", "whole number", ""
    yield p, {"suite": "smke"}, "/suite", "'smoke'", ""
    yield p, {"name": "with space"}, "/name", "letters, digits", ""
    yield p, {"nam": "x"}, "/nam", "unknown key 'nam'", ""
    yield p, {"suite": LEAVE_OUT}, "/suite", "missing key 'suite'", ""
    yield p, {"sha256": "abc"}, "/sha256", "64 hexadecimal", ""
    yield p, {"device": "gpu"}, "/device", "'cuda'", ""
    yield (
        p,
        {"budget": {"output": {"relative_l2": 0.11}}},
        "/budget/output/relative_l2",
        "0.11 is above 0.1",
        "",
    )
    yield p, {"budget": {"output": {"relative_l2": 0}}}, "/budget/output/relative_l2", "above 0", ""
    yield (
        p,
        {"budget": {"out": {"relative_l2": 0.01, "worst_vector": 0.01, "max_over_rms": 0.1}}},
        "/budget/out",
        "'out' is not an output",
        "'output'",
    )
    yield p, {"integers": {"cu": [0, 5]}}, "/integers/cu", "not an integer input", "cu_seqlens"


@pytest.mark.parametrize(("row", "changes", "place", "message", "hint"), list(cases()))
def test_a_wrong_line_is_refused_with_its_place(
    tmp_path: Path, row: dict[str, Any], changes: dict[str, Any], place: str, message: str, hint: str
) -> None:
    found = definition("gdn_decode_k_last" if row is DECODE_LINE else "gdn_prefill_k_last")
    wrong = {k: v for k, v in {**row, **changes}.items() if v is not LEAVE_OUT}
    before = (DECODE_LINE if row is DECODE_LINE else PREFILL_LINE) | {"name": "before"}
    (problem,) = problems_of(found, tmp_path / "workloads.jsonl", before, wrong)
    assert problem.place == ("line 2: " + place if place else "line 2")
    assert message in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("name", "scalar", "value", "message"),
    [
        ("kda_decode_k_last", "lower_bound", 5, "'lower_bound' is 5, above 0.0, the largest of its domain"),
        ("kda_prefill_raw_gates", "lower_bound", 1e-30, "above 0.0, the largest of its domain"),
        ("kda_layer_decode", "eps", -1e-6, "'eps' is -1e-06, below 0.0, the least of its domain"),
    ],
)
def test_a_scalar_outside_of_its_domain_is_refused_before_anything_is_drawn(
    tmp_path: Path, name: str, scalar: str, value: float, message: str
) -> None:
    """`gdnspec validate` called such a file valid, and only the freezing of its budgets refused it."""
    found = definition(name)
    row = found.workloads_file.read_text().splitlines()[0]
    line = {**json.loads(row), "scalars": {scalar: value}, "omit": []}
    for frozen in ("sha256", "budget", "emulators"):
        line.pop(frozen, None)
    (problem,) = problems_of(found, tmp_path / "workloads.jsonl", line)
    assert (problem.place, problem.message[-len(message) :]) == (f"line 1: /scalars/{scalar}", message)
    problem_free = {**line, "scalars": {scalar: 0}}
    (tmp_path / "right.jsonl").write_text(json.dumps(problem_free) + "\n")
    assert load_workloads(tmp_path / "right.jsonl", found)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"scalars": {"scale": "0"}}, "/scalars/scale"),
        ({"budget": {"output": {"relative": 0.01}}}, "/budget/output/relative"),
    ],
)
def test_the_place_in_a_line_is_a_json_pointer(tmp_path: Path, changes: dict[str, Any], place: str) -> None:
    found = definition("gdn_prefill_k_last")
    problems = problems_of(found, tmp_path / "workloads.jsonl", PREFILL_LINE | changes)
    assert {problem.place for problem in problems} == {f"line 1: {place}"}


def test_a_budget_that_limits_nothing_is_refused(tmp_path: Path) -> None:
    """It would judge nothing: an output of any value would pass."""
    found = definition("gdn_prefill_k_last")
    problems = problems_of(found, tmp_path / "workloads.jsonl", PREFILL_LINE | {"budget": {"output": {}}})
    assert "/budget/output" in problems[0].place


def test_a_scalar_is_given_or_omitted_not_both(tmp_path: Path) -> None:
    row = PREFILL_LINE | {"omit": ["scale"], "scalars": {"scale": 2.0}}
    assert problems_of(definition("gdn_prefill_k_last"), tmp_path / "w.jsonl", row)


def test_a_name_that_stands_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    found = definition("gdn_prefill_k_last")
    (problem,) = problems_of(found, tmp_path / "workloads.jsonl", PREFILL_LINE, "", PREFILL_LINE)
    assert problem.place == "line 3: /name"
    assert "line 1" in problem.message


def test_the_problems_of_all_lines_are_told_together(tmp_path: Path) -> None:
    found = definition("gdn_prefill_k_last")
    wrong = PREFILL_LINE | {"suite": "x"}
    problems = problems_of(found, tmp_path / "workloads.jsonl", "{", PREFILL_LINE, '{"a": NaN}', wrong, "[]")
    assert [problem.place.split(":")[0].split(",")[0] for problem in problems] == [
        "line 1",
        "line 3",
        "line 4",
        "line 5",
    ]
    assert "column 2" in problems[0].place


def test_a_line_separator_inside_a_string_ends_no_line(tmp_path: Path) -> None:
    row = json.dumps(PREFILL_LINE | {"name": "a\u2028b"}, ensure_ascii=False)
    (problem,) = problems_of(definition("gdn_prefill_k_last"), tmp_path / "workloads.jsonl", PREFILL_LINE, row)
    assert problem.place == "line 2: /name"


def test_a_definition_without_workloads_has_none(tmp_path: Path) -> None:
    assert workloads(Found(definition("gdn_prefill_k_last").definition, tmp_path, family("gdn"))) == []


def test_every_shipped_definition_has_workloads() -> None:
    assert all(workloads(found) for found in definitions().values())
