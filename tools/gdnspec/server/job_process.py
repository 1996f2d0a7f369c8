"""The process of a job: start it in its own folder, read its messages, and end it with all of its descendants."""

import contextlib
import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from gdnspec.sandbox.parent import descendants
from gdnspec.server.job_lines import LONGEST, Line, Task

PATIENCE = 5.0  # seconds that it has to end by itself
LOG, TAIL = "log", 2000
# Held while a process starts, so that no other thread ends it as an orphan.
_births = threading.Lock()


class Garbled(Exception):
    """The process wrote something that is not a `Line`."""


class JobProcess:
    """A context manager; at its end the process and its descendants have ended. The process keeps the descriptors
    `locks` open as long as it runs. Raises `OSError`."""

    def __init__(
        self, command: tuple[str, ...], folder: Path, task: Task, environment: dict[str, str], locks: tuple[int, ...]
    ) -> None:
        self._folder = folder
        self._buffer = b""
        self.ended = False  # its stdout is closed
        with _births, (folder / LOG).open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True, pass_fds=locks,
            )  # fmt: skip
            descendants.keep(self._process.pid)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(task.model_dump_json().encode() + b"\n")
            self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def lines(self, seconds: float) -> Iterator[Line]:
        """The complete lines that it writes within `seconds`. Raises `Garbled`."""
        out = self._process.stdout
        assert out is not None
        # Not select.select, which fails for descriptors of 1024 and above.
        said = select.poll()
        said.register(out, select.POLLIN)
        if self.ended or not said.poll(seconds * 1000):
            return
        data = os.read(out.fileno(), LONGEST)
        self.ended = not data
        *whole, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > LONGEST:
            raise Garbled(f"a line of more than {LONGEST} bytes")
        for text in whole:
            try:
                yield Line.model_validate_json(text)
            except ValueError:
                raise Garbled(f"not a line of a job: {text[:100]!r}") from None

    def why(self) -> str:
        """How it ended, and the last line of its log."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        code = self._process.poll()
        if code is None:
            return "it closed its output but does not end"
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        with (self._folder / LOG).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL))
            said = log.read().decode(errors="replace").strip().splitlines()
        return f"{how}: {said[-1]}" if said else how

    def end(self) -> None:
        """Ends the process by SIGTERM, then by SIGKILL; and its descendants, also orphans."""
        process = self._process
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.stdout is not None:
            process.stdout.close()
        with _births:
            descendants.end_orphans()


def run_beside(command: tuple[str, ...], folder: Path, seconds: float) -> tuple[int, str]:
    """Runs a process that is not a job. Returns its exit status and output. Raises `subprocess.TimeoutExpired`."""
    with _births:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        )  # fmt: skip
        descendants.keep(process.pid)
    try:
        said, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
        process.wait()
    return process.returncode, said
