"""A server whose clock is wrong: no job waits for ever, and no bundle is deleted before its time."""

import signal
import time
from pathlib import Path

import pytest
from gdnspec.server.database import Database
from gdnspec.server.jobs import Jobs
from gdnspec.server.queue import Claim, Queue
from gdnspec.server.retention import Clock, Retention, prune
from gdnspec.server.tokens import DAY, Tokens
from helpers_service import Box, accept, begun, set_clock, until

HOUR = 3600.0
YEAR = 365 * DAY


class Now:
    """Both clocks of a machine. `pass_` moves both, `set` the one that people see."""

    def __init__(self) -> None:
        self.wall, self.running = time.time(), 1000.0

    def pass_(self, seconds: float) -> None:
        self.wall, self.running = self.wall + seconds, self.running + seconds

    def clock(self) -> Clock:
        """A server's, which has just started."""
        return Clock(lambda: self.wall, lambda: self.running)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    found = Now()
    monkeypatch.setattr(time, "time", lambda: found.wall)
    return found


@pytest.fixture
def database(tmp_path: Path, now: Now) -> Database:
    found = Database(tmp_path / "service.db")
    Tokens(found).add("ann", 1000.0)
    return found


def claimed(queue: Queue, *ours: str) -> Claim:
    found = queue.claim(ours)
    assert found is not None
    return found


# --- leases -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("back", [HOUR, 10 * YEAR])
def test_a_lease_from_before_the_clock_was_set_back_is_over(database: Database, now: Now, back: float) -> None:
    jobs, dead, next_ = Jobs(database, 8), Queue(database, 10.0), Queue(database, 10.0)
    name = accept(jobs, "ann").id
    claimed(dead)
    assert next_.claim() is None
    now.wall -= back
    assert next_.running() == set()
    assert claimed(next_)[:2] == (name, 2)
    assert next_.running() == {(name, 2)}
    assert next_.claim() is None  # its new lease lasts


def test_a_job_that_nobody_runs_can_be_cancelled_after_the_clock_was_set_back(database: Database, now: Now) -> None:
    jobs, dead, next_ = Jobs(database, 8), Queue(database, 10.0), Queue(database, 10.0)
    name = accept(jobs, "ann").id
    claimed(dead)
    now.wall -= HOUR
    jobs.cancel("ann", name)
    assert next_.claim() is None
    assert jobs.get("ann", name).state == "cancelled"  # type: ignore[union-attr]


def test_a_small_correction_of_the_clock_takes_no_job_from_its_server(database: Database, now: Now) -> None:
    jobs, long, short = Jobs(database, 8), Queue(database, 600.0), Queue(database, 10.0)
    accept(jobs, "ann")
    claim = claimed(long)
    now.wall -= 500.0  # less than its lease, and much more than that of the server which looks
    assert short.claim() is None
    assert long.beat(claim, (), 0, 1) == "on"


def test_a_server_does_not_take_a_job_from_itself_whatever_its_clock_says(database: Database, now: Now) -> None:
    jobs, queue = Jobs(database, 8), Queue(database, 10.0)
    claim = claimed(queue) if accept(jobs, "ann") else None
    assert claim is not None
    for moved in (-HOUR, HOUR, YEAR):
        now.wall += moved
        assert queue.claim({claim.job}) is None
        assert queue.beat(claim, (), 0, 1) == "on"
    other = accept(jobs, "ann").id
    assert claimed(queue, claim.job).job == other


def test_a_job_of_a_killed_server_is_run_by_one_whose_clock_is_an_hour_behind(tmp_path: Path) -> None:
    journal, gate = tmp_path / "journal", tmp_path / "gate"
    box = Box(tmp_path / "data", ahead=HOUR, devices=["", ""], lease=600.0).start()
    ann = box.user("ann", days=1.0)
    kept, unwanted = (box.job(ann, journal=str(journal), gate=str(gate)) for _ in range(2))
    until(lambda: len(begun(journal)) == 2)
    box.stop(signal.SIGKILL)
    with Box(box.data, devices=[""], lease=600.0) as second:
        until(lambda: len(begun(journal)) == 3)  # and its one slot is taken
        assert second.ask("DELETE", f"jobs/{unwanted}", ann).status == 202
        gate.touch()
        assert second.ended(ann, kept).state == "accepted"
        assert second.ended(ann, unwanted).state == "cancelled"
    assert len(set(begun(journal))) == len(begun(journal))


def test_a_clock_that_is_set_back_starts_no_job_anew_that_its_server_runs(tmp_path: Path) -> None:
    journal, gate, ahead = (tmp_path / name for name in ("journal", "gate", "ahead"))
    set_clock(ahead, 0.0)
    with Box(tmp_path / "data", ahead=str(ahead), devices=["", ""], lease=600.0) as box:
        ann = box.user("ann", days=1000.0)
        running = box.job(ann, journal=str(journal), gate=str(gate))
        until(lambda: box.client(ann).job(running).total == 2)  # its next beat is 200 s away
        set_clock(ahead, -10 * DAY)
        name = box.job(ann, journal=str(journal))  # the other slot looks for a job, and finds this one
        assert box.ended(ann, name).state == "accepted"
        gate.touch()
        assert box.ended(ann, running).attempt == 1
    assert begun(journal) == [f"job-{running}-1", f"job-{name}-1"]


