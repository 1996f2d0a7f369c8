"""gdnspec.capture: what a model feeds to its gated delta rule becomes workloads, and every solution replays them."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import forked_command
import pytest
from conftest import ROOT, Run

torch = pytest.importorskip("torch")

import gdnspec  # noqa: E402
from gdnspec.build.reference import calls, judged  # noqa: E402
from gdnspec.catalog.definitions import Found, definition, definitions  # noqa: E402
from gdnspec.catalog.workloads import load_workloads  # noqa: E402
from gdnspec.model.errors import SpecError  # noqa: E402
from patience import PATIENCE, until  # noqa: E402

PREFILL, DECODE = "gdn_prefill_k_first", "gdn_decode_k_first"
RULE = "made_up_rules:rule"


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module with a gated delta rule that does nothing, and one that has imported it from there."""
    module: Any = types.ModuleType("made_up_rules")

    def rule(query: Any, key: Any, value: Any, g: Any, beta: Any, initial_state: Any = None, **options: Any) -> Any:
        if options.get("raises"):
            raise RuntimeError("as the program would have it")
        return value

    module.rule = rule
    other: Any = types.ModuleType("made_up_model")
    other.borrowed = rule
    monkeypatch.setitem(sys.modules, "made_up_rules", module)
    monkeypatch.setitem(sys.modules, "made_up_model", other)
    yield module


def call(batch: int = 1, tokens: int = 5, carried: bool = False, heads: int = 4, size: int = 64) -> dict[str, Any]:
    make = torch.Generator().manual_seed(batch * 1000 + tokens)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=make)

    state = {"initial_state": normal(batch, heads, size, size)} if carried else {}
    return {
        "query": normal(batch, tokens, heads, size), "key": normal(batch, tokens, heads, size),
        "value": normal(batch, tokens, heads, size), "g": -normal(batch, tokens, heads).abs(),
        "beta": torch.sigmoid(normal(batch, tokens, heads)), "use_qk_l2norm_in_kernel": True, **state,
    }  # fmt: skip


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


# --- a model ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Qwen3-Next generates text: four prompts alone, then two together."""
    sys.path.insert(0, str(ROOT / "reference/gdn/scripts"))
    import inspect

    import make_real_input as small
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        for name in small.CONVOLUTIONS:
            patch.setattr(small.package, name, inspect.unwrap(getattr(small.package, name)))
        torch.manual_seed(0)
        model = Qwen3NextForCausalLM(Qwen3NextConfig(**small.CONFIG)).eval()
        before = small.package.torch_chunk_gated_delta_rule
        options: dict[str, Any] = {"tensors": "sample:4"}  # that heads are repeated is seen
        prefill = gdnspec.capture(PREFILL, folder / "prefill.jsonl", **options)
        decode = gdnspec.capture(DECODE, folder / "decode.jsonl", **options)
        with prefill, decode:
            for shape in ((1, 5), (1, 30), (1, 30), (1, 66), (2, 9)):
                model.generate(torch.randint(0, 256, shape), max_new_tokens=4, do_sample=False)
        assert small.package.torch_chunk_gated_delta_rule is before
        assert (prefill.calls, decode.calls) == (5, 5 * 3)
        assert "4x4x4 is recorded as 2x2x4" in prefill.told()["repeats"][0]
        assert not prefill.unfit
        assert not decode.unfit
    return folder


@pytest.mark.xdist_group("capture")  # one model for all
def test_prefills_and_decodes_of_a_model_are_told_apart(recorded: Path) -> None:
    prefills, decodes = rows_of(recorded / "prefill.jsonl"), rows_of(recorded / "decode.jsonl")
    assert sum(row["weight"] for row in prefills) == 5
    assert [row["sequence_lengths"] for row in prefills] == [[5], [30], [30], [66], [9, 9]]
    assert all(row["omit"] == ["initial_state"] for row in prefills)
    batches = [(row["axes"]["batch_size"], row["weight"]) for row in decodes]
    assert sum(weight for _, weight in batches) == 15
    assert sum(weight for batch, weight in batches if batch == 2) == 3
    assert {row["preset"] for row in prefills + decodes} == {"heads-2x2x4-d64"}
    kept = [row["tensors"] for row in prefills if "tensors" in row]
    assert len(kept) == 4
    assert kept == sorted(kept), "the first call of each kind"


