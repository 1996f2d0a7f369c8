"""The report as a page: for one job, or for all accepted solutions and the project's own.

A page is made from the database alone, in a separate process, and kept in memory.
"""

import errno
import os
import secrets
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

from gdnspec.server.database import Database
from gdnspec.server.job_process import run_beside
from gdnspec.server.jobs import SHOWN, BundleDeleted
from gdnspec.server.settings import Settings
from gdnspec.server.workplace import Workplace

SECONDS = 120.0
VERDICTS, TRACES, BUNDLE, PAGE = "verdicts.json", "traces.json", "bundle.tar", "page.html"
MAKER = (sys.executable, "-P", "-m", "gdnspec.server.write_page")
MOST_KEPT = 32
FULL = 75  # exit status of the maker where the disk is full


class NoReport(Exception):
    """No page can be made; the message says why."""


class Pages:
    """Makes pages. Raises `NoReport`, `BundleDeleted`, `StorageError`, `OSError`."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database, self._settings = database, settings
        self._making = threading.Lock()  # one at a time: it takes seconds of a processor
        self._kept: dict[tuple[str, ...], bytes] = {}
        self._soon: Future[bytes] | None = None
        self._asking = threading.Lock()

    def of_job(self, job: str) -> bytes:
        """The page of one job that has ended."""
        return self._page((job,))

    def of_all(self) -> bytes:
        """The page with the latest accepted submission of each name."""
        with self._database.read() as connection:
            rows = connection.execute(f"SELECT id FROM jobs WHERE number IN ({SHOWN}) ORDER BY solution")
            return self._page(("", *(row["id"] for row in rows)))

    def of_all_within(self, seconds: float) -> bytes | None:
        """Like `of_all`, or None if the page takes longer. It is made on, and a later call gets it."""
        with self._asking:
            if self._soon is None or self._soon.done():
                self._soon = Future()
                threading.Thread(target=self._fulfil, args=(self._soon,), daemon=True).start()
            soon = self._soon
        try:
            return soon.result(seconds)
        except TimeoutError:
            return None

    def _fulfil(self, soon: "Future[bytes]") -> None:
        try:
            soon.set_result(self.of_all())
        except Exception as error:  # for whoever waits
            soon.set_exception(error)

    def _page(self, key: tuple[str, ...]) -> bytes:
        with self._making:
            if key not in self._kept:
                while len(self._kept) >= MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = self._made(key)
            return self._kept[key]

    def _made(self, key: tuple[str, ...]) -> bytes:
        with Workplace(self._settings.work).folder(f"page-{secrets.token_hex(8)}") as (folder, _):
            for job in filter(None, key):
                self._lay_out(job, folder / job)
            scope = "all" if key[0] == "" else "job"
            try:
                code, said = run_beside((*MAKER, scope), folder, SECONDS)
            except subprocess.TimeoutExpired:
                raise NoReport(f"the page was not made within {SECONDS:g} s") from None
            if code == FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if code != 0:
                raise NoReport((said.strip().splitlines() or [f"exit status {code}"])[-1])
            return (folder / PAGE).read_bytes()

    def _lay_out(self, job: str, folder: Path) -> None:
        folder.mkdir()
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT data, verdicts, traces FROM results LEFT JOIN bundles USING (job) WHERE job = ?", (job,)
            ).fetchone()
        if row is None:
            raise NoReport("the job has no result")
        if row["data"] is None:
            raise BundleDeleted
        (folder / BUNDLE).write_bytes(row["data"])
        (folder / VERDICTS).write_text(row["verdicts"])
        (folder / TRACES).write_text(row["traces"])
