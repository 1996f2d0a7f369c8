"""Runs inside a program that `gdnspec capture` starts: wraps the target as soon as its module has been imported.

Python imports `sitecustomize` when it starts. The command puts its own first on the path, which calls `install`.
"""

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gdnspec.capture.others import Others
    from gdnspec.capture.session import capture


def install() -> None:
    """Starts recording as GDNSPEC_CAPTURE says. Also imports the sitecustomize that this one hides."""
    _next_sitecustomize()
    request = json.loads(os.environ["GDNSPEC_CAPTURE"])
    finder = _Finder(request)
    if finder.name in sys.modules:
        _start(request)
    else:
        sys.meta_path.insert(0, finder)
        atexit.register(finder.missing)
    _watch_others(request)


def _next_sitecustomize() -> None:
    own = sys.modules.get("sitecustomize")
    folder = str(Path(str(getattr(own, "__file__", ""))).parent)
    rest = [path for path in sys.path if path != folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _watch_others(request: dict[str, Any]) -> None:
    from gdnspec.capture.others import Finder, Others

    others = Others(*request["calls"])
    sys.meta_path.insert(0, Finder(others, sys.meta_path))
    atexit.register(_say_others, request, others)


def _say_others(request: dict[str, Any], others: "Others") -> None:
    if others.called:
        _say(request, {"called": others.called}, ".called")


class _Finder(importlib.abc.MetaPathFinder):
    """Starts recording when the target's module has been executed; other finders find the module. Asking whether the
    module exists starts nothing."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.name = request["target"].partition(":")[0]
        self.asking = self.asked = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self.asking:
            return None
        self.asking = self.asked = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.asking = False
        if spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            _start(self.request)

        loader.exec_module = executed  # type: ignore[method-assign]
        return spec

    def missing(self) -> None:
        """Reports, at the end of a program that never imported the module, if it does not exist."""
        if self.asked or self.name in sys.modules:
            return
        self.asking = True
        try:
            there = importlib.util.find_spec(self.name) is not None
        except Exception:
            there = False
        if not there:
            _say(self.request, {"missing": self.name})


_started = False


def _start(request: dict[str, Any]) -> None:
    global _started
    if _started:
        return
    _started = True
    from gdnspec.capture.session import capture
    from gdnspec.model.errors import SpecError

    arguments = {key: request[key] for key in ("tensors", "target", "repeats", "max_bytes")}
    try:
        recording = capture(request["definition"], request["out"], **arguments, numbered=True).__enter__()
    except SpecError as error:
        _say(request, {"refused": str(error)})
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(2)  # an exception during the import might be caught by the program, or shown as a traceback
    atexit.register(_end, request, recording)


def _end(request: dict[str, Any], recording: "capture") -> None:
    from gdnspec.model.errors import SpecError

    failure = ""
    try:
        recording.__exit__(None, None, None)
    except SpecError as error:
        failure = str(error)
    _say(request, {**recording.told(), "failure": failure})


def _say(request: dict[str, Any], said: dict[str, Any], more: str = "") -> None:
    folder = Path(request["said"])
    if folder.is_dir():  # the command may have ended already
        (folder / f"{os.getpid()}{more}").write_text(json.dumps(said))
