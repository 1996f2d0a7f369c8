"""gdnspec bench on a CPU: the same ring, windows and witnesses as on a GPU; its times are labelled and never ranked."""

import json
import random
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import steady
import torch
from conftest import ROOT, Run
from gdnspec.bench.measure import Measurer, _without
from gdnspec.bench.ring_layout import most_calls
from gdnspec.bench.speed import Contestant, Race
from gdnspec.bench.statistics import ratio, summary
from gdnspec.build import machine
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.solutions import Solution, load_solution
from gdnspec.catalog.workloads import workloads
from gdnspec.check.call import Content
from gdnspec.check.plan import plan
from gdnspec.check.run import Checker, Options
from gdnspec.model.trace import Ceilings, Missing, Trace
from gdnspec.numerics.floor import BELIEVED, Work, bound, floor, work
from gdnspec.report.units import shown_time
from gdnspec.sandbox.parent.process import Child
from gdnspec.sandbox.wire.arena import create
from helpers_unit import line

ARGS = "(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)"
HEAD = f"def run{ARGS}:\n"
RIGHT = f"return decode_k_last{ARGS}"

Make = Callable[..., Path]


def timed(
    gdnspec: Run, folder: Path, *more: str, device: str = "cpu", clock: Callable[[], None] | None = steady.both
) -> tuple[int, Trace, str]:
    """One solution on one small workload; exit code, trace, and what was said. On a CPU by the clocks of `steady`, or
    by the machine's where `clock` is None; on a GPU by the machine's."""
    file = folder.parent.parent / "t.jsonl"
    file.unlink(missing_ok=True)
    done = gdnspec(
        "bench", "gdn_decode_k_last", "--device", device, "--solutions-dir", folder.parent, "--solution", folder.name,
        "--workload", "one_row", "--seconds", "0.5", "--seed", "5", "--json", file, *more,
        before=clock if device == "cpu" else None,
    )  # fmt: skip
    (line,) = file.read_text().splitlines()
    return done.returncode, Trace.model_validate(json.loads(line)), done.stdout + done.stderr


def test_a_right_solution_has_a_time_with_all_its_parts(gdnspec: Run, make_solution: Make) -> None:
    code, trace, said = timed(gdnspec, make_solution(HEAD + "    " + RIGHT))
    assert (code, trace.status) == (0, "PASSED"), trace.message
    timing = trace.timing
    assert timing is not None
    assert timing.method == "cpu"
    once, twice = (steady.ONCE + steady.CALL * timing.witness.calls * factor for factor in (1, 2))
    assert (timing.witness.once, timing.witness.twice) == pytest.approx((once, twice))
    of_a_call = (*timing.interval, timing.median, timing.p10, timing.p90, timing.witness.per_call, timing.host)
    assert of_a_call == pytest.approx([steady.CALL] * 7), "what a window costs once is in none of them"
    assert timing.samples >= 3
    assert timing.calls == 3 * timing.witness.calls * timing.samples
    assert timing.timed > timing.samples * (once + twice) * 0.99
    assert trace.outputs, "errors against the budget are part of it"
    assert trace.command.endswith("--seed 5")  # and not where the copy went
    assert not trace.ranked, "a CPU is shown, never ranked"
    assert "cpu: wall time on a CPU: shown, never ranked" in said


def test_by_the_machines_clocks_it_is_right_however_busy_they_are(gdnspec: Run, make_solution: Make) -> None:
    """What others do may leave no figure that is believed; it makes no output wrong."""
    code, trace, said = timed(gdnspec, make_solution(HEAD + "    " + RIGHT), clock=None)
    assert trace.status in ("PASSED", "SUSPECT_TIMING"), trace.message
    assert code == int(trace.status != "PASSED"), said
    assert trace.outputs
    if trace.timing is not None:
        assert trace.timing.witness.once > 0
        assert trace.timing.witness.twice > 0
        assert trace.timing.verification > 0


