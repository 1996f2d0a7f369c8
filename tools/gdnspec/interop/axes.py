"""Name the axes of shapes. In FlashInfer-Bench a shape is a list of axis names; gdnspec also uses numbers and
expressions, which get names here."""

from dataclasses import dataclass, field
from typing import Any

from gdnspec.catalog.definitions import Found
from gdnspec.model.elements import Scope, Tensor
from gdnspec.model.expression import parse
from gdnspec.model.preset import Preset


@dataclass
class Axes:
    """The axes of a definition. `known`: in the format's own form. `computed`: expressions over other axes. `shapes`:
    of every tensor, in names of axes."""

    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    computed: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, list[str] | None] = field(default_factory=dict)

    def bound(self, scope: Scope) -> dict[str, int]:
        """The values of the var axes in a call."""
        values = {name: int(parse(text).evaluate(scope)) for name, text in self.computed.items()}
        plain = {name for name, axis in self.known.items() if axis["type"] == "var"} - set(values)
        return {name: int(scope[name]) for name in self.known if name in plain} | values


def axes_of(found: Found, preset: Preset) -> Axes:
    """The axes of a definition with a preset."""
    definition, axes = found.definition, Axes()
    const = {name: preset.axes[name] for name in definition.const_axes()}
    variable = {axis.name for axis in definition.var_axes()}
    for axis in definition.axes:
        about = {"description": axis.description}
        if axis.kind == "const":
            axes.known[axis.name] = {"type": "const", "value": const[axis.name], **about}
        elif axis.kind == "var":
            axes.known[axis.name] = {"type": "var", **about}
        else:
            _computed(axes, axis.name, axis.expression, const, variable, about)
            if axes.known[axis.name]["type"] == "const":
                const[axis.name] = axes.known[axis.name]["value"]
            else:
                variable.add(axis.name)
    for tensor in (*definition.inputs, *definition.outputs):
        axes.shapes[tensor.name] = None
        if tensor.shape is not None:
            named = [_named(axes, tensor, i, size, const, variable) for i, size in enumerate(tensor.shape)]
            axes.shapes[tensor.name] = named
    return axes


def _named(axes: Axes, tensor: Tensor, place: int, size: str | int, const: dict[str, int], variable: set[str]) -> str:
    text = str(size)
    if text in axes.known:
        return text
    name = f"size_{text}" if text.isdigit() else f"len_{tensor.name}" if place == 0 else f"{tensor.name}_dim_{place}"
    if name not in axes.known:
        _computed(axes, name, text, const, variable, {"description": f"{text}"})
    return name


def _computed(
    axes: Axes, name: str, text: str, const: dict[str, int], variable: set[str], about: dict[str, str]
) -> None:
    if parse(text).names & variable:
        axes.known[name] = {"type": "var", **about}
        axes.computed[name] = text
    else:
        axes.known[name] = {"type": "const", "value": int(parse(text).evaluate(const)), **about}
