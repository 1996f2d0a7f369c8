"""Which functions of a program take what a gated delta rule takes, and what they were called with: so that a recording
that stays empty can say which --target was meant.

Functions are known by the names of their arguments, as soon as their module has been imported. They are counted and
otherwise left alone.
"""

import functools
import importlib.machinery
import inspect
import threading
from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any

from gdnspec.capture.bound import ALIASES, NEEDED

MOST = 20  # kinds of call that are told of each function
TOLD = ("q", "k", "v", "g", "beta", "initial_state", "cu_seqlens")


class Others:
    """`called`: for each package.module:function, how often it was called with arguments of which shapes."""

    def __init__(self) -> None:
        self.called: dict[str, dict[str, int]] = {}
        self._scanned: set[str] = set()
        self._lock = threading.Lock()

    def scan(self, module: ModuleType) -> None:
        """Counts the calls of a module's own functions from now on."""
        if module.__name__ in self._scanned:
            return
        self._scanned.add(module.__name__)
        for name, value in list(vars(module).items()):
            if type(value) is FunctionType and value.__module__ == module.__name__ and _takes_a_rules(value):
                setattr(module, name, self._counted(f"{module.__name__}:{name}", value))

    def _counted(self, target: str, function: Callable[..., Any]) -> Callable[..., Any]:
        names = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._count(target, dict(zip(names, args, strict=False)) | kwargs)
            return function(*args, **kwargs)

        return counted

    def _count(self, target: str, given: dict[str, Any]) -> None:
        try:
            text = described(given)
        except Exception:  # the call is the program's own: nothing about it may fail here
            text = "what cannot be told"
        with self._lock:
            kinds = self.called.setdefault(target, {})
            text = text if text in kinds or len(kinds) < MOST else "others"
            kinds[text] = kinds.get(text, 0) + 1


def described(given: dict[str, Any]) -> str:
    """Arguments in words: `q [1, 7, 4, 64], .., no state`."""
    words = []
    for name in TOLD:
        value = next((given[alias] for alias in ALIASES[name] if given.get(alias) is not None), None)
        if value is not None:
            shape = getattr(value, "shape", None)
            words.append(name if shape is None else f"{name} [{', '.join(map(str, shape))}]")
    carried = any(given.get(alias) is not None for alias in ALIASES["initial_state"])
    return ", ".join(words if carried else [*words, "no state"])


def _takes_a_rules(value: FunctionType) -> bool:
    try:
        function = inspect.unwrap(value)
    except ValueError:  # it is wrapped in itself
        return False
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    names = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    return all(names & set(ALIASES[name]) for name in NEEDED)


class Finder:
    """Stands first among what finds modules: lets the others find, and scans what they load from a source file."""

    def __init__(self, others: Others, finders: list[Any]) -> None:
        self._others, self._finders = others, finders

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = None
        for finder in [finder for finder in self._finders if finder is not self]:
            spec = finder.find_spec(fullname, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                break
        loader = spec.loader if spec is not None else None
        if not isinstance(loader, importlib.machinery.SourceFileLoader):
            return spec
        execute = loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            self._others.scan(module)

        loader.exec_module = executed  # type: ignore[method-assign]
        return spec
