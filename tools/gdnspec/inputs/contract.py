"""What the judge asks a family of operators for: reference/<family>/family.py has one `FAMILY` of this type.

The family's own files import nothing of gdnspec but `gdnspec.family`, which holds this and what drawing needs.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gdnspec.inputs.array import Array
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope, Tensor
from gdnspec.model.errors import RegimeError as RegimeError
from gdnspec.model.workload import Workload

if TYPE_CHECKING:
    import torch

    from gdnspec.interop.meaning import Meaning
    from gdnspec.interop.text import Text


class SuiteError(ValueError):
    """What a definition's suites need, and no line can be."""


class Painter(Protocol):
    """Draws the inputs of one workload: the same from the same line on every machine."""

    def paint(self, tensor: Tensor) -> Array:
        """One input, of the shape and type that the definition gives it, by the generator that its `draw` names. Each
        has a random stream of its own, so that leaving one out changes no other. Raises `RegimeError`."""
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


class NotRecorded(ValueError):
    """A call that no definition describes; why."""


@dataclass(frozen=True)
class Regrouped:
    """A call that shows that earlier ones were read wrongly: which of those, and what their kept tensors become."""

    affects: Callable[[Any], bool]
    tensors: "Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]"


class CallReader(Protocol):
    """Reads the calls of one recording as workloads of one definition. What `seen` returns is given back to the others.

    A call is a mapping of arguments by their names in `Calls.arguments`; others come by the name that they were passed
    with. What was left out has its default or is absent.
    """

    def seen(self, call: Mapping[str, Any]) -> Hashable:
        """What is recorded of a call without a look at its values: the same for calls that are alike. Printed, it says
        which kind of call. Raises `NotRecorded`."""
        ...

    def serves(self, seen: Any) -> bool:
        """Whether a call is one of the definition's stage."""
        ...

    def look(self, call: Mapping[str, Any], seen: Any) -> Regrouped | None:
        """Looks at the values of a call that is about to be recorded."""
        ...

    def line(self, seen: Any) -> dict[str, Any]:
        """Preset, axes, lengths, scalars and what is left out, as in a workload line. Raises `NotRecorded`."""
        ...

    def tensors(self, call: Mapping[str, Any], seen: Any) -> "dict[str, torch.Tensor]":
        """The definition's inputs, contiguous, on the CPU, in memory of their own. Raises `NotRecorded`."""
        ...

    def size(self, seen: Any) -> int:
        """How many bytes `tensors` will have, about."""
        ...

    def told(self, seen: Iterable[Any]) -> list[str]:
        """What a user should know of how these calls were read, a sentence each."""
        ...


@dataclass(frozen=True)
class Calls:
    """How a call of a library becomes a workload.

    - `named`: what such a function is called: "gated delta rule".
    - `arguments`: what it takes, each by one name, with all names that a library may give it; `needed`: those by which
      such a function is known.
    - `told`: the arguments whose shapes a message tells, with the words for one that is absent.
    - `usual`: package.module:function for each stage, where the user names none.
    - `regime`: how inputs are drawn of which no tensors were kept.
    - `records`: whether calls can be workloads of a definition; `served`: of which kinds of definitions, in words;
      `stages`: which calls belong to which stage, in words.
    - `reader`: for a definition, all definitions of the family by name, and how often heads were repeated before the
      call, where the user says so.
    """

    named: str
    arguments: Mapping[str, tuple[str, ...]]
    needed: tuple[str, ...]
    told: Mapping[str, str]
    usual: Mapping[str, str]
    regime: str
    records: Callable[[Definition], bool]
    served: str
    stages: str
    reader: Callable[[Definition, Mapping[str, Definition], int | None], CallReader]


class NotExpressed(Exception):
    """What something of FlashInfer-Bench has that nothing here can say."""


class Foreign(Protocol):
    """How FlashInfer-Bench, a public benchmark, has the definitions of a family. A `Meaning` is one of its definitions
    beside the one here that has its contract.

    - `aliases`: other names there of inputs and outputs here. They count only where shape and type fit as well.
    - `raw`: inputs there from which inputs here can be computed; `ready`: which of them has the shape of which input
      here. Empty where there are none.
    - `asides`: differences that a judge can put aside, each in words that follow "right on 9 of 9 ..".
    """

    aliases: Mapping[str, tuple[str, ...]]
    raw: tuple[str, ...]
    ready: Mapping[str, str]
    asides: tuple[str, ...]

    def unsaid(self, definition: Definition) -> str | None:
        """Why the format has no words for a definition, to follow its name; None where it has."""
        ...

    def name(self, definition: str, axes: Mapping[str, int]) -> str:
        """What a definition with the axes of a preset is called there."""
        ...

    def stage(self, name: str) -> str | None:
        """The stage here that a name there says; None where it says none."""
        ...

    def preset(self, axes: Mapping[str, int]) -> str:
        """The name of the preset that binds these axes, where there is one for any sizes."""
        ...

    def computed(self, definition: Definition) -> str:
        """A sentence that says that `raw` is given there, where a definition takes what is computed from it."""
        ...

    def compare(self, found: "Meaning", text: "Text") -> None:
        """Adds to `differences`, `aside` and `gate` what the text of a reference says otherwise."""
        ...

    def tensors(self, found: "Meaning", tensors: dict[str, Array], drawn: Collection[str]) -> list[str]:
        """Turns the tensors of a workload into those of a line here, in place, and says what was changed. Those in
        `drawn` are to be drawn. Raises `NotExpressed`."""
        ...

    def scalars(self, found: "Meaning", kept: dict[str, Any]) -> list[str]:
        """The same for scalars."""
        ...

    def supports(self, found: "Meaning") -> list[str]:
        """Conditions of a manifest under which an imported solution is called. Raises `NotExpressed`."""
        ...

    def adapter(self, found: "Meaning", entry: str, returns: bool, aside: Collection[str] | None = None) -> str:
        """A module whose `run` is called as a definition here is, by name, and calls `entry`, file.py::function, as
        FlashInfer-Bench does. It `returns` outputs or takes places for them. `aside`: what is done for it."""
        ...

    def unasked(self, found: "Meaning", line: Workload) -> str:
        """Why a workload cannot be asked of a definition there; empty where it can."""
        ...

    def concerns(self, found: "Meaning", word: str, line: Workload) -> bool:
        """Whether a workload has to do with one of `asides`."""
        ...

    def put_aside(self, words: Collection[str], scalars: dict[str, Any]) -> None:
        """Changes the scalars of a workload to those on which the differences do not show."""
        ...


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
    - `calls`: how a call of a library becomes a workload; None where `gdnspec capture` has nothing to record.
    - `foreign`: how FlashInfer-Bench has the definitions; None where nothing is exported to it or imported from it.
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
    calls: Callable[[], Calls] | None = None
    foreign: Callable[[], Foreign] | None = None
    suites: Callable[[], Suites] | None = None
