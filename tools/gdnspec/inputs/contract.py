"""What the judge asks a family of operators for: reference/<family>/family.py has one `FAMILY` of this type.

The family's own files import nothing of gdnspec but `gdnspec.family`, which holds this and what drawing needs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gdnspec.inputs.array import Array
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope, Tensor
from gdnspec.model.workload import Workload

if TYPE_CHECKING:
    import torch


class RegimeError(ValueError):
    """A regime that a definition cannot express."""


class SuiteError(ValueError):
    """What a definition's suites need, and no line can be."""


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
    """What a family knows when it draws fresh lines or lists those that it ships: the definition, its published lines,
    the axes of the presets of presets.json, and those of any preset by its name."""

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


class Suites(Protocol):
    """The workloads that a family ships. `tools/make_workloads.py` writes them; no check asks for them."""

    def lines(self, published: Published, share: Callable[[Workload], float | None]) -> Iterator[Workload]:
        """All lines of a definition, in the order of its file: each with its suite and, where it is drawn, its seed,
        none with a hash or a budget. `published.lines` are those that the file holds. A line whose file of tensors is
        not in the definition's folder is left out.

        `share` says which part of the largest budget that may be frozen honest arithmetic takes on a line: 1.0 is all
        of it, None more. It draws the inputs and runs the emulators, so that it is for lines that are new. Raises
        `SuiteError`."""
        ...

    def table(self, published: Sequence[Published]) -> str:
        """What the published lines of the family's definitions cover, in Markdown, for the family's README."""
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
    - `suites`: loads what lists the workloads that the family ships, and imports it only when called; None where
      workload files are written by other means. It lies in the sub-package `suites`, a folder beside family.py: no
      verdict follows from that, nor from a folder `scripts`, so that a change there leaves kept verdicts as they are.
    """

    painter: Callable[[Definition, Workload, Scope], Painter]
    problems: Callable[[Definition, Mapping[str, Array], Workload, Scope], Iterator[str]]
    emulators: Callable[[Emulated], Iterator[tuple[str, Any]]]
    bounding: tuple[str, ...] = ()
    fresh: Callable[[Published], FreshLines] | None = None
    device_painter: "Callable[[Definition, Workload, Scope, str], DevicePainter] | None" = None
    device_problems: "Callable[[Definition, dict[str, torch.Tensor], Workload], Iterator[str]] | None" = None
    suites: Callable[[], Suites] | None = None
