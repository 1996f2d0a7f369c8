"""What the judge asks a family of operators for: reference/<family>/family.py has one `FAMILY` of this type.

The family's own files import nothing of gdnspec but `gdnspec.family`, which holds this and what drawing needs.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gdnspec.inputs.array import Array
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope, Tensor
from gdnspec.model.errors import RegimeError as RegimeError
from gdnspec.model.workload import Workload

if TYPE_CHECKING:
    import torch


class Painter(Protocol):
    """Draws the inputs of one workload: the same from the same line on every machine."""

    def paint(self, tensor: Tensor) -> Array:
        """One input, of the shape and type that the definition gives it. Each has a random stream of its own, so that
        leaving one out changes no other. Raises `RegimeError`."""
        ...


class DevicePainter(Protocol):
    """Draws the inputs of a workload that only a check draws, on its device."""

    def paint(self, tensor: Tensor) -> "torch.Tensor":
        """One input. Raises `RegimeError`."""
        ...


@dataclass(frozen=True)
class Published:
    """What a family knows when it draws fresh lines: the definition, its published lines, the axes of the presets of
    presets.json, and those of any preset by its name."""

    definition: Definition
    lines: list[Workload]
    presets: Mapping[str, Mapping[str, int]]
    heads: Callable[[str], Mapping[str, int]]


class FreshLines(Protocol):
    """Lines that nobody has seen: everything in a workload file can be recognised by its shapes and its gates."""

    def names(self, device: str) -> tuple[str, ...]:
        """The names of the lines of every seed on a kind of device."""
        ...

    def draw(self, name: str, seed: int, device: str) -> Workload:
        """One of them, without a budget. The same seed gives the same line."""
        ...

    def narrower(self, line: Workload) -> Workload | None:
        """The same with fewer sequences; None where it has few."""
        ...


@dataclass(frozen=True)
class Emulated:
    """One call, for the emulators of its workload. `arguments`: the inputs by name, as stored. `oracle`: the reference
    that the definition names for calls of this size; `second`: its second derivation, or the first where there is
    none."""

    definition: Definition
    strict: bool
    arguments: dict[str, Any]
    oracle: Callable[..., Any]
    second: Callable[..., Any]


@dataclass(frozen=True)
class Family:
    """The functions that the judge calls.

    - `painter`: for a definition, a workload and its bound axes. Raises `RegimeError` where a definition cannot express
      the regime.
    - `problems`: why inputs that are inside their domains may not be used all the same, in words: what keeps the
      operator's numbers bounded. It is given the inputs by name, parts of packed ones as well.
    - `emulators`: honest arithmetic, from which error budgets are frozen: the name of each emulator, and what the
      reference would return, in the types of the definition.
    - `bounding`: the inputs that `problems` looks at; the others may be gigabytes, and are written one at a time.
    - `fresh`: draws lines for each check beside the published ones; None where a family has none.
    - `device_painter`, `device_problems`: the same for calls that only a check draws, past 2^31 elements; None where a
      family has no such workloads.
    """

    painter: Callable[[Definition, Workload, Scope], Painter]
    problems: Callable[[Definition, Mapping[str, Array], Workload, Scope], Iterator[str]]
    emulators: Callable[[Emulated], Iterator[tuple[str, Any]]]
    bounding: tuple[str, ...] = ()
    fresh: Callable[[Published], FreshLines] | None = None
    device_painter: "Callable[[Definition, Workload, Scope, str], DevicePainter] | None" = None
    device_problems: "Callable[[Definition, dict[str, torch.Tensor], Workload], Iterator[str]] | None" = None
