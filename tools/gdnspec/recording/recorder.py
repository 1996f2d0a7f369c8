"""A workload file that is whole after every call: a line for each kind of call, its weight counted up in place."""

import fcntl
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdnspec.catalog.definitions import Found
from gdnspec.model.errors import Problem, SpecError
from gdnspec.recording import lines
from gdnspec.recording.bound import Binder, NotRecorded, Seen, seen
from gdnspec.recording.sample import Sample

DIGITS = 16  # room for a count: JSON allows blanks behind a number


class Recorder:
    """Calls of one function as workloads of one definition. One process writes a file; its threads share this.

    `calls` were recorded, `passed_over` belong to other stages, `unfit` counts by reason what no definition describes.
    What cannot be written ends the recording, never the program: `failure` says why.
    """

    def __init__(self, found: Found, binder: Binder, out: Path, sample: Sample, repeats: int) -> None:
        lines.hold(found.definition)
        self.found, self.binder, self.out, self.sample, self.repeats = found, binder, out, sample, repeats
        self.calls = self.passed_over = 0
        self.unfit: dict[str, int] = {}
        self.failure: OSError | None = None
        self._lock = threading.Lock()
        self._times: dict[Seen, int] = {}
        self._places: dict[Seen, list[int]] = {}  # of a line without tensors: where its weight stands, and the weight
        self._count = 0
        try:
            self._file = os.open(out, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise SpecError([Problem(out, "another process records there")]) from None
        except OSError as error:
            raise SpecError([Problem(out, f"cannot be written: {error.strerror or error}")]) from None
        os.ftruncate(self._file, 0)
        self._end = 0

    def record(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """One call, before it runs: it may overwrite its arguments. Never raises."""
        if self.failure is not None:
            return
        try:
            call = self.binder(args, kwargs)
            shape = seen(call, self.repeats)
        except (NotRecorded, KeyError, AttributeError, TypeError, ValueError) as error:
            reason = str(error) if isinstance(error, NotRecorded) else f"{type(error).__name__}: {error}"
            with self._lock:
                self.unfit[reason] = self.unfit.get(reason, 0) + 1
            return
        with self._lock:
            if not lines.serves(self.found.definition, shape):
                self.passed_over += 1
                return
            try:
                self._add(shape, call)
                self.calls += 1
            except OSError as error:
                self.failure = error

    def _add(self, shape: Seen, call: Mapping[str, Any]) -> None:
        times = self._times[shape] = self._times.get(shape, 0) + 1
        if self.sample.wants(times):
            path = self.sample.keep(self.found.definition, call, shape, self.repeats)
            if path is not None:
                self._append(shape, path, 1)
                return  # the line with its tensors stands for this call
        place = self._places.get(shape)
        if place is None:
            self._places[shape] = [self._append(shape, None, 1), 1]
        else:
            place[1] += 1
            os.pwrite(self._file, str(place[1]).encode(), place[0])

    def _append(self, shape: Seen, tensors: str | None, weight: int) -> int:
        """A new line; where its weight stands."""
        name = f"call_{self._count}"
        data = lines.line(self.found, shape, name, self._count, tensors)
        text = json.dumps(data)[:-1] + ', "weight": '
        whole = f"{text}{str(weight).ljust(DIGITS)}}}\n".encode()
        if os.pwrite(self._file, whole, self._end) != len(whole):
            os.ftruncate(self._file, self._end)
            raise OSError(28, "No space left on device", str(self.out))
        place = self._end + len(text.encode())
        self._end += len(whole)
        self._count += 1
        return place

    def close(self) -> None:
        """The file is whole already."""
        os.close(self._file)
