"""gdnspec check --sessions, and the commands that write sessions."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import ROOT, Run
from gdnspec.cli import session_files, sessions_from_log

FILE = ROOT / "definitions/gdn/sessions.jsonl"
ONE = ("check", "--sessions", "--device", "cpu", "--solution", "torch_recurrent", "--workload", "slot_reused")


def test_a_right_solution_passes_and_its_results_are_reused(gdnspec: Run, tmp_path: Path) -> None:
    results = tmp_path / "r.jsonl"
    command = ("check", "--sessions", "--device", "cpu", "--solution", "torch_recurrent", "--json", results)
    chosen = ("--workload", "convolution_rolled_back", "--workload", "slot_reused", "--verbose")
    done = gdnspec(*command, *chosen)
    assert done.returncode == 0, done.stderr
    assert "gdn/sessions" in done.stdout
    assert "2 of 2" in done.stdout
    assert "torch_recurrent: the judge's reference made the calls of gdn_conv1d_decode, gdn_conv1d_pre" in done.stdout
    assert "PASSED  torch_recurrent on gdn/sessions/slot_reused" in done.stderr
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [line["status"] for line in lines] == ["PASSED", "PASSED"]
    assert lines[0]["outputs"][0]["output"].startswith("gdn_")
    again = gdnspec(*command, *chosen)
    assert again.returncode == 0
    assert "2 of 2 results taken from" in again.stderr
    assert len(results.read_text().splitlines()) == 2


def test_a_wrong_solution_fails_with_the_step_and_a_command(gdnspec: Run, tmp_path: Path) -> None:
    folder = tmp_path / "torch_recurrent"
    shutil.copytree(ROOT / "solutions/torch_recurrent", folder, ignore=shutil.ignore_patterns("traces", "*.md"))
    kernel = folder / "kernel.py"
    right = "S = pool[torch.where(accepted > 0, last, initial_slots)[rows].long()]"
    assert right in kernel.read_text()
    kernel.write_text(kernel.read_text().replace(right, "S = pool[initial_slots[rows].long()]"))
    names = ("--workload", "drafts_accepted_in_part", "--workload", "drafts_rolled_back", "--fail-fast")
    done = gdnspec("check", "--sessions", folder, "--device", "cpu", *names)
    assert done.returncode == 1, done.stderr
    assert (
        "NON_FINITE  torch_recurrent on gdn/sessions/drafts_accepted_in_part" in done.stderr
    )  # a slot that is not read
    assert "step 4 (verify): output: " in done.stderr
    assert f"repeat: gdnspec check --sessions {folder} --workload drafts_accepted_in_part --device cpu" in done.stderr
    assert "stopped at the first failure, after 1 of 2" in done.stderr


def test_a_solution_that_serves_no_call_is_unsupported(gdnspec: Run) -> None:
    done = gdnspec(*ONE[:5], "torch_layer", "--workload", "slot_reused")
    assert done.returncode == 3
    assert "the solution serves no call of this session" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--seed", "1"), "--seed has no meaning with --sessions"),
        (("--repeat", "2"), "--repeat has no meaning with --sessions"),
        (("--symmetries",), "--symmetries has no meaning with --sessions"),
        (("--errors",), "--errors has no meaning with --sessions"),
        (("--watch",), "--watch has no meaning with --sessions"),
        (("gdn_verify_k_last",), "the definition 'gdn_verify_k_last' has no meaning with --sessions"),
        (("gdn",), "the family 'gdn' has no meaning with --sessions"),
        (("--suite", "strict"), "no suite 'strict'"),
        (("--workload", "slot_reuse"), "no session 'slot_reuse' (did you mean"),
        (("-k", "nothing_of_this"), "no session has these names, suites and words"),
        (("--workloads", "none.jsonl"), "none.jsonl: no such file"),
        (("--solution", "torch_backward"), "serves a call of a session; sessions call gdn_commit_states_k_last, "),
    ],
)
def test_what_makes_no_sense_is_refused(gdnspec: Run, options: tuple[str, ...], message: str) -> None:
    done = gdnspec("check", "--sessions", "--device", "cpu", *options)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr


def test_a_file_of_the_other_kind_is_named_once(gdnspec: Run) -> None:
    """However many lines it has, none of which can be read."""
    of_workloads = ROOT / "definitions/gdn/gdn_decode_k_last/workloads.jsonl"
    done = gdnspec("check", "--sessions", "--workloads", of_workloads)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"gdnspec: {of_workloads.relative_to(ROOT)}: is a file of workloads, not of sessions "
        "(gdnspec check DEFINITION --workloads FILE judges workloads)\n"
    )
    done = gdnspec("check", "gdn_decode_k_last", "--workloads", FILE)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"gdnspec: {FILE.relative_to(ROOT)}: is a file of sessions, not of workloads "
        "(gdnspec check --sessions --workloads FILE judges sessions)\n"
    )


def test_a_file_with_a_wrong_step_is_invalid(gdnspec: Run, tmp_path: Path) -> None:
    line = json.loads(FILE.read_text().splitlines()[0])
    line["steps"].pop()
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(line) + "\n")
    last = len(line["steps"]) - 1
    for command in (("validate", file), ("check", "--sessions", "--workloads", file)):
        done = gdnspec(*command)
        assert done.returncode == 2
        assert f"line 1: /steps/{last}: step {last} (finish): the session ends with open requests: c" in done.stderr
    line["steps"].append({"do": "finish", "request": "c"})
    kept = {
        "do": "prefill",
        "rows": [{"request": "a", "tokens": 65, "keep": [{"at": 63, "checkpoint": "k", "slot": 5}]}],
    }
    loose = json.loads(json.dumps(line))
    loose["budget"]["gdn_prefill_k_last"]["output"]["relative_l2"] = 0.05
    wrong = [
        ({**line, "preset": "none"}, "line 1: /preset: no preset 'none'"),
        ({**line, "regime": "none"}, "line 2: /regime: no regime 'none'"),
        (
            {**line, "interval": 63, "steps": [*line["steps"][:3], kept, *line["steps"][4:]]},
            "a positive multiple of 64",
        ),
        ({k: v for k, v in line.items() if k != "emulators"}, "a session with `budget` needs `emulators` as well"),
        ({k: v for k, v in line.items() if k != "sha256"}, "a session with `budget` needs `sha256` as well"),
        (
            {k: v for k, v in line.items() if k != "steps_sha256"},
            "a session with `budget` needs `steps_sha256` as well",
        ),
        (loose, "the budget does not follow from its emulators"),
        (line, "line 1 already has the name 'prompt_then_decode'"),
    ]
    file.write_text("".join(json.dumps(data) + "\n" for data, _ in wrong))
    done = gdnspec("validate", file)
    assert done.returncode == 2
    for _, message in wrong:
        assert message in done.stderr


def test_drawn_sessions_are_the_same_for_one_seed(gdnspec: Run, tmp_path: Path) -> None:
    made = [tmp_path / name for name in ("one.jsonl", "two.jsonl")]
    options = ("--preset", "synthetic-gva-1x2-d64", "--count", "3", "--seed", "5", "--no-freeze")
    for file in made:
        done = gdnspec("workloads", "generate", "--sessions", *options, "-o", file)
        assert done.returncode == 0, done.stderr
    assert made[0].read_text() == made[1].read_text()
    assert gdnspec("validate", made[0]).returncode == 0
    refused = gdnspec("workloads", "generate", "--sessions", *options, "-o", made[0])
    assert refused.returncode == 2
    assert "exists already" in refused.stderr
    unfrozen = gdnspec("check", "--sessions", "--workloads", made[0], "--solution", "torch_recurrent")
    assert unfrozen.returncode == 2
    assert (
        f"has no error budget, so it cannot be judged (gdnspec workloads freeze --sessions --workloads {made[0]}"
        in (unfrozen.stderr)
    )


MINE = """
{"name": "mine", "suite": "smoke", "covers": "a prompt, then one token", "preset": "synthetic-gva-1x2-d64",
 "regime": "typical", "seed": 1, "slots": 2, "steps": [
    {"do": "admit", "request": "a", "slot": 1},
    {"do": "prefill", "rows": [{"request": "a", "tokens": 65}]},
    {"do": "decode", "rows": [{"request": "a"}]},
    {"do": "finish", "request": "a"}]}
