"""Freezing sessions: what cannot be frozen is one line of words."""

import json
from pathlib import Path
from typing import NoReturn

import pytest
from conftest import ROOT, Run
from gdnspec.catalog.families import families
from gdnspec.cli import session_files
from gdnspec.model.errors import SpecError
from gdnspec.sessions.case import Case

FAMILY = families()["gdn"]
LINE = {
    "name": "mine", "suite": "smoke", "preset": "synthetic-gva-1x2-d64", "regime": "slow_decay", "seed": 1, "slots": 4,
    "steps": [
        {"do": "admit", "request": "a", "slot": 1},
        {"do": "decode", "rows": [{"request": "a"}]},
        {"do": "finish", "request": "a"},
    ],
}  # fmt: skip


def written(file: Path, **changed: object) -> Path:
    """A file of this session."""
    file.write_text(json.dumps(LINE | changed) + "\n")
    return file


def test_a_session_without_a_token_is_refused_by_all_commands(gdnspec: Run, tmp_path: Path) -> None:
    padded = {"do": "decode", "rows": [None, None]}
    file = written(tmp_path / "mine.jsonl", steps=[LINE["steps"][0], padded, LINE["steps"][2]])
    for words in (("validate", file), ("workloads", "freeze", "--sessions", "--workloads", file)):
        done = gdnspec(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"gdnspec: {file}: line 1: /steps/2: step 2 (finish): no request takes a token")
        assert done.stderr.count("\n") == 1


def test_a_pool_that_does_not_fit_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(self: Case) -> NoReturn:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 419430400000 bytes.")

    monkeypatch.setattr(Case, "pools", short)
    file = written(tmp_path / "mine.jsonl")
    before = file.read_text()
    with pytest.raises(SpecError) as caught:
        session_files.freeze(FAMILY, file, None, missing=False)
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{file}: session 'mine': out of memory in the judge: DefaultCPUAllocator: can't ")
    assert "lower its `slots`" in problem.hint
    assert file.read_text() == before


def test_other_steps_with_the_same_tokens_are_no_longer_frozen(gdnspec: Run, tmp_path: Path) -> None:
    """Rows in another order draw the same tokens: the steps themselves must be compared."""
    shipped = (ROOT / "definitions/gdn/sessions.jsonl").read_text().splitlines()
    line = next(data for data in map(json.loads, shipped) if data["name"] == "prompt_then_decode")
    same, file = tmp_path / "same.jsonl", tmp_path / "mine.jsonl"
    same.write_text(json.dumps(line | {"pooled": False}) + "\n")  # a default that is spelled out changes nothing
    assert gdnspec("validate", same).returncode == 0
    line["steps"][4]["rows"].reverse()
    file.write_text(json.dumps(line) + "\n")
    for words in (("validate", file), ("check", "--sessions", "--workloads", file)):
        done = gdnspec(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(
            f"gdnspec: {file}: line 1: /steps: the steps changed after the session was frozen, so its budget is that of"
        )
        assert "freeze it again: gdnspec workloads freeze --sessions --workloads FILE --workload " in done.stderr


@pytest.mark.parametrize(
    "words",
    [("check",), ("check", "gdn_decode_k_last"), ("workloads", "freeze"), ("workloads", "freeze", "gdn_decode_k_last")],
    ids=" ".join,
)
def test_sessions_where_workloads_belong_are_called_sessions(
    gdnspec: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    file = written(tmp_path / "mine.jsonl")
    done = gdnspec(*words, "--workloads", file)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gdnspec: {file}: is a file of sessions, not of workloads (gdnspec check --sessions")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [("validate",), ("check", "--sessions", "--workloads")], ids=" ".join)
def test_a_session_over_several_lines_is_one_error(gdnspec: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(LINE, indent=2) + "\n")
    done = gdnspec(*words, file)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gdnspec: {file}: line 1: each line must hold one whole JSON object")
    assert done.stderr.count("\n") == 1
