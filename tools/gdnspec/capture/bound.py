"""Read the arguments of a call by the names that a family gives them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gdnspec.inputs.contract import Calls
from gdnspec.model.errors import SpecError


class Binder:
    """Reads calls of one function. Raises `SpecError` if the function lacks parameters that the family needs."""

    def __init__(self, function: Callable[..., Any], target: str, calls: Calls) -> None:
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            raise SpecError(f"{target} has no signature, so its calls cannot be read") from None
        ordered = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        takes = [p.name for p in parameters.values()]
        lacking = [name for name in calls.needed if not set(takes) & set(calls.arguments[name])]
        if lacking:
            named = ", ".join("/".join(calls.arguments[name]) for name in lacking)
            raise SpecError(f"{target}({', '.join(takes)}) is not a {calls.named}: it has no parameter {named}")
        self.calls = calls
        self._meaning = {alias: name for name, aliases in calls.arguments.items() for alias in aliases}
        self._positions = [self._meaning.get(p.name) for p in ordered]
        self._defaults = {
            self._meaning[p.name]: p.default
            for p in parameters.values()
            if p.name in self._meaning and p.default is not p.empty
        }

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by the family's names. An argument that is not given has its default, or is absent."""
        found = dict(self._defaults)
        for name, value in zip(self._positions, args, strict=False):
            if name is not None:
                found[name] = value
        for key, value in kwargs.items():
            found[self._meaning.get(key, key)] = value
        return found