class Counting(Child):
    """Its clock is the number of calls that the solution has made: a millisecond each."""

    def made(self) -> float:
        return 1e-3 * (self._work / "calls").stat().st_size

    def window(self, calls: int, *more: Any, **named: Any) -> tuple[float, dict[str, Any]]:
        before = self.made()
        super().window(calls, *more, **named)
        took = self.made() - before
        return took, {"device": took, "host": took}


def test_a_window_is_as_long_as_its_calls(make_solution: Make) -> None:
    """Each window makes exactly the calls that are asked for, and all of them between the two looks at the clock."""
    solution = load_solution(make_solution(f"{HEAD}    open('calls', 'a').write('x')\n    {RIGHT}"))
    with Counting(solution, "cpu", False) as child:
        contestant = raced(solution, child)
    assert contestant.verdict is None, contestant.verdict
    witness, device = contestant.rounds.witness, contestant.rounds.device
    found = (witness.once, witness.twice, witness.per_call, *device)
    assert found == pytest.approx((witness.calls * 1e-3, witness.calls * 2e-3, 1e-3, *[1e-3] * len(device)))
    assert witness.calls >= 3
    assert contestant.suspicion(None) is None


def raced(solution: Solution, child: Child) -> Contestant:
    """Alone, on one small workload."""
    found, where = definition("gdn_decode_k_last"), machine.device("cpu")
    line = next(w for w in workloads(found) if w.name == "one_row")
    assert where is not None
    (job,) = plan([solution], [(found, [line])], where)
    contestant = Contestant(job, Checker("cpu", Options(), print).case(job), child)
    Race([contestant], seconds=0.2, timeout=60, seed=1).run()
    return contestant


CHEATS = {
    # name: (body, statuses)
    "keeps_its_first_answer": (
        f"""
        import builtins
        if not hasattr(builtins, "kept"):
            builtins.kept = {{}}
        key = (v.data_ptr(), len(builtins.kept))
        if len(builtins.kept) < 6:
            builtins.kept[key] = decode_k_last{ARGS}
            return builtins.kept[key]
        return next(iter(builtins.kept.values()))
        """,
        {"INCORRECT_NUMERICAL"},
    ),
    "stops_working_when_it_is_timed": (
        f"""
        if timed_calls() % 7 == 1:
            return torch.zeros_like(v), torch.zeros_like(state)
        {RIGHT}
        """,
        {"INCORRECT_NUMERICAL"},
    ),
    "one_call_in_many_is_wrong": (
        f"""
        o, s = decode_k_last{ARGS}
        if timed_calls() == 20:
            s[0, 1, 7, 3] += 1.0
        return o, s
        """,
        {"INCORRECT_NUMERICAL"},
    ),
    "works_later": (
        f"""
        import threading
        if not timed_calls():
            {RIGHT}
        o, s = torch.full_like(v, float("nan")), torch.full_like(state, float("nan"))
        import builtins
        if hasattr(builtins, "called_again"):
            builtins.called_again.set()
        called_again = builtins.called_again = threading.Event()
        def later():
            called_again.wait()  # the last call of a window waits for the next window
            x, y = decode_k_last{ARGS}
            o.copy_(x), s.copy_(y)
        threading.Thread(target=later, daemon=True).start()
        return o, s
        """,
        {"NON_FINITE"},
    ),
    "writes_beside_while_its_time_is_estimated": (
        f"""
        if timed_calls() == 2:
            v.as_strided((1,), (1,), v.storage_offset() + v.numel()).zero_()
        {RIGHT}
        """,
        {"RUNTIME_ERROR"},
    ),
    "writes_beside_in_a_timed_call": (
        f"""
        if timed_calls() == 23:  # 22 at most are for an estimate
            v.as_strided((1,), (1,), v.storage_offset() + v.numel()).zero_()
        {RIGHT}
        """,
        {"RUNTIME_ERROR"},
    ),
    "replaces_the_timer": (
        f"""
        import time
        now = time.perf_counter
        time.perf_counter = lambda: now() / 10
        {RIGHT}
        """,
        {"TAMPERED"},
    ),
    "forges_what_the_worker_says": (
        f"""
        from gdnspec.sandbox.child import loop
        honest = loop.Worker._window
        def window(self, message):
            tenth = message["calls"] * 3e-5  # of what the judge's clock says
            return {{**honest(self, message), "device": tenth, "host": tenth}}
        if not hasattr(loop, "mine"):
            loop.mine = True
            loop.Worker._window = window
        {RIGHT}
        """,
        {"SUSPECT_TIMING"},
    ),
    "says_that_it_took_no_time": (
        f"""
        from gdnspec.sandbox.child import loop
        honest = loop.Worker._window
        def window(self, message):
            return {{**honest(self, message), "device": "none at all", "host": -1}}
        if not hasattr(loop, "mine"):
            loop.mine = True
            loop.Worker._window = window
        {RIGHT}
        """,
        {"SUSPECT_TIMING"},
    ),
}  # fmt: skip


