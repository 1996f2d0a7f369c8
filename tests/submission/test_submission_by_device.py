"""A Triton kernel's way to the others on each kind of device: submitted, taken in, served; on a GPU with its speed."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import forked_command
import pytest
from conftest import ROOT, Run
from gdnspec.submission.bundle import read
from helpers_bundles import DECODE, boasting, bundle_of, renamed
from helpers_service import Box, served

# One submission for all tests of a device.
pytestmark = [pytest.mark.xdist_group("submission by device")]
CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
# Of the performance suite one that is bound by memory: its time is the same again to a percent or two.
FEW = ["batch_size == 1 and num_v_heads <= 8 or batch_size == 64 and num_v_heads == 32"]


class Submitted(NamedTuple):
    """What `gdnspec submit` made of it."""

    device: str
    bundle: Path
    done: subprocess.CompletedProcess[str]

    @property
    def slug(self) -> str:
        """Of the device, as the bundle has it: a test that asked CUDA itself would be one more on the GPU."""
        (found,) = {verdict.device for verdict in read(self.bundle).verdicts}
        return found

    @property
    def claims(self) -> int:
        return 1 if self.device == "cuda" else 0


@pytest.fixture(scope="module", params=["cpu", CUDA])
def submitted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Submitted:
    folder = tmp_path_factory.mktemp("mine")
    renamed(ROOT / "solutions" / "triton_decode", folder / "my_triton", FEW)
    bundle = folder / "my_triton.tar"
    words = ("submit", "my_triton", "--solutions-dir", folder, "--device", request.param, "-o", bundle)
    return Submitted(request.param, bundle, forked_command.run([*map(str, words)], dict(os.environ)))


on_a_gpu = pytest.mark.parametrize("submitted", [CUDA], indirect=True)


def test_it_is_packed_with_what_was_seen_on_that_device(submitted: Submitted) -> None:
    assert submitted.done.returncode == 0, submitted.done.stderr
    bundle = read(submitted.bundle)
    assert submitted.slug.startswith("nvidia") == (submitted.device == "cuda")
    assert {verdict.status for verdict in bundle.verdicts} == {"PASSED", "UNSUPPORTED"}
    assert len(bundle.traces) == submitted.claims
    for trace in bundle.traces:
        assert (trace.status, trace.device, trace.workload) == ("PASSED", submitted.slug, "16x32_batch_64")
        assert trace.timing is not None
        assert trace.timing.method == "graph"
        assert trace.environment["driver"]


def test_it_is_admitted_with_what_was_measured_again(gdnspec: Run, submitted: Submitted, tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    done = gdnspec("intake", submitted.bundle, "--into", into, "--device", submitted.device)
    assert done.returncode == 0, done.stderr + done.stdout
    assert ("1 claimed times verified" if submitted.claims else "no claimed times") in done.stdout
    assert "system calls filtered" in done.stdout
    traces = [f"my_triton/traces/{submitted.slug}.jsonl"] * submitted.claims
    assert sorted(str(path.relative_to(into)) for path in into.rglob("*") if path.is_file()) == [
        "my_triton/kernel.py", "my_triton/solution.json", *traces, "my_triton/two_sizes.py",
    ]  # fmt: skip
    assert gdnspec("validate", into / "my_triton").returncode == 0


@on_a_gpu
def test_a_claim_30_percent_better_than_what_is_measured_is_refused(
    gdnspec: Run, submitted: Submitted, tmp_path: Path
) -> None:
    into = tmp_path / "into"
    into.mkdir()
    bundle = boasting(submitted.bundle, tmp_path / "boast.tar", 0.7)
    done = gdnspec("intake", bundle, "--into", into, "--device", submitted.device)
    assert done.returncode == 1, done.stderr + done.stdout
    assert f"refused: {bundle}" in done.stderr
    assert f"{DECODE}/16x32_batch_64: claims " in done.stderr
    assert f" on {submitted.slug}; measured here " in done.stderr
    assert "% more" in done.stderr
    assert not list(into.iterdir())


@pytest.fixture
def boxes(submitted: Submitted, tmp_path: Path) -> Iterator[list[Box]]:
    """Two servers on one data folder, each with the one slot that there is."""
    for module in ("fastapi", "uvicorn"):
        pytest.importorskip(module, reason="pip install 'gdnspec[serve]'")
    with ExitStack() as stack:
        options = ("--device", submitted.device, "--slots", "1")
        found = [stack.enter_context(served(tmp_path / "box" / "data", *options)) for _ in range(2)]
        yield found
        assert [box.stop(signal.SIGINT) for box in found] == [0, 0]


@pytest.mark.parametrize("submitted", [pytest.param("cpu", marks=pytest.mark.thorough), CUDA], indirect=True)
def test_two_jobs_are_served_one_after_the_other(submitted: Submitted, boxes: list[Box], tmp_path: Path) -> None:
    first, second = boxes
    token = first.user("ann")
    other = renamed(ROOT / "solutions" / "triton_decode", tmp_path / "other", ["batch_size == 1 and num_v_heads <= 4"])
    jobs = [
        first.client(token).submit(submitted.bundle.read_bytes()),
        second.client(token).submit(bundle_of(other, tmp_path / "other.tar").read_bytes()),
    ]
    at_once, ended = set(), []
    while not all(job.ended for job in ended) or not ended:
        at_once.add(len(set(first.processes(inner=False).values())))
        ended = [first.client(token).job(job.id) for job in jobs]
        time.sleep(0.1)
    assert [job.state for job in ended] == ["accepted", "accepted"], ended
    assert [job.attempt for job in ended] == [1, 1]
    assert max(at_once) == 1
    one, two = sorted(ended, key=lambda job: job.started or "")
    assert one.ended is not None
    assert two.started is not None
    assert one.ended <= two.started

    result = first.client(token).result(jobs[0].id)
    assert {verdict.device for verdict in result.verdicts} == {submitted.slug}
    measured = [trace for trace in result.traces if trace.timing is not None]
    assert [(trace.status, trace.device) for trace in measured] == [("PASSED", submitted.slug)] * submitted.claims
    assert {trace.status for trace in result.traces} <= {"PASSED", "UNSUPPORTED"}
    assert result.job.reasons[0].endswith("1 claimed times verified" if submitted.claims else "no claimed times")
