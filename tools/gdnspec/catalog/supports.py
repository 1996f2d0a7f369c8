"""Whether a solution serves a call: the conditions in its manifest."""

from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope
from gdnspec.model.expression import ExpressionError, parse
from gdnspec.model.solution import Entry


def unmet(
    entry: Entry, definition: Definition, scope: Scope, device: str, contiguous: bool, partial: bool = False
) -> str | None:
    """The condition of `supports` that a call of this shape does not meet, in words; None if it meets all. `partial`:
    skip conditions with axes that `scope` does not bind."""
    # A switch that the call does not mention has its default.
    switches = {t.name: parse(t.default or "True").evaluate({}) for t in definition.inputs if t.is_switch}
    dtypes = {f"{t.name}_dtype": t.dtype for t in definition.inputs}
    names: Scope = {**switches, **scope, **dtypes, "device": device, "contiguous": contiguous}
    for text in entry.supports:
        if partial and not parse(text).names <= names.keys():
            continue
        try:
            if not parse(text).holds(names):
                return f"the solution supports {'only contiguous inputs' if text == 'contiguous' else text}"
        except ExpressionError as error:
            return f"cannot evaluate `supports`: {error}"
    return None
