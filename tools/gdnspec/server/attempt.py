"""One attempt at a job: start a process that judges it, store what the process says, and end it when asked to."""

import os
import threading
import time
from pathlib import Path
from typing import Literal

from gdnspec.server.api import State
from gdnspec.server.database import StorageError
from gdnspec.server.job_lines import Line, Task
from gdnspec.server.job_process import Garbled, JobProcess
from gdnspec.server.queue import Beat, Claim, Happened, Queue, taken
from gdnspec.server.room import TOO_LITTLE, for_want_of_room, full
from gdnspec.server.settings import Settings
from gdnspec.server.tell import tell
from gdnspec.server.workplace import Workplace

LOOK = 0.5  # seconds between checks whether the job was cancelled
RETRY = 1.0  # seconds between attempts to write to a full disk
BUNDLE, INTO, SCRATCH = "bundle.tar", "into", "tmp"
LONGEST = 500  # characters in the text of an event
MOST_BYTES = 256 << 20  # in a result
PRIVATE = ("GDNSPEC_TOKEN",)  # variables of the server that a job does not get


class Attempt:
    """Runs one claimed job. `lock`: the descriptor of the slot's lock. `stop`: set when the server ends.

    Raises:
        StorageError, OSError: Any server may then take the job when its lease is over.
    """

    def __init__(
        self, queue: Queue, settings: Settings, claim: Claim, device: str, lock: int, stop: threading.Event
    ) -> None:
        self._queue, self._settings, self._claim = queue, settings, claim
        self._device, self._lock, self._stop = device, lock, stop
        self._verdicts: list[str] = []
        self._traces: list[str] = []
        self._news: list[Happened] = []  # events that are not stored yet
        self._said: set[str] = set()
        self._unnamed = ""  # the solution's name, until it is stored
        self._bytes = 0
        self._total = 0
        self._end: tuple[State, list[str]] | None = None
        self._retry = min(RETRY, queue.lease / 3)  # after a lease without a write, another server takes the job

    def run(self) -> None:
        crashed = self._run_where_there_is_room()
        # The job's folder is gone by now. If the disk is still full, the job was not the cause.
        if crashed and full(self._settings.work, TOO_LITTLE):
            while self._wait(crashed) == "on" and full(self._settings.work, TOO_LITTLE):
                pass
            crashed = ""
        if self._end is not None:
            self._finish(*self._end)
        elif crashed is not None:
            self._queue.give_back(self._claim, crashed, self._news)

    def _run_where_there_is_room(self) -> str | None:
        """As `_follow`. While the disk is full, the job waits and keeps its slot."""
        while True:
            try:
                return self._run_once()
            except OSError as error:
                if not for_want_of_room(error):
                    raise
                if self._end is not None:
                    return None
                if self._wait(str(error.strerror)) != "on":
                    return ""

    def _run_once(self) -> str | None:
        place = Workplace(self._settings.work)
        self._verdicts, self._traces, self._bytes = [], [], 0
        with place.folder(folder_name(self._claim.job, self._claim.attempt)) as (folder, lock):
            task, locks = self._prepared(folder), (self._lock, lock)
            with JobProcess(self._settings.runner, folder, task, self._environment(folder), locks) as process:
                return self._follow(process)

    def _wait(self, why: str) -> Beat | Literal["stop"]:
        """Waits a moment for space on the server's disk. Returns whether to go on."""
        text = f"waits for space on the server's disk: {why}"[:LONGEST]
        if text not in self._said:
            self._news.append(Happened("warning", text))
        self._complain(text)
        if self._stop.wait(self._retry):
            return "stop"
        beat = self._beat()
        if beat == "cancel":
            self._end = ("cancelled", [])
        return beat

    def _prepared(self, folder: Path) -> Task:
        for name in (INTO, SCRATCH):
            (folder / name).mkdir()
        (folder / BUNDLE).write_bytes(self._queue.bundle(self._claim))
        settings = self._settings
        return Task(
            bundle=BUNDLE, into=INTO, device=settings.device, timeout=settings.timeout, minutes=settings.minutes,
            trusted=settings.trusted, closed=[str(settings.data)], parent=os.getpid(),
        )  # fmt: skip

    def _environment(self, folder: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in PRIVATE}
        gpu = {"CUDA_VISIBLE_DEVICES": self._device} if self._device else {}
        return {**kept, **gpu, "TMPDIR": str(folder / SCRATCH)}

    def _follow(self, process: JobProcess) -> str | None:
        """Reads from the process until it ends or must end. Returns why it crashed, empty if the server ends, and None
        if the job has ended or belongs to another server."""
        told = looked = time.monotonic()
        until = told + 60 * self._settings.minutes
        while True:
            try:
                for line in process.lines(LOOK):
                    self._heard(line)
            except Garbled as error:
                return str(error)
            now = time.monotonic()
            if self._end is not None:
                return None
            if process.ended:
                return process.why()
            if self._stop.is_set():
                return ""
            if now > until:
                self._end = ("lost", [f"it took more than {self._settings.minutes:g} minutes"])
                return None
            if self._news or now - told > self._queue.lease / 3:
                beat = self._beat()
                told = looked = now
            elif now - looked > LOOK:
                beat, looked = self._look(), now
            else:
                continue
            if beat == "gone":
                return None
            if beat == "cancel":
                self._end = ("cancelled", [])
                return None

    def _look(self) -> Beat:
        try:
            return self._queue.look(self._claim)
        except StorageError:
            return "on"

    def _name(self) -> None:
        if self._unnamed and not self._queue.name(self._claim, self._unnamed):
            self._end = ("refused", [taken(self._unnamed)])
        self._unnamed = ""

    def _beat(self) -> Beat:
        """Renews the lease and stores new events. If the disk is full, the next beat stores them."""
        try:
            self._name()
            found = self._queue.beat(self._claim, self._news, len(self._verdicts), self._total)
        except StorageError as error:
            self._complain(f"progress is not stored yet: {error}")
            return "on"
        self._news.clear()
        return found

    def _heard(self, line: Line) -> None:
        text = line.text[:LONGEST]
        if line.kind == "end":
            self._end = (line.state or "lost", line.reasons)
            return
        status = ""
        if line.kind == "opened":
            self._unnamed = text
        elif line.verdict is not None:
            found = line.verdict
            self._keep(self._verdicts, found.model_dump_json())
            message = (found.message.splitlines() or [""])[0]
            text, status = f"{found.definition}/{found.workload}" + (f": {message}" if message else ""), found.status
        elif line.trace is not None:
            trace = line.trace
            self._keep(self._traces, trace.model_dump_json())
            took = f": {trace.timing.median * 1e6:.4g} us" if trace.timing else f": {trace.message}"
            text, status = f"{trace.definition}/{trace.workload}{took}", trace.status
        elif line.total is not None:
            self._total = line.total
        self._news.append(Happened(line.kind, text[:LONGEST], status, line.total))

    def _keep(self, rows: list[str], row: str) -> None:
        rows.append(row)
        self._bytes += len(row)
        if self._bytes > MOST_BYTES:
            self._end = ("lost", [f"its result has more than {MOST_BYTES >> 20} MiB"])

    def _finish(self, state: State, reasons: list[str]) -> None:
        """Stores the result. Tries again until it succeeds or the server ends, so that a full disk loses no result."""
        while True:
            try:
                self._name()
                self._queue.finish(self._claim, state, reasons, self._verdicts, self._traces, self._news, self._total)
                return
            except StorageError as error:
                self._complain(f"a result is not stored yet: {error}")
                if self._stop.wait(self._retry):
                    raise
            self._beat()

    def _complain(self, text: str) -> None:
        if text not in self._said:
            tell(f"job {self._claim.job}: {text}")
        self._said.add(text)


def folder_name(job: str, attempt: int) -> str:
    return f"job-{job}-{attempt}"
