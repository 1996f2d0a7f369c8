"""What the judge needs from a family of operators: reference/<family>/family.py has one `FAMILY` of this type.

The family's files import only `gdnspec.family` from gdnspec. It contains this file and helpers for drawing.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gdnspec.inputs.array import Array
from gdnspec.inputs.session_contract import SessionWords
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope, Tensor
from gdnspec.model.errors import RegimeError as RegimeError
from gdnspec.model.workload import Workload

if TYPE_CHECKING:
    import torch

    from gdnspec.interop.meaning import Meaning
    from gdnspec.interop.text import Text


class SuiteError(ValueError):
    """The suites of a definition need a workload that cannot exist."""


class Painter(Protocol):
    """Draws the inputs of one workload. The same line gives the same inputs on every machine."""

    def paint(self, tensor: Tensor) -> Array:
        """One input, with the shape and type of the definition, drawn by the generator that its `draw` names. Each
        input has its own random stream, so that leaving one out changes no other. Raises `RegimeError`."""
        ...


class DevicePainter(Protocol):
    """Draws the inputs of a workload with `"drawn": "device"`, on the device of the check."""

    def paint(self, tensor: Tensor) -> "torch.Tensor":
        """One input. Raises `RegimeError`."""
        ...


@dataclass(frozen=True)
class Published:
    """What a family gets when it draws fresh lines or lists its workloads. `lines`: the published workloads of the
    definition. `presets`: the axes of each preset in presets.json. `heads`: the axes of any preset, by name."""

    definition: Definition
    lines: list[Workload]
    presets: Mapping[str, Mapping[str, int]]
    heads: Callable[[str], Mapping[str, int]]


class FreshLines(Protocol):
    """Draws new lines for each check: a solution could recognise a published line by its shapes or gates."""

    def names(self, device: str) -> tuple[str, ...]:
        """The names of the lines for a kind of device; they are the same for every seed."""
        ...

    def draw(self, name: str, seed: int, device: str) -> Workload:
        """The line with this name, without a budget. The same seed gives the same line."""
        ...

    def narrower(self, line: Workload) -> Workload | None:
        """The same line with fewer sequences; None if it has few."""
        ...


class Suites(Protocol):
    """The workloads that a family ships. `tools/make_workloads.py` writes them; checks do not use this."""

    def lines(self, published: Published, share: Callable[[Workload], float | None]) -> Iterator[Workload]:
        """All lines of a definition, in the order of its file. Each has its suite and, if it is drawn, its seed, but no
        hash and no budget. `published.lines` are the lines in the file today. A line whose tensor file is missing from
        the definition's folder is left out.

        `share` returns which part of the largest allowed budget honest arithmetic needs on a line: 1.0 is all of it,
        None is more. It draws the inputs and runs the emulators, which is slow: use it only for new lines. Raises
        `SuiteError`."""
        ...

    def table(self, published: Sequence[Published]) -> str:
        """A Markdown table of what the family's published lines cover, for its README."""
        ...


@dataclass(frozen=True)
class Emulated:
    """One call for the emulators. `arguments`: the inputs by name, as stored. `oracle`: the reference for calls of this
    size. `second`: the second derivation, or the first if there is only one. `more`: further multiples of themselves as
    which operands of products are rounded, by the ending of an emulator's name; there are some for fresh lines."""

    definition: Definition
    strict: bool
    arguments: dict[str, Any]
    oracle: Callable[..., Any]
    second: Callable[..., Any]
    more: Mapping[str, float] = field(default_factory=dict)


class NotRecorded(ValueError):
    """No definition describes the call. The message says why."""


@dataclass(frozen=True)
class Regrouped:
    """A call that shows that earlier calls were read wrongly. `affects`: whether a call was. `tensors`: corrects
    them."""

    affects: Callable[[Any], bool]
    tensors: "Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]"


