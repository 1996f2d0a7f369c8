"""Slots: one thread each, which claims a job, and has a process judge it.

A slot is a locked file, which the process of the job holds open as well: while anything may still run on a GPU, no
server on this data gives it another job, whatever has become of the first.
"""

import contextlib
import fcntl
import os
import sys
import threading
from collections.abc import Iterator

from gdnspec.runner import descendants
from gdnspec.service.attempt import Attempt, folder_name, remove
from gdnspec.service.database import StorageError
from gdnspec.service.queue import Queue
from gdnspec.service.settings import Settings

IDLE = 0.25  # seconds between looks for a job


class Slots:
    """All slots of a server. `start`, then `stop`, which gives back what runs."""

    def __init__(self, queue: Queue, settings: Settings) -> None:
        self._queue, self._settings = queue, settings
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number, device), name=f"slot-{number}", daemon=True)
            for number, device in enumerate(settings.devices)
        ]

    def start(self) -> None:
        descendants.adopt()
        self._sweep()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _sweep(self) -> None:
        """What jobs left behind that were killed."""
        used = {folder_name(job, attempt) for job, attempt in self._queue.running()}
        for folder in self._settings.work.glob("job-*"):
            if folder.name not in used:
                remove(folder)

    def _run(self, number: int, device: str) -> None:
        said = ""
        while not self._stop.is_set():
            ran = False
            try:
                with self._locked(number) as lock:
                    claim = self._queue.claim() if lock is not None else None
                    if lock is not None and claim is not None:
                        ran = True
                        Attempt(self._queue, self._settings, claim, device, lock, self._stop).run()
                said = ""
            except (StorageError, OSError) as error:
                ran = False
                if str(error) != said:
                    said = str(error)
                    print(f"gdnspec: slot {number}: {said}", file=sys.stderr, flush=True)
            if not ran:
                self._stop.wait(IDLE)

    @contextlib.contextmanager
    def _locked(self, number: int) -> Iterator[int | None]:
        """Its descriptor; None where another holds it."""
        descriptor = os.open(self._settings.data / f"slot-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield descriptor
        except BlockingIOError:
            yield None
        finally:
            os.close(descriptor)
