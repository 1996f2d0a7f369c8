"""Jobs as their users see them: sent, looked at, called back."""

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
MOST_EVENTS = 500  # of one look
SHOWN = "SELECT max(number) FROM jobs WHERE state = 'accepted' GROUP BY solution"  # in the page of all


class QueueFull(Exception):
    """The user has as many jobs waiting or running as one may have."""


class OtherRequest(Exception):
    """A request of that key was for another bundle."""


class BundleDeleted(Exception):
    """The job is there, and its bundle no longer."""


class Jobs:
    """Every method is of one user's jobs, and sees no others. All of it raises `StorageError`."""

    def __init__(self, database: Database, queue_limit: int) -> None:
        self._database, self._limit = database, queue_limit

    def accept(self, user: str, bundle: BinaryIO, size: int, sha256: str, request: str | None) -> tuple[Job, bool]:
        """The job of a bundle, and whether it is new: a `request` that was heard before is answered as then. Once this
        returns it is on disk. Raises `QueueFull`, `OtherRequest`."""
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
        """None where the user has no such job, whoever else may."""
        with self._database.read() as connection:
            row = _row(connection, user, name)
            return _job(connection, row) if row else None

    def listed(self, user: str, before: str | None, most: int) -> list[Job]:
        """The newest first; those older than the job `before`."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT * FROM jobs WHERE user = :user AND (:before IS NULL OR number < "
                "(SELECT number FROM jobs WHERE user = :user AND id = :before)) ORDER BY number DESC LIMIT :most",
                {"user": user, "before": before, "most": most},
            ).fetchall()
            return [_job(connection, row) for row in rows]

    def cancel(self, user: str, name: str) -> Job | None:
        """At once where it waits; a running one is asked to end. One that has ended stays as it is."""
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
        """What happened after the event of that number, at most `MOST_EVENTS`; the job's owner is not asked for."""
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT id, attempt, kind, at, text, status, total FROM events WHERE job = ? AND id > ? ORDER BY id "
                "LIMIT ?",
                (name, after, MOST_EVENTS),
            ).fetchall()
        return [Event(**{**dict(row), "at": moment(row["at"])}) for row in rows]

    def bundle(self, name: str) -> bytes:
        """As it was sent; the job's owner is not asked for. Raises `BundleDeleted`."""
        with self._database.read() as connection:
            row = connection.execute("SELECT data FROM bundles WHERE job = ?", (name,)).fetchone()
        if row is None:
            raise BundleDeleted
        return bytes(row["data"])

    def result(self, name: str) -> tuple[str, str]:
        """Verdicts and traces, each a list in JSON; empty ones where there is none."""
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
