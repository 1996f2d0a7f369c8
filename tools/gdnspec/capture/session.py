"""Record the calls of a library's function while any Python code runs."""

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
        name: The definition whose workloads are recorded. Several captures may be open at once, also of one function.
        out: The workload file. It has one line per kind of call, whose `weight` counts the calls, and is complete at
            any moment. A forked process continues in a file of its own: run.2.jsonl.
        tensors: Calls whose tensors are kept in <out>.tensors/: `none`, `sample:N` (different kinds first) or `all`.
        target: `package.module:function` with the arguments that the definition's family reads (`Calls` in its
            reference/<family>/calls.py). By default, the function that the family names.
        repeats: How often the program repeats each head before the call. By default this is found from the values,
            which on a GPU must be waited for. 1 records heads as they are.
        max_bytes: Most bytes of all kept tensors together.
        force: Replace files of this name.
        numbered: Use the next free name instead.

    The function is replaced in every module that has it. Calls through other references to it are not recorded.

    Recording shapes takes some microseconds per call. Lengths on a GPU are read, which waits for the GPU.

    Raises:
        SpecError: There is no such definition or target, the target takes other arguments, or a file cannot be written.
            If the disk becomes full, the recording ends, the program goes on, and the error is raised at the end.
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
        """Counts of what was recorded and what was not, for a message."""
        recorder = self._recorder
        assert recorder is not None
        counts = {"calls": self.calls, "passed_over": self.passed_over, "unfit": self.unfit, "unkept": recorder.unkept}
        return {
            **counts, "out": str(recorder.out), "kept": self._sample.kept, "too_large": self._sample.too_large,
            "repeats": recorder.undone(),
        }  # fmt: skip

    @property
    def calls(self) -> int:
        """The number of calls recorded so far."""
        return self._recorder.calls if self._recorder else 0

    @property
    def passed_over(self) -> int:
        """The number of calls of another stage."""
        return self._recorder.passed_over if self._recorder else 0

    @property
    def unfit(self) -> dict[str, int]:
        """The number of calls that the definition cannot describe, by reason."""
        return self._recorder.unfit if self._recorder else {}
