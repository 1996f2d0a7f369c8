"""Delete the bundles of jobs that ended long ago. Verdicts, traces and events are kept.

A deleted bundle cannot be restored, and clocks are sometimes wrong, so the clock alone does not decide. The database
keeps the newest plausible time, and running servers advance it. If the clock is ahead by at most a day, it is trusted.
If it is further ahead, it is trusted after servers have run with it for a day.
"""

import sqlite3
import threading
import time
from collections.abc import Callable

from gdnspec.server.database import Database, StorageError
from gdnspec.server.jobs import SHOWN, moment
from gdnspec.server.tell import tell
from gdnspec.server.tokens import DAY

PERIOD = 3600.0  # seconds between runs
AT_ONCE = 16  # bundles per transaction, so that other writers do not wait long
LEAP = DAY  # seconds that the clock may be ahead of the newest plausible time
PROBATION = DAY  # seconds that servers run with a clock that is further ahead before it is trusted
OLD = (
    "SELECT job FROM bundles JOIN jobs ON jobs.id = job WHERE ended < ? AND state NOT IN ('queued', 'running') "
    f"AND number NOT IN ({SHOWN}) LIMIT {AT_ONCE}"
)


class Clock:
    """The plausible time. `wall` returns seconds since 1970; `running` returns seconds of a clock that nobody can set.
    Call `plausible` at least every `LEAP` seconds."""

    def __init__(self, wall: Callable[[], float] | None = None, running: Callable[[], float] | None = None) -> None:
        self._wall, self._running = wall or time.time, running or _running
        self._asked: float | None = None
        self.doubt = ""  # why the clock is not trusted

    def plausible(self, connection: sqlite3.Connection) -> float:
        """The plausible time, never later than the clock. Stores it in the database."""
        now, running = self._wall(), self._running()
        passed = 0.0 if self._asked is None else running - self._asked
        self._asked = running
        trusted, doubted, observed = connection.execute("SELECT trusted, doubted, observed FROM clock").fetchone()
        self.doubt = ""
        if now > trusted + LEAP:
            goes_on = doubted is not None and 0 <= now - doubted <= LEAP
            observed = observed + passed if goes_on else 0.0
            if observed < PROBATION:
                connection.execute("UPDATE clock SET doubted = ?, observed = ?", (now, observed))
                self.doubt = (
                    f"the clock says {moment(now)}, but a server last ran here at {moment(trusted)}: old bundles are "
                    "kept until servers have run with this clock for a day"
                )
                return float(trusted)
        connection.execute("UPDATE clock SET trusted = ?, doubted = NULL, observed = 0", (now,))
        return now


def _running() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def prune(database: Database, seconds: float, clock: Clock | None = None) -> int:
    """Deletes at most `AT_ONCE` bundles of jobs that ended more than `seconds` ago, except those on the page of all
    solutions. Returns how many. Raises `StorageError`."""
    with database.write() as connection:
        now = (clock or Clock()).plausible(connection)
        return connection.execute(f"DELETE FROM bundles WHERE job IN ({OLD})", (now - seconds,)).rowcount


class Retention:
    """A thread that prunes at its start and every hour, until it is stopped."""

    def __init__(self, database: Database, seconds: float, clock: Clock | None = None) -> None:
        self._database, self._seconds, self._clock = database, seconds, clock or Clock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def look(self) -> None:
        """Prunes once. Reports if the clock is not trusted."""
        doubted = self._clock.doubt
        try:
            while not self._stop.is_set() and prune(self._database, self._seconds, self._clock) == AT_ONCE:
                pass
        except StorageError as error:
            tell(f"old bundles were not deleted: {error}")
        if self._clock.doubt and not doubted:
            tell(self._clock.doubt)

    def _run(self) -> None:
        while True:
            self.look()
            if self._stop.wait(PERIOD):
                return
