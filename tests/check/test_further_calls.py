"""Calls after the first: with other lengths on the same memory, with the same content, and beside other work."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, Run
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.workloads import workloads
from gdnspec.check import other_lengths
from gdnspec.check.call import Answer, Content, Session
from gdnspec.check.repeat import BY_DEFAULT, Repeats
from gdnspec.check.symmetry import Transformation
from gdnspec.model import roles
from gdnspec.numerics.judge import Verdict
from gdnspec.sandbox.parent.process import Child
from helpers_further import checked, on_a_cpu
from helpers_known_bad import wrong
from helpers_unit import drawn

DECODE, PREFILL = "gdn_decode_k_last", "gdn_prefill_k_first"
CONV, LAYER = "gdn_conv1d_prefill", "gdn_layer_prefill"
Make = Callable[..., Path]
RIGHT = "def run(**inputs):\n    return decode_k_last(**inputs)\n"

# --- other lengths ----------------------------------------------------------------------------------------------

CHEAP = 700  # tokens: what the test has time for


def ragged(minimum: int = 2) -> list[str]:
    """The rows of the prefill with sequences whose lengths could be kept."""
    rows = [row for row in workloads(definition(PREFILL)) if row.device == "any" and row.sequence_lengths]
    return [row.name for row in rows if row.axes["num_seqs"] >= minimum and 0 < row.axes["total_seq_len"] <= CHEAP]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "step"),  # the quick run has one row in fifteen
    [
        ("lengths_by_identity", 15),
        *(
            pytest.param(f"lengths_{x}", 1, marks=pytest.mark.thorough)
            for x in ("by_identity", "by_address", "by_address_and_shape", "of_first_call")
        ),
    ],
)
def test_who_keeps_lengths_is_rejected_on_every_ragged_row(gdnspec: Run, name: str, step: int) -> None:
    rows = ragged()
    rows = sorted({"ragged", *rows[::step]}, key=rows.index)
    assert len(rows) > 60 / step
    options = [word for row in rows for word in ("--workload", row)]
    results, _ = checked(gdnspec, wrong(name), PREFILL, *options)
    passed = [row for row in rows if results[row]["status"] == "PASSED"]
    assert not passed
    assert "in the same memory, with other lengths of sequences" in results["ragged"]["message"]


BOUNDS = """
def prepare(cu_seqlens, **more):
    return cu_seqlens.tolist()

def run(q, k, v, g, beta, cu_seqlens, initial_state, scale, prepared):
    bounds = torch.tensor(BOUNDS or prepared)
    # here
    return prefill_k_first(q, k, v, g, beta, bounds, initial_state, scale)

