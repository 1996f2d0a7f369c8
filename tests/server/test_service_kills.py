"""A service that is killed at any moment, and two on one database: no job is lost, and none has two results."""

import signal
import time
from pathlib import Path

import pytest
from conftest import Run
from gdnspec.server.database import Database
from gdnspec.server.devices import gpus
from gdnspec.server.jobs import Jobs
from gdnspec.server.queue import Happened, Queue
from gdnspec.server.tokens import Tokens
from helpers_service import Box, accept
from patience import until
from server_trials import kills, load, twice


@pytest.mark.parametrize("servers", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_no_job_is_lost_or_has_two_results_when_servers_and_jobs_are_killed(tmp_path: Path, servers: int) -> None:
    found = kills(tmp_path, 4, servers, pause=0.6, seed=servers, lease=0.6)
    assert sum(found["kills"].values()) == 4
    assert found["sent"] >= 3
    assert found["problems"] == found["without_one_result"] == found["attempts_begun_twice"] == []
    assert found["lost"] == found["not_asked_for"] == found["left_running"] == 0
    assert set(found["states"]) == {"accepted"}


def test_many_clients_get_no_error_but_the_documented_one(tmp_path: Path) -> None:
    found = load(tmp_path, clients=25, jobs=1)
    assert found["problems"] == []
    assert set(found["answers"]) <= {"200", "201", "429 rate_limit", "429 queue_full"}
    assert found["answers"]["200"] >= 50  # each has seen its job end, and has read the result
    assert found["followed_to_the_end"] == found["jobs"] == 25
    assert found["lost"] == 0
    assert found["states"] == {"accepted": found["jobs"]}


def test_two_servers_on_one_database_share_its_jobs(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    boxes = [Box(tmp_path / "data", devices=["", ""], queue_limit=30).start() for _ in range(2)]
    try:
        ann = boxes[0].user("ann")
        names = [boxes[i % 2].job(ann, journal=str(journal), total=1) for i in range(20)]
        for name in names:
            assert boxes[0].ended(ann, name).state == "accepted"
            assert boxes[1].client(ann).job(name).attempt == 1
    finally:
        for box in boxes:
            box.stop()
    assert twice(journal) == []
    assert journal.read_text().count("start") == 20


def test_each_gpu_has_one_job_at_a_time_that_sees_no_other(
    tmp_path: Path, gdnspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal"
    monkeypatch.setenv("GDNSPEC_TOKEN", "a secret")
    with Box(tmp_path / "data", devices=["GPU-a", "GPU-b"]) as box:
        ann = box.user("ann")
        waits = [str(tmp_path / f"goes on {pair}") for pair in range(2)]
        names = [box.job(ann, until=waits[i // 2], total=1, journal=str(journal)) for i in range(4)]
        for pair in range(2):  # one on each GPU, and then the next two
            until(lambda pair=pair: journal.exists() and journal.read_text().count("start") == 2 * (pair + 1))
            Path(waits[pair]).touch()
        assert {box.ended(ann, name).state for name in names} == {"accepted"}
    busy: dict[str, int] = {"GPU-a": 0, "GPU-b": 0}
    for line in journal.read_text().splitlines():
        event, name, *_, told = line.split()
        device, token, scratch = (entry.partition("=")[2] for entry in told.split(","))
        busy[device] += 1 if event == "start" else -1
        assert busy[device] in (0, 1)
        assert token == "None"
        assert scratch == str(box.data / "work" / name / "tmp")
    assert journal.read_text().count("GPU-a") == journal.read_text().count("GPU-b") == 4
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0, GPU-b")
    assert gpus() == ["0", "GPU-b"]
    done = gdnspec("serve", "--data", tmp_path / "data", "--slots", "3")
    assert (done.returncode, "--slots 3: this machine has 2 GPUs" in done.stderr) == (2, True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gdnspec("serve", "--data", tmp_path / "data", "--device", "cuda").returncode == 3


def test_what_runs_when_a_server_is_asked_to_end_waits_for_the_next(tmp_path: Path) -> None:
    box = Box(tmp_path / "data", lease=60.0).start()
    ann = box.user("ann")
    name = box.job(ann, until=str(tmp_path / "never"))
    until(lambda: box.client(ann).job(name).state == "running")
    assert box.stop() == 0
    assert not box.processes()
    job = Jobs(box.database, 8).get("ann", name)
    assert job is not None
    assert job.state == "queued"  # at once, and not when its lease is over
    with box:
        until(lambda: box.client(ann).job(name).state == "running")
        box.ask("DELETE", f"jobs/{name}", ann)
        assert box.ended(ann, name).state == "cancelled"


def test_a_slot_stays_taken_while_a_job_of_a_killed_server_runs(tmp_path: Path) -> None:
    """The process ends with its server; one that did not would still have its GPU for itself."""
    data, journal = tmp_path / "data", tmp_path / "journal"
    stubborn = tmp_path / "runner.py"
    text = (Path(__file__).parents[1] / "support/server_runner.py").read_text()
    stubborn.write_text(text.replace("ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)", "os.setsid"))
    first = Box(data, lease=0.3)
    first.settings["runner"] = [first.settings["runner"][0], "-I", "-S", str(stubborn)]
    first.start()
    ann = first.user("ann")
    name = first.job(ann, until=str(tmp_path / "goes on"), journal=str(journal))
    until(lambda: journal.exists() and "start" in journal.read_text())
    first.stop(signal.SIGKILL)
    (alone,) = first.processes()
    with Box(data, lease=0.3) as second:
        with second.database.read() as connection:
            (lease,) = connection.execute("SELECT lease FROM jobs").fetchone()
        until(lambda: time.time() > lease)  # from now on the job is anybody's, and the slot alone holds it back
        for _ in range(20):  # the second server looks for work meanwhile
            assert second.client(ann).job(name).attempt == 1
        freed = time.monotonic()
        (tmp_path / "goes on").touch()
        until(lambda: second.client(ann).job(name).attempt == 2)
        assert alone not in second.processes()
        assert second.ended(ann, name).state == "accepted"
    (begun,) = (line for line in journal.read_text().splitlines() if line.startswith(f"start job-{name}-2 "))
    assert float(begun.split()[3]) >= freed


def test_an_attempt_that_has_lost_its_job_writes_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "service.db")
    Tokens(database).add("ann", 1.0)
    jobs, queue, late = Jobs(database, 8), Queue(database, 60.0), Queue(database, -1.0)
    name = accept(jobs, "ann").id
    old = late.claim()
    new = queue.claim()
    assert old is not None
    assert new is not None
    assert (old.job, old.attempt, new.job, new.attempt) == (name, 1, name, 2)
    assert queue.claim() is None  # its lease lasts
    seen = len(jobs.events(name, 0))
    assert queue.look(old) == queue.beat(old, [Happened("warning", "from the grave")], 1, 1) == "gone"
    assert queue.finish(old, "refused", ["late"], [], []) is False
    queue.give_back(old, "late")
    queue.name(old, "late")
    assert len(jobs.events(name, 0)) == seen
    assert queue.look(new) == "on"
    assert queue.finish(new, "accepted", ["in time"], [], [])
    assert queue.finish(new, "refused", ["again"], [], []) is False
    job = jobs.get("ann", name)
    assert job is not None
    assert (job.state, job.reasons, job.solution) == ("accepted", ["in time"], "")


def test_a_wish_to_cancel_outlives_the_server(tmp_path: Path) -> None:
    database = Database(tmp_path / "service.db")
    Tokens(database).add("ann", 1.0)
    jobs, late = Jobs(database, 8), Queue(database, -1.0)
    name = accept(jobs, "ann").id
    assert late.claim() is not None
    assert jobs.cancel("ann", name).state == "running"  # type: ignore[union-attr]
    assert late.claim() is None
    assert jobs.get("ann", name).state == "cancelled"  # type: ignore[union-attr]
    assert [event.kind for event in jobs.events(name, 0)] == ["queued", "started", "ended"]


def test_a_job_whose_servers_are_lost_again_and_again_is_given_up(tmp_path: Path) -> None:
    database = Database(tmp_path / "service.db")
    Tokens(database).add("ann", 1.0)
    jobs, late = Jobs(database, 8), Queue(database, -1.0)
    name = accept(jobs, "ann").id
    claims = 0
    while late.claim():
        claims += 1
    job = jobs.get("ann", name)
    assert job is not None
    assert (claims, job.state) == (50, "lost")
    assert "50 attempts" in job.reasons[0]
