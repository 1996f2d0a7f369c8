"""A function replaced wherever a loaded module knows it, and put back."""

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gdnspec.model.errors import SpecError, nearest


def resolve(target: str) -> tuple[ModuleType, str, Callable[..., Any]]:
    """`package.module:function`, imported. Raises `SpecError` naming what does not exist."""
    name, colon, attribute = target.partition(":")
    if not (name and colon and attribute):
        raise SpecError(f"target {target!r} is not package.module:function")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise SpecError(f"target {target!r}: {name} cannot be imported: {error}") from None
    function = getattr(module, attribute, None)
    if function is None:
        raise SpecError(f"target {target!r}: {name} has no {attribute!r} ({nearest(attribute, vars(module))})")
    if not callable(function):
        raise SpecError(f"target {target!r}: {attribute} is no function")
    return module, attribute, function


class Wrapped:
    """`before(args, kwargs)` runs ahead of each call. `restore` puts back what was there."""

    def __init__(
        self, module: ModuleType, attribute: str, function: Callable[..., Any],
        before: Callable[[tuple[Any, ...], dict[str, Any]], None],
    ) -> None:  # fmt: skip
        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            before(args, kwargs)
            return function(*args, **kwargs)

        self._function, self._recorded = function, recorded
        self._replaced: list[tuple[dict[str, Any], str]] = []
        # `from module import function` gave it to others too.
        for other in list(sys.modules.values()):
            names = getattr(other, "__dict__", None)
            if isinstance(names, dict):
                self._replace(names)
        if (vars(module), attribute) not in self._replaced:
            self._replaced.append((vars(module), attribute))
            setattr(module, attribute, recorded)

    def _replace(self, names: dict[str, Any]) -> None:
        for name in [name for name, value in list(names.items()) if value is self._function]:
            names[name] = self._recorded
            self._replaced.append((names, name))

    def restore(self) -> None:
        """Only where it still stands: what somebody else has put there since stays."""
        for names, name in self._replaced:
            if names.get(name) is self._recorded:
                names[name] = self._function
        self._replaced.clear()