BOUNDS = []
"""
RULE = (ROOT / "solutions" / "torch_recurrent" / "kernel.py").read_text()


@pytest.mark.parametrize(("then", "status"), [("", "PASSED"), ("BOUNDS[:] = bounds.tolist()", "INCORRECT_NUMERICAL")])
@pytest.mark.parametrize("workload", ["ragged", "single_tokens"])
def test_prepare_is_told_of_other_lengths(
    gdnspec: Run, make_solution: Make, then: str, status: str, workload: str
) -> None:
    entry = {"entry": "kernel.py::run", "call": "return", "prepare": "kernel.py::prepare", "supports": []}
    folder = make_solution(f"{RULE}\n{BOUNDS.replace('# here', then)}", entries={PREFILL: entry})
    results, said = checked(gdnspec, folder, PREFILL, "--workload", workload, "--repeat", "1", "--symmetries")
    assert results[workload]["status"] == status, said


@pytest.mark.parametrize(
    ("which", "sizes", "more"),
    [
        (PREFILL, (7, 7, 7), {}), (PREFILL, (1, 1), {}), ("gdn_prefill_checkpoints", (130, 130, 130), {}),
        ("gdn_chunk_state", (70, 70), {}), ("gdn_chunk_output", (64, 64), {}), (CONV, (3, 3, 3), {}),
        ("gdn_prefill_from_conv", (9, 9), {}), (LAYER, (5, 5), {}),
    ],
)  # fmt: skip
def test_bounds_move_and_leave_every_size_as_it_is(which: str, sizes: tuple[int, ...], more: dict[str, Any]) -> None:
    found = definition(which)
    inputs = drawn(found, lengths=sizes, **more)
    moved = other_lengths.moved(found.definition, inputs, torch.Generator().manual_seed(2))
    assert moved is not None
    name = "row_offsets" if "row_offsets" in inputs.tensors else "cu_seqlens"
    bounds = moved.tensors[name].data.tolist()
    assert bounds == moved.scope[name] != inputs.scope[name]
    assert (len(bounds), bounds[0], bounds[-1]) == (len(sizes) + 1, 0, sum(sizes))
    assert all(a <= b for a, b in pairwise(bounds))
    for tensor in found.definition.inputs:
        if tensor.bounds in roles.counted(found.definition):
            assert moved.scope[tensor.name][-1] == moved.scope[tensor.bounds] == inputs.scope[tensor.bounds]
    assert not list(found.definition.broken(moved.scope))
    assert moved.sha256 != inputs.sha256, "expected values are found by it"


@pytest.mark.parametrize(("which", "sizes"), [(PREFILL, (9,)), (PREFILL, (0, 0)), (PREFILL, (1100, 1100))])
def test_no_bounds_move_where_none_can_or_the_reference_takes_long(which: str, sizes: tuple[int, ...]) -> None:
    found = definition(which)
    assert other_lengths.moved(found.definition, drawn(found, lengths=sizes), torch.Generator()) is None


@pytest.mark.parametrize("seed", range(6))
def test_sequences_change_places_so_that_lengths_differ(seed: int) -> None:
    found = definition(CONV)
    content = Content.of(drawn(found, lengths=(4, 4, 4, 5)), "cpu")
    relaid = other_lengths.permuted(found.definition, content, {}, lambda x: [], torch.Generator().manual_seed(seed))
    assert relaid is not None
    tensors = relaid.content.tensors
    assert tensors["cu_seqlens"].tolist() != content.tensors["cu_seqlens"].tolist()
    assert sorted(tensors["slots"].tolist()) == sorted(content.tensors["slots"].tolist())
    assert {n: x.shape for n, x in tensors.items()} == {n: x.shape for n, x in content.tensors.items()}


# --- the same again ---------------------------------------------------------------------------------------------


def test_one_call_in_seven_that_is_wrong_shows_where_calls_are_repeated(gdnspec: Run) -> None:
    folder = wrong("wrong_every_seventh_call")
    results, _ = checked(gdnspec, folder, DECODE, "--workload", "batch_8")
    assert results["batch_8"]["status"] == "PASSED", "it is right on the calls that there are by default on a CPU"
    results, _ = checked(gdnspec, folder, DECODE, "--workload", "batch_8", "--repeat", "20")
    assert results["batch_8"]["status"] == "INCORRECT_NUMERICAL"
    assert "in repeat 5 of 20, which was correct before" in results["batch_8"]["message"]
    assert "--repeat 20" in results["batch_8"]["repeat"]


COUNTED = """
CALLS = []

def run(**inputs):
    o, S = decode_k_last(**inputs)
    CALLS.append(1)
    return o, S * {factor} if len(CALLS) == {wrong} else S
"""
PLACES = {
    3: "in repeat 1 of 1",
    4: "in call 1 beside other kernels",
    5: "in call 1 on two streams at once",
    6: "second set",
}


@pytest.mark.parametrize("wrong", PLACES)
@pytest.mark.parametrize(
    ("factor", "deterministic", "status"),
    [("1.1", False, "INCORRECT_NUMERICAL"), ("(1 + 1e-6)", True, "NOT_REPRODUCIBLE"), ("(1 + 1e-6)", False, "PASSED")],
)
def test_each_kind_of_call_is_judged_and_named(
    gdnspec: Run, make_solution: Make, wrong: int, factor: str, deterministic: bool, status: str
) -> None:
    folder = make_solution(COUNTED.format(factor=factor, wrong=wrong), deterministic=deterministic)
    results, said = checked(gdnspec, folder, DECODE, "--workload", "one_row", "--repeat", "1")
    assert results["one_row"]["status"] == status, said
    if status != "PASSED":
        assert PLACES[wrong] in results["one_row"]["message"]


SHARES_A_BUFFER = """
KEPT = {}