"""


def test_a_session_written_by_hand_is_frozen_and_judged(gdnspec: Run, tmp_path: Path) -> None:
    line, file = json.loads(MINE), tmp_path / "mine.jsonl"
    of_file = ("--sessions", "--workloads", file)
    judge = ("check", *of_file, "--solution", "torch_recurrent", "--device", "cpu")
    file.write_text("".join(json.dumps({**line, "name": name}) + "\n" for name in ("mine", "other")))
    done = gdnspec("workloads", "freeze", *of_file, "--workload", "mine")
    assert done.returncode == 0, done.stderr
    assert f"1 session frozen in {file}; next: gdnspec check --sessions --workloads {file}" in done.stderr
    assert gdnspec(*judge, "--workload", "mine").returncode == 0
    first, second = file.read_text().splitlines()
    assert ("budget" in json.loads(first), "budget" in json.loads(second)) == (True, False)
    assert "1 session frozen" in gdnspec("workloads", "freeze", *of_file, "--missing").stderr
    assert file.read_text().startswith(first)
    assert "0 sessions frozen" in gdnspec("workloads", "freeze", *of_file, "--missing").stderr
    file.write_text(first.replace('"seed": 1', '"seed": 2') + "\n")
    drawn = gdnspec(*judge)
    assert drawn.returncode == 1
    assert "the tokens have sha256" in drawn.stderr
    assert "gdnspec workloads freeze --sessions" in drawn.stderr
    file.write_text(first.replace('"tokens": 65', '"tokens": 66') + "\n")
    for command in (("validate", file), judge):
        changed = gdnspec(*command)
        assert changed.returncode == 2
        assert "line 1: /steps: the steps changed after the session was frozen" in changed.stderr
        assert (
            "freeze it again: gdnspec workloads freeze --sessions --workloads FILE --workload mine)" in changed.stderr
        )
    assert gdnspec("workloads", "freeze", *of_file).returncode == 0
    assert gdnspec(*judge).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--sessions freezes a file of yours: add --workloads FILE"),
        (("--workloads", "none.jsonl"), "none.jsonl: no such file"),
        (("--workloads", FILE, "--workload", "slot_reuse"), "no session 'slot_reuse' (did you mean"),
        (("--workloads", FILE, "--check"), "--check has no meaning with --sessions"),
        (("gdn_decode_k_last", "--workloads", FILE), "--sessions takes a family instead of a definition"),
        (("--workloads", ROOT / "definitions/gdn/gdn_decode_k_last/workloads.jsonl"), "not of sessions"),
    ],
)
def test_freezing_sessions_refuses_what_makes_no_sense(
    gdnspec: Run, words: tuple[str | Path, ...], message: str
) -> None:
    before = FILE.read_bytes()
    done = gdnspec("workloads", "freeze", "--sessions", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert FILE.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("generate", "--sessions", "--lengths", "1,2"), "--lengths has no meaning with --sessions"),
        (("generate", "gdn_verify_k_last", "--sessions"), "--sessions takes a family instead of a definition"),
        (("generate", "kda", "--sessions"), "the family 'kda' has no sessions (valid: gdn)"),
        (("generate", "--sessions", "--states", "float16"), "no states 'float16'"),
        (("generate", "--states", "float32"), "--states, --convolution and --pooled describe sessions"),
        (("generate",), "name a DEFINITION"),
        (("from-requests", "LOG", "--sessions", "--definition", "gdn_verify_k_last"), "--definition has no meaning"),
        (("from-requests", "LOG", "--sessions", "--layers", "3"), "--layers has no meaning with --sessions"),
        (("from-requests", "LOG", "--shorten", "3"), "--requests and --shorten describe sessions"),
        (("from-requests", "LOG", "--pooled"), "--states, --convolution and --pooled describe sessions"),
        (("from-requests", "LOG", "--sessions", "--pooled", "--states", "float16"), "no states 'float16'"),
        (("from-requests", "LOG", "--sessions", "--drafts", "1", "--states", "bfloat16"), "in slots: add --pooled"),
        (("from-requests", "LOG", "--sessions", "--pooled"), "log.jsonl: No such file"),
        (("from-requests", "LOG"), "name a --definition"),
        (("from-requests", "LOG", "--sessions"), "log.jsonl: No such file"),
    ],
)
def test_generators_refuse_what_makes_no_sense(
    gdnspec: Run, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    given = [str(tmp_path / "log.jsonl") if word == "LOG" else word for word in words]
    done = gdnspec("workloads", *given, "--preset", "synthetic-gva-1x2-d64", "-o", tmp_path / "out")
    assert done.returncode == 2
    assert message in done.stderr


REQUESTS = [(0, 70, 3, [1, 9]), (1, 133, 2, [1, 2, 7]), (2, 131, 1, [1, 2, 8])]


def written(log: Path, *more: dict[str, object]) -> Path:
    """A log of these requests."""
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    rows = [dict(zip(names, row, strict=True)) for row in REQUESTS]
    log.write_text("".join(json.dumps(row) + "\n" for row in (*rows, *more)))
    return log


def test_long_sessions_are_told_before_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a session takes is known from its requests, and its budget takes minutes."""
    monkeypatch.setattr(sessions_from_log, "LONG", 100)
    monkeypatch.setattr(session_files, "write", lambda *args, **options: None)
    log = sessions_from_log.LogOptions(written(tmp_path / "log.jsonl"), None, "a,b,c", False, 1000, 64)
    engine = sessions_from_log.EngineOptions(256, 8, 0, 0.5, 16, 0)
    pool = sessions_from_log.PoolOptions("float32", False, False)
    sessions_from_log.write_sessions(log, engine, pool, "synthetic-gva-1x2-d64", tmp_path / "out", None, 8, 1, False)
    assert "1 session and 340 tokens, which takes a while: --reduce N takes the first N" in capsys.readouterr().err