class CallReader(Protocol):
    """Reads the calls of one recording as workloads of one definition. Other methods get back what `seen` returned.

    A call maps arguments to values, by their names in `Calls.arguments`; other arguments keep the name in the call. An
    argument that was left out has its default or is absent.
    """

    def seen(self, call: Mapping[str, Any]) -> Hashable:
        """A description of a call, made without looking at values: calls of one kind have equal descriptions. Printed,
        it says which kind of call it is. Raises `NotRecorded`."""
        ...

    def serves(self, seen: Any) -> bool:
        """Whether a call belongs to the definition's stage."""
        ...

    def look(self, call: Mapping[str, Any], seen: Any) -> Regrouped | None:
        """Looks at the values of a call before it is recorded. A result says that earlier calls were read wrongly."""
        ...

    def line(self, seen: Any) -> dict[str, Any]:
        """Preset, axes, lengths, scalars and omitted inputs, as in a workload line. Raises `NotRecorded`."""
        ...

    def tensors(self, call: Mapping[str, Any], seen: Any) -> "dict[str, torch.Tensor]":
        """The definition's inputs, contiguous, copied to the CPU. Raises `NotRecorded`."""
        ...

    def size(self, seen: Any) -> int:
        """The approximate number of bytes of `tensors`."""
        ...

    def told(self, seen: Iterable[Any]) -> list[str]:
        """Sentences for the user about how these calls were read."""
        ...


