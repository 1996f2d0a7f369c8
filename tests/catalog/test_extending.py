"""Definitions that hold what differs from another one: what the whole is, and which problems are said where."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Run
from gdnspec import paths
from gdnspec.catalog.definitions import definition, definitions, load_definition, preset_problems, presets
from gdnspec.catalog.families import families
from gdnspec.model.errors import Problem, SpecError
from gdnspec.submission.evidence import Question

BASE = "gdn_decode_k_last"
CHILD = "gdn_decode_mine"
HEAD = {"name": CHILD, "version": 1, "extends": BASE, "description": "mine"}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Writes a definition into a family of its own, which starts with one definition and the table of presets."""
    family = tmp_path / "definitions" / "gdn"
    family.mkdir(parents=True)
    for name in ("family.json", "presets.json"):
        shutil.copy(ROOT / "definitions/gdn" / name, family)
    (tmp_path / "reference").symlink_to(ROOT / "reference")

    def put(data: Any, name: str = CHILD) -> Path:
        (family / name).mkdir(exist_ok=True)
        file = family / name / "definition.json"
        file.write_text(data if isinstance(data, str) else json.dumps(data))
        return file

    put(original(), BASE)
    yield put
    families.cache_clear()


def original() -> dict[str, Any]:
    return json.loads((ROOT / f"definitions/gdn/{BASE}/definition.json").read_text())


def problems_of(file: Path) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        load_definition(file)
    return caught.value.problems


def the_problem(file: Path) -> Problem:
    (problem,) = problems_of(file)
    return problem


# --- the whole --------------------------------------------------------------------------------------------------


def test_a_definition_that_gives_nothing_of_its_own_is_the_other_one(write: Write) -> None:
    found = load_definition(write(HEAD)).definition
    assert found.extends == BASE
    whole = original() | {"name": CHILD, "description": "mine"}
    assert found.model_dump(mode="json", exclude_unset=True) == whole


def test_keys_replace_named_things_change_and_null_removes(write: Write) -> None:
    added = {"shape": ["num_sab_heads"], "dtype": "float32", "description": "more"}
    file = write(
        HEAD
        | {
            "conventions": {"state_layout": "none"},
            "outputs": {"output": {"dtype": "float32"}, "more": added},
            "axes": {"batch_size": {"minimum": 0}},
            "constraints": [],
            "symmetries": {"permute_batch": None, "flip_value_channels": {"dimension": {"output": None}}},
        }
    )
    found, base = load_definition(file).definition, definition(BASE).definition
    assert found.conventions == base.conventions.model_copy(update={"state_layout": "none"})
    assert [(tensor.name, tensor.dtype) for tensor in found.outputs] == [
        ("output", "float32"), ("new_state", "float32"), ("more", "float32"),
    ]  # fmt: skip
    assert found.outputs[0].shape == base.outputs[0].shape
    assert found.var_axes()[0].minimum == 0
    assert found.constraints == []
    assert [s.name for s in found.symmetries] == [s.name for s in base.symmetries if s.name != "permute_batch"]
    assert "output" not in found.symmetries[0].dimension
    assert found.symmetries[0].dimension["v"] == 3


def test_a_list_in_full_takes_the_place_of_the_other(write: Write) -> None:
    inputs = [tensor for tensor in reversed(original()["inputs"]) if tensor["name"] != "scale"]
    (problem,) = problems_of(write(HEAD | {"inputs": inputs}))
    assert "but the inputs are (use_qk_l2norm, b, " in problem.message  # which says that the list was read as it stands


def test_what_is_extended_may_extend(write: Write) -> None:
    write(HEAD | {"name": "gdn_middle", "inputs": {"q": {"dtype": "float32"}}}, "gdn_middle")
    file = write(HEAD | {"extends": "gdn_middle", "inputs": {"k": {"dtype": "float32"}}})
    assert [tensor.dtype for tensor in load_definition(file).definition.inputs[:3]] == [
        "float32", "float32", "bfloat16",
    ]  # fmt: skip


def test_shipped_definitions_that_extend_are_shown_whole(gdnspec: Run) -> None:
    extending = [name for name, found in definitions().items() if found.definition.extends]
    assert len(extending) >= 10
    name = next(name for name in extending if "decode" in name)
    shown = json.loads(gdnspec("show", name, "--json").stdout)
    assert "extends" not in shown
    assert {tensor["name"] for tensor in shown["inputs"]} >= {"q", "k", "v"}
    assert "permute_batch" in gdnspec("show", name).stdout


def test_evidence_depends_on_every_file_that_is_read(write: Write) -> None:
    file = write(HEAD)
    (file.parent / "workloads.jsonl").write_text("")
    before = Question.of(load_definition(file))
    write(original() | {"flops": "1"}, BASE)
    after = Question.of(load_definition(file))
    assert before.definition != after.definition
    assert before.workloads == after.workloads


# --- what is refused --------------------------------------------------------------------------------------------


def test_it_extends_itself(write: Write) -> None:
    problem = the_problem(write(HEAD | {"extends": CHILD}))
    assert (problem.place, problem.message) == ("/extends", f"it extends itself: {CHILD} extends {CHILD}")


def test_a_chain_that_comes_back_is_shown(write: Write) -> None:
    write(HEAD | {"name": "gdn_middle", "extends": CHILD}, "gdn_middle")
    problem = the_problem(write(HEAD | {"extends": "gdn_middle"}))
    assert problem.place == "/extends"
    assert problem.message == f"it extends itself: {CHILD} extends gdn_middle extends {CHILD}"


