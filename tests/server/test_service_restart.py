"""What a server that is killed leaves to the next: every job, each attempt once, and no folder. Jobs wait for a file,
not for a time."""

import fcntl
import os
import signal
from pathlib import Path

import pytest
from conftest import Run
from gdnspec.server.job_process import run_beside
from gdnspec.server.workplace import Workplace
from helpers_service import Box, begun, set_clock, until


def results(box: Box) -> dict[str, int]:
    """How many results and ends each job has."""
    with box.database.read() as connection:
        return {
            row["id"]: row["n"]
            for row in connection.execute(
                "SELECT id, (SELECT count(*) FROM results WHERE job = jobs.id) + "
                "(SELECT count(*) FROM events WHERE job = jobs.id AND kind = 'ended') AS n FROM jobs"
            )
        }


def test_jobs_of_a_killed_server_are_run_by_the_next_and_nothing_is_left(tmp_path: Path) -> None:
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    box = Box(tmp_path / "data", lease=2.0).start()
    ann = box.user("ann")
    jobs = [box.job(ann, journal=str(journal), gate=str(gate)) for _ in range(3)]
    for kill in range(1, 3):  # one runs, two wait
        until(lambda kill=kill: len(begun(journal)) == kill)
        box.stop(signal.SIGKILL)
        assert list((box.data / "work").iterdir())
        box.start()
    until(lambda: len(begun(journal)) == 3)
    gate.touch()
    assert [box.ended(ann, job).state for job in jobs] == ["accepted"] * 3
    until(lambda: not list((box.data / "work").iterdir()))
    assert box.stop() == 0
    assert len(set(begun(journal))) == len(begun(journal)) == 3 + 2  # each kill ended one attempt
    assert results(box) == dict.fromkeys(jobs, 2)  # one result and one end


@pytest.mark.parametrize(
    "survives",
    [pytest.param(True, marks=pytest.mark.thorough, id="the other goes on"), pytest.param(False, id="both are killed")],
)
def test_jobs_of_two_servers_on_one_database_are_each_run_to_one_end(tmp_path: Path, survives: bool) -> None:
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    boxes = [Box(tmp_path / "data", tmp_path / f"log{n}", lease=2.0, devices=["", ""]).start() for n in range(2)]
    ann = boxes[0].user("ann")
    jobs = [boxes[n % 2].job(ann, journal=str(journal), gate=str(gate)) for n in range(4)]
    until(lambda: len(begun(journal)) == 2)  # the slots of a folder are shared
    for box in boxes[: 1 if survives else 2]:
        box.stop(signal.SIGKILL)
    if not survives:
        boxes[1].start()
    gate.touch()
    assert [boxes[1].ended(ann, job).state for job in jobs] == ["accepted"] * 4
    until(lambda: not list((boxes[1].data / "work").iterdir()))
    assert boxes[1].stop() == 0
    assert len(set(begun(journal))) == len(begun(journal))
    assert results(boxes[1]) == dict.fromkeys(jobs, 2)


def test_a_job_that_is_cancelled_while_no_server_runs_leaves_no_folder(tmp_path: Path) -> None:
    """Nobody claims it again, and its lease may last for long."""
    journal, data, ahead = (tmp_path / name for name in ("journal", "data", "ahead"))
    set_clock(ahead, 0.0)
    box = Box(data, lease=600.0, ahead=str(ahead)).start()
    ann = box.user("ann")
    job = box.job(ann, journal=str(journal), gate=str(tmp_path / "never"))
    until(lambda: len(begun(journal)) == 1)
    box.stop(signal.SIGKILL)
    for name in ("page-of-a-killed-server", "gone-half"):
        (data / "work" / name / "deep").mkdir(parents=True)
    with box:
        until(lambda: [path.name for path in (data / "work").iterdir()] == [f"job-{job}-1"])
        assert box.ask("DELETE", f"jobs/{job}", ann).status == 202
        set_clock(ahead, 1000.0)
        assert box.ended(ann, job).state == "cancelled"
        until(lambda: not list((data / "work").iterdir()))


def test_what_is_used_is_not_swept(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    one, other = Workplace(work), Workplace(work)
    (work / "job-of-an-older-server-1").mkdir()
    (work / "left").mkdir()
    (work / "a-file").touch()
    (work / "link").symlink_to(tmp_path)
    with one.folder("job-a-1") as (folder, _):
        (folder / "deep").mkdir()
        (folder / "deep").chmod(0)  # by a solution
        other.sweep({"job-of-an-older-server-1"})
        assert sorted(path.name for path in work.iterdir()) == [
            "a-file", "job-a-1", "job-of-an-older-server-1", "link",
        ]  # fmt: skip
        with other.folder("job-a-2"):
            one.sweep(set())
            assert {path.name for path in work.iterdir()} == {"a-file", "job-a-1", "job-a-2", "link"}
    assert {path.name for path in work.iterdir()} == {"a-file", "link"}


def test_a_folder_is_swept_once_the_last_process_that_holds_it_has_ended(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "job-a-1").mkdir(parents=True)
    holder = os.open(work / "job-a-1", os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    Workplace(work).sweep(set())
    assert (work / "job-a-1").is_dir()
    os.close(holder)
    Workplace(work).sweep(set())
    assert not list(work.iterdir())


def test_an_attempt_that_is_counted_anew_finds_no_old_folder(tmp_path: Path) -> None:
    """As where a copy of the database was put back."""
    work = tmp_path / "work"
    (work / "job-a-1" / "into").mkdir(parents=True)
    with Workplace(work).folder("job-a-1") as (folder, _):
        assert list(folder.iterdir()) == []


def test_a_process_that_says_what_is_no_text_is_heard(tmp_path: Path) -> None:
    assert run_beside(("printf", r"a\377b"), tmp_path, 60.0) == (0, "a\ufffdb")


def test_a_path_that_is_long_and_has_spaces_quotes_and_emoji(tmp_path: Path, gdnspec: Run) -> None:
    part = """it's "a box" \U0001f4e6 \u00e9 %s $HOME;&#"""
    data = Path((str(tmp_path) + f"/{part}" * 12)[:263] + "x")
    assert len(str(data)) == 264
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    data.parent.mkdir(parents=True)
    box = Box(data, tmp_path / "log", lease=2.0).start()
    token = gdnspec("serve", "--data", data, "--add-user", "ann").stdout.strip()
    job = box.job(token, journal=str(journal), gate=str(gate), name="named")
    until(lambda: len(begun(journal)) == 1)
    box.stop(signal.SIGKILL)
    gate.touch()
    with box:
        assert box.ended(token, job).state == "accepted"
        assert box.ask("GET", f"jobs/{job}/bundle", token).status == 200
        until(lambda: not list((data / "work").iterdir()))
        copied = gdnspec("serve", "--data", data, "--backup", data / "a copy \U0001f4be.db")
        assert (copied.returncode, copied.stderr) == (0, "")
    assert begun(journal) == [f"job-{job}-1", f"job-{job}-2"]
