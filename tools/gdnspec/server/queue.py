"""Jobs as those see them who run them: claimed for a while, kept by saying so, ended once.

A claim is one UPDATE, and gives the job a new attempt number. Whatever is written later names that attempt, and is
written only while it is still the job's: who was silent for longer than the lease has lost the job, and learns it so.
"""

import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple

from gdnspec.server.api import Kind, State
from gdnspec.server.database import Database
from gdnspec.server.jobs import add_event

MOST_CRASHES = 3  # of a job's process, while its server lives
MOST_ATTEMPTS = 50  # a machine may be restarted often; what brings it down each time ends here
MOST_REASONS = 100
Beat = Literal["on", "cancel", "gone"]
# A lease ends at most its own length from now. One that ends much later was given before the clock was set back, and
# would keep a job from everybody for as long.
EXPIRED = "(lease < :now OR lease > :now + 2 * coalesce(lease_seconds, :lease))"
WAITS = f"(state = 'queued' OR (state = 'running' AND {EXPIRED}))"


class Claim(NamedTuple):
    """A job that is ours, as long as we say so in time."""

    job: str
    attempt: int
    user: str


class Happened(NamedTuple):
    """An event to be written down."""

    kind: Kind
    text: str = ""
    status: str = ""
    total: int | None = None


class Queue:
    """All of it raises `StorageError`."""

    def __init__(self, database: Database, lease: float) -> None:
        self._database, self.lease = database, lease

    def claim(self, ours: Collection[str] = ()) -> Claim | None:
        """The oldest job that waits, or whose server has been silent for a lease. None where there is none. `ours`:
        jobs that this server runs now, which it does not take from itself, whatever the clock says."""
        now = time.time()
        known = {"now": now, "lease": self.lease, "ours": json.dumps(sorted(ours))}
        others = f"{WAITS} AND id NOT IN (SELECT value FROM json_each(:ours))"
        with self._database.read() as connection:  # a look that takes no lock: most find nothing
            if connection.execute(f"SELECT 1 FROM jobs WHERE {others} LIMIT 1", known).fetchone() is None:
                return None
        lost = json.dumps([f"its server was lost in {MOST_ATTEMPTS} attempts"])
        with self._database.write() as connection:
            for row in connection.execute(
                "UPDATE jobs SET state = iif(cancel, 'cancelled', 'lost'), ended = :now, lease = NULL, "
                f"reasons = iif(cancel, '[]', :lost) WHERE state = 'running' AND {others} "
                "AND (cancel OR attempt >= :most) RETURNING id, attempt, state",
                {**known, "lost": lost, "most": MOST_ATTEMPTS},
            ).fetchall():
                add_event(connection, row["id"], row["attempt"], now, "ended", status=row["state"])
            row = connection.execute(
                "UPDATE jobs SET state = 'running', attempt = attempt + 1, lease = :now + :lease, "
                "lease_seconds = :lease, started = :now, done = 0, total = 0 "
                f"WHERE number = (SELECT min(number) FROM jobs WHERE {others}) RETURNING id, attempt, user",
                known,
            ).fetchone()
            if row is None:
                return None
            add_event(connection, row["id"], row["attempt"], now, "started" if row["attempt"] == 1 else "again")
            return Claim(row["id"], row["attempt"], row["user"])

    def bundle(self, claim: Claim) -> bytes:
        """As it was sent."""
        with self._database.read() as connection:
            row = connection.execute("SELECT data FROM bundles WHERE job = ?", (claim.job,)).fetchone()
        return bytes(row["data"])

    def look(self, claim: Claim) -> Beat:
        """Whether to go on, without saying anything."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT cancel FROM jobs WHERE id = ? AND attempt = ? AND state = 'running'", claim[:2]
            ).fetchone()
        return _beat(row)

    def beat(self, claim: Claim, news: Iterable[Happened], done: int, total: int) -> Beat:
        """Keeps the job for another lease, and writes down what happened to it."""
        now = time.time()
        with self._database.write() as connection:
            row = connection.execute(
                "UPDATE jobs SET lease = ?, lease_seconds = ?, done = ?, total = ? "
                "WHERE id = ? AND attempt = ? AND state = 'running' RETURNING cancel",
                (now + self.lease, self.lease, done, total, *claim[:2]),
            ).fetchone()
            if row is not None:
                _write_down(connection, claim, now, news)
        return _beat(row)

    def name(self, claim: Claim, solution: str) -> bool:
        """What the bundle calls itself. False where another user's accepted solution has that name."""
        with self._database.write() as connection:
            connection.execute(
                "UPDATE jobs SET solution = ? WHERE id = ? AND attempt = ? AND state = 'running'",
                (solution, *claim[:2]),
            )
            return not _taken(connection, claim, solution)

    def finish(
        self, claim: Claim, state: State, reasons: Sequence[str], verdicts: Sequence[str], traces: Sequence[str],
        news: Iterable[Happened] = (), total: int = 0,
    ) -> bool:  # fmt: skip
        """Ends the job with its result, in one step. False where it is no longer ours: then nothing is written."""
        now = time.time()
        with self._database.write() as connection:
            row = connection.execute(
                "UPDATE jobs SET done = ?, total = ? WHERE id = ? AND attempt = ? AND state = 'running' "
                "RETURNING solution",
                (len(verdicts), total, *claim[:2]),
            ).fetchone()
            if row is None:
                return False
            _write_down(connection, claim, now, news)
            if state == "accepted" and _taken(connection, claim, row["solution"]):
                state, reasons = "refused", [taken(row["solution"])]
            ended = _end(connection, claim, now, state, reasons)
            if ended != "cancelled":
                lists = [f"[{','.join(lines)}]" for lines in (verdicts, traces)]
                connection.execute("INSERT INTO results VALUES (?, ?, ?, ?)", (*claim[:2], *lists))
            return True

    def give_back(self, claim: Claim, crashed: str = "", news: Iterable[Happened] = ()) -> None:
        """The job waits again, as this server ends or its process has `crashed`; one that crashes again and again is
        lost."""
        now = time.time()
        with self._database.write() as connection:
            row = connection.execute(
                "UPDATE jobs SET crashes = crashes + ? WHERE id = ? AND attempt = ? AND state = 'running' "
                "RETURNING crashes, cancel",
                (bool(crashed), *claim[:2]),
            ).fetchone()
            if row is None:
                return
            _write_down(connection, claim, now, news)
            if row["cancel"] or row["crashes"] >= MOST_CRASHES:
                why = f"its process was lost {row['crashes']} times, last: {crashed}"
                _end(connection, claim, now, "lost", [why])
            else:
                connection.execute("UPDATE jobs SET state = 'queued', lease = NULL WHERE id = ?", (claim.job,))
                if crashed:
                    add_event(connection, claim.job, claim.attempt, now, "warning", text=f"lost: {crashed}; once more")

    def running(self) -> set[tuple[str, int]]:
        """(job, attempt) of those that somebody runs."""
        with self._database.read() as connection:
            rows = connection.execute(
                f"SELECT id, attempt FROM jobs WHERE state = 'running' AND NOT {EXPIRED}",
                {"now": time.time(), "lease": self.lease},
            )
            return {(row["id"], row["attempt"]) for row in rows}


