"""Count calls of functions with similar arguments, so that an empty recording can suggest another --target.

A function is found by the names of its arguments, when its module has been imported. Its calls are counted and
otherwise not changed.
"""

import functools
import importlib.machinery
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

MOST = 20  # kinds of call that are counted per function


class Others:
    """Counts calls. `called`: for each package.module:function, how often it was called with which shapes.

    `arguments`, `needed`, `told`: as in `Calls` of the contract. They are passed as plain data, so that a program which
    never calls its target loads no code of a family.
    """

    def __init__(self, arguments: Mapping[str, Sequence[str]], needed: Sequence[str], told: Mapping[str, str]) -> None:
        self._arguments, self._needed, self._told = arguments, needed, told
        self.called: dict[str, dict[str, int]] = {}
        self._scanned: set[str] = set()
        self._lock = threading.Lock()

    def scan(self, module: ModuleType) -> None:
        """Counts the calls of a module's own functions from now on."""
        if module.__name__ in self._scanned:
            return
        self._scanned.add(module.__name__)
        for name, value in list(vars(module).items()):
            if type(value) is FunctionType and value.__module__ == module.__name__ and self._takes(value):
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
            text = self._described(given)
        except Exception:  # an error here must not disturb the program
            text = "arguments that cannot be described"
        with self._lock:
            kinds = self.called.setdefault(target, {})
            text = text if text in kinds or len(kinds) < MOST else "others"
            kinds[text] = kinds.get(text, 0) + 1

    def _described(self, given: dict[str, Any]) -> str:
        """The arguments in words, such as `x [1, 7, 4, 64], ..`, and which are absent."""
        words, absent = [], []
        for name, without in self._told.items():
            value = next((given[alias] for alias in self._arguments[name] if given.get(alias) is not None), None)
            if value is not None:
                shape = getattr(value, "shape", None)
                words.append(name if shape is None else f"{name} [{', '.join(map(str, shape))}]")
            elif without:
                absent.append(without)
        return ", ".join([*words, *absent])

    def _takes(self, value: FunctionType) -> bool:
        try:
            function = inspect.unwrap(value)
        except ValueError:  # it is wrapped in itself
            return False
        code = getattr(function, "__code__", None)
        if code is None:
            return False
        names = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
        return all(names & set(self._arguments[name]) for name in self._needed)


class Finder:
    """The first finder of modules: the others find modules, and this one scans those loaded from a source file."""

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
