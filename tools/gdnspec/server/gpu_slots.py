"""Slots: each is a thread that claims jobs and lets a process judge each of them.

A slot is also a locked file, which the job's process keeps open. So while a job may still run on a GPU, no server with
this data folder gives the GPU another job, even if the first server was killed.
"""

import contextlib
import fcntl
import os
import threading
import traceback
from collections.abc import Iterator

from gdnspec.sandbox.parent import descendants
from gdnspec.server.attempt import Attempt, folder_name
from gdnspec.server.database import StorageError
from gdnspec.server.queue import Queue
from gdnspec.server.settings import Settings
from gdnspec.server.tell import tell
from gdnspec.server.workplace import Workplace

IDLE = 0.25  # seconds between looks for a job
SWEEP = 10.0  # seconds, at most, between looks for the folders of killed servers


class Slots:
    """All slots of a server. `stop` gives running jobs back to the queue."""

    def __init__(self, queue: Queue, settings: Settings) -> None:
        self._queue, self._settings = queue, settings
        self._stop = threading.Event()
        self._running: set[str] = set()  # jobs
        self._said: dict[str, str] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(number, device), name=f"slot-{number}", daemon=True)
            for number, device in enumerate(settings.devices)
        ]
        self._threads.append(threading.Thread(target=self._keep_tidy, name="sweep", daemon=True))

    def start(self) -> None:
        descendants.adopt()
        self._sweep()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _keep_tidy(self) -> None:
        while not self._stop.wait(min(SWEEP, self._settings.lease)):
            self._sweep()

    def _sweep(self) -> None:
        """Removes the folders of killed servers. A job keeps its folder until its lease is over, so not every folder
        can be removed at the start."""
        with self._told("work folder"):
            used = {folder_name(job, attempt) for job, attempt in self._queue.running()}
            Workplace(self._settings.work).sweep(used)

    def _run(self, number: int, device: str) -> None:
        while not self._stop.is_set():
            ran = False
            with self._told(f"slot {number}"):
                ran = self._ran(number, device)
            if not ran:
                self._stop.wait(IDLE)

    def _ran(self, number: int, device: str) -> bool:
        """Runs a job, if there is one for this slot, and returns whether there was. Raises what `Attempt` raises."""
        with self._locked(number) as lock:
            claim = self._queue.claim(set(self._running)) if lock is not None else None
            if lock is None or claim is None:
                return False
            self._running.add(claim.job)
            try:
                Attempt(self._queue, self._settings, claim, device, lock, self._stop).run()
            finally:
                self._running.discard(claim.job)
            return True

    @contextlib.contextmanager
    def _told(self, where: str) -> Iterator[None]:
        """Reports an error once, and does not let it end the thread: without slots, a server would take jobs that
        nobody runs."""
        said = self._said.pop(where, "")
        try:
            yield
        except Exception as error:
            expected = isinstance(error, StorageError | OSError)
            self._said[where] = str(error) if expected else traceback.format_exc()
            if self._said[where] != said:
                tell(f"{where}: {self._said[where]}")

    @contextlib.contextmanager
    def _locked(self, number: int) -> Iterator[int | None]:
        """The descriptor of the slot's lock; None if another process holds it."""
        descriptor = os.open(self._settings.data / f"slot-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield descriptor
        except BlockingIOError:
            yield None
        finally:
            os.close(descriptor)
