"""The evidence of a submission: of one run alone, whole, and kept until there is another."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from gdnspec.catalog import kept
from gdnspec.catalog.solutions import Solution, load_solution
from gdnspec.model.errors import SpecError
from gdnspec.model.result import CheckResult
from gdnspec.submission.bundle import packed, read
from gdnspec.submission.complete import incomplete
from gdnspec.submission.evidence import VERDICTS, Recording, folder_of, latest, line, lines_of, recorded, served_by
from helpers_bundles import DECODE, all_passed, bundle_of, claimed, passed

Make = Callable[..., Path]
ARGUMENTS = "(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)"
RIGHT = f"def run{ARGUMENTS}:\n    return decode_k_last{ARGUMENTS}\n"
FEW = ["batch_size == 1 and num_v_heads <= 4"]
ENTRIES = {DECODE: {"entry": "kernel.py::run", "call": "return", "prepare": None, "supports": FEW}}


@pytest.fixture
def solution(make_solution: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Solution:
    """Nothing is recorded of it."""
    monkeypatch.setenv("GDNSPEC_CACHE", str(tmp_path / "cache"))
    return load_solution(make_solution(RIGHT))


def record(solution: Solution, verdicts: list[CheckResult]) -> None:
    with Recording(solution) as recording:
        for verdict in verdicts:
            recording.add(verdict)
        recording.finish(1, {})


# --- two at once ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.thorough  # two checks on one cache run in the quick run
def test_two_submissions_of_one_name_do_not_mix(make_solution: Make, tmp_path: Path) -> None:
    """The same name, two folders of sources, one cache, at the same time."""
    env = {**os.environ, "GDNSPEC_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    first = make_solution(RIGHT, entries=ENTRIES)
    second = tmp_path / "other" / first.name
    second.mkdir(parents=True)
    for file in first.iterdir():
        (second / file.name).write_text(file.read_text())
    (second / "kernel.py").write_text((first / "kernel.py").read_text() + "# another\n")
    folders = {tmp_path / "a.tar": first, tmp_path / "b.tar": second}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "gdnspec", "submit", first.name, "--solutions-dir", str(folder.parent),
             "--device", "cpu", "-o", str(bundle)],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for bundle, folder in folders.items()
    ]  # fmt: skip
    for process in running:
        said, _ = process.communicate(timeout=280)
        assert process.returncode == 0, said
    for bundle, folder in folders.items():
        found = read(bundle)
        assert found.manifest.evidence.source_hash == load_solution(folder).source_hash
        assert incomplete(found.manifest.evidence, {first.name: [DECODE]}, found.verdicts) == []
    runs = tmp_path / "cache" / "evidence" / first.name
    assert len(list(runs.glob("run-*"))) == 1, "the last that was finished"


def test_runs_that_are_interleaved_keep_their_own(solution: Solution) -> None:
    verdicts = all_passed(solution)
    with Recording(solution) as one, Recording(solution) as two:
        for number, verdict in enumerate(verdicts):
            one.add(verdict)
            two.add(verdict.model_copy(update={"seconds": float(number)}))
        found = [recording.finish(seed, {}) for seed, recording in enumerate((one, two))]
    assert lines_of(CheckResult, found[0].files[VERDICTS], Path("x")) == verdicts
    assert {each.evidence.seed for each in found} == {0, 1}
    assert recorded(solution).evidence.seed == 1
    assert len(list(folder_of(solution).glob("run-*"))) == 2, "one went on while the other was finished"
    record(solution, verdicts)
    assert [latest(solution)] == list(folder_of(solution).glob("run-*"))


# --- what is kept -----------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_evidence_of_the_last_run(solution: Solution, monkeypatch: pytest.MonkeyPatch) -> None:
    record(solution, all_passed(solution))
    before = recorded(solution)
    opened = Path.open

    def full(path: Path, mode: str = "r", *more: Any, **options: Any) -> Any:
        if mode == "a":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return opened(path, mode, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        with pytest.raises(SpecError) as said:
            record(solution, all_passed(solution))
    assert "the evidence cannot be written: No space left on device; earlier evidence is unchanged" in str(said.value)
    assert "GDNSPEC_CACHE=DIR" in str(said.value)
    assert recorded(solution) == before
    assert [latest(solution)] == list(folder_of(solution).glob("run-*"))


def test_a_run_that_was_killed_is_swept_and_one_that_goes_on_is_not(solution: Solution) -> None:
    killed, lock = kept.new_folder(folder_of(solution), "run-")
    os.close(lock)
    with Recording(solution) as other:
        record(solution, all_passed(solution))
        assert not killed.exists()
        assert other.folder.exists()
    assert not other.folder.exists(), "it was not finished"


def test_a_failure_of_the_same_sources_withdraws_what_was_recorded(solution: Solution) -> None:
    record(solution, all_passed(solution))
    with Recording(solution) as recording:
        recording.withdraw()
    with pytest.raises(SpecError, match="no evidence was recorded"):
        recorded(solution)


def test_a_failure_of_other_sources_does_not(solution: Solution) -> None:
    record(solution, all_passed(solution))
    kernel = solution.folder / "kernel.py"
    text = kernel.read_text()
    kernel.write_text(text + "# another\n")
    with Recording(load_solution(solution.folder)) as recording:
        recording.withdraw()
    kernel.write_text(text)
    assert recorded(solution).evidence.source_hash == solution.source_hash


def test_sources_that_changed_during_the_run_are_not_packed(solution: Solution) -> None:
    found = claimed(solution)
    (solution.folder / "kernel.py").write_text("# later\n")
    with pytest.raises(SpecError, match="the sources have changed since they were checked"):
        packed(solution, found)


# --- doubled and missing ----------------------------------------------------------------------------------------


def fewer(solution: Solution) -> list[CheckResult]:
    return all_passed(solution)[:-3]


def unknown(solution: Solution) -> list[CheckResult]:
    return [*all_passed(solution), passed(solution, workload="no_such_workload")]


def elsewhere(solution: Solution) -> list[CheckResult]:
    first, *others = all_passed(solution)
    return [first.model_copy(update={"device": "nvidia-h200"}), *others]


def foreign(solution: Solution) -> list[CheckResult]:
    return [*all_passed(solution), passed(solution, definition="gdn_decode_k_first")]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (fewer, "verdicts on gdn_decode_k_last are missing, for example on"),
        (unknown, "1 verdicts on workloads that gdn_decode_k_last does not have, for example no_such_workload"),
        (elsewhere, "verdicts from several devices: cpu, nvidia-h200"),
        (foreign, "verdicts on gdn_decode_k_first, which it does not serve"),
    ],
)
def test_what_no_single_run_leaves_is_neither_packed_nor_taken_in(
    gdnspec: Run, solution: Solution, tmp_path: Path, made: Callable[[Solution], list[CheckResult]], says: str
) -> None:
    record(solution, made(solution))
    where = ("--solutions-dir", solution.folder.parent, "-o", tmp_path / "mine.tar")
    done = gdnspec("submit", solution.name, *where, "--reuse-evidence")
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "mine.tar").exists()
    (tmp_path / "into").mkdir()
    theirs = bundle_of(solution.folder, tmp_path / "theirs.tar", verdicts=made(solution))
    done = gdnspec("intake", theirs, "--into", tmp_path / "into")
    assert (done.returncode, f"its own evidence: {says}" in done.stderr or says in done.stderr) == (1, True), (
        done.stderr
    )
    assert "checking it on" not in done.stderr
    assert not list((tmp_path / "into").iterdir())


def test_a_verdict_that_stands_twice_is_neither_packed_nor_read(solution: Solution, tmp_path: Path) -> None:
    verdicts = all_passed(solution)
    says = rf"2 verdicts of under_test on {DECODE}/{verdicts[0].workload}, but a run gives one"
    with pytest.raises(SpecError, match=says):
        packed(solution, claimed(solution, [*verdicts, verdicts[0]]))
    from gdnspec.submission.bundle import EVIDENCE
    from helpers_bundles import resealed

    twice = "".join(map(line, [*verdicts, verdicts[0].model_copy(update={"seconds": 9.0})])).encode()
    bundle = bundle_of(solution.folder, tmp_path / "a.tar")
    with pytest.raises(SpecError, match=says):
        read(resealed(bundle, lambda _: None, {EVIDENCE + VERDICTS: twice}))


def test_verdicts_on_workloads_of_another_day_are_not_counted(solution: Solution) -> None:
    """Which there were is not known here; those of today decide."""
    evidence = claimed(solution).evidence
    asked = evidence.definitions[DECODE].model_copy(update={"workloads": "0" * 64})
    older = evidence.model_copy(update={"definitions": {DECODE: asked}})
    assert incomplete(evidence, served_by(solution), fewer(solution)) != []
    assert incomplete(older, served_by(solution), fewer(solution)) == []
    assert json.loads(line(passed(solution)))["workload"] == "one_row"