# Their figures are beside the judge's own, which the test makes.
LIARS = {"forges_what_the_worker_says", "says_that_it_took_no_time"}


@pytest.mark.parametrize("name", CHEATS)
def test_a_timing_cheat_is_caught(gdnspec: Run, make_solution: Make, name: str) -> None:
    body, statuses = CHEATS[name]
    folder = make_solution(HEAD + textwrap.indent(textwrap.dedent(body), "    "), name="cheat", deterministic=False)
    code, trace, _ = timed(gdnspec, folder, clock=steady.judges if name in LIARS else steady.both)
    assert code == 1
    assert trace.status in statuses, (trace.status, trace.message)
    assert not trace.ranked
    if trace.status != "SUSPECT_TIMING":
        assert trace.timing is None, "what is wrong has no time"


def test_baselines_run_in_turns_and_saved_traces_are_valid(gdnspec: Run, make_solution: Make) -> None:
    folder = make_solution(HEAD + "    " + RIGHT)
    twin = make_solution(HEAD + "    " + RIGHT, name="twin")
    _, trace, said = timed(gdnspec, folder, "--against", "twin", "--save")
    (found,) = trace.against
    assert found.baseline == "twin"
    assert (*found.interval, found.ratio) == pytest.approx([steady.PACE["twin"]] * 3), said
    (saved,) = (folder / "traces").glob("*.jsonl")
    assert Trace.model_validate(json.loads(saved.read_text())) == trace
    assert not (twin / "traces").exists(), "a baseline is not what was asked for"
    assert gdnspec("validate", folder).returncode == 0
    timed_again = gdnspec(
        "bench", "gdn_decode_k_last", "--device", "cpu", "--solutions-dir", folder.parent, "--solution", folder.name,
        "--workload", "one_row", "--seconds", "0.3", "--save", before=steady.both,
    )  # fmt: skip
    assert timed_again.returncode == 0
    assert len(saved.read_text().splitlines()) == 1, "measured again, the line is replaced"


def test_baselines_keep_traces_of_their_own_where_that_is_asked_for(gdnspec: Run, make_solution: Make) -> None:
    folder = make_solution(HEAD + "    " + RIGHT)
    twin = make_solution(HEAD + "    " + RIGHT, name="twin")
    wrong = make_solution(HEAD + "    " + RIGHT.replace("return ", "return 2 * "), name="wrong")
    _, trace, _ = timed(gdnspec, folder, "--against", "twin,wrong", "--save-baselines")
    assert len(list((folder / "traces").glob("*.jsonl"))) == 1
    (saved,) = (twin / "traces").glob("*.jsonl")
    its = Trace.model_validate(json.loads(saved.read_text()))
    assert (its.solution, its.status, its.recorded[:10]) == ("twin", "PASSED", trace.recorded[:10])
    (mine,), (theirs,) = trace.against, its.against
    assert its.timing is not None and its.timing.median == mine.median
    assert theirs.baseline == folder.name and theirs.ratio == pytest.approx(1 / mine.ratio)
    assert not (wrong / "traces").exists(), "what is wrong is not timed"
    assert gdnspec("validate", twin).returncode == 0