@dataclass(frozen=True)
class Calls:
    """How a call of a library becomes a workload.

    - `named`: the name of such a function in messages, such as "gated delta rule".
    - `arguments`: its arguments: one name for each, and all names that libraries use for it. `needed`: those that
    identify such a function.
    - `told`: the arguments whose shapes messages show, with the words for an absent one.
    - `usual`: package.module:function for each stage, if the user names none.
    - `regime`: how to draw inputs if no tensors were kept.
    - `records`: whether calls can be workloads of a definition. `served`: the kinds of such definitions, in words.
      `stages`: which calls belong to which stage, in words.
    - `reader`: makes the reader from a definition, all definitions of the family by name, and how often heads were
    repeated before the call, if the user says so.
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
    """A part of another format that has no counterpart here, or the reverse. The message says what."""


class Foreign(Protocol):
    """How FlashInfer-Bench, a public benchmark, describes the definitions of a family. A `Meaning` pairs one of its
    definitions with the one here that has the same contract.

    - `aliases`: their names for inputs and outputs here. A name counts only if shape and type match as well.
    - `raw`: their inputs from which inputs here can be computed. `ready`: which of them has the shape of which input
    here. Both may be empty.
    - `asides`: differences that a judge can set aside, in words that follow "right on 9 of 9 ..".
    """

    aliases: Mapping[str, tuple[str, ...]]
    raw: tuple[str, ...]
    ready: Mapping[str, str]
    asides: tuple[str, ...]

    def unsaid(self, definition: Definition) -> str | None:
        """Why the format cannot describe a definition, in words that follow its name; None if it can."""
        ...

    def name(self, definition: str, axes: Mapping[str, int]) -> str:
        """Their name for a definition with the axes of a preset."""
        ...

    def stage(self, name: str) -> str | None:
        """The stage that one of their names implies, or None."""
        ...

    def preset(self, axes: Mapping[str, int]) -> str:
        """The name of the preset with these axes, if the family has presets for any sizes."""
        ...

    def computed(self, definition: Definition) -> str:
        """A sentence that says that they pass `raw`, if the definition here takes values computed from it."""
        ...

    def compare(self, found: "Meaning", text: "Text") -> None:
        """Adds to `differences`, `aside` and `gate` what the text of their reference does differently."""
        ...

    def tensors(self, found: "Meaning", tensors: dict[str, Array], drawn: Collection[str]) -> list[str]:
        """Converts the tensors of one of their workloads in place, and says what changed. Inputs in `drawn` will be
        drawn. Raises `NotExpressed`."""
        ...

    def scalars(self, found: "Meaning", kept: dict[str, Any]) -> list[str]:
        """Like `tensors`, for scalars."""
        ...

    def supports(self, found: "Meaning") -> list[str]:
        """The conditions of the manifest under which an imported solution is called. Raises `NotExpressed`."""
        ...

    def adapter(self, found: "Meaning", entry: str, returns: bool, aside: Collection[str] | None = None) -> str:
        """The text of a module whose `run` takes the arguments of the definition here by name, and calls `entry`
        (file.py::function) as FlashInfer-Bench does. `returns`: whether `entry` returns its outputs instead of writing
        them. `aside`: the differences that the module sets aside."""
        ...

    def applied(self, served: Collection[str], axes: Mapping[str, int]) -> Mapping[str, str]:
        """For FlashInfer's trace_apply: its names for calls with the axes of a preset, and for each the text of a
        function `run` that takes the arguments of the call by name. It calls functions named like the definitions in
        `served`, which take the inputs in their order and return the outputs. Empty if the library has no such call."""
        ...

    def unasked(self, found: "Meaning", line: Workload) -> str:
        """Why their definition cannot run a workload; "" if it can."""
        ...

    def concerns(self, found: "Meaning", word: str, line: Workload) -> bool:
        """Whether one of `asides` affects a workload."""
        ...

    def put_aside(self, words: Collection[str], scalars: dict[str, Any]) -> None:
        """Changes the scalars of a workload so that the differences have no effect."""
        ...


@dataclass(frozen=True)
class OnnxWords:
    """What ONNX can say of a definition. `operator`: the one that computes it; "" if none does. `around`: what a
    program does before and after the operator, and what the operator cannot say. `lacking`: why there is none."""

    operator: str = ""
    around: tuple[str, ...] = ()
    lacking: str = ""


@dataclass(frozen=True, eq=False)
class OnnxNode:
    """One call of an operator, in float32. `inputs`: by the operator's names, in its order; None for one that is left
    out. `outputs`: their names. `computed`: what the operator has to return for attributes and inputs, in the type of
    the inputs."""

    operator: str
    attributes: Mapping[str, Any]
    inputs: "Mapping[str, torch.Tensor | None]"
    outputs: tuple[str, ...]
    computed: "Callable[[Mapping[str, Any], Mapping[str, torch.Tensor | None]], tuple[torch.Tensor, ...]]"


@dataclass(frozen=True)
class Onnx:
    """How ONNX, the exchange format of models, describes the definitions of a family.

    - `opset`: the version of the standard operators that has them.
    - `words`: what it can say of a definition.
    - `nodes`: the calls that compute a workload of a definition with an operator, from its inputs by name. Nodes of one
      workload have the same operator, attributes and inputs. Raises `NotExpressed`.
    """

    opset: int
    words: Callable[[Definition], OnnxWords]
    nodes: Callable[[Definition, Mapping[str, Any]], Iterator[OnnxNode]]


@dataclass(frozen=True)
class Family:
    """The functions that the judge calls.

    - `painter`: makes the painter of a definition, a workload and its bound axes. Raises `RegimeError` if the
    definition cannot express the regime.
    - `problems`: reasons why inputs may not be used although their values are inside their domains, such as numbers
    that grow without bound. It gets the inputs, and the parts of packed inputs, by name.
    - `emulators`: honest arithmetic, from which budgets are computed: yields the name of each emulator, and what the
      reference would return, in the types of the definition.
    - `bounding`: the inputs that `problems` needs. Others may have gigabytes, and are written one at a time.
    - `fresh`: draws new lines for each check; None if the family has none.
    - `device_painter`, `device_problems`: the same for workloads that the device draws, beyond 2^31 elements; None if
    the family has none.
    - `calls`: how a call of a library becomes a workload; None if `gdnspec capture` cannot record any.
    - `foreign`: how FlashInfer-Bench describes the definitions; None if there is no exchange with it.
    - `onnx`: how ONNX describes the definitions; None if it has no operator for them.
    - `ops`: imports and returns the operators that `gdnspec.ops` offers, as functions by name; None if there are none.
      The code is `ops.py` or the folder `ops` beside family.py.
    - `sessions`: how the definitions that `sessions` of family.json names serve the calls of a session; None if the
    family has no sessions.
    - `suites`: imports and returns the list of workloads that the family ships; None if their files are written in
    another way. The code is in the folder `suites` beside family.py. No verdict depends on this folder, on the
    operators, or on a folder `scripts`, so changes there keep cached verdicts.
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
    onnx: Callable[[], Onnx] | None = None
    sessions: Callable[[], SessionWords] | None = None
    suites: Callable[[], Suites] | None = None
    ops: Callable[[], Mapping[str, Callable[..., Any]]] | None = None
