"""A claim of speed holds where this machine measures the same, or better, within 5%."""

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import RIGHT_DECODE
from gdnspec.submission.claims import unfounded
from helpers_traces import make_timing, make_trace

ONE = "16x32_batch_1"


@pytest.mark.parametrize(
    ("claimed", "founded"), [(100e-6, True), (96e-6, True), (94e-6, False), (120e-6, True), (1e-6, False)]
)
def test_a_claim_may_be_5_percent_better_than_what_is_measured(claimed: float, founded: bool) -> None:
    said = unfounded([make_trace(workload=ONE, median=claimed)], [make_trace(workload=ONE, median=100e-6)])
    assert (not said) == founded
    if not founded:
        assert "measured here 100" in said[0]


def test_a_claim_without_its_measurement_is_unfounded() -> None:
    claim = make_trace(workload=ONE)
    events = make_trace(workload=ONE, timing=make_timing(method="events"))
    for measured, says in (
        ([], "no such workload here"),
        ([make_trace(workload="16x32_batch_4")], "no such workload here"),
        ([make_trace(workload=ONE, device="nvidia-h100")], "measured on nvidia-h100"),
        ([make_trace(workload=ONE, status="SUSPECT_TIMING", message="too fast")], "SUSPECT_TIMING here: too fast"),
        ([events], "by graph; measured here by events"),
    ):
        (said,) = unfounded([claim], measured)
        assert says in said
    assert not unfounded([make_trace(workload=ONE, status="UNSUPPORTED")], [])


def test_a_gpu_that_was_not_alone_is_told() -> None:
    busy = make_trace(workload=ONE, median=200e-6, unclean=["in use by others"])
    (said,) = unfounded([make_trace(workload=ONE, median=100e-6)], [busy])
    assert "100% more (in use by others: measure again)" in said


def test_what_is_measured_is_measured_in_confinement(make_solution: Callable[..., Path]) -> None:
    """As on a GPU, but for its clock: the performance suite is for one."""
    from gdnspec.build import machine
    from gdnspec.catalog.definitions import definition
    from gdnspec.catalog.solutions import load_solution
    from gdnspec.catalog.workloads import by_name
    from gdnspec.check.plan import plan
    from gdnspec.submission import judging

    arguments = "(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)"
    solution = load_solution(
        make_solution(f"{RIGHT_DECODE}\n\ndef run{arguments}:\n    return decode_k_last{arguments}\n")
    )
    device, found = machine.device("cpu"), definition("gdn_decode_k_last")
    assert device is not None
    terms = judging.Terms(device, 1, confinement=judging.confinement(1), command="gdnspec intake", seconds=0.2)
    assert not judging.speed_jobs(solution, terms)
    jobs = list(plan([solution], [(found, [by_name(found)["one_row"]])], device))
    (trace,) = judging.measure(jobs, terms, print)
    assert (trace.status, trace.command) == ("PASSED", "gdnspec intake"), trace.message
    assert trace.timing is not None
    assert trace.timing.samples >= 3
    slower = trace.model_copy(update={"timing": make_timing(trace.timing.median * 2, method="cpu")})
    faster = trace.model_copy(update={"timing": make_timing(trace.timing.median / 2, method="cpu")})
    assert not unfounded([slower], [trace])
    assert len(unfounded([faster], [trace])) == 1