def test_a_baseline_without_a_ratio_is_named_and_why(gdnspec: Run, make_solution: Make) -> None:
    folder = make_solution(HEAD + "    " + RIGHT)
    make_solution(HEAD + f"    o, s = decode_k_last{ARGS}\n    return o, s * 1.01", name="wrong")
    stale = """
    global kept
    kept = globals().get("kept") or (decode_k_last%s)
    return kept
    """
    make_solution(HEAD + textwrap.indent(textwrap.dedent(stale % ARGS), "    "), name="stale", deterministic=False)
    code, trace, said = timed(gdnspec, folder, "--against", "wrong,stale")
    assert (code, trace.status, trace.against) == (0, "PASSED", [])
    assert [lost.baseline for lost in trace.missing] == ["wrong", "stale"]
    for lost in trace.missing:
        assert lost.status.startswith("INCORRECT"), lost
        assert lost.why
        assert f"no ratio to {lost.baseline}" in said


def test_what_is_wrong_or_interpreted_is_not_timed(gdnspec: Run, make_solution: Make) -> None:
    wrong = make_solution(HEAD + f"    o, s = decode_k_last{ARGS}\n    return o, s * 1.01", name="wrong")
    code, trace, _ = timed(gdnspec, wrong)
    assert (code, trace.status, trace.timing) == (1, "INCORRECT_NUMERICAL", None)
    done = gdnspec("bench", "gdn_decode_k_last", "--device", "cpu", "--solution", "triton_recurrent")
    assert done.returncode == 3
    assert "so it is not timed" in done.stdout + done.stderr


def sampled(make_solution: Make, body: str, name: str, **more: Any) -> Trace:
    """The trace of a workload of nine rows, of which three rows and three groups of heads are judged."""
    found, where = definition("gdn_decode_k_last"), machine.device("cpu")
    assert where is not None
    judged = {"sequences": 3, "heads": 3}
    large = line(found, "synthetic-gva-256x512-d8", drawn="device", judged=judged, batch=9, suite="performance")
    (job,) = plan([load_solution(make_solution(HEAD + body, name=name, **more))], [(found, [large])], where)
    with Measurer(Checker("cpu", Options(), print), None, 0.2, "gdnspec bench", 1) as measurer:
        return measurer.trace(job, [])


def test_what_is_judged_on_a_sample_is_timed_whole(make_solution: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are judged so where they are timed, because their truth would need tens of gigabytes."""
    monkeypatch.setattr(Child, "window", steady.window)
    trace = sampled(make_solution, "    " + RIGHT, "right")
    assert (trace.status, trace.message) == ("PASSED", "")
    assert trace.timing is not None
    assert trace.timing.bytes > 2 * 9 * 512 * 8 * 8 * 4, "all nine states, read and written"
    trace = sampled(make_solution, f"    o, s = decode_k_last{ARGS}\n    return o, s * 1.01", "wrong")
    assert (trace.status, trace.timing) == ("INCORRECT_NUMERICAL", None)


def test_a_timed_call_is_looked_at_outside_of_the_sample_too(
    make_solution: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that promises only its budget may have other bits in each call, but no row of zeros."""
    monkeypatch.setattr(Child, "window", steady.window)
    monkeypatch.setattr(Contestant, "judge", lambda self, outputs: [])  # rows change places: as if no sample had these
    body = """
    o, s = decode_k_last%s
    globals()["calls"] = globals().get("calls", 0) + 1
    if calls > 40:
        s[3] = 0
    return o, s
    """
    body = textwrap.indent(textwrap.dedent(body % ARGS), "    ")
    trace = sampled(make_solution, body, "later", deterministic=False)
    assert trace.status == "INCORRECT_NUMERICAL", (trace.status, trace.message)
    assert "outside the judged sample" in trace.message


def test_without_a_gpu_it_says_what_it_can_do_instead(gdnspec: Run) -> None:
    done = gdnspec("bench", "gdn_decode_k_last", env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 3
    assert "--device cpu" in done.stderr
    assert "never ranked" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--against", "no_such"), "no solution 'no_such'"),
        (("--suite", "fresh"), "no suite 'fresh'"),
        (("--workload", "no_such"), "no workload 'no_such'"),
    ],
)
def test_a_wrong_request_is_refused(gdnspec: Run, arguments: tuple[str, ...], says: str) -> None:
    done = gdnspec("bench", "gdn_decode_k_last", "--device", "cpu", *arguments)
    assert done.returncode == 2
    assert says in done.stderr


