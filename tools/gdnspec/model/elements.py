"""What a definition is made of: axes, tensors, constraints, symmetries, and the typed choices of its conventions."""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field

from gdnspec.model.base import Model
from gdnspec.model.dtypes import INTEGERS, DType
from gdnspec.model.errors import PlacedError
from gdnspec.model.roles import Role

Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=64)]
Version = Annotated[int, Field(ge=1, le=1_000_000)]  # of a definition's meaning
Place = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)?$", max_length=129)]


def _shown_as_it_is(text: str) -> str:
    if text.isprintable():  # nearly all are, and there are thousands
        return text
    for c in text:
        if not c.isprintable() and c != "\n":
            raise PlacedError("", f"the character {c!r} cannot be shown")
    return text


Text = Annotated[str, Field(min_length=1, max_length=4000), AfterValidator(_shown_as_it_is)]
Scope = dict[str, Any]
Stage = Literal["prefill", "decode", "verify", "convolution", "norm", "layer", "backward", "chunk_stage"]


class Conventions(Model):
    """The choices in which public implementations differ, typed, so that none is left to prose."""

    state_layout: Literal["k_last", "k_first", "none"]
    decay_gate: Literal["raw", "log", "linear", "none"]
    update_gate: Literal["raw", "raw_doubled", "sigmoid", "none"]
    qk_norm: Literal["none", "l2", "optional_l2"]
    packing: Literal["one_token", "ragged", "padded"]
    state_update: Literal["functional", "in_place", "pool", "none"]


class ConstAxis(Model):
    """Bound by a preset; a solution may specialise on it."""

    kind: Literal["const"]
    name: Name
    role: Role | None = None
    description: Text


class VarAxis(Model):
    """Bound by a workload. `per_sequence`: how many entries each sequence has, an expression of its `length`."""

    kind: Literal["var"]
    name: Name
    role: Role | None = None
    per_sequence: str | None = None
    minimum: Annotated[int, Field(ge=0)]
    description: Text


Size = str | Annotated[int, Field(ge=0)]
STRIDED = {"rows": 1, "tokens": 2}  # what `strides` allows: a gap after each index of so many leading dimensions
COLUMN = "column"  # what `read_if` calls the place of a value in its row


class Part(Model):
    """Part of a packed tensor or axis: what stands side by side in one dimension, each of its own `shape`. `draw`: as
    that of a tensor, of a packed input."""

    name: Name
    shape: Annotated[list[Size], Field(min_length=1)]
    draw: Name | None = None
    description: Text


Parts = Annotated[list[Part], Field(min_length=1)] | None


class DerivedAxis(Model):
    """An expression of axes named before it. `parts` are what stands side by side along it, in every tensor that has
    it as a dimension."""

    kind: Literal["derived"]
    name: Name
    role: Role | None = None
    expression: str
    parts: Parts = None
    description: Text


Axis = Annotated[ConstAxis | VarAxis | DerivedAxis, Field(discriminator="kind")]
Bound = float | None


class Tensor(Model):
    """An input or an output.

    `shape` holds axis names, integers and expressions of axes (`num_seqs + 1`); null is a scalar. `domain` bounds the
    values, null being unbounded. `indexes` names the input whose first dimension the values of this integer input are
    indices of, -1 being none; with `writes`, what the operator writes to there: all else of it stays bit for bit.
    `read_if` says when the slot that a value names is read as well; absent, it always is. `strides` is what a caller
    may pass: absent, contiguous memory. `bounds` names the axis whose entries this input divides among the sequences;
    `counts` the axis that its values count entries of, from none to all. `draw` names the family's generator of it.
    """

    name: Name
    shape: list[Size] | None
    parts: Parts = None
    dtype: DType
    optional: bool = False
    default: str | None = None
    domain: Annotated[list[Bound], Field(min_length=2, max_length=2)] | None = None
    mutates: bool = False
    indexes: Name | None = None
    writes: bool = False
    read_if: str | None = None
    bounds: Name | None = None
    counts: Name | None = None
    strides: Literal["rows", "tokens"] | None = None
    traffic: str | None = None
    draw: Name | None = None
    description: Text

    @property
    def spaced(self) -> int | None:
        """The leading dimensions after each index of which a caller may leave a gap; None where there are no gaps."""
        if self.strides is not None:
            return STRIDED[self.strides]
        return 1 if self.mutates else None

    @property
    def is_scalar(self) -> bool:
        return self.shape is None

    @property
    def is_switch(self) -> bool:
        return self.is_scalar and self.dtype == "bool"

    @property
    def is_index(self) -> bool:
        """A tensor of integers or truths of one or two dimensions: its values, row by row, may stand in constraints."""
        return self.shape is not None and len(self.shape) in (1, 2) and self.dtype in (*INTEGERS, "bool")

    @property
    def is_drawn(self) -> bool:
        """Whether a family's generator makes it, or each of its parts: a line gives scalars and indices itself."""
        return not self.is_scalar and not self.is_index

    @property
    def is_flag(self) -> bool:
        """A truth for each sequence: whether it goes on from the state that the call names for it."""
        return self.is_index and self.dtype == "bool"


class Constraint(Model):
    expression: str
    message: Text


class Symmetry(Model):
    """An exact transformation of the inputs and what it does to the outputs.

    The same indices of dimension `dimension[tensor]` of every tensor named are flipped in sign, scaled by a power of
    two, or permuted (within `groups` equal contiguous groups). All other tensors stay as they are. `tensor.part` names
    part of an axis of a tensor, its shape in the place of that axis. With `exact` false, sums are added in another
    order: what it says holds of real numbers, and of floating point within the budget.
    """

    name: Name
    transform: Literal["flip_sign", "scale_power_of_two", "permute"]
    dimension: dict[Place, Annotated[int, Field(ge=0)]]
    groups: str = "1"
    when: str = "True"
    exact: bool = True
    description: Text


class Within(NamedTuple):
    """Where a part stands: the dimension of the tensor that it is part of, and every part of that dimension."""

    tensor: str
    dimension: int
    part: str
    parts: dict[str, tuple[int, ...]]


Function = Annotated[str, Field(pattern=r"^[a-z0-9_]+\.py::[A-Za-z_][A-Za-z0-9_]*$")]


class SecondReference(Model):
    """The same contract from another derivation: the oracle of workloads of over `above_tokens` tokens, on which the
    first would take minutes. It takes the inputs, and may take `chunk_size`."""

    function: Function
    above_tokens: Annotated[int, Field(ge=1, le=1 << 20)]
