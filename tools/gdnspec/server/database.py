"""The database of a server: users, jobs, bundles, events, results. It is one file."""

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from gdnspec.server.room import full

SCHEMA_VERSION = 1
PATIENCE = 10.0  # seconds that a writer waits for another
SCHEMA = """
CREATE TABLE users (name TEXT PRIMARY KEY, created REAL NOT NULL) STRICT;
CREATE TABLE tokens (
    hash TEXT PRIMARY KEY, user TEXT NOT NULL REFERENCES users, created REAL NOT NULL, expires REAL NOT NULL,
    revoked REAL
) STRICT;
CREATE INDEX tokens_of ON tokens (user);
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, user TEXT NOT NULL REFERENCES users,
    request TEXT, sha256 TEXT NOT NULL, size INTEGER NOT NULL, solution TEXT NOT NULL DEFAULT '',
    state TEXT NOT NULL DEFAULT 'queued', created REAL NOT NULL, started REAL, ended REAL,
    attempt INTEGER NOT NULL DEFAULT 0, crashes INTEGER NOT NULL DEFAULT 0, lease REAL,
    cancel INTEGER NOT NULL DEFAULT 0, done INTEGER NOT NULL DEFAULT 0,
    total INTEGER NOT NULL DEFAULT 0, reasons TEXT NOT NULL DEFAULT '[]',
    UNIQUE (user, request)
) STRICT;
CREATE INDEX jobs_by_state ON jobs (state, number);
CREATE INDEX jobs_of ON jobs (user, state, number);
CREATE TABLE bundles (job TEXT PRIMARY KEY REFERENCES jobs (id), data BLOB NOT NULL) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL REFERENCES jobs (id), attempt INTEGER NOT NULL,
    kind TEXT NOT NULL, at REAL NOT NULL, text TEXT NOT NULL, status TEXT NOT NULL, total INTEGER
) STRICT;
CREATE INDEX events_of ON events (job, id);
-- The primary key allows one result per job.
CREATE TABLE results (
    job TEXT PRIMARY KEY REFERENCES jobs (id), attempt INTEGER NOT NULL, verdicts TEXT NOT NULL, traces TEXT NOT NULL
) STRICT;
"""


# Added later. An older gdnspec can still use the database, so the version stays the same. `clock` has one row, which
# `retention` explains. At first it holds the newest time in the database; in a new database, the current time.
ADDED = """
ALTER TABLE jobs ADD COLUMN lease_seconds REAL;
CREATE TABLE clock (
    one INTEGER PRIMARY KEY CHECK (one = 1), trusted REAL, doubted REAL, observed REAL NOT NULL DEFAULT 0
) STRICT;
INSERT INTO clock (one, trusted) SELECT 1, max(at) FROM (
    SELECT max(created) AS at FROM jobs UNION ALL SELECT max(started) FROM jobs UNION ALL SELECT max(ended) FROM jobs
    UNION ALL SELECT max(at) FROM events UNION ALL SELECT max(created) FROM tokens
)
"""


class StorageError(Exception):
    """The database cannot be read or written now. `full`: because the disk is full."""

    def __init__(self, message: str, full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class Database:
    """A database file, with one connection per thread. Raises `StorageError`, also if the file has another version."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._local = threading.local()
        self._writing = threading.Lock()  # threads wait in order; SQLite's own waiting is not fair
        with _explained(file):
            connection = self._connection()
            if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                with self.write() as new:
                    if new.execute("PRAGMA user_version").fetchone()[0] == 0:  # no other process was faster
                        for statement in SCHEMA.split(";\n"):
                            new.execute(statement)
                        new.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            if found != SCHEMA_VERSION:
                raise StorageError(f"{file} has version {found}, and this gdnspec uses version {SCHEMA_VERSION}")
            if not _extended(connection):
                with self.write() as old:
                    if not _extended(old):
                        for statement in ADDED.split(";\n"):
                            old.execute(statement)
                        old.execute("UPDATE clock SET trusted = coalesce(trusted, ?)", (time.time(),))

    def _connection(self) -> sqlite3.Connection:
        known: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if known is None:
            known = sqlite3.connect(self.file, timeout=PATIENCE, isolation_level=None)
            known.row_factory = sqlite3.Row
            known.execute("PRAGMA journal_mode = WAL")
            known.execute("PRAGMA synchronous = FULL")  # an accepted job survives a crash of the machine
            known.execute("PRAGMA foreign_keys = ON")
            self._local.connection = known
        return known

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A connection for queries. Each query sees the state of its moment. Raises `StorageError`."""
        with _explained(self.file):
            yield self._connection()

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A connection in a transaction, which is stored completely or not at all. Raises `StorageError`."""
        with _explained(self.file), self._writing:
            connection = self._connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def backup(self, target: Path) -> None:
        """Copies the database as it is now, while others may write. Raises `StorageError`, also if `target` exists, and
        then leaves no copy."""
        if os.path.lexists(target):
            raise StorageError(f"{target}: exists already")
        try:
            with _explained(target), contextlib.closing(sqlite3.connect(target)) as copy:
                self._connection().backup(copy)
        except BaseException:
            for name in (target, target.with_name(f"{target.name}-journal")):
                name.unlink(missing_ok=True)  # a part of a copy would look like a whole one
            raise


def _extended(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'clock'").fetchone() is not None


@contextlib.contextmanager
def _explained(file: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError:
        raise  # the query's fault, not the disk's
    except sqlite3.DatabaseError as error:
        what = str(error)
        # When SQLite creates or extends a file that readers share, its error does not say that the disk is full.
        if "full" in what or (("disk I/O error" in what or "unable to open" in what) and full(file.parent)):
            raise StorageError(f"{file}: the disk is full; nothing was changed", full=True) from None
        if "readonly" in what:
            raise StorageError(f"{file}: cannot be written (read-only file, folder or disk)") from None
        raise StorageError(f"{file}: {what}") from None
