"""The one file in which a service keeps everything: users, jobs, bundles, events, results."""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

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
-- One row a job, whatever happens: a second result has nowhere to go.
CREATE TABLE results (
    job TEXT PRIMARY KEY REFERENCES jobs (id), attempt INTEGER NOT NULL, verdicts TEXT NOT NULL, traces TEXT NOT NULL
) STRICT;
"""


class StorageError(Exception):
    """The database cannot be read or written now. `full`: for want of room."""

    def __init__(self, message: str, full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class Database:
    """A connection for each thread. Raises `StorageError`, also where the file is of another version."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._local = threading.local()
        self._writing = threading.Lock()  # waiting in turn, where SQLite's own waiting is a matter of luck
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
            raise StorageError(f"{file} is of version {found}; this gdnspec keeps version {SCHEMA_VERSION}")

    def _connection(self) -> sqlite3.Connection:
        known: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if known is None:
            known = sqlite3.connect(self.file, timeout=PATIENCE, isolation_level=None)
            known.row_factory = sqlite3.Row
            known.execute("PRAGMA journal_mode = WAL")
            known.execute("PRAGMA synchronous = FULL")  # what was accepted is on disk
            known.execute("PRAGMA foreign_keys = ON")
            self._local.connection = known
        return known

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """As it is at the moment of each query. Raises `StorageError`."""
        with _explained(self.file):
            yield self._connection()

    @contextlib.contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction, all of it or nothing. Raises `StorageError`."""
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
        """A copy as of now, whoever writes meanwhile; `target` must not exist. Raises `StorageError`."""
        with _explained(target), contextlib.closing(sqlite3.connect(target)) as copy:
            self._connection().backup(copy)


@contextlib.contextmanager
def _explained(file: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError:
        raise  # a matter of the query
    except sqlite3.DatabaseError as error:
        what = str(error)
        if "full" in what:
            raise StorageError(f"{file}: the disk is full; nothing was changed", full=True) from None
        if "readonly" in what:
            raise StorageError(f"{file}: cannot be written (read-only file, folder or disk)") from None
        raise StorageError(f"{file}: {what}") from None
