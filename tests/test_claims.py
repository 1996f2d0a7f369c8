"""A claim of speed holds where this machine measures the same, or better, within 5%."""

import pytest
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
