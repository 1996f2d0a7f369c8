"""The selftest of sessions: it complains if a fault is accepted, or rejected for another reason."""

import pytest
from conftest import Run
from gdnspec.catalog.session_faults import read_table, tables
from gdnspec.model.errors import SpecError
from gdnspec.model.loading import build
from gdnspec.model.session_fault import SessionFaultTable
from gdnspec.sessions.trials import Trial, tried

(TABLE,) = tables()
(FAULT,) = (fault for fault in read_table(TABLE) if fault.name == "commits_all_drafts")


def test_it_rejects_a_fault_and_accepts_the_reference(gdnspec: Run) -> None:
    done = gdnspec("selftest", "--sessions", FAULT.name, "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("1 of 1 faults rejected; the reference passes 2 of 2 sessions; 0 complaints\n")


def test_a_fault_that_is_accepted_is_a_complaint() -> None:
    other = FAULT.model_copy(update={"killed_by": ["moved"]})
    (said,) = tried(Trial(TABLE, other, ("moved",))).complaints()
    assert said == f"{FAULT.name} passes session moved, which must reject it: {FAULT.fault}"


def test_a_fault_that_is_rejected_for_another_reason_is_a_complaint() -> None:
    name = FAULT.killed_by[0]
    other = FAULT.model_copy(update={"statuses": ["NON_FINITE"], "killed_by": [name]})
    (said,) = tried(Trial(TABLE, other, (name,))).complaints()
    assert said.startswith(f"{FAULT.name} on session {name} is INCORRECT_NUMERICAL, not NON_FINITE: step ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("commits_all_draft",),
            "no fault of sessions has the name 'commits_all_draft' (did you mean 'commits_all_drafts'? gdnspec list "
            "faults shows all)",
        ),
        (("--json", "x.jsonl"), "--json has no meaning with --sessions"),
    ],
)
def test_what_it_refuses(gdnspec: Run, words: tuple[str, ...], said: str) -> None:
    done = gdnspec("selftest", "--sessions", *words)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize("report", ["vLLM issue 43559", "https://github.com/vllm-project/vllm/issues/0"])
def test_a_report_is_the_address_of_an_issue_or_a_pull_request(report: str) -> None:
    fault = read_table(TABLE)[0].model_dump(mode="json") | {"reports": [report]}
    with pytest.raises(SpecError, match="reports"):
        build(SessionFaultTable, {"schema_version": 1, "faults": [fault]}, TABLE)
