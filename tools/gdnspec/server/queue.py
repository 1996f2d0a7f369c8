"""The queue of jobs for the servers that run them: claim a job for a lease, renew the lease, end the job once.

A claim is one UPDATE, and gives the job a new attempt number. Every later write names the attempt, and takes effect
only while the attempt is current. A server that is silent for longer than the lease loses the job, and notices it here.
"""

import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple

from gdnspec.server.api import Kind, State
from gdnspec.server.database import Database
from gdnspec.server.jobs import add_event

MOST_CRASHES = 3  # of a job's process, while its server runs
MOST_ATTEMPTS = 50  # a machine may restart often, but a job that crashes it every time must end
MOST_REASONS = 100
Beat = Literal["on", "cancel", "gone"]
# A lease ends at most its own length from now. If it ends much later, the clock was set back since, and the lease is
# ignored: otherwise nobody could take the job.
EXPIRED = "(lease < :now OR lease > :now + 2 * coalesce(lease_seconds, :lease))"
WAITS = f"(state = 'queued' OR (state = 'running' AND {EXPIRED}))"


class Claim(NamedTuple):
    """A job that this server runs, as long as it renews the lease in time."""

    job: str
    attempt: int
    user: str


class Happened(NamedTuple):
    """An event to be stored."""

    kind: Kind
    text: str = ""
    status: str = ""
    total: int | None = None


class Queue:
    """Claims and ends jobs. `lease`: seconds. All methods raise `StorageError`."""

    def __init__(self, database: Database, lease: float) -> None:
        self._database, self.lease = database, lease

    def claim(self, ours: Collection[str] = ()) -> Claim | None:
        """Claims the oldest job that waits or whose lease is over; None if there is none. `ours`: jobs that this server
        runs now, and does not claim again, even if the clock is wrong."""
        now = time.time()
        known = {"now": now, "lease": self.lease, "ours": json.dumps(sorted(ours))}
        others = f"{WAITS} AND id NOT IN (SELECT value FROM json_each(:ours))"
        with self._database.read() as connection:  # a query without a lock first: usually there is no job
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
        """The bundle as it was sent."""
        with self._database.read() as connection:
            row = connection.execute("SELECT data FROM bundles WHERE job = ?", (claim.job,)).fetchone()
        return bytes(row["data"])

    def look(self, claim: Claim) -> Beat:
        """Whether to go on. Writes nothing."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT cancel FROM jobs WHERE id = ? AND attempt = ? AND state = 'running'", claim[:2]
            ).fetchone()
        return _beat(row)

    def beat(self, claim: Claim, news: Iterable[Happened], done: int, total: int) -> Beat:
        """Renews the lease, and stores events and progress."""
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
        """Stores the solution's name. False if another user's accepted solution has this name."""
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
        """Ends the job and stores its result, in one step. False, and nothing stored, if the claim is not current."""
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
        """Puts the job back into the queue, because this server ends or the job's process `crashed` (the reason). After
        `MOST_CRASHES` crashes the job is lost."""
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
                why = f"its process failed {row['crashes']} times, last: {crashed}"
                _end(connection, claim, now, "lost", [why])
            else:
                connection.execute("UPDATE jobs SET state = 'queued', lease = NULL WHERE id = ?", (claim.job,))
                if crashed:
                    text = f"its process failed: {crashed}; trying again"
                    add_event(connection, claim.job, claim.attempt, now, "warning", text=text)

    def running(self) -> set[tuple[str, int]]:
        """(job, attempt) of the jobs that a server runs."""
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
    """Ends a job, and returns its state: `cancelled` if the user has asked for it before."""
    (ended,) = connection.execute(
        "UPDATE jobs SET state = iif(cancel, 'cancelled', ?), ended = ?, reasons = iif(cancel, '[]', ?), lease = NULL "
        "WHERE id = ? RETURNING state",
        (state, now, json.dumps(list(reasons)[:MOST_REASONS]), claim.job),
    ).fetchone()
    add_event(connection, claim.job, claim.attempt, now, "ended", status=ended)
    found: State = ended
    return found
