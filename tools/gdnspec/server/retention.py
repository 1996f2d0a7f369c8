"""What a service lets go of: bundles of jobs that ended long ago. Verdicts, traces and events stay.

A deleted bundle does not come back, and clocks are wrong now and then. So the clock alone does not tell a bundle's age.
The database keeps the newest time that was plausible, and servers that run move it on. After a pause of up to a day
they believe the clock. A clock that is further ahead is believed once servers have run by it for a day.
"""

import sqlite3
import threading
import time
from collections.abc import Callable

from gdnspec.server.database import Database, StorageError
from gdnspec.server.jobs import SHOWN, moment
from gdnspec.server.tell import tell
from gdnspec.server.tokens import DAY

PERIOD = 3600.0  # seconds between looks
AT_ONCE = 16  # in one transaction, so that nobody else waits long to write
LEAP = DAY  # seconds that the clock may be ahead of the newest plausible time
PROBATION = DAY  # seconds that servers run by a clock that is further ahead before it is believed
OLD = (
    "SELECT job FROM bundles JOIN jobs ON jobs.id = job WHERE ended < ? AND state NOT IN ('queued', 'running') "
    f"AND number NOT IN ({SHOWN}) LIMIT {AT_ONCE}"
)


class Clock:
    """What time it plausibly is. `wall`: seconds since 1970; `running`: seconds that pass whatever the clock is set to.
    Ask again at least every `LEAP`."""

    def __init__(self, wall: Callable[[], float] | None = None, running: Callable[[], float] | None = None) -> None:
        self._wall, self._running = wall or time.time, running or _running
        self._asked: float | None = None
        self.doubt = ""  # why the clock is not believed

    def plausible(self, connection: sqlite3.Connection) -> float:
        """Not later than it is by the clock. Writes it down."""
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
                    f"the clock says {moment(now)}, and a server ran here last at {moment(trusted)}: old bundles stay "
                    "until servers have run by this clock for a day"
                )
                return float(trusted)
        connection.execute("UPDATE clock SET trusted = ?, doubted = NULL, observed = 0", (now,))
        return now


def _running() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def prune(database: Database, seconds: float, clock: Clock | None = None) -> int:
    """Deletes bundles of jobs that ended longer ago, but for those that the page of all shows: at most `AT_ONCE`; how
    many. Raises `StorageError`."""
    with database.write() as connection:
        now = (clock or Clock()).plausible(connection)
        return connection.execute(f"DELETE FROM bundles WHERE job IN ({OLD})", (now - seconds,)).rowcount


class Retention:
    """Prunes now and every hour, until it is stopped."""

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
        """Once. Says so where the clock is not believed."""
        doubted = self._clock.doubt
        try:
            while not self._stop.is_set() and prune(self._database, self._seconds, self._clock) == AT_ONCE:
                pass
        except StorageError as error:
            tell(f"old bundles stay for now: {error}")
        if self._clock.doubt and not doubted:
            tell(self._clock.doubt)

    def _run(self) -> None:
        while True:
            self.look()
            if self._stop.wait(PERIOD):
                return
