"""Replace a function in every loaded module, and restore it when nobody watches its calls any more."""

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gdnspec.model.errors import SpecError, nearest

Before = Callable[[tuple[Any, ...], dict[str, Any]], None]


def resolve(target: str) -> tuple[ModuleType, str, Callable[..., Any]]:
    """Imports `package.module:function`. Raises `SpecError` if it does not exist."""
    name, colon, attribute = target.partition(":")
    if not (name and colon and attribute) or name.startswith("."):
        raise SpecError(f"target {target!r} is not of the form package.module:function")
    try:
        module = importlib.import_module(name)
    except Exception as error:  # also an error that the module itself raises
        said = f"{type(error).__name__}: {error}" if not isinstance(error, ImportError) else str(error)
        raise SpecError(f"target {target!r}: {name} cannot be imported: {said}") from None
    function = getattr(module, attribute, None)
    if function is None:
        raise SpecError(f"target {target!r}: {name} has no {attribute!r} ({nearest(attribute, vars(module))})")
    if not callable(function):
        raise SpecError(f"target {target!r}: {attribute} is not a function")
    return module, attribute, function


class Watched:
    """A replaced function, and the callbacks that are called before each of its calls."""

    def __init__(self, module: ModuleType, attribute: str, function: Callable[..., Any]) -> None:
        told: list[Before] = []

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            for before in told:
                before(args, kwargs)
            return function(*args, **kwargs)

        self.told, self.function, self.recorded = told, function, recorded
        self._replaced: list[tuple[dict[str, Any], str]] = []
        # Other modules have it too, by `from module import function`.
        for other in list(sys.modules.values()):
            names = getattr(other, "__dict__", None)
            if isinstance(names, dict):
                self._replace(names)
        if not any(names is vars(module) and name == attribute for names, name in self._replaced):
            self._replaced.append((vars(module), attribute))
            setattr(module, attribute, recorded)

    def _replace(self, names: dict[str, Any]) -> None:
        for name in [name for name, value in list(names.items()) if value is self.function]:
            names[name] = self.recorded
            self._replaced.append((names, name))

    def restore(self) -> None:
        """Puts the function back, except where other code has replaced it since."""
        for names, name in self._replaced:
            if names.get(name) is self.recorded:
                names[name] = self.function
        self._replaced.clear()


_watched: dict[int, Watched] = {}  # by the identity of the replacing function


def watch(module: ModuleType, attribute: str, function: Callable[..., Any], before: Before) -> Watched:
    """Calls `before(args, kwargs)` before each call of the function from now on."""
    watched = _watched.get(id(function))
    if watched is None:
        watched = Watched(module, attribute, function)
        _watched[id(watched.recorded)] = watched
    watched.told.append(before)
    return watched


def leave(watched: Watched, before: Before) -> None:
    """Removes a callback. After the last one, the function is restored."""
    watched.told.remove(before)
    if not watched.told:
        watched.restore()
        del _watched[id(watched.recorded)]
