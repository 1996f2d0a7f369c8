"""The shipped sessions: right kernels pass them, wrong schedulers and wrong kernels do not."""

from functools import cache

import pytest
from gdnspec.catalog.families import families
from gdnspec.catalog.session_faults import read_table, tables
from gdnspec.catalog.sessions import sessions
from gdnspec.inputs.materialise import InvalidWorkload
from gdnspec.model.session_fault import SessionFault
from gdnspec.model.session_line import SessionLine
from gdnspec.numerics.pools import changed_rows
from gdnspec.sessions.case import Case
from gdnspec.sessions.check import budget, judged
from gdnspec.sessions.follow import follow
from gdnspec.sessions.honest import emulator, reference
from gdnspec.sessions.session_budget import emulators, measure
from gdnspec.sessions.wrong import Wrong
from sampled import one_in
from session_faults import single_calls

FAMILY = families()["gdn"]
LINES = {line.name: line for line in sessions(FAMILY)}
(TABLE,) = tables()
FAULTS = {fault.name: fault for fault in read_table(TABLE)}


@cache
def case_of(name: str) -> Case:
    return Case.of(FAMILY, LINES[name])


def test_the_sessions_cover_every_step_and_kind() -> None:
    assert len(LINES) >= 40
    does = {step.do for line in LINES.values() for step in line.steps}
    assert does == {
        "admit", "prefill", "take", "restore", "fork", "verify", "commit", "roll_back", "decode", "move", "evict",
        "resume", "drop", "finish", "draft", "settle",
    }  # fmt: skip
    assert {line.states for line in LINES.values()} == {"float32", "bfloat16"}
    assert {kind for line in LINES.values() for kind in line.kinds} == set(FAMILY.about.sessions["float32"])
    assert {(line.states, line.convolution) for line in LINES.values()} >= {("bfloat16", True), ("float32", True)}
    for states, served in FAMILY.about.sessions.items():
        assert {kind for line in LINES.values() if line.states == states for kind in line.kinds} == set(served)
    assert {line.suite for line in LINES.values()} == {"smoke", "conformance"}


@pytest.mark.parametrize(
    "name", ["a_day_of_a_server", "convolution_rolled_back", "narrow_hit", "convolution_drafts_copied", "edges_of_rows"]
)
def test_the_reference_passes(name: str) -> None:
    found = judged(case_of(name), reference)
    assert found.verdict.status == "PASSED", found.verdict.message
    assert {output.output.split(".")[0] for output in found.outputs.values()} == {*(case_of(name).line.budget or {})}


def test_a_budget_is_what_the_emulators_give() -> None:
    case = case_of("drafts_rolled_back")
    line = case.line
    assert line.emulators is not None
    assert line.emulators.names == emulators(FAMILY, line)
    names = FAMILY.about.emulators[line.emulators.names]
    i = names.index("chunk_64_ahead_after")
    for definition, tensors in measure(case, names[i]).items():
        for tensor, figures in tensors.items():
            for metric, figure in figures.items():
                frozen = line.emulators.errors[definition][tensor][metric][i]
                assert figure == pytest.approx(frozen, rel=0.1, abs=1e-6)
    assert judged(case, emulator(case.words, names[i])).verdict.status == "PASSED"


def test_slots_that_nobody_named_stay_as_they_were() -> None:
    """No two slots begin with the same bits, so that a copy of one shows."""
    pools = case_of("a_day_of_a_server").pools()
    flat = pools.states.flatten(1)[:, 0].clone()
    assert len(changed_rows(flat[1:, None], flat[:-1, None])) == len(flat) - 1
    assert bool(pools.states.isnan().all())


def test_other_tokens_are_no_session() -> None:
    line = LINES["forked"].model_copy(update={"seed": 1})
    with pytest.raises(InvalidWorkload, match="sha256"):
        Case.of(FAMILY, line)


def test_each_judged_tensor_has_a_budget() -> None:
    case = case_of("convolution_hit")
    assert all(budget(case.line, pair) for pair in follow(case, reference))


# --- faults -----------------------------------------------------------------------------------------------------


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) >= 30
    assert sum(fault.survives for fault in FAULTS.values()) >= 15
    assert all(fault.survives for fault in FAULTS.values() if fault.is_scheduler)
    reported = [fault for fault in FAULTS.values() if fault.reports]
    assert len(reported) >= 30
    assert sum(fault.survives for fault in reported) >= 15
    assert len({report for fault in reported for report in fault.reports}) >= 30


@pytest.mark.parametrize("fault", one_in(2, FAULTS.values(), FAULTS))
def test_a_session_rejects_the_fault(fault: SessionFault) -> None:
    wrong = Wrong(fault, TABLE)
    verdict = wrong.verdict(case_of(fault.killed_by[0]))
    assert verdict.status in fault.statuses, verdict.message


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_every_named_session_rejects_the_fault(fault: SessionFault) -> None:
    for name in fault.killed_by:
        assert Wrong(fault, TABLE).verdict(case_of(name)).status in fault.statuses, name


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if not fault.is_scheduler])
def test_what_survives_single_calls(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A scheduler takes no part in single calls; a kernel that `survives` passes all of them."""
    results = list(single_calls(FAULTS[name], TABLE, tmp_path_factory.mktemp(name)))
    assert any(result.status == "PASSED" for result in results)
    assert any(result.failed for result in results) != FAULTS[name].survives


@pytest.mark.thorough
@pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())
def test_the_reference_passes_every_session(line: SessionLine) -> None:
    assert judged(case_of(line.name), reference).verdict.status == "PASSED"
