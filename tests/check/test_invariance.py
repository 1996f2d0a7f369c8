"""Whether the bits of a sequence depend on its batch: what the judge says, and to what it holds a claim."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from gdnspec.catalog import badges
from gdnspec.catalog.solutions import load_solution
from gdnspec.catalog.traces import load_traces, save
from gdnspec.cli.selection import select, with_pieces
from gdnspec.model.batch_invariance import PIECE, answers, badge, invariant, pieces
from gdnspec.model.result import CheckResult, Outcome
from gdnspec.model.solution import Manifest
from helpers_known_bad import wrong
from helpers_traces import trace_of

DECODE, PREFILL = "gdn_decode_k_last", "gdn_prefill_k_last"
ROWS, SEQUENCES = "batch_8", "ragged"  # workloads of eight rows, and of 1, 63 and 65 tokens
OF_BATCHES = ("alone", "first", "last", "among_others", "other_lengths")


def asked(gdnspec: Run, *words: str | Path) -> tuple[int, list[dict[str, Any]], str]:
    done = gdnspec("check", *words, "--device", "cpu", "--invariance", "--seed", "5", "--json", "-")
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def copied(name: str, target: Path, **manifest: Any) -> Path:
    """A wrong solution with other promises; the folder above it."""
    folder = shutil.copytree(wrong(name), target / name)
    file = folder / "solution.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | manifest))
    return target


def test_a_kernel_that_takes_every_sequence_alike_keeps_its_bits(gdnspec: Run) -> None:
    words = [word for name in (ROWS, SEQUENCES) for word in ("--workload", name)]
    code, results, said = asked(gdnspec, DECODE, PREFILL, "--solution", "torch_recurrent", *words)
    assert code == 0, said
    decode, prefill = ({name: one["likeness"] for name, one in result["invariance"].items()} for result in results)
    same = dict.fromkeys(("again", *OF_BATCHES), "same_bits")
    assert decode == {**same, "other_lengths": None, "graph": None, "pieces": None}
    assert prefill == {**same, "graph": None, "pieces": "same_bits"}
    assert results[0]["invariance"]["graph"]["message"] == "it needs a CUDA GPU"


def test_sums_over_the_batch_belong_to_no_row(gdnspec: Run) -> None:
    """A gradient of a weight has other bits in every other batch, and that says nothing about the rows."""
    words = ("gdn_gated_rms_norm_backward", "--solution", "torch_backward", "--workload", "strided_inputs")
    code, (result,), said = asked(gdnspec, *words)
    assert code == 0, said
    assert {result["invariance"][question]["likeness"] for question in OF_BATCHES[:4]} <= {"same_bits", "within_budget"}
    assert result["invariance"]["alone"]["compared"] == 3


@pytest.mark.parametrize(
    ("name", "definition", "workload", "unlike"),
    [
        ("bits_by_place_in_batch", DECODE, ROWS, {"alone", "first", "last", "among_others"}),
        ("bits_by_number_of_rows", DECODE, ROWS, {"alone", "among_others"}),
        ("bits_by_lengths_beside", PREFILL, SEQUENCES, {"alone", "other_lengths"}),
    ],
)
def test_what_depends_on_the_batch_is_seen_here_alone(
    gdnspec: Run, name: str, definition: str, workload: str, unlike: set[str]
) -> None:
    words = (definition, "--solution", name, "--workload", workload, "--solutions-dir")
    code, (result,), _ = asked(gdnspec, *words, wrong(name).parent)
    found = {question for question in OF_BATCHES if result["invariance"][question]["likeness"] == "within_budget"}
    if definition == PREFILL:
        found -= {"among_others"}  # if the drawn part of the batch lacks the longest sequence
    assert (code, result["status"], found) == (1, "NOT_INVARIANT", unlike)
    assert "first at [" in result["message"]
    assert '"batch_invariant": true' in result["message"]
    assert "--invariance" in result["repeat"]


def test_a_claim_alone_is_held_to_without_the_option(gdnspec: Run, tmp_path: Path) -> None:
    name = "bits_by_lengths_beside"
    words = ("check", PREFILL, "--solution", name, "--workload", SEQUENCES, "--device", "cpu", "--json", "-")
    claims = gdnspec(*words, "--solutions-dir", wrong(name).parent)
    assert (claims.returncode, json.loads(claims.stdout)["status"]) == (1, "NOT_INVARIANT")
    assert json.loads(claims.stdout)["invariance"]["alone"]["likeness"] == "within_budget"
    silent = gdnspec(*words, "--solutions-dir", copied(name, tmp_path, batch_invariant=False))
    assert (silent.returncode, json.loads(silent.stdout)["invariance"]) == (0, {}), "it is within the budget"


def test_a_prefill_of_short_rows_gets_one_that_can_be_cut() -> None:
    short, long = select(["gdn_prefill_pool_k_last", "gdn_prefill_k_last"], None, None, None)
    (found, lines), unchanged = with_pieces([short, long])
    assert [line for line in lines if line.suite == "smoke"] == short[1]
    (more,) = [line for line in lines if line.suite != "smoke"]
    assert max(more.sequence_lengths or ()) > PIECE
    assert found is short[0]
    assert unchanged == long


def test_options_that_it_would_ignore_are_refused(gdnspec: Run) -> None:
    given: list[tuple[str, ...]] = [
        ("--symmetries",), ("--repeat", "3"), ("--errors",), ("--watch",), ("--suite", "fresh"),
        ("--save", "--workloads", "mine.jsonl"),
    ]  # fmt: skip
    for words in given:
        done = gdnspec("check", DECODE, "--solution", "torch_recurrent", "--invariance", *words)
        assert done.returncode == 2, words
        assert words[0].strip("-") in done.stderr or words[-1] in done.stderr
    assert gdnspec("check", DECODE, "--save").returncode == 2


def test_a_variant_may_claim_what_the_solution_does_not() -> None:
    entry = {"entry": "kernel.py::run", "call": "return"}
    variants = {
        "slow": {"description": "x", "arguments": {"a": 1}, "batch_invariant": True},
        "other": {"description": "x", "arguments": {"a": 2}},
    }
    manifest = Manifest.model_validate({
        "schema_version": 1, "name": "one", "language": "python", "authors": ["x"], "license": "x",
        "description": "x", "sources": ["kernel.py"], "requires": {"device": "any"}, "deterministic": True,
        "entries": {DECODE: entry}, "variants": variants,
    })  # fmt: skip
    claims = [manifest.batch_invariant, *(manifest.as_variant(name).batch_invariant for name in variants)]
    assert claims == [False, True, False]


def result(workload: str, **likeness: Any) -> CheckResult:
    found = {question: Outcome(likeness=one, compared=1, message="here") for question, one in likeness.items()}
    return CheckResult(
        definition=DECODE, workload=workload, suite="smoke", solution="x", device="y", status="PASSED", invariance=found
    )


def test_the_worst_workload_counts() -> None:
    first = result("one", again="within_budget", alone="same_bits", pieces=None)
    second = result("two", again="same_bits", alone="within_budget", pieces="within_budget")
    found = {one.question: (one.words, one.workloads, one.message) for one in answers([first, second])}
    assert found["alone"] == ("within budget", 2, "two: here")
    assert found["pieces"] == ("within budget", 1, "two: here")
    assert invariant([first]) is True, "a repeat and pieces say nothing about the batch"
    assert badge(invariant([first, second]), pieces([first, second])) == "not batch-invariant; pieces: within budget"
    assert badge(invariant([first]), pieces([first])) == "batch-invariant"
    assert badge(None, None) == ""


def test_a_graph_alone_is_no_badge() -> None:
    """A workload of one sequence asks nothing about the rest of a batch. Its graph can deny the badge, not give it."""
    assert invariant([result("one", again="same_bits", alone=None, first=None, graph="same_bits")]) is None
    assert invariant([result("one", again="same_bits", alone=None, graph="within_budget")]) is False
    assert invariant([result("two", alone="same_bits", graph="within_budget")]) is False


def test_what_was_saved_is_a_badge_until_the_kernel_changes(gdnspec: Run, tmp_path: Path) -> None:
    name = "bits_by_number_of_rows"
    folder = copied(name, tmp_path, batch_invariant=False) / name
    words = ("--solution", name, "--solutions-dir", tmp_path)
    asked = ("--workload", ROWS, "--device", "cpu", "--invariance", "--save")
    done = gdnspec("check", DECODE, *words, *asked, "--json", tmp_path / "results.jsonl")
    assert done.returncode == 0, done.stderr
    assert f"{name} on {DECODE}: not batch-invariant" in done.stdout
    (file,) = folder.glob("traces/*.jsonl")
    (trace,) = load_traces(file, pytest.fail)
    assert (trace.workload, trace.batch_invariant, trace.pieces, trace.timing) == (ROWS, False, None, None)
    assert trace.command == shlex.join(["gdnspec", "check", DECODE, *map(str, (*words, *asked))])  # without --json
    said = f"{trace.device}: not batch-invariant"
    listed = {row["solution"]: row for row in json.loads(gdnspec("list", "solutions", "--json", *words[2:]).stdout)}
    assert listed[name]["invariance"] == said
    assert badges.summary([trace, trace.model_copy(update={"batch_invariant": True})]).endswith("on 1 of 2 definitions")
    (folder / "kernel.py").write_text((folder / "kernel.py").read_text() + "\n# changed\n")
    assert badges.found(load_solution(folder)) == []


def test_times_and_badges_of_one_workload_are_kept_together(tmp_path: Path) -> None:
    folder = copied("bits_by_number_of_rows", tmp_path) / "bits_by_number_of_rows"
    solution = load_solution(folder)
    timed = trace_of(folder, workload=ROWS)
    asked = timed.model_copy(update={"timing": None, "batch_invariant": True, "pieces": "same_bits"})
    for order in ([timed, asked], [asked, timed]):
        for trace in order:
            file = save(solution, trace)
        (kept,) = load_traces(file, pytest.fail)
        assert (kept.timing, kept.batch_invariant, kept.pieces) == (timed.timing, True, "same_bits")
        file.unlink()
    save(solution, asked)
    save(solution, timed.model_copy(update={"source_hash": "of other sources"}))
    (kept,) = load_traces(file, pytest.fail)
    assert (kept.batch_invariant, kept.pieces) == (None, None), "other sources were asked"
