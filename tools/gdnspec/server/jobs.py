"""Jobs for their users: add, look at, cancel."""

import json
import secrets
import sqlite3
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import BinaryIO

from gdnspec.server.api import ENDED, Event, Job
from gdnspec.server.database import Database

CHUNK = 1 << 20
MOST_EVENTS = 500  # per query
# The jobs on the page of all solutions.
SHOWN = "SELECT max(number) FROM jobs WHERE state = 'accepted' GROUP BY solution"


class QueueFull(Exception):
    """The user already has the most jobs that may wait or run."""


class OtherRequest(Exception):
    """An earlier request with this key had another bundle."""


class BundleDeleted(Exception):
    """The job exists, but its bundle was deleted."""


class Jobs:
    """The jobs in the database. A method that takes a `user` sees only this user's jobs. All raise `StorageError`."""

    def __init__(self, database: Database, queue_limit: int) -> None:
        self._database, self._limit = database, queue_limit

    def accept(self, user: str, bundle: BinaryIO, size: int, sha256: str, request: str | None) -> tuple[Job, bool]:
        """Stores a bundle as a job. Returns the job, and whether it is new: a `request` key that was used before gives
        the earlier job. Afterwards the job is on disk. Raises `QueueFull`, `OtherRequest`."""
        now, name = time.time(), secrets.token_hex(8)
        with self._database.write() as connection:
            if request is not None:
                known = connection.execute("SELECT * FROM jobs WHERE user = ? AND request = ?", (user, request))
                if row := known.fetchone():
                    if row["sha256"] != sha256:
                        raise OtherRequest
                    return _job(connection, row), False
            counted = "SELECT count(*) FROM jobs WHERE user = ? AND state IN ('queued', 'running')"
            if connection.execute(counted, (user,)).fetchone()[0] >= self._limit:
                raise QueueFull
            connection.execute(
                "INSERT INTO jobs (id, user, request, sha256, size, created) VALUES (?, ?, ?, ?, ?, ?)",
                (name, user, request, sha256, size, now),
            )
            _keep(connection, name, bundle, size)
            add_event(connection, name, 0, now, "queued", text=f"{size} bytes, sha256 {sha256}")
            return _job(connection, _row(connection, user, name)), True

    def get(self, user: str, name: str) -> Job | None:
        """The user's job; None if the user has no such job."""
        with self._database.read() as connection:
            row = _row(connection, user, name)
            return _job(connection, row) if row else None

    def listed(self, user: str, before: str | None, most: int) -> list[Job]:
        """The user's jobs that are older than the job `before`, the newest first."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT * FROM jobs WHERE user = :user AND (:before IS NULL OR number < "
                "(SELECT number FROM jobs WHERE user = :user AND id = :before)) ORDER BY number DESC LIMIT :most",
                {"user": user, "before": before, "most": most},
            ).fetchall()
            return [_job(connection, row) for row in rows]

    def cancel(self, user: str, name: str) -> Job | None:
        """Cancels a waiting job, and asks a running one to end. A job that has ended stays as it is."""
        now = time.time()
        with self._database.write() as connection:
            ended = connection.execute(
                "UPDATE jobs SET state = 'cancelled', ended = ? WHERE user = ? AND id = ? AND state = 'queued' "
                "RETURNING attempt",
                (now, user, name),
            ).fetchone()
            if ended:
                add_event(connection, name, ended["attempt"], now, "ended", status="cancelled")
            else:
                connection.execute(
                    "UPDATE jobs SET cancel = 1 WHERE user = ? AND id = ? AND state = 'running'", (user, name)
                )
            row = _row(connection, user, name)
            return _job(connection, row) if row else None

    def events(self, name: str, after: int) -> list[Event]:
        """At most `MOST_EVENTS` events after the event with the number `after`. Does not check the job's owner."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT id, attempt, kind, at, text, status, total FROM events WHERE job = ? AND id > ? ORDER BY id "
                "LIMIT ?",
                (name, after, MOST_EVENTS),
            ).fetchall()
        return [Event(**{**dict(row), "at": moment(row["at"])}) for row in rows]

    def bundle(self, name: str) -> bytes:
        """The bundle as it was sent. Does not check the job's owner. Raises `BundleDeleted`."""
        with self._database.read() as connection:
            row = connection.execute("SELECT data FROM bundles WHERE job = ?", (name,)).fetchone()
        if row is None:
            raise BundleDeleted
        return bytes(row["data"])

    def result(self, name: str) -> tuple[str, str]:
        """Verdicts and traces, each as a JSON list. The lists are empty if there is no result."""
        with self._database.read() as connection:
            row = connection.execute("SELECT verdicts, traces FROM results WHERE job = ?", (name,)).fetchone()
        return (row["verdicts"], row["traces"]) if row else ("[]", "[]")


def moment(seconds: float) -> str:
    """Seconds since 1970 as UTC, ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def add_event(
    connection: sqlite3.Connection, job: str, attempt: int, at: float, kind: str, *, text: str = "", status: str = "",
    total: int | None = None,
) -> None:  # fmt: skip
    connection.execute(
        "INSERT INTO events (job, attempt, kind, at, text, status, total) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (job, attempt, kind, at, text, status, total),
    )


def _keep(connection: sqlite3.Connection, job: str, bundle: BinaryIO, size: int) -> None:
    connection.execute("INSERT INTO bundles VALUES (?, zeroblob(?))", (job, size))
    (row,) = connection.execute("SELECT rowid FROM bundles WHERE job = ?", (job,)).fetchone()
    with connection.blobopen("bundles", "data", row) as blob:
        bundle.seek(0)
        for chunk in iter(lambda: bundle.read(CHUNK), b""):
            blob.write(chunk)


def _row(connection: sqlite3.Connection, user: str, name: str) -> sqlite3.Row | None:
    found: Iterable[sqlite3.Row] = connection.execute("SELECT * FROM jobs WHERE user = ? AND id = ?", (user, name))
    return next(iter(found), None)


def _job(connection: sqlite3.Connection, row: sqlite3.Row | None) -> Job:
    assert row is not None
    ahead = None
    if row["state"] == "queued":
        before = "SELECT count(*) FROM jobs WHERE state = 'queued' AND number < ?"
        ahead = connection.execute(before, (row["number"],)).fetchone()[0]
    return Job(
        id=row["id"], state=row["state"], solution=row["solution"], sha256=row["sha256"], size=row["size"],
        created=moment(row["created"]), started=moment(row["started"]) if row["started"] else None,
        ended=moment(row["ended"]) if row["state"] in ENDED else None, attempt=row["attempt"], ahead=ahead,
        done=row["done"], total=row["total"], reasons=json.loads(row["reasons"]),
    )  # fmt: skip