def test_the_nearest_name_of_an_unknown_one_is_said(write: Write) -> None:
    problem = the_problem(write(HEAD | {"extends": "gdn_decode_k_lst"}))
    assert (problem.place, problem.hint) == ("/extends", f"did you mean {BASE!r}?")


@pytest.mark.parametrize("name", ["../gdn_decode_k_last", "", ".", "x" * 300])
def test_only_a_name_is_looked_up(write: Write, name: str) -> None:
    assert the_problem(write(HEAD | {"extends": name})).place == "/extends"


def test_a_definition_of_another_family(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDNSPEC_DEFINITIONS", str(ROOT / "tests/support/toy/definitions"))
    families.cache_clear()
    problem = the_problem(write(HEAD | {"extends": "toy_running_sum"}))
    assert problem.place == "/extends"
    assert problem.message == "'toy_running_sum' belongs to the family 'toy', not to 'gdn' as this definition"


@pytest.mark.parametrize("value", [None, 5, ["gdn_decode_k_last"], {}])
def test_extends_names_a_definition(write: Write, value: Any) -> None:
    assert the_problem(write(HEAD | {"extends": value})).place == "/extends"


@pytest.mark.parametrize("key", ["name", "version", "description"])
def test_name_and_description_are_given(write: Write, key: str) -> None:
    problem = the_problem(write({k: v for k, v in HEAD.items() if k != key}))
    assert problem.place == f"/{key}"
    assert problem.message.startswith(f"missing key {key!r}")


@pytest.mark.parametrize(
    ("given", "place", "hint"),
    [
        ({"outptus": {}}, "/outptus", "did you mean 'outputs'?"),
        ({"inputs": {"state": {"dtpe": "float32"}}}, "/inputs/state/dtpe", "did you mean 'dtype'?"),
        ({"inputs": {"state": {"dtype": "float31"}}}, "/inputs/state/dtype", ""),
        ({"inputs": {"state": 5}}, "/inputs/state", ""),
        ({"inputs": {"stat": {"dtype": "float32"}}}, "/inputs/stat/shape", ""),
        ({"inputs": {"q": None, "state": {"dtype": "float31"}}}, "/inputs/state/dtype", ""),
        ({"symmetries": {"permute_batch": {"dimension": {"v": 9}}}}, "/symmetries/permute_batch/dimension/v", ""),
        ({"axes": [{"kind": "const", "name": "x"}]}, "/axes/0/description", ""),
        ({"reference": "gated_delta_net.py::decode_k_lst"}, "/reference", "did you mean 'decode_k_last'?"),
    ],
)  # fmt: skip
def test_a_problem_of_what_is_given_points_into_the_file(write: Write, given: Any, place: str, hint: str) -> None:
    file = write(HEAD | given)
    problems = problems_of(file)
    assert {problem.file for problem in problems} == {file}
    assert place in [problem.place for problem in problems]
    assert not hint or hint in [problem.hint for problem in problems]


def test_a_problem_of_what_is_taken_over_names_both_files(write: Write) -> None:
    """The axis is gone, and a shape in the other file names it."""
    write(HEAD | {"name": "gdn_middle"}, "gdn_middle")
    file = write(HEAD | {"extends": "gdn_middle", "axes": {"batch_size": None}})
    problem = the_problem(file)
    assert (problem.file, problem.place) == (file, "/extends")
    where = f"{paths.shown(file.parents[1] / BASE / 'definition.json')}: /inputs/0/shape/0"
    assert problem.message == f"inherited from {where}: 'batch_size' is not an axis"


def test_a_preset_that_an_inherited_place_breaks_names_both_files(write: Write) -> None:
    broken = original()
    broken["flops"] = "1 // (head_size - head_size)"
    base = write(broken, BASE)
    found = load_definition(write(HEAD))
    problem = preset_problems(found, presets(), found.family.presets_file)[0]
    assert (problem.file, problem.place) == (found.file, "/extends")
    assert f"inherited from {paths.shown(base)}: /flops: with preset" in problem.message


@pytest.mark.parametrize("text", ["{", json.dumps(original() | {"stage": "nothing"})])
def test_a_broken_file_that_is_extended_is_said_with_its_own_problem(write: Write, text: str) -> None:
    base, file = write(text, BASE), write(HEAD)
    first, second = problems_of(file)
    assert first.file == base
    assert (second.file, second.place) == (file, "/extends")
    assert paths.shown(base) in second.message


def test_a_file_in_no_family_says_which_one(write: Write, tmp_path: Path) -> None:
    (tmp_path / CHILD).mkdir()
    file = tmp_path / CHILD / "definition.json"
    file.write_text(json.dumps(HEAD))
    assert the_problem(file).place == "/family"
    file.write_text(json.dumps(HEAD | {"family": "gdn"}))
    assert load_definition(file).definition.inputs == definition(BASE).definition.inputs


def test_the_command_says_it_with_exit_code_2(gdnspec: Run, write: Write) -> None:
    done = gdnspec("validate", write(HEAD | {"extends": "gdn_decode_k_lst"}))
    assert done.returncode == 2
    assert "/definition.json: /extends: no definition 'gdn_decode_k_lst' in the family 'gdn' (did you" in done.stderr
