"""What a service lets go of: bundles of jobs that ended long ago. Verdicts, traces and events stay."""

import sys
import threading
import time

from gdnspec.service.database import Database, StorageError
from gdnspec.service.jobs import SHOWN

PERIOD = 3600.0  # seconds between looks
AT_ONCE = 16  # in one transaction, so that nobody else waits long to write
OLD = (
    "SELECT job FROM bundles JOIN jobs ON jobs.id = job WHERE ended < ? AND state NOT IN ('queued', 'running') "
    f"AND number NOT IN ({SHOWN}) LIMIT {AT_ONCE}"
)


def prune(database: Database, seconds: float) -> int:
    """Deletes bundles of jobs that ended longer ago, but for those that the page of all shows: at most `AT_ONCE`; how
    many. Raises `StorageError`."""
    with database.write() as connection:
        return connection.execute(f"DELETE FROM bundles WHERE job IN ({OLD})", (time.time() - seconds,)).rowcount


class Retention:
    """Prunes now and every hour, until it is stopped."""

    def __init__(self, database: Database, seconds: float) -> None:
        self._database, self._seconds = database, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                while not self._stop.is_set() and prune(self._database, self._seconds) == AT_ONCE:
                    pass
            except StorageError as error:
                print(f"gdnspec: old bundles stay for now: {error}", file=sys.stderr, flush=True)
            if self._stop.wait(PERIOD):
                return