@pytest.mark.xdist_group("capture")
@pytest.mark.parametrize(
    ("name", "file"), [(PREFILL, "prefill.jsonl"), pytest.param(DECODE, "decode.jsonl", marks=pytest.mark.thorough)]
)
def test_recorded_tensors_replay(gdnspec: Run, recorded: Path, name: str, file: str) -> None:
    path = recorded / file
    assert gdnspec("validate", path, "--definition", name).returncode == 0
    done = gdnspec("workloads", "freeze", name, "--workloads", path, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert all("sha256" in row for row in rows_of(path)), "from now on they are these tensors and no others"
    chosen = ("torch_recurrent", "torch_chunkwise", "triton_recurrent")
    only = [word for solution in chosen for word in ("--solution", solution)]
    kept = recorded / f"{name}.results"
    done = gdnspec("check", name, *only, "--workloads", path, "--device", "cpu", "--json", kept)
    assert done.returncode == 0, done.stderr
    results = rows_of(kept)
    for solution in chosen:
        statuses = [row["status"] for row in results if row["solution"] == solution]
        assert statuses == ["PASSED"] * len(rows_of(path))


def test_tensors_are_what_the_rule_was_given(rules: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    given = call(batch=2, tokens=3, carried=True)
    with gdnspec.capture("gdn_prefill_k_last", tmp_path / "run.jsonl", tensors="all", target=RULE):
        rules.rule(**given)
    (row,) = rows_of(tmp_path / "run.jsonl")
    kept = load_file(tmp_path / row["tensors"])
    assert torch.equal(kept["cu_seqlens"], torch.tensor([0, 3, 6]))
    assert torch.equal(kept["v"], given["value"].flatten(0, 1).bfloat16())
    norm = given["key"] * torch.rsqrt((given["key"] ** 2).sum(-1, keepdim=True) + 1e-6)
    assert torch.equal(kept["k"], norm.flatten(0, 1).bfloat16()), "normalised before, as the definition has it"
    assert torch.equal(kept["g"], given["g"].exp().flatten(0, 1)), "linear, as the definition has it"
    assert torch.equal(kept["initial_state"], given["initial_state"].transpose(-1, -2))


def test_raw_gates_give_the_gates_that_were_recorded(rules: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    given = call(batch=6, tokens=1, carried=True)
    given["g"][0] = 0.0  # alpha = 1
    given["g"][1] = -torch.inf  # alpha = 0
    given["g"][2] = -1e-4
    given["beta"][3], given["beta"][4] = 0.0, 1.0
    with gdnspec.capture(DECODE, tmp_path / "run.jsonl", tensors="all", target=RULE):
        rules.rule(**given)
    kept = load_file(tmp_path / rows_of(tmp_path / "run.jsonl")[0]["tensors"])
    alpha = torch.exp(-kept["A_log"].exp() * torch.nn.functional.softplus(kept["a"].float() + kept["dt_bias"].float()))
    assert torch.allclose(alpha, given["g"].exp(), atol=4e-3), "up to bfloat16"
    assert (alpha[0] == 1).all()
    assert (alpha[1] == 0).all()
    beta = torch.sigmoid(kept["b"].float())
    assert torch.allclose(beta, given["beta"], atol=4e-3)
    assert (beta[3] == 0).all()
    assert (beta[4] == 1).all()


def test_packed_sequences_have_their_lengths(rules: Any, tmp_path: Path) -> None:
    given = call(tokens=10)
    with gdnspec.capture(PREFILL, tmp_path / "run.jsonl", target=RULE) as run:
        rules.rule(**given, cu_seqlens=torch.tensor([0, 4, 4, 10]))
        rules.rule(**given, cu_seqlens=torch.tensor([0, 4, 9]))
    (row,) = rows_of(tmp_path / "run.jsonl")
    assert row["sequence_lengths"] == [4, 0, 6]
    assert run.unfit == {"cu_seqlens that do not fit 10 tokens": 1}
    assert load_workloads(tmp_path / "run.jsonl", definition(PREFILL))


# --- the recording ----------------------------------------------------------------------------------------------


def test_calls_that_are_alike_are_one_line_with_a_weight(rules: Any, tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    with gdnspec.capture(PREFILL, out, target=RULE):
        for i in range(123):
            rules.rule(**call(tokens=5 + i % 2))
            assert sum(row["weight"] for row in rows_of(out)) == i + 1, "whole after every call"
    assert sorted(row["weight"] for row in rows_of(out)) == [61, 62]


def test_a_function_that_others_have_imported_is_recorded_too(rules: Any, tmp_path: Path) -> None:
    other, original = sys.modules["made_up_model"], rules.rule
    with gdnspec.capture(PREFILL, tmp_path / "run.jsonl", target=RULE) as run:
        other.borrowed(**call())  # type: ignore[attr-defined]
    assert run.calls == 1
    assert rules.rule is original
    assert other.borrowed is original  # type: ignore[attr-defined]


def test_an_exception_of_the_program_stays_its_own(rules: Any, tmp_path: Path) -> None:
    original = rules.rule
    with (
        pytest.raises(RuntimeError, match="as the program would have it"),
        gdnspec.capture(PREFILL, tmp_path / "run.jsonl", target=RULE),
    ):
        rules.rule(**call(), raises=True)
    assert rules.rule is original
    assert rows_of(tmp_path / "run.jsonl")[0]["weight"] == 1


def test_what_no_definition_describes_is_counted_and_runs_on(rules: Any, tmp_path: Path) -> None:
    with gdnspec.capture(PREFILL, tmp_path / "run.jsonl", target=RULE, repeats=3) as run:
        assert rules.rule(**call()) is not None
        assert rules.rule(**call(tokens=1, carried=True, heads=3)) is not None
        assert rules.rule(1, 2, 3, 4, 5) == 3
    assert (run.calls, run.passed_over) == (0, 1)
    assert run.unfit["4 query and 4 key heads are not repeated 3 times"] == 1
    assert len(run.unfit) == 2


def test_recording_shapes_costs_little(rules: Any, tmp_path: Path) -> None:
    """Counted, for a time would be that of the machine: each step is a call of a function, of Python or of C."""
    given = call(tokens=1, carried=True)

    def steps() -> int:
        counted = [0]

        def count(*_: Any) -> None:
            counted[0] += 1

        sys.setprofile(count)
        try:
            rules.rule(**given)
        finally:
            sys.setprofile(None)
        return counted[0]

    plain = steps()
    with gdnspec.capture(DECODE, tmp_path / "run.jsonl", target=RULE):
        steps()  # the first of a shape is looked at in full
        recorded = [steps() for _ in range(50)]
    assert plain < 20
    assert max(recorded) - plain < 250, "about 120 when this was written: 20 us on a slow processor"


def test_threads_lose_no_call(rules: Any, tmp_path: Path) -> None:
    shapes = [call(tokens=5 + i) for i in range(4)]

    def work() -> None:
        for i in range(200):
            rules.rule(**shapes[i % 4])

    with gdnspec.capture(PREFILL, tmp_path / "run.jsonl", target=RULE, tensors="sample:2"):
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = rows_of(tmp_path / "run.jsonl")
    assert sum(row["weight"] for row in rows) == 8 * 200
    assert sum("tensors" in row for row in rows) == 2


def test_tensors_stay_within_their_bytes(rules: Any, tmp_path: Path) -> None:
    given = call(tokens=100)
    size = 3 * 100 * 4 * 64 * 2 + 2 * 100 * 4 * 4 + 2 * 8
    out = tmp_path / "run.jsonl"
    with gdnspec.capture(PREFILL, out, target=RULE, tensors="all", max_bytes=2 * size + 1) as run:
        for _ in range(5):
            rules.rule(**given)
    assert sum("tensors" in row for row in rows_of(out)) == 2
    assert sum(row["weight"] for row in rows_of(out)) == 5
    assert run.told()["too_large"] == 3
    assert len(list((tmp_path / "run.jsonl.tensors").iterdir())) == 2


def test_a_full_disk_ends_the_recording_and_not_the_program(
    rules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gdnspec.capture import recorder

    write, room = os.pwrite, [300]

    def full(file: int, data: bytes, place: int) -> int:
        if place + len(data) > room[0]:
            raise OSError(28, "No space left on device")
        return write(file, data, place)

    with (
        pytest.raises(SpecError, match="recording ended after 1 calls: No space left on device"),
        gdnspec.capture(PREFILL, tmp_path / "run.jsonl", target=RULE),
    ):
        monkeypatch.setattr(recorder.os, "pwrite", full)
        for i in range(5):
            assert rules.rule(**call(tokens=5 + i)) is not None
    assert [row["weight"] for row in rows_of(tmp_path / "run.jsonl")] == [1], "what was recorded is whole"


def test_a_call_after_the_end_touches_nothing(rules: Any, tmp_path: Path) -> None:
    """Somebody has taken the function with him; the number of the closed file is another file's by now."""
    with gdnspec.capture(PREFILL, tmp_path / "run.jsonl", target=RULE) as run:
        kept = rules.rule
        kept(**call())
    other = (tmp_path / "precious.txt").open("w")
    other.write("precious")
    other.flush()
    for i in range(10):
        kept(**call(tokens=5 + i))
    assert (tmp_path / "precious.txt").read_text() == "precious"
    assert run.calls == 1
    assert rows_of(tmp_path / "run.jsonl")[0]["weight"] == 1


@pytest.mark.thorough
def test_threads_that_go_on_while_it_ends_do_no_harm(rules: Any, tmp_path: Path) -> None:
    stop = threading.Event()

    def work() -> None:
        given = call()
        while not stop.is_set():
            rules.rule(**given)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for i in range(40):
            with gdnspec.capture(PREFILL, tmp_path / f"{i}.jsonl", target=RULE) as run:
                time.sleep(0.002)
            assert sum(row["weight"] for row in rows_of(tmp_path / f"{i}.jsonl")) == run.calls
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_captures_may_end_in_any_order(rules: Any, tmp_path: Path) -> None:
    original = rules.rule
    first = gdnspec.capture(PREFILL, tmp_path / "a.jsonl", target=RULE)
    second = gdnspec.capture(PREFILL, tmp_path / "b.jsonl", target=RULE)
    first.__enter__()
    rules.rule(**call())
    second.__enter__()
    rules.rule(**call())
    first.__exit__(None, None, None)
    rules.rule(**call())
    second.__exit__(None, None, None)
    assert rules.rule is original
    assert (first.calls, second.calls) == (2, 2)


def test_a_file_that_is_there_is_replaced_on_request_only(rules: Any, tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text("mine")
    (tmp_path / "run.2.jsonl").write_text("mine too")
    with (
        pytest.raises(SpecError, match="exists already"),
        gdnspec.capture(PREFILL, tmp_path / "run.jsonl", target=RULE),
    ):
        pass
    assert (tmp_path / "run.jsonl").read_text() == "mine"
    with gdnspec.capture(PREFILL, tmp_path / "run.jsonl", target=RULE, numbered=True) as run:
        rules.rule(**call())
    assert run.out.name == "run.3.jsonl"
    with gdnspec.capture(PREFILL, tmp_path / "run.jsonl", target=RULE, force=True):
        rules.rule(**call())
    assert rows_of(tmp_path / "run.jsonl")[0]["weight"] == 1
    assert not (tmp_path / "run.2.jsonl").exists(), "of an earlier run"
    with (
        pytest.raises(SpecError, match="not a regular file"),
        gdnspec.capture(PREFILL, "/dev/null", target=RULE, force=True),
    ):
        pass


def test_tensors_of_two_recordings_keep_apart(rules: Any, tmp_path: Path) -> None:
    first = gdnspec.capture(PREFILL, tmp_path / "run.a", target=RULE, tensors="all")
    second = gdnspec.capture("gdn_prefill_k_last", tmp_path / "run.b", target=RULE, tensors="all")
    with first, second:
        rules.rule(**call())
    assert rows_of(tmp_path / "run.a")[0]["tensors"] != rows_of(tmp_path / "run.b")[0]["tensors"]
    for name, file in ((PREFILL, "run.a"), ("gdn_prefill_k_last", "run.b")):
        assert load_workloads(tmp_path / file, definition(name))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"beta": None}, "g or beta is absent"),
        ({"g": torch.zeros(1, 5)}, "g [1, 5] does not go with k"),
        ({"initial_state": torch.zeros(50, 4, 64, 64)}, "a state [50, 4, 64, 64] for 1 sequences"),
        ({"ssm_state_indices": torch.zeros(1)}, "its states lie in a pool"),
        ({"head_first": True}, "heads stand before tokens"),
        ({"scale": float("nan")}, "a scale that is not finite"),
        ({"query": torch.zeros(1, 5, 3, 64), "key": torch.zeros(1, 5, 3, 64)}, "heads are GQA"),
        ({"key": torch.zeros(1, 5, 64)}, "not 4: [B, T, H, D]"),
    ],
)
def test_calls_of_another_kind_are_left_out_and_said(
    rules: Any, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    with gdnspec.capture(PREFILL, tmp_path / "run.jsonl", target=RULE, tensors="all") as run:
        rules.rule(**{**call(), **change})
        rules.rule(**call())
    assert run.calls == 1
    (reason,) = run.unfit
    assert said in reason
    assert load_workloads(tmp_path / "run.jsonl", definition(PREFILL)), "the rest can be read"


def test_tensors_without_values_leave_shapes(rules: Any, tmp_path: Path) -> None:
    given = {name: x.to("meta") if hasattr(x, "to") else x for name, x in call().items()}
    with gdnspec.capture(PREFILL, tmp_path / "run.jsonl", target=RULE, tensors="all") as run:
        rules.rule(**given)
    (row,) = rows_of(tmp_path / "run.jsonl")
    assert row["sequence_lengths"] == [5]
    assert "tensors" not in row
    assert run.told()["unkept"]


def test_gates_that_a_definition_cannot_have_leave_shapes(rules: Any, tmp_path: Path) -> None:
    given = call(batch=3, tokens=1, carried=True)
    with gdnspec.capture(DECODE, tmp_path / "run.jsonl", target=RULE, tensors="all") as run:
        rules.rule(**{**given, "beta": given["beta"] + 1})
        rules.rule(**{**given, "g": -given["g"]})
    assert run.told()["unkept"] == {
        "beta outside [0, 1], which no raw gate gives": 1, "g above 0: it is no gate in log space": 1
    }  # fmt: skip
    assert sum(row["weight"] for row in rows_of(tmp_path / "run.jsonl")) == 2


def test_a_packed_decode_has_a_row_each(gdnspec: Run, rules: Any, tmp_path: Path) -> None:
    import gdnspec as package

    given = {**call(tokens=3), "initial_state": torch.zeros(3, 4, 64, 64), "cu_seqlens": [0, 1, 2, 3]}
    with package.capture(DECODE, tmp_path / "run.jsonl", target=RULE, tensors="all"):
        rules.rule(**given)
    (row,) = rows_of(tmp_path / "run.jsonl")
    assert row["axes"] == {"batch_size": 3}
    done = gdnspec("workloads", "freeze", DECODE, "--workloads", tmp_path / "run.jsonl", "--device", "cpu")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "gdn_prefil_k_first"}, "did you mean 'gdn_prefill_k_first'?"),
        ({"name": "gdn_verify_k_last"}, "gdn_verify_k_last cannot be recorded from a gated delta rule"),
        ({"target": "made_up_rules"}, "is not of the form package.module:function"),
        ({"target": "made_up_rulez:rule"}, "made_up_rulez cannot be imported"),
        ({"target": "made_up_rules:rul"}, "made_up_rules has no 'rul' (did you mean 'rule'?)"),
        ({"target": "json:dumps"}, "is not a gated delta rule: it has no parameter q/query, k/key"),
        ({"target": "math:pi"}, "pi is not a function"),
        ({"tensors": "some"}, "tensors 'some': use none, sample:N or all"),
        ({"tensors": "sample:0"}, "tensors 'sample:0': use none"),
        ({"out": "no/such/run.jsonl"}, "cannot be written: No such file"),
        ({"repeats": 0}, "repeats 0: at least 1"),
    ],
)
def test_a_wrong_request_is_told_before_anything_runs(
    rules: Any, tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    whole = {"name": PREFILL, "out": tmp_path / "run.jsonl", "target": RULE, **arguments}
    original = rules.rule
    with pytest.raises(SpecError) as error, gdnspec.capture(**whole):
        pass
    assert said in str(error.value)
    assert rules.rule is original


# --- repeated heads ---------------------------------------------------------------------------------------------


def repeated(times: int, **options: Any) -> dict[str, Any]:
    """A call whose query and key heads come several times, as `repeat_interleave` leaves them."""
    given = call(**options)
    for name in ("query", "key"):
        given[name] = given[name][:, :, ::times].repeat_interleave(times, dim=2)
    return given


def test_repeated_heads_are_seen_and_undone(rules: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    with gdnspec.capture(PREFILL, tmp_path / "run.jsonl", tensors="sample:1", target=RULE) as run:
        rules.rule(**repeated(2))
        rules.rule(**repeated(2, tokens=7))
    rows = rows_of(tmp_path / "run.jsonl")
    assert [row["preset"] for row in rows] == ["heads-2x2x4-d64"] * 2
    (said,) = run.told()["repeats"]
    assert "came repeated 2 times" in said
    assert load_file(tmp_path / rows[0]["tensors"])["q"].shape == (5, 2, 64)


def test_heads_that_were_repeated_on_some_calls_alone_stay(rules: Any, tmp_path: Path) -> None:
    """What was written under the first guess is written anew, tensors and weights too."""
    from safetensors.torch import load_file

    given = repeated(2)
    with gdnspec.capture(PREFILL, tmp_path / "run.jsonl", tensors="sample:2", target=RULE) as run:
        for _ in range(3):
            rules.rule(**given)
        assert {row["preset"] for row in rows_of(tmp_path / "run.jsonl")} == {"heads-2x2x4-d64"}
        rules.rule(**call(tokens=6))
        rules.rule(**given)
    rows = rows_of(tmp_path / "run.jsonl")
    assert {row["preset"] for row in rows} == {"heads-4x4x4-d64"}
    assert sorted(row["weight"] for row in rows) == [1, 1, 3]
    assert not run.told()["repeats"]
    first = load_file(tmp_path / rows[0]["tensors"])
    norm = given["key"] * torch.rsqrt((given["key"] ** 2).sum(-1, keepdim=True) + 1e-6)
    assert torch.equal(first["k"], norm.flatten(0, 1).bfloat16()), "as the call had them"
    assert load_workloads(tmp_path / "run.jsonl", definition(PREFILL))


def test_what_says_nothing_of_heads_decides_nothing(rules: Any, tmp_path: Path) -> None:
    """A first call on zeros, as engines warm up, has all heads alike."""
    zeros = {name: torch.zeros_like(x) if hasattr(x, "shape") else x for name, x in call(tokens=9).items()}
    with gdnspec.capture(PREFILL, tmp_path / "run.jsonl", target=RULE):
        rules.rule(**zeros)
        assert rows_of(tmp_path / "run.jsonl")[0]["preset"] == "heads-4x4x4-d64"
        rules.rule(**repeated(2))
    assert {row["preset"] for row in rows_of(tmp_path / "run.jsonl")} == {"heads-2x2x4-d64"}


@pytest.mark.parametrize(("repeats", "preset"), [(1, "heads-4x4x4-d64"), (4, "heads-1x1x4-d64")])
def test_who_says_how_often_heads_were_repeated_is_believed(
    rules: Any, tmp_path: Path, repeats: int, preset: str
) -> None:
    with gdnspec.capture(PREFILL, tmp_path / "run.jsonl", target=RULE, repeats=repeats) as run:
        rules.rule(**repeated(2))
    assert rows_of(tmp_path / "run.jsonl")[0]["preset"] == preset
    assert not run.told()["repeats"]


# --- two head sizes ---------------------------------------------------------------------------------------------


def test_two_head_sizes_name_the_definitions_that_have_them(rules: Any, tmp_path: Path) -> None:
    both = {"key_head_dim", "value_head_dim"}
    with gdnspec.capture(PREFILL, tmp_path / "run.jsonl", target=RULE) as run:
        rules.rule(**{**call(), "value": torch.randn(1, 5, 4, 96)})
    (said,) = run.unfit
    assert "keys of 64 and values of 96 elements, and gdn_prefill_k_first has one size for both" in said
    two = {name for name, found in definitions().items() if set(found.definition.const_axes()) >= both}
    named = {name for name in definitions() if re.search(rf"\b{name}\b", said)} - {PREFILL}
    assert named
    assert named <= two
    assert {definition(name).definition.stage for name in named} == {"prefill"}


def with_two_sizes(one: Found) -> Found:
    """The definition with a size of keys and one of values, as those for such models have them."""

    def sizes(tensor: dict[str, Any]) -> dict[str, Any]:
        size = "value_head_dim" if tensor["name"] in ("v", "output") else "key_head_dim"
        shape = [size if x == "head_size" else x for x in tensor["shape"] or []]
        if shape.count("key_head_dim") == 2:
            shape[-2] = "value_head_dim"
        return {**tensor, "shape": shape if tensor["shape"] is not None else None}

    data = one.definition.model_dump(mode="json")
    axis = next(axis for axis in data["axes"] if axis["name"] == "head_size")
    data["axes"] = [x for x in data["axes"] if x is not axis]
    data["axes"] += [{**axis, "name": name} for name in ("key_head_dim", "value_head_dim")]
    data |= {"inputs": [sizes(x) for x in data["inputs"]], "outputs": [sizes(x) for x in data["outputs"]]}
    data |= {"name": "gdn_prefill_of_two", "flops": "total_seq_len", "symmetries": []}
    next(x for x in data["inputs"] if x["name"] == "scale")["default"] = "1 / sqrt(key_head_dim)"
    return replace(one, definition=type(one.definition).model_validate(data))


def test_a_definition_with_two_head_sizes_records_them(
    rules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gdnspec.capture import recorder
    from safetensors.torch import load_file

    two = with_two_sizes(definition("gdn_prefill_k_last"))
    monkeypatch.setattr(recorder, "definitions", lambda: {**definitions(), "gdn_prefill_of_two": two})
    given = {**repeated(2, batch=2), "value": torch.randn(2, 5, 4, 96), "initial_state": torch.randn(2, 4, 64, 96)}
    with gdnspec.capture(PREFILL, tmp_path / "one.jsonl", target=RULE) as run:
        rules.rule(**given)
    assert "gdn_prefill_of_two" in next(iter(run.unfit))
    run = gdnspec.capture(PREFILL, tmp_path / "two.jsonl", target=RULE, tensors="all")
    run.found = two
    with run:
        rules.rule(**given)
    assert not run.unfit
    (row,) = rows_of(tmp_path / "two.jsonl")
    assert row["preset"] == "heads-2x2x4-k64-v96"
    kept = load_file(tmp_path / row["tensors"])
    assert kept["k"].shape == (10, 2, 64)
    assert torch.equal(kept["initial_state"], given["initial_state"].transpose(-1, -2)), "[V, K]"
    assert load_workloads(tmp_path / "two.jsonl", two)


@pytest.mark.parametrize("name", [name for name, found in definitions().items() if judged(found.family).calls])
def test_a_definition_is_recorded_or_says_which_ones_are(rules: Any, tmp_path: Path, name: str) -> None:
    found = definition(name)
    family = found.family.name
    if not calls(found.family).records(found.definition):
        several = f"{family}_prefill_k_first"
        with pytest.raises(SpecError, match=several), gdnspec.capture(name, tmp_path / "run.jsonl", target=RULE):
            pass
        return
    one_token = definition(name).definition.stage == "decode"
    given = call(tokens=1, carried=True) if one_token else call()
    if family == "kda":  # a gate for each key channel
        given["g"] = given["g"][..., None].expand_as(given["key"])
    with gdnspec.capture(name, tmp_path / "run.jsonl", target=RULE, tensors="all") as run:
        rules.rule(**given)
    assert (run.calls, run.unfit, run.told()["unkept"]) == (1, {}, {})
    assert load_workloads(tmp_path / "run.jsonl", definition(name))


# --- the command ------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from made_up import rule

class Shaped:  # all of a tensor that is recorded, and imported at once
    def __init__(self, *shape):
        self.shape, self.ndim = shape, len(shape)

x, gate = Shaped(1, 7, 4, 64), Shaped(1, 7, 4)
for i in range(3):
    rule(x, x, x, gate, gate)
print("the program's own words")
"""


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    def write(more: str = "") -> Path:
        (tmp_path / "made_up.py").write_text("def rule(q, k, v, g, beta):\n    return v\n")
        file = tmp_path / "program.py"
        file.write_text(PROGRAM + textwrap.dedent(more))
        return file

    return write


def run(tmp_path: Path, *command: str | Path, target: str | None = "made_up:rule") -> subprocess.CompletedProcess[str]:
    options = ["--definition", PREFILL, "-o", tmp_path / "run.jsonl", "--tensors", "sample:1"]
    options += [] if target is None else ["--target", target]
    return forked_command.run(list(map(str, ["capture", *options, "--", *command])), dict(os.environ))


def test_a_program_is_recorded_without_a_change_to_it(program: Callable[[str], Path], tmp_path: Path) -> None:
    file = program("")
    file.write_text(file.read_text().replace("from made_up", "import torch\nShape = torch.rand\nfrom made_up", 1)
                    .replace("Shaped(1", "torch.rand(1").replace("x, gate, gate)", "x, -gate, gate)"))  # fmt: skip
    done = run(tmp_path, sys.executable, file)
    assert done.returncode == 0, done.stderr
    assert "the program's own words" in done.stdout
    assert f"3 calls in {tmp_path / 'run.jsonl'}, tensors of 1" in done.stdout
    rows = rows_of(tmp_path / "run.jsonl")
    assert sorted(row["weight"] for row in rows) == [1, 2]
    again = run(tmp_path, sys.executable, program(""))
    assert again.returncode == 2
    assert "exists already" in again.stderr


@pytest.mark.thorough  # in the quick run that of a program which a signal ends
def test_its_exit_code_is_the_programs(program: Callable[[str], Path], tmp_path: Path) -> None:
    assert run(tmp_path, sys.executable, program("sys.exit(7)")).returncode == 7
    assert sum(row["weight"] for row in rows_of(tmp_path / "run.jsonl")) == 3


def test_nothing_is_lost_when_it_dies(program: Callable[[str], Path], tmp_path: Path) -> None:
    done = run(tmp_path, sys.executable, program("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert done.returncode == 128 + signal.SIGKILL
    assert "3 calls in" in done.stdout
    assert sum(row["weight"] for row in rows_of(tmp_path / "run.jsonl")) == 3


@pytest.mark.thorough
def test_processes_of_a_program_write_files_of_their_own(program: Callable[[str], Path], tmp_path: Path) -> None:
    more = """
    import subprocess
    if len(sys.argv) == 1:
        subprocess.run([sys.executable, __file__, "child"], check=True)
    """
    done = run(tmp_path, sys.executable, program(more))
    assert done.returncode == 0, done.stderr
    for file in ("run.jsonl", "run.2.jsonl"):
        assert sum(row["weight"] for row in rows_of(tmp_path / file)) == 3


@pytest.mark.thorough
def test_one_process_after_another_loses_nothing(program: Callable[[str], Path], tmp_path: Path) -> None:
    file = program("")
    done = run(tmp_path, "sh", "-c", f"{sys.executable} {file} && {sys.executable} {file}")
    assert done.returncode == 0, done.stderr
    for name in ("run.jsonl", "run.2.jsonl"):
        assert sum(row["weight"] for row in rows_of(tmp_path / name)) == 3


@pytest.mark.thorough
def test_a_process_that_is_forked_goes_on_in_its_own_file(program: Callable[[str], Path], tmp_path: Path) -> None:
    more = """
    import os
    child = os.fork()
    for i in range(20):
        rule(x, x, x, gate, gate)
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    """
    done = run(tmp_path, sys.executable, program(more))
    assert done.returncode == 0, done.stderr
    calls = [sum(row["weight"] for row in rows_of(tmp_path / name)) for name in ("run.jsonl", "run.2.jsonl")]
    assert calls == [23, 20]
    assert "23 calls in" in done.stdout
    assert "20 calls in" in done.stdout


def test_a_worker_that_is_killed_is_counted(program: Callable[[str], Path], tmp_path: Path) -> None:
    worker = program("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    (tmp_path / "parent.py").write_text(
        f"import made_up, subprocess, sys; subprocess.run([sys.executable, {str(worker)!r}])"
    )
    done = run(tmp_path, sys.executable, tmp_path / "parent.py")
    assert done.returncode == 0, done.stderr
    assert "3 calls in" in done.stdout


@pytest.mark.thorough
def test_asking_whether_a_module_is_there_changes_nothing(program: Callable[[str], Path], tmp_path: Path) -> None:
    file = program("")
    file.write_text("import importlib.util; importlib.util.find_spec('made_up')\n" + file.read_text())
    assert run(tmp_path, sys.executable, file).returncode == 0
    assert sum(row["weight"] for row in rows_of(tmp_path / "run.jsonl")) == 3


@pytest.mark.thorough
def test_a_program_may_end_in_its_own_time(program: Callable[[str], Path], tmp_path: Path) -> None:
    more = """
    import time
    try:
        open("ready", "w").close()
        time.sleep(9600)
    except KeyboardInterrupt:
        time.sleep(1)
        print("put away")
    """
    options = ["--definition", PREFILL, "--target", "made_up:rule", "-o", str(tmp_path / "run.jsonl")]
    command = [sys.executable, "-m", "gdnspec", "capture", *options, "--", sys.executable, str(program(more))]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # background jobs have none
    )  # fmt: skip
    until((tmp_path / "ready").exists)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=PATIENCE)
    assert "put away" in out, err
    assert "3 calls in" in out
    assert process.returncode == 0


@pytest.mark.thorough
def test_a_program_that_has_nothing_to_record(program: Callable[[str], Path], tmp_path: Path) -> None:
    program("")
    (tmp_path / "idle.py").write_text("import made_up")
    done = run(tmp_path, sys.executable, tmp_path / "idle.py")
    assert done.returncode == 1
    assert "made_up:rule was never called with the inputs of --definition gdn_prefill_k_first" in done.stderr
    assert "no other Python function with these arguments was called: q, " in done.stderr
    nowhere = run(tmp_path, sys.executable, tmp_path / "idle.py", target="no_such_module:rule")
    assert nowhere.returncode == 2
    assert "there is no module 'no_such_module'" in nowhere.stderr
    hidden = tmp_path / "hides" / "transformers"  # as if the package were not installed
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").touch()
    hides = f"import sys; sys.path.insert(0, {str(hidden.parent)!r})"
    bare = run(tmp_path, sys.executable, "-c", hides, target=None)
    assert bare.returncode == 3
    assert "pip install --upgrade transformers, or name another function with --target" in bare.stderr
    wrong = run(tmp_path, sys.executable, program(""), target="made_up:rull")
    assert wrong.returncode == 2
    assert "has no 'rull' (did you mean 'rule'?)" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    missing = run(tmp_path, "no-such-program")
    assert missing.returncode == 2
    assert "no-such-program cannot be run" in missing.stderr


def test_what_was_called_instead_is_named(tmp_path: Path) -> None:
    """The model's own module has a rule; --target names another one."""
    (tmp_path / "other_model.py").write_text(
        "def chunk_rule(query, key, value, g, beta, initial_state=None):\n    return value\n"
        "def shaped(q):\n    return q\n"
    )
    (tmp_path / "made_up.py").write_text("def rule(q, k, v, g, beta):\n    return v\n")
    calls = "other_model.chunk_rule(x, x, value=x, g=gate, beta=gate); other_model.shaped(x)"
    text = PROGRAM.replace("import sys", "import other_model").replace("rule(x, x, x, gate, gate)", calls)
    (tmp_path / "program.py").write_text(text)
    done = run(tmp_path, sys.executable, tmp_path / "program.py")
    assert done.returncode == 1, done.stderr
    shapes = "q [1, 7, 4, 64], k [1, 7, 4, 64], v [1, 7, 4, 64], g [1, 7, 4], beta [1, 7, 4], no state"
    assert f"called 3 times: other_model:chunk_rule with {shapes}\n" in done.stderr
    assert "records another function: --target other_model:chunk_rule" in done.stderr
    assert "shaped" not in done.stderr
    again = run(tmp_path, sys.executable, tmp_path / "program.py", target="other_model:chunk_rule")
    assert again.returncode == 0, again.stderr
    assert "3 calls in" in again.stdout


def test_calls_of_another_stage_are_named_with_what_they_were_called_with(
    gdnspec: Run, program: Callable[[str], Path], tmp_path: Path
) -> None:
    options = ["--definition", DECODE, "--target", "made_up:rule", "-o", tmp_path / "run.jsonl"]
    done = gdnspec("capture", *options, "--", sys.executable, program(""))
    assert done.returncode == 1
    assert f"made_up:rule was never called with the inputs of --definition {DECODE}" in done.stderr
    assert "called 3 times: made_up:rule with q [1, 7, 4, 64]" in done.stderr
    assert "a decode takes one token of each sequence" in done.stderr


def test_a_family_that_reads_no_calls_says_so(gdnspec: Run, tmp_path: Path) -> None:
    toy = ROOT / "tests/support/toy"
    options = ["--definitions-dir", toy / "definitions", "--definition", "toy_running_sum", "-o", tmp_path / "x.jsonl"]
    done = gdnspec("capture", *options, "--", "true")
    assert done.returncode == 2
    assert "reference/toy/family.py: the family toy has no calls of libraries to record" in done.stderr
