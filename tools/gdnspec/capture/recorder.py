"""Write a workload file that is complete after every call: one line per kind of call, its weight updated in place."""

import json
import os
import re
import stat
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdnspec.build.reference import calls as calls_of
from gdnspec.capture.bound import Binder
from gdnspec.capture.sample import Sample
from gdnspec.catalog.definitions import Found, definitions, preset_of
from gdnspec.inputs.contract import Calls, NotRecorded, Regrouped
from gdnspec.model.errors import PlacedError, Problem, SpecError
from gdnspec.model.workload import Workload

DIGITS = 16  # width of a count, padded with spaces, which JSON allows after a number
MOST_FILES = 10_000  # of processes that record at the same time


@dataclass
class Line:
    """A line of the file. `place`: the position of its weight in bytes."""

    seen: Any
    tensors: str | None
    weight: int
    place: int


class Recorder:
    """Records calls of one function as workloads of one definition. A file belongs to one process, whose threads share
    the recorder. A forked process continues in a file of its own.

    `calls`: how many were recorded. `passed_over`: how many belong to other stages. `unfit`: calls that no definition
    describes, by reason. `unkept`: calls whose tensors were wanted but not available, by reason. If a file cannot be
    written, the recording ends, never the program; `failure` says why.
    """

    def __init__(
        self, found: Found, binder: Binder, out: Path, sample: Sample, repeats: int | None, numbered: bool = False
    ) -> None:
        """The file must not exist. With `numbered`, the next free name is used: run.2.jsonl."""
        family = {
            name: other.definition for name, other in definitions().items() if other.family.name == found.family.name
        }
        self.reader = binder.calls.reader(found.definition, family, repeats)
        self.found, self.binder, self.first, self.sample = found, binder, out, sample
        self._clear()
        self._open(numbered)
        _recorders.add(self)

    def _clear(self) -> None:
        self.calls = self.passed_over = 0
        self.unfit: dict[str, int] = {}
        self.unkept: dict[str, int] = {}
        self.failure: OSError | None = None
        self._lock = threading.Lock()
        self._times: dict[Any, int] = {}
        self._lines: list[Line] = []
        self._counted: dict[Any, Line] = {}  # lines without tensors, whose weight grows
        self._refused: dict[Any, str] = {}
        self._end = 0
        self._closed = self._forked = False

    def _open(self, numbered: bool) -> None:
        """Creates a new file. Never overwrites a file of this or of another process."""
        for number in range(1, MOST_FILES):
            self.out = self.first if number == 1 else self.first.with_stem(f"{self.first.stem}.{number}")
            try:
                self._file = os.open(self.out, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
            except FileExistsError:
                if numbered:
                    continue
                raise SpecError([Problem(self.out, "exists already", hint="force=True replaces it")]) from None
            except OSError as error:
                raise SpecError([Problem(self.out, f"cannot be written: {error.strerror or error}")]) from None
            self.sample.folder = tensors_of(self.out)
            return
        raise SpecError([Problem(self.first, f"has {MOST_FILES} numbered files beside it: remove them")])

    def undone(self) -> list[str]:
        """What a user should know about how the recorded calls were read, one sentence each."""
        return self.reader.told([line.seen for line in self._lines])

    # --- calls --------------------------------------------------------------------------------------------------

    def record(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Records a call before it runs, because it may overwrite its arguments. Never raises."""
        if self._closed or self.failure is not None:
            return
        try:
            call = self.binder(args, kwargs)
            seen = self.reader.seen(call)
        except Exception as error:
            reason = str(error) if isinstance(error, NotRecorded) else f"{type(error).__name__}: {error}"[:200]
            with self._lock:
                self.unfit[reason] = self.unfit.get(reason, 0) + 1
            return
        with self._lock:
            if self._closed or self.failure is not None:
                return
            try:
                if self._forked:
                    self._go_on()
                self._take(seen, call)
            except OSError as error:
                self.failure = error
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"[:200]
                self.unfit[reason] = self.unfit.get(reason, 0) + 1

    def _take(self, seen: Any, call: Mapping[str, Any]) -> None:
        if not self.reader.serves(seen):
            self.passed_over += 1
            return
        if (change := self.reader.look(call, seen)) is not None:
            self._regroup(change)
        if seen not in self._times:
            self._hold(seen)
        if seen in self._refused:
            reason = self._refused[seen]
            self.unfit[reason] = self.unfit.get(reason, 0) + 1
            return
        self._add(seen, call)
        self.calls += 1

    def _hold(self, seen: Any) -> None:
        """Refuses a kind of call that breaks the definition's constraints: its line would make the file invalid."""
        self._refused.pop(seen, None)
        try:
            line = Workload.model_validate(self._line("x", 0, seen, None))
            line.check(self.found.definition, preset_of(self.found, line))
        except NotRecorded as error:
            self._refused[seen] = str(error)
        except (PlacedError, ValueError) as error:
            self._refused[seen] = f"{seen}: {error}"[:200]

    def _line(self, name: str, seed: int, seen: Any, tensors: str | None) -> dict[str, Any]:
        """The workload without its weight, drawn from `seed` if no tensors were kept. Raises `NotRecorded`."""
        drawn = {"tensors": tensors} if tensors else {"regime": self.binder.calls.regime, "seed": seed}
        return {"name": name, "suite": "performance", **self.reader.line(seen), **drawn}

    def _add(self, seen: Any, call: Mapping[str, Any]) -> None:
        times = self._times[seen] = self._times.get(seen, 0) + 1
        path = None
        if self.sample.wants(times):
            try:
                path = self.sample.keep(self.reader, call, seen)
            except OSError:
                raise
            except Exception as error:  # tensors without values, or a device error: the shapes are still valid
                reason = str(error) if isinstance(error, NotRecorded) else f"{type(error).__name__}: {error}"[:200]
                self.unkept[reason] = self.unkept.get(reason, 0) + 1
        if path is not None:
            self._append(seen, path)  # this call has its own line, with its tensors
            return
        line = self._counted.get(seen)
        if line is None:
            self._counted[seen] = self._append(seen, None)
        else:
            line.weight += 1
            os.pwrite(self._file, str(line.weight).encode(), line.place)

    def _append(self, seen: Any, tensors: str | None) -> Line:
        line = Line(seen, tensors, 1, 0)
        text, whole = self._written(len(self._lines), line)
        if os.pwrite(self._file, whole, self._end) != len(whole):
            os.ftruncate(self._file, self._end)
            raise OSError(28, "No space left on device", str(self.out))
        line.place = self._end + text
        self._end += len(whole)
        self._lines.append(line)
        return line

    def _written(self, number: int, line: Line) -> tuple[int, bytes]:
        """The position of the weight in a line, in bytes, and the line as it is written."""
        data = self._line(f"call_{number}", number, line.seen, line.tensors)
        text = json.dumps(data, allow_nan=False)[:-1] + ', "weight": '
        return len(text.encode()), f"{text}{str(line.weight).ljust(DIGITS)}}}\n".encode()

    def _regroup(self, change: Regrouped) -> None:
        """Rewrites earlier lines and tensors, because this call shows that they were read in a wrong way. Raises
        `OSError`."""
        affected = [line for line in self._lines if change.affects(line.seen)]
        if not affected:
            return
        for line in affected:
            if line.tensors:
                from gdnspec.capture.kept_tensors import regroup

                regroup(self.out.parent / line.tensors, change)
        partial, end = self.out.with_name(f"{self.out.name}.partial"), 0
        with partial.open("wb") as file:
            for number, line in enumerate(self._lines):
                text, whole = self._written(number, line)
                file.write(whole)
                line.place, end = end + text, end + len(whole)
        partial.replace(self.out)
        os.close(self._file)
        self._file, self._end = os.open(self.out, os.O_RDWR | os.O_CLOEXEC), end

    # --- ends ---------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Starts a new file in a forked process. The old file belongs to its parent."""
        os.close(self._file)
        self._clear()
        self.sample.kept = self.sample.bytes = self.sample.too_large = 0
        self._open(numbered=True)

    def forked(self) -> None:
        """Called in the child right after a fork. The lock is replaced: a thread of the parent may have held it."""
        self._lock = threading.Lock()
        self._forked = True

    def close(self) -> None:
        """Ends the recording. Later calls change nothing; the file is already complete."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._file)


def target_of(calls: Calls, found: Found, target: str | None) -> str:
    """The function to record. Raises `SpecError` if neither the user nor the family names one."""
    if target is None and (target := calls.usual.get(found.definition.stage)) is None:
        raise SpecError(
            f"the family names no function for {found.definition.stage}: name one with --target package.module:function"
        )
    return target


def hold(found: Found) -> Calls:
    """How calls become workloads of a definition. Raises `SpecError` if they cannot."""
    calls = calls_of(found.family)
    if not calls.records(found.definition):
        those = ", ".join(name for name, other in definitions().items()
                          if other.family.name == found.family.name and calls.records(other.definition))  # fmt: skip
        raise SpecError(f"{found.definition.name} cannot be recorded from a {calls.named}: {calls.served}: {those}")
    return calls


_recorders: "weakref.WeakSet[Recorder]" = weakref.WeakSet()


def _after_fork() -> None:
    for recorder in list(_recorders):
        recorder.forked()


os.register_at_fork(after_in_child=_after_fork)


def tensors_of(out: Path) -> Path:
    """The folder with the tensors of a workload file."""
    return out.with_name(f"{out.name}.tensors")


def recordings(out: Path) -> list[Path]:
    """The workload file and the numbered files of further processes (run.2.jsonl), as far as they exist."""
    beside = out.parent.glob(f"{out.stem}.*{out.suffix}")
    numbered = [file for file in beside if re.fullmatch("[0-9]+", file.stem.removeprefix(f"{out.stem}."))]
    return [file for file in [out, *numbered] if os.path.lexists(file)]


def remove(out: Path) -> None:
    """Removes an earlier recording of all processes. Raises `SpecError` if a file is not a regular file."""
    for file in recordings(out):
        try:
            if not stat.S_ISREG(file.lstat().st_mode):
                raise SpecError([Problem(file, "is not a regular file, so it is not replaced")])
            file.unlink()
            for tensors in tensors_of(file).glob("*.safetensors"):
                tensors.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SpecError([Problem(file, f"cannot be replaced: {error.strerror or error}")]) from None
