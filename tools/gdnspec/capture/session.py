"""Record what a function of a library is called with, around any Python code."""

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gdnspec.capture.bound import Binder
from gdnspec.capture.recorder import Recorder, hold, remove, target_of, tensors_of
from gdnspec.capture.sample import Sample
from gdnspec.capture.wrapped import Before, Watched, leave, resolve, watch
from gdnspec.catalog.definitions import definition
from gdnspec.model.errors import Problem, SpecError


class capture:
    """`with gdnspec.capture(DEFINITION, out="run.jsonl", tensors="sample:8"): model.generate(..)`

    Args:
        name: The definition whose workloads are recorded. Two captures may be open at once, of one function or of two.
        out: The workload file, a line for each kind of call, its `weight` how often it came. Whole at any moment. A
            process that is forked goes on in a file of its own: run.2.jsonl.
        tensors: `none`, `sample:N` (calls of different kinds first) or `all`: kept beside `out`, in <out>.tensors/.
        target: `package.module:function` with the arguments that the definition's family reads (`Calls` in its
            reference/<family>/calls.py). Absent: the functions that the family names.
        repeats: How often each head was repeated before the call to match others. Absent: it is seen from values,
            which on a GPU are waited for; 1 records heads as they come.
        max_bytes: Of all tensors together.
        force: Replace files of that name. `numbered`: take the next name that is free instead.

    A function is replaced wherever a module knows it; who has taken it into an object of its own before is not seen.

    Raises:
        SpecError: No such definition or target, one that takes other arguments, a file that cannot be written. A disk
            that fills up ends the recording and is told on leaving; the program itself goes on. Shapes cost some
            microseconds a call; lengths on a GPU are read, and waited for.
    """

    def __init__(
        self, name: str, out: str | Path, tensors: str = "none", target: str | None = None,
        repeats: int | None = None,
        max_bytes: int = 1 << 30, force: bool = False, numbered: bool = False,
    ) -> None:  # fmt: skip
        if repeats is not None and repeats < 1:
            raise SpecError(f"repeats {repeats}: at least 1")
        self.found = definition(name)
        self.out = Path(out)
        self._calls = hold(self.found)
        self.target = target_of(self._calls, self.found, target)
        self.repeats = repeats
        self._force, self._numbered = force, numbered
        self._sample = Sample(tensors, tensors_of(self.out), max_bytes)
        self._recorder: Recorder | None = None
        self._watched: Watched | None = None
        self._before: Before | None = None

    def __enter__(self) -> Self:
        module, attribute, function = resolve(self.target)
        binder = Binder(function, self.target, self._calls)
        if self._force:
            remove(self.out)
        self._recorder = Recorder(self.found, binder, self.out, self._sample, self.repeats, self._numbered)
        self.out = self._recorder.out
        self._before = self._recorder.record
        self._watched = watch(module, attribute, function, self._before)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._recorder is not None
        assert self._watched is not None
        assert self._before is not None
        leave(self._watched, self._before)
        self._recorder.close()
        failure = self._recorder.failure
        if failure is not None and kind is None:
            why = f"recording ended after {self.calls} calls: {failure.strerror or failure}"
            raise SpecError([Problem(self._recorder.out, why)])

    def told(self) -> dict[str, Any]:
        """What was recorded and what not, for a message."""
        recorder = self._recorder
        assert recorder is not None
        counts = {"calls": self.calls, "passed_over": self.passed_over, "unfit": self.unfit, "unkept": recorder.unkept}
        return {
            **counts, "out": str(recorder.out), "kept": self._sample.kept, "too_large": self._sample.too_large,
            "repeats": recorder.undone(),
        }  # fmt: skip

    @property
    def calls(self) -> int:
        """Recorded so far."""
        return self._recorder.calls if self._recorder else 0

    @property
    def passed_over(self) -> int:
        """Calls of another stage."""
        return self._recorder.passed_over if self._recorder else 0

    @property
    def unfit(self) -> dict[str, int]:
        """Calls that no definition describes, by reason."""
        return self._recorder.unfit if self._recorder else {}