def prepare(q, **more):
    KEPT["q"] = q  # one for all sets of buffers: that which was prepared last

def run(q, prepared, **more):
    return decode_k_last(KEPT["q"], **more)
"""


def test_a_second_set_of_buffers_shows_what_all_calls_share(gdnspec: Run, make_solution: Make) -> None:
    entry = {"entry": "kernel.py::run", "call": "return", "prepare": "kernel.py::prepare", "supports": []}
    folder = make_solution(SHARES_A_BUFFER, entries={DECODE: entry})
    results, _ = checked(gdnspec, folder, DECODE, "--workload", "batch_8")
    assert results["batch_8"]["status"] == "PASSED"
    results, _ = checked(gdnspec, folder, DECODE, "--workload", "batch_8", "--repeat", "1")
    assert results["batch_8"]["status"] == "INCORRECT_NUMERICAL"
    assert "on two streams at once" in results["batch_8"]["message"]


class Ticks:
    """A clock that a test turns: so many seconds later each time that it is read."""

    def __init__(self, each: float) -> None:
        self.now, self.each = 0.0, each

    def __call__(self) -> float:
        self.now += self.each
        return self.now


@pytest.mark.parametrize(("each", "calls"), [(0.0, 20), (0.225, 5), (100.0, 1)])
def test_repeats_by_default_end_when_their_time_is_up(
    make_solution: Make, monkeypatch: pytest.MonkeyPatch, each: float, calls: int
) -> None:
    job, content = on_a_cpu(make_solution(RIGHT), DECODE, "one_row")
    monkeypatch.setitem(BY_DEFAULT, "cpu", 20)
    done: list[str] = []

    class Listed(Repeats):
        def _same(self, answer: Answer, where: str, changes: list[Transformation] | None = None) -> Verdict | None:
            done.append(where)
            return super()._same(answer, where, changes)

    def judge(outputs: dict[str, torch.Tensor]) -> list[Verdict]:
        raise AssertionError("every call gives what the first one gave")

    with Child(job.solution, "cpu", False) as child:
        child.load(job.entry.model_dump())
        with Session(job, content, "cpu", child, 30.0) as session:
            first = session.call().outputs
            assert Listed(job, content, session, first, judge, Ticks(each)).verdict([]) is None
    plain = [where for where in done if where.startswith("in repeat")]
    assert plain == [f"in repeat {i + 1} of 20" for i in range(calls)]
    assert sum("beside" in where for where in done) == 3, "other work is run beside whatever the time"


# --- on a GPU ---------------------------------------------------------------------------------------------------

RACES = """
SHARED = {}

def run(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
    held = SHARED.setdefault(q.shape, torch.empty_like(q))  # one buffer for calls on any stream
    held.copy_(q)
    torch.cuda._sleep(20_000_000)
    return decode_k_last(held, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)
"""


@pytest.mark.gpu
@pytest.mark.parametrize(("code", "status"), [(RIGHT, "PASSED"), (RACES, "INCORRECT_NUMERICAL")])
def test_calls_on_two_streams_do_not_share_a_buffer(gdnspec: Run, make_solution: Make, code: str, status: str) -> None:
    folder = make_solution(code)
    done = gdnspec(
        "check", DECODE, "--solutions-dir", folder.parent, "--solution", folder.name, "--device", "cuda",
        "--workload", "batch_8", "--json", "-",
    )  # fmt: skip
    (result,) = map(json.loads, done.stdout.splitlines())
    assert result["status"] == status, result["message"]
    if status != "PASSED":
        assert "on two streams at once" in result["message"]


@pytest.mark.gpu
def test_repeats_are_the_default_on_a_gpu(gdnspec: Run) -> None:
    done = gdnspec(
        "check", DECODE, "--solutions-dir", wrong("wrong_every_seventh_call"), "--solution", "wrong_every_seventh_call",
        "--device", "cuda", "--workload", "batch_8", "--json", "-",
    )  # fmt: skip
    (result,) = map(json.loads, done.stdout.splitlines())
    assert result["status"] == "INCORRECT_NUMERICAL"
    assert "of 20, which was correct before" in result["message"]