# --- retention --------------------------------------------------------------------------------------------------


def ended(database: Database, state: str = "refused") -> str:
    """A job that has ended now."""
    name = accept(Jobs(database, 1000), "ann").id
    queue = Queue(database, 10.0)
    assert queue.finish(claimed(queue), state, [], [], [])  # type: ignore[arg-type]
    return name


def bundles(database: Database) -> int:
    with database.read() as connection:
        found: int = connection.execute("SELECT count(*) FROM bundles").fetchone()[0]
        return found


def test_a_clock_that_is_a_year_ahead_deletes_nothing_however_often_a_server_starts(
    database: Database, now: Now, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(database)
    now.wall += YEAR
    for _ in range(5):
        server = Retention(database, 30 * DAY, now.clock())
        for _ in range(3):  # said once
            server.look()
            now.pass_(HOUR)
        (said,) = capsys.readouterr().err.splitlines()
        assert "old bundles are kept until servers have run with this clock for a day" in said
        assert bundles(database) == 1
    now.wall -= YEAR
    server = Retention(database, 30 * DAY, now.clock())
    server.look()
    assert (bundles(database), capsys.readouterr().err) == (1, "")
    for _ in range(31 * 24):
        now.pass_(HOUR)
        server.look()
    assert bundles(database) == 0


def test_prune_alone_does_not_believe_such_a_clock(database: Database, now: Now) -> None:
    ended(database)
    assert prune(database, 60.0) == 0
    now.wall += YEAR
    assert [prune(database, 60.0) for _ in range(3)] == [0, 0, 0]
    now.wall -= YEAR
    assert prune(database, -1.0) == 1


def test_a_clock_is_believed_once_servers_have_run_by_it_for_a_day(database: Database, now: Now) -> None:
    """Also where each server runs for a working day, after the box was off for months."""
    ended(database)
    now.wall += 100 * DAY
    for working_day in range(3):
        server = Retention(database, 30 * DAY, now.clock())
        for _ in range(9):
            server.look()
            assert bundles(database) == 1
            if working_day == 2:
                break
            now.pass_(HOUR)
        now.pass_(15 * HOUR)  # off
    server = Retention(database, 30 * DAY, now.clock())
    for _ in range(24):
        server.look()
        now.pass_(HOUR)
    assert bundles(database) == 0


def test_another_wrong_clock_is_doubted_anew(database: Database, now: Now) -> None:
    ended(database)
    for _ in range(10):
        now.wall += YEAR  # each start has another
        server = Retention(database, 30 * DAY, now.clock())
        for _ in range(12):
            server.look()
            now.pass_(HOUR)
    assert bundles(database) == 1


def test_a_pause_of_a_night_is_no_reason_to_doubt(database: Database, now: Now) -> None:
    ended(database)
    for _ in range(31):
        now.pass_(DAY - HOUR)
        server = Retention(database, 29 * DAY, now.clock())
        server.look()
    assert bundles(database) == 0


def test_a_database_of_an_older_gdnspec_says_when_it_was_written(tmp_path: Path, now: Now) -> None:
    database = Database(tmp_path / "service.db")
    Tokens(database).add("ann", 1000.0)
    ended(database)
    running = accept(Jobs(database, 8), "ann").id
    claimed(Queue(database, 10.0))
    written = now.wall
    with database.write() as connection:  # as it was
        connection.execute("ALTER TABLE jobs DROP COLUMN lease_seconds")
        connection.execute("DROP TABLE clock")
    now.wall += YEAR
    later = Database(tmp_path / "service.db")
    assert prune(later, 30 * DAY) == 0
    with later.read() as connection:
        assert connection.execute("SELECT trusted FROM clock").fetchone()[0] == written
    now.wall -= YEAR + HOUR
    assert claimed(Queue(later, 10.0)).job == running
    Database(tmp_path / "service.db")  # what was added is added once


def test_one_start_with_a_clock_a_year_ahead_deletes_no_bundle(tmp_path: Path) -> None:
    with Box(tmp_path / "data") as box:
        ann = box.user("ann", days=1000.0)
        name = box.ended(ann, box.job(ann, state="refused")).id
    box.settings["ahead"] = YEAR
    with box:
        until(lambda: "old bundles are kept" in box.said)
        assert box.ask("GET", f"jobs/{name}/bundle", ann).status == 200
    del box.settings["ahead"]
    with box:
        assert box.ask("GET", f"jobs/{name}/bundle", ann).status == 200
        assert box.ended(ann, box.job(ann)).state == "accepted"