def test_a_log_becomes_sessions(gdnspec: Run, tmp_path: Path) -> None:
    """Requests that share a block restore it, and answers are verified as the log's drafts say."""
    log = written(tmp_path / "log.jsonl")
    options = ("--preset", "synthetic-gva-1x2-d64", "--block-tokens", "64", "--drafts", "2", "--running", "1")
    done = gdnspec("workloads", "from-requests", log, "--sessions", *options, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    (line,) = [json.loads(text) for text in (tmp_path / "out/sessions.jsonl").read_text().splitlines()]
    done_steps = [step["do"] for step in line["steps"]]
    assert done_steps.count("restore") == 2
    assert "verify" in done_steps
    hits = [step["checkpoint"] for step in line["steps"] if step["do"] == "restore"]
    assert hits == ["b0", "b1"]
    pieces = [step["rows"][0]["tokens"] for step in line["steps"] if step["do"] == "prefill"]
    assert pieces == [70, 69, 3]
    assert gdnspec("validate", tmp_path / "out/sessions.jsonl").returncode == 0


def test_a_log_becomes_sessions_on_the_pool(gdnspec: Run, tmp_path: Path) -> None:
    """Drafts are set aside and settled, and a piece that starts within a block leaves a state at its edge."""
    log = written(tmp_path / "log.jsonl")
    options = ("--preset", "synthetic-gva-1x2-d64", "--block-tokens", "64", "--drafts", "1", "--running", "2")
    more = ("--step-tokens", "100", "--pooled", "--convolution", "-o", tmp_path / "out")
    done = gdnspec("workloads", "from-requests", log, "--sessions", *options, *more)
    assert done.returncode == 0, done.stderr
    (line,) = [json.loads(text) for text in (tmp_path / "out/sessions.jsonl").read_text().splitlines()]
    assert line["pooled"] and line["convolution"] and line["budget"]
    done_steps = [step["do"] for step in line["steps"]]
    assert {"draft", "settle"} <= set(done_steps)
    assert not {"verify", "commit"} & set(done_steps)
    rows = [row for step in line["steps"] if step["do"] == "prefill" for row in step["rows"]]
    assert [(row["request"], row["tokens"], [kept["at"] for kept in row.get("keep", [])]) for row in rows] == [
        ("r0", 70, [64]), ("r1", 30, []), ("r1", 64, []), ("r2", 36, []), ("r1", 39, [128]), ("r2", 31, []),
    ]  # fmt: skip
    places = {(row["request"], row["place"]) for step in line["steps"] if step["do"] == "draft" for row in step["rows"]}
    assert places == {("r0", 0), ("r1", 1)}


def test_a_wrong_log_makes_no_sessions(gdnspec: Run, tmp_path: Path) -> None:
    wrong = {"timestamp": 3, "input_length": -4, "output_length": 1, "hash_ids": []}
    log = written(tmp_path / "log.jsonl", wrong)
    options = ("--preset", "synthetic-gva-1x2-d64", "--block-tokens", "64", "--pooled", "-o", tmp_path / "out")
    done = gdnspec("workloads", "from-requests", log, "--sessions", *options)
    assert done.returncode == 2
    assert "log.jsonl: line 4: input_length: -4 is negative" in done.stderr
    assert not (tmp_path / "out").exists()