def taken(solution: str) -> str:
    return f"the name {solution!r} is taken by another user's accepted solution"


def _beat(row: sqlite3.Row | None) -> Beat:
    if row is None:
        return "gone"
    return "cancel" if row["cancel"] else "on"


def _taken(connection: sqlite3.Connection, claim: Claim, solution: str) -> bool:
    query = "SELECT 1 FROM jobs WHERE state = 'accepted' AND solution = ? AND user != ? LIMIT 1"
    return connection.execute(query, (solution, claim.user)).fetchone() is not None


def _write_down(connection: sqlite3.Connection, claim: Claim, now: float, news: Iterable[Happened]) -> None:
    for event in news:
        add_event(connection, claim.job, claim.attempt, now, **event._asdict())


def _end(connection: sqlite3.Connection, claim: Claim, now: float, state: State, reasons: Sequence[str]) -> State:
    """A user's wish to cancel is heard as long as there is no result. Returns the state."""
    (ended,) = connection.execute(
        "UPDATE jobs SET state = iif(cancel, 'cancelled', ?), ended = ?, reasons = iif(cancel, '[]', ?), lease = NULL "
        "WHERE id = ? RETURNING state",
        (state, now, json.dumps(list(reasons)[:MOST_REASONS]), claim.job),
    ).fetchone()
    add_event(connection, claim.job, claim.attempt, now, "ended", status=ended)
    found: State = ended
    return found
