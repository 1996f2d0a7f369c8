"""benchmarks/invariance_table.py and invariance_rows.py: a row for each solution, variant or peer on a device."""

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from conftest import ROOT, Run
from gdnspec.catalog.earlier import measured_as
from gdnspec.catalog.solutions import solutions
from gdnspec.model.result import CheckResult, Outcome, Status

DECODE = "gdn_decode_k_last"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("invariance_table")


@pytest.fixture
def rows(script: ModuleType) -> ModuleType:
    return importlib.import_module("invariance_rows")


def result(status: Status, suite: str, message: str = "", **answers: str) -> str:
    outcomes = {name: Outcome.model_validate({"likeness": said, "compared": 1}) for name, said in answers.items()}
    return CheckResult(
        definition=DECODE, workload="w", suite=suite, solution="fla", device="card", status=status, message=message,
        invariance=outcomes,
    ).model_dump_json()  # fmt: skip


def test_results_become_rows(script: ModuleType, gdnspec: Run, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    words = ("--solution", "torch_recurrent", "--workload", "batch_8", "--device", "cpu", "--invariance")
    assert gdnspec("check", DECODE, *words, "--json", file).returncode == 0
    (found,) = script.from_results([file])
    assert (found.solution, found.definition, found.same) == ("torch_recurrent", DECODE, True)
    assert (found.pieces, found.failed, found.ran) == (None, False, True)


def test_a_kernel_without_memory_has_not_answered(script: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    why = "out of memory in the kernel: CUDA out of memory."
    full = result("RUNTIME_ERROR", "conformance", why)
    file.write_text(full)
    (found,) = script.from_results([file])
    assert (found.same, found.failed, found.ran, found.why) == (None, False, False, why)
    file.write_text(f"{full}\n{result('PASSED', 'conformance', alone='same_bits')}")
    (found,) = script.from_results([file])
    assert (found.same, found.failed, found.ran) == (True, False, True)


def test_the_worst_pieces_and_all_definitions_count(script: ModuleType) -> None:
    of = script.Found
    found = [of("s", "d", "a", True, "same_bits"), of("s", "d", "b", False, "within_budget")]
    found += [of("s", "d", "c", ran=False), of("s", "e", "a", failed=True), of("fla", "d", "a", ran=False)]
    known = [solutions()[0][name] for name in ("fla", "hopper_prefill:invariant")]
    assert script.table(found, known).splitlines()[2:] == [
        "| s | d | 1 of 2 definitions, 1 without an answer | within budget | b |",
        "| s | e |  |  | a (failed) |",
        "",
        "Not asked yet: fla (peer), hopper_prefill:invariant.",
    ]


def test_traces_of_variants_count_and_all_is_saved(script: ModuleType, tmp_path: Path) -> None:
    found = list(script.from_traces([solutions()[0]["triton_chunkwise:invariant"]]))
    assert found
    assert all(one.same and one.solution == "triton_chunkwise:invariant" for one in found)
    script.save(found, tmp_path / "saved.json")
    assert sorted(script.saved(tmp_path / "saved.json"), key=str) == sorted(found, key=str)


def test_answers_about_earlier_sources_say_so(script: ModuleType) -> None:
    (known,) = [one for name, one in solutions()[0].items() if name == "cuda_decode"]
    (new,) = script.of_present_sources([script.Found("cuda_decode", "card", DECODE, True)], [known])
    old = script.Found("cuda_decode", "card", DECODE, False, source_hash="0" * 64)
    (shown,) = script.with_age([old], [known])
    assert shown.device == "card, an earlier version"
    assert script.with_age([old, new], [known]) == [new], "the present version has answered"
    elsewhere = replace(old, device="other")
    assert [one.device for one in script.with_age([elsewhere, new], [known])] == ["card", "other, an earlier version"]


def test_an_entry_more_keeps_the_answers_about_others(script: ModuleType) -> None:
    """As it keeps traces: the manifest of before is kept, and has the same entry for the definition."""
    name, definition = "torch_recurrent_kda", "kda_prefill_k_last"
    solution = solutions()[0][name]
    before = measured_as(solution, definition) - {solution.source_hash}
    assert before, "no former manifest is kept: take a solution that has one"
    found = [script.Found(name, "card", definition, True, source_hash=one) for one in sorted(before)]
    assert [one.device for one in script.with_age(found, [solution])] == ["card"]


def test_the_page_shows_the_table(script: ModuleType) -> None:
    """Made with --traces --show benchmarks/invariance/*.json --page docs/how-to/batch-invariance.md."""
    known, page = list(solutions()[0].values()), (ROOT / "docs/how-to/batch-invariance.md").read_text()
    files = sorted((ROOT / "benchmarks/invariance").glob("*.json"))
    found = [*script.from_traces(known), *(one for file in files for one in script.saved(file))]
    made = script.paged(page, script.with_age(found, known), known)
    # Whoever changes a kernel need not make the page anew: its answers are of an earlier version from then on.
    assert made.replace(script.EARLIER, "") == page.replace(script.EARLIER, "")


def test_everything_for_a_gpu_is_asked_once(rows: ModuleType) -> None:
    tasks = [(solution.name, name) for solution, names in rows.tasks(rows.on_device("cuda", [], [])) for name in names]
    assert len(tasks) == len(set(tasks))
    asked = {solution for solution, _ in tasks}
    assert {"hopper_prefill:invariant", "triton_chunkwise:invariant", "flashinfer", "cuda_serving"} <= asked
    assert "torch_recurrent" not in asked
    assert {one.name for one in rows.on_device("cuda", ["hopper_prefill"], [])} == {
        "hopper_prefill", "hopper_prefill:strict", "hopper_prefill:invariant",
    }  # fmt: skip


def asked(
    rows: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    seconds: float = 600,
    keep: bool = False,
) -> list[object]:
    """What comes out if this shell script stands for the command: $F is the file of results, $S the suite."""
    command = tmp_path / "command"
    command.write_text(
        f'#!/bin/sh\nfor F; do :; done\ncase "$*" in *conformance*) S=more;; *) S=smoke;; esac\n{script}\n'
    )
    command.chmod(0o755)
    monkeypatch.setattr(rows.sys, "executable", str(command))
    monkeypatch.setattr(rows, "LAST_SECONDS", 0)
    monkeypatch.setattr(rows, "time", SimpleNamespace(monotonic=lambda: 0.0))  # a busy machine has as much time left
    ask = rows.Asking(tmp_path, "cuda", seconds, keep)
    return list(ask((solutions()[0]["fla"], [DECODE])))


def test_other_rows_are_asked_where_the_smoke_suite_has_none(
    rows: ModuleType, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smoke").write_text(result("UNSUPPORTED", "smoke", "the solution supports head_size == 128"))
    (tmp_path / "more").write_text(result("PASSED", "conformance", again="same_bits", alone="same_bits"))
    found = asked(rows, tmp_path, monkeypatch, f"cp {tmp_path}/$S $F")
    assert found == [script.Found("fla", "card", DECODE, True)]


def test_answers_become_traces_where_that_is_asked_for(
    rows: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for keep in (False, True):
        asked(rows, tmp_path, monkeypatch, f'echo "$*" > {tmp_path}/words', keep=keep)
        assert ("--invariance" in (said := (tmp_path / "words").read_text())) and ("--save" in said) == keep


def test_what_does_not_answer_says_why(
    rows: ModuleType, script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asked(rows, tmp_path, monkeypatch, "echo it cannot run here >&2")
    assert found == [script.Found("fla", "cuda", DECODE, ran=False, why="it cannot run here")]
    found = asked(rows, tmp_path, monkeypatch, "exec sleep 600", seconds=0.1)
    assert found == [script.Found("fla", "cuda", DECODE, ran=False, why="stopped when time was over")]