# --- statistics, floor and bound --------------------------------------------------------------------------------


def test_a_median_and_its_interval_by_hand() -> None:
    found = summary([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (found.median, found.interval, found.count) == (3.0, (1.0, 5.0), 5)
    assert (found.p10, found.p90) == (pytest.approx(1.4), pytest.approx(4.6))
    assert summary([2.0]).interval == (2.0, 2.0)
    with pytest.raises(ValueError, match="no samples"):
        summary([])


@pytest.mark.parametrize("n", [8, 20, 33, 100])
def test_the_interval_holds_the_median_in_95_of_100_runs(n: int) -> None:
    source = random.Random(n)
    hits = 0
    for _ in range(2000):
        low, high = summary([source.lognormvariate(0, 0.3) for _ in range(n)]).interval
        hits += low <= 1.0 <= high
    assert 0.94 < hits / 2000 < 0.999


def test_a_ratio_is_taken_pair_by_pair() -> None:
    """Both slow down together: the quotient does not move."""
    drift = [1.0, 2.0, 3.0, 4.0]
    found = ratio([2 * x for x in drift], drift)
    assert found is not None
    assert (found.median, *found.interval) == pytest.approx((2.0, 2.0, 2.0))


def test_the_inverse_of_a_ratio_is_the_ratio_of_the_inverse() -> None:
    """Of few rounds that have little in common, and where some took no time: it says nothing in either direction."""
    a, b = [1.0, 9.0, 2.0, 0.0, 1.0, 3.0], [3.0, 1.0, 1.0, 1.0, 0.0, 2.0]
    found, inverse = ratio(a, b), ratio(b, a)
    assert found is not None
    assert inverse is not None
    assert found.count == inverse.count == 4
    assert found.median == pytest.approx(1 / inverse.median)
    assert found.interval == pytest.approx((1 / inverse.interval[1], 1 / inverse.interval[0]))
    assert ratio([0.0, 1.0], [1.0, 0.0]) is None


def test_floor_and_bound_by_hand() -> None:
    limits = Ceilings(copy_bandwidth=4e12, matrix_rate=8e14, nominal_bandwidth=4.8e12, nominal_rate=1e15)
    moves, computes = Work(bytes=48_000_000, operations=10**9), Work(bytes=1000, operations=10**12)
    assert floor(moves, limits) == pytest.approx(BELIEVED * 1e-5)
    assert floor(computes, limits) == pytest.approx(BELIEVED * 1e-3)
    assert bound(moves, limits) == (pytest.approx(1.2e-5), "memory")
    assert bound(computes, limits) == (pytest.approx(1.25e-3), "compute")
    assert floor(moves, limits.model_copy(update={"nominal_rate": None})) is None


@pytest.mark.parametrize(("name", "certain"), [("in_place", True), ("shared", False), ("skips", False)])
def test_no_time_is_too_short_where_rows_are_skipped_or_share_a_slot(name: str, certain: bool) -> None:
    """A state that several rows begin from is read once, and a row that is skipped moves nothing."""
    limits = Ceilings(copy_bandwidth=4e12, matrix_rate=8e14, nominal_bandwidth=4.8e12, nominal_rate=1e15)
    found = definition("gdn_decode_pool_k_last")
    (line,) = (line for line in workloads(found) if line.name == name)
    assert (floor(work(found, line), limits) is not None) == certain


def test_the_work_of_a_decode_is_its_state_twice_and_little_more() -> None:
    found = definition("gdn_decode_k_last")
    line: Any = next(w for w in workloads(found) if w.name == "16x32_batch_64")
    call = work(found, line)
    states = 2 * 64 * 32 * 128 * 128 * 4
    assert states < call.bytes < 1.02 * states
    assert call.operations == 7 * 64 * 32 * 128 * 128


def test_a_ring_lies_in_memory_that_was_kept_for_it(make_solution: Make) -> None:
    """On a GPU it is taken before anything else; where it lies makes no difference to content, calls or verdicts."""
    found = definition("gdn_decode_k_last")
    line = next(w for w in workloads(found) if w.name == "one_row")
    where = machine.device("cpu")
    assert where is not None
    solution = load_solution(make_solution(HEAD + "    " + RIGHT))
    (job,) = plan([solution], [(found, [line])], where)
    checker = Checker("cpu", Options(), print)
    kept = create("cpu", 256 << 20)
    with Child(solution, "cpu", False) as child:
        contestant = Contestant(job, checker.case(job), child, reserve=kept)
        Race([contestant], seconds=0.2, timeout=60, seed=1).run()
        assert contestant.verdict is None, contestant.verdict
        assert contestant.ring is not None
        assert contestant.ring.nbytes < kept.nbytes
        assert len(contestant.rounds.all) >= 3
    assert kept.block is not None, "it outlives the ring"
    assert bool(kept.block.any()), "and the ring lay in it"
    kept.close()


def test_work_left_on_another_stream_is_suspect_though_no_clock_shows_it(
    make_solution: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches that take longer than the work hide it: what CUDA says of the capture does not depend on time."""
    monkeypatch.setattr(Child, "window", steady.window)
    solution = load_solution(make_solution(HEAD + "    " + RIGHT))
    with Child(solution, "cpu", False) as child:
        contestant = raced(solution, child)
    assert contestant.suspicion(None) is None
    contestant.why_no_graph = "RuntimeError: operation not permitted when stream is capturing"
    assert contestant.suspicion(None) is None, (
        "a solution that cannot be captured is timed by events, and may be honest"
    )
    contestant.why_no_graph = "AcceleratorError: CUDA error: capturing stream has unjoined work"
    assert "does not wait for" in (contestant.suspicion(None) or "")


@pytest.mark.parametrize(
    ("clocks", "races", "believed"),
    [([2e-3], 1, True), ([2.3e-3, 2e-3], 2, True), ([2.3e-3] * 3, 3, False), ([1e-3, 3e-3, 2e-3], 3, True)],
)
def test_where_clocks_disagree_by_chance_a_new_process_is_raced(
    make_solution: Make, monkeypatch: pytest.MonkeyPatch, clocks: list[float], races: int, believed: bool
) -> None:
    """Calls of 2 ms by the device, and of these seconds by the judge's clock in one race after the other."""
    run, ended = iter(clocks), []

    class Fake(Race):
        def run(self, told: Callable[[int, float], None] = lambda rounds, spread: None) -> None:
            clock = next(run)
            for contestant in self.contestants:
                told(1, 0.0)
                contestant.rounds = steady.rounds([2e-3] * 5, "graph", clock)

    class Ending(Child):
        def end(self) -> None:
            ended.append(self.solution.name)

    monkeypatch.setattr("gdnspec.bench.measure.Race", Fake)
    found, where = definition("gdn_decode_k_last"), machine.device("cpu")
    line = next(w for w in workloads(found) if w.name == "one_row")
    assert where is not None
    solution = load_solution(make_solution(HEAD + "    " + RIGHT))
    (job,) = plan([solution], [(found, [line])], where)
    checker = Checker("cpu", Options(), print)
    monkeypatch.setattr(checker, "child", lambda job: Ending(job.solution, "cpu", False))
    measurer = Measurer(checker, None, 0.2, "", 1)
    (contestant,) = measurer._raced([job], lambda rounds, spread: None)
    assert next(run, None) is None, "all of these races, and no more"
    assert len(ended) == races - 1, "each race after the first is of a new process"
    assert (contestant.suspicion(None) is None) == believed


def test_a_baseline_that_took_no_time_is_named_and_has_no_ratio() -> None:
    nobody: Any = None
    job: Any = SimpleNamespace(solution=SimpleNamespace(name="twin"))

    def lost(theirs: list[float], mine: list[float]) -> Missing | None:
        contestants = (
            Contestant(job, nobody, nobody, rounds=steady.rounds(device, "cpu")) for device in (theirs, mine)
        )
        return _without(*contestants, None)

    said = lost([0.0] * 3 + [1e-3] * 3, [1e-3] * 3 + [0.0] * 3)
    assert said is not None
    assert (said.baseline, "clock's resolution" in said.why) == ("twin", True)
    assert lost([0.0] * 3 + [1e-3] * 3, [1e-3] * 6) is None


def test_a_baseline_whose_time_is_not_believed_has_no_ratio() -> None:
    nobody: Any = None
    job: Any = SimpleNamespace(solution=SimpleNamespace(name="twin"))
    mine, honest, hidden = (
        Contestant(job, nobody, nobody, rounds=steady.rounds([device] * 5, "graph", clock))
        for device, clock in ((1e-3, 1e-3), (2e-3, 2e-3), (1e-6, 2e-3))
    )
    assert _without(honest, mine, 1e-4) is None
    for theirs, least, why in (
        (hidden, None, "by the judge's own clock"),
        (honest, 5e-3, "is less than the 5000.00 us"),
    ):
        said = _without(theirs, mine, least)
        assert said is not None
        assert (said.baseline, said.status, why in said.why) == ("twin", "SUSPECT_TIMING", True)


def test_a_baseline_that_is_not_raced_is_named_and_why(gdnspec: Run, make_solution: Make) -> None:
    folder = make_solution(HEAD + "    " + RIGHT)
    code, trace, said = timed(gdnspec, folder, "--against", f"torch_layer,{folder.name}")
    assert (code, trace.status, trace.against) == (0, "PASSED", [])
    assert "no ratio to torch_layer on gdn_decode_k_last: it does not serve gdn_decode_k_last" in said
    assert f"no ratio to {folder.name} on gdn_decode_k_last: no other solution was timed" in said


def test_a_broken_solution_is_told_of_though_others_are_timed(gdnspec: Run, make_solution: Make) -> None:
    make_solution(HEAD + "    " + RIGHT, name="good")
    folder = make_solution(HEAD + "    " + RIGHT, name="broken").parent
    (folder / "broken" / "solution.json").write_text("{")
    elsewhere = ("--solutions-dir", folder, "--device", "cpu", "--workload", "one_row", "--seconds", "0.1")
    done = gdnspec("bench", "gdn_decode_k_last", *elsewhere, before=steady.both)
    assert done.returncode == 2
    assert "broken/solution.json" in done.stderr
    assert "good" in done.stdout + done.stderr


def test_what_does_not_fit_is_unsupported_with_the_bytes_it_needs(
    make_solution: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = definition("gdn_decode_k_last")
    lines = [w for w in workloads(found) if w.name in ("one_row", "scale_zero")]
    where = machine.device("cpu")
    assert where is not None
    jobs = list(plan([load_solution(make_solution(HEAD + "    " + RIGHT))], [(found, lines)], where))
    room = Race._room

    def full(self: Race, contestant: Contestant, content: Any) -> int:
        if contestant.job.workload.name == "one_row":
            raise MemoryError("timing needs 300.0 GiB, 12.0 GiB are free")
        return room(self, contestant, content)

    monkeypatch.setattr(Race, "_room", full)
    monkeypatch.setattr(Child, "window", steady.window)
    with Measurer(Checker("cpu", Options(), print), None, 0.2, "gdnspec bench", 1) as measurer:
        traces = {job.workload.name: measurer.trace(job, []) for job in jobs}
    assert traces["one_row"].status == "UNSUPPORTED"
    assert "300.0 GiB" in traces["one_row"].message
    assert traces["scale_zero"].status == "PASSED", "the rest goes on"


def test_traces_are_never_appended_to_something_else(gdnspec: Run, tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text("def run(): ...\n")
    done = gdnspec("bench", "gdn_decode_k_last", "--device", "cpu", "--solution", "torch_recurrent",
                   "--workload", "one_row", "--json", file)  # fmt: skip
    assert done.returncode == 2
    assert "kernel.py: the file contains something other than results" in done.stderr
    assert file.read_text() == "def run(): ...\n"


@pytest.mark.parametrize(
    ("slots", "dtype", "calls"),
    [(83, torch.float32, 4096 // 80), (5000, torch.float32, None), (83, torch.float8_e4m3fn, 4 * 4096 // 80)],
)
def test_a_ring_asks_no_wider_offsets_than_the_workload(slots: int, dtype: torch.dtype, calls: int | None) -> None:
    """A pool that all calls share has slots for each, yet stays below 2^31 elements where the workload's own does. Of
    one byte it has four times as many: windows would be too short."""
    found = definition("gdn_verify_k_last")
    (line,) = (w for w in workloads(found) if w.name == "16x32_4_tokens_batch_16")
    indexes = {name: torch.tensor(values, dtype=torch.int32) for name, values in line.integers.items()}
    pool = torch.empty(slots, 32, 128, 128, device="meta", dtype=dtype)
    content = Content({"pool": pool, **indexes}, {}, {})
    assert most_calls(found.definition, content) == calls


def test_weighted_workloads_add_up_to_the_time_of_all_calls(gdnspec: Run, make_solution: Make, tmp_path: Path) -> None:
    folder = make_solution(HEAD + "    " + RIGHT)
    shipped = ROOT / "definitions" / "gdn" / "gdn_decode_k_last" / "workloads.jsonl"
    rows = [json.loads(line) for line in shipped.read_text().splitlines()]
    lines = [{**row, "weight": weight} for row in rows for name, weight in (("one_row", 7), ("batch_8", 3))
             if row["name"] == name]  # fmt: skip
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = (
        "bench", "gdn_decode_k_last", "--device", "cpu", "--solutions-dir", folder.parent, "--solution", folder.name,
        "--workloads", file, "--seconds", "0.3",
    )  # fmt: skip
    done = gdnspec(*command, "--json", tmp_path / "t.jsonl", before=steady.both)
    assert done.returncode == 0, done.stderr
    traces = [Trace.model_validate(json.loads(line)) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    weights = {line["name"]: line["weight"] for line in lines}
    total = sum(weights[t.workload] * t.timing.median for t in traces if t.timing)
    assert f"gdn_decode_k_last, {folder.name}: 10 calls take {shown_time(total)}" in done.stdout
    refused = gdnspec(*command, "--save")
    assert refused.returncode == 2
    assert "--save writes traces of shipped workloads only" in refused.stderr


def test_what_is_below_the_clock_is_not_shown_as_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    """On a noisy machine the difference of two windows may be nothing at all."""
    from gdnspec.cli.commands.bench import _print
    from gdnspec.cli.live import time_of
    from helpers_traces import make_timing, make_trace

    timing = make_timing(median=1.5e-6, method="cpu", p10=0.0, bound=None, bound_by=None)
    _print([make_trace(timing=timing)])
    said = capsys.readouterr().out
    assert "0.00 us" not in said
    assert "under 0.005 us - 1.53 us" in said, "0.1 us of a window of 20 calls"
    assert "1.50 us" in said
    nothing = make_trace(timing=timing.model_copy(update={"median": 0.0, "interval": (0.0, 0.0)}))
    assert time_of(nothing) == "under 0.005 us"
    _print([nothing])
    assert "0.00 us" not in capsys.readouterr().out
