"""The elements of a definition: axes, tensors, constraints, symmetries, and the typed choices of its conventions."""

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field

from gdnspec.model.base import Model
from gdnspec.model.dtypes import CODES, INTEGERS, DType
from gdnspec.model.errors import PlacedError
from gdnspec.model.roles import Role

Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=64)]
Version = Annotated[int, Field(ge=1, le=1_000_000)]  # of a definition's meaning
Place = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)?$", max_length=129)]


def _shown_as_it_is(text: str) -> str:
    if text.isprintable():  # a fast path for nearly all of thousands of texts
        return text
    for c in text:
        if not c.isprintable() and c != "\n":
            raise PlacedError("", f"the character {c!r} is not printable: remove it")
    return text


Text = Annotated[str, Field(min_length=1, max_length=4000), AfterValidator(_shown_as_it_is)]
Scope = dict[str, Any]
Stage = Literal["prefill", "decode", "verify", "convolution", "norm", "layer", "backward", "chunk_stage"]


class Conventions(Model):
    """The choices in which public implementations differ. They are typed, so that prose does not have to state them.

    `padding_slot`: the slot of a row or sequence that is skipped. With `zero`, no call reads or writes slot 0.

    `residuals`: what of the forward pass a backward pass is given. `checkpoints`: states at equal distances."""

    state_layout: Literal["k_last", "k_first", "none"]
    decay_gate: Literal["raw", "log", "linear", "none"]
    update_gate: Literal["raw", "raw_doubled", "sigmoid", "none"]
    qk_norm: Literal["none", "l2", "optional_l2"]
    packing: Literal["one_token", "ragged", "padded"]
    state_update: Literal["functional", "in_place", "pool", "none"]
    # `row_amax`: a state is kept as codes, with a float32 scale for each of its rows. Each write renews the scale: the
    # row's largest magnitude divided by the largest code. Codes are rounded to nearest, ties to even.
    state_scale: Literal["none", "row_amax"] = "none"
    padding_slot: Literal["minus_one", "zero"] = "minus_one"
    residuals: Literal["none", "checkpoints"] = "none"


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
    minimum: Annotated[int, Field(ge=0, le=1 << 20)]
    description: Text


Size = str | Annotated[int, Field(ge=0)]
STRIDED = {"rows": 1, "tokens": 2}  # value of `strides` -> leading dimensions in which a gap may follow each index
COLUMN = "column"  # the name that `read_if` uses for the position of a value in its row


class Part(Model):
    """One part of a packed tensor or axis. Parts are side by side in one dimension, each with its own `shape`. `draw`
    names the generator of this part of an input, as `draw` of a tensor does."""

    name: Name
    shape: Annotated[list[Size], Field(min_length=1)]
    draw: Name | None = None
    description: Text


Parts = Annotated[list[Part], Field(min_length=1)] | None


class DerivedAxis(Model):
    """An expression of the axes before it. `parts` are side by side along this axis, in every tensor that has it."""

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

    `shape` holds axis names, integers and expressions of axes (`num_seqs + 1`); null means a scalar. `domain` is
    [lowest, highest] value; null means no bound. `indexes` names another input: the values of this integer input are
    indices into its first dimension, and -1 means none. `writes`: the operator writes to these indices, and leaves all
    others as they are, bit for bit. `read_if` is the condition under which the operator also reads such a slot; without
    it, always. `strides` says which gaps a caller may leave; without it, memory is contiguous. `bounds` names the axis
    whose entries this input divides among the sequences. `counts` names the axis whose entries its values count, from
    none to all. `earlier` names the axis whose entries its values point to: each value is the index of an entry before
    its own place in the row, or -1. `draw` names the family's generator for this input. `scales` names an input of
    codes: this one has a scale for each of its rows, and what indexes the codes indexes the scales as well.
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
    earlier: Name | None = None
    strides: Literal["rows", "tokens"] | None = None
    traffic: str | None = None
    draw: Name | None = None
    scales: Name | None = None
    description: Text

    @property
    def is_code(self) -> bool:
        """Whether its elements are codes, which mean numbers only together with the scales of another input."""
        return self.dtype in CODES

    @property
    def pool(self) -> str:
        """The input whose slots its first dimension has: scales have those of their codes."""
        return self.scales or self.name

    @property
    def spaced(self) -> int | None:
        """In how many leading dimensions a caller may leave a gap after each index; None if no gaps are allowed."""
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
        """Whether it is a tensor of integers or booleans with one or two dimensions: constraints may use its values."""
        return self.shape is not None and len(self.shape) in (1, 2) and self.dtype in (*INTEGERS, "bool")

    @property
    def is_drawn(self) -> bool:
        """Whether a family's generator draws it or each of its parts. A workload gives scalars and indices itself."""
        return not self.is_scalar and not self.is_index

    @property
    def ends(self) -> tuple[int, int] | None:
        """The least and the largest value of an integer input; None if its domain does not name both."""
        low, high = self.domain or (None, None)
        return None if low is None or high is None else (int(low), int(high))

    @property
    def is_number(self) -> bool:
        """Whether it is an integer of each row or token that its domain alone bounds: any value of it will do."""
        other = (self.indexes, self.bounds, self.counts, self.earlier)
        return self.is_index and self.ends is not None and not self.is_flag and all(name is None for name in other)

    @property
    def is_flag(self) -> bool:
        """Whether it is a boolean per sequence: it says whether the sequence continues from the state of its slot."""
        return self.is_index and self.dtype == "bool"


class Constraint(Model):
    expression: str
    message: Text


class Symmetry(Model):
    """An exact transformation of the inputs, and its effect on the outputs.

    It flips the sign, scales by a power of two, or permutes (within `groups` equal contiguous groups) the same indices
    along dimension `dimension[tensor]` of every named tensor. All other tensors stay unchanged. `tensor.part` names one
    part of a packed axis of a tensor; the shape of the part then replaces that axis. If `exact` is false, the
    transformation changes the order of sums: it is exact for real numbers, and holds within the budget in floating
    point.

    `scale_groups` multiplies whole groups by a power of two. The dimensions may then differ in size: `groups` divides
    each of them, and group i of one goes with group i of every other. With one group they may be any dimensions.
    """

    name: Name
    transform: Literal["flip_sign", "scale_power_of_two", "scale_groups", "permute"]
    dimension: dict[Place, Annotated[int, Field(ge=0)]]
    groups: str = "1"
    when: str = "True"
    exact: bool = True
    description: Text


class Within(NamedTuple):
    """The place of a part: its tensor, the dimension that it is part of, and all parts of that dimension."""

    tensor: str
    dimension: int
    part: str
    parts: dict[str, tuple[int, ...]]


Function = Annotated[str, Field(pattern=r"^[a-z0-9_]+\.py::[A-Za-z_][A-Za-z0-9_]*$")]


class SecondReference(Model):
    """The same contract from another derivation. It gives the expected values of workloads with more than
    `above_tokens` tokens, for which the first would take minutes. It takes the inputs, and optionally `chunk_size`."""

    function: Function
    above_tokens: Annotated[int, Field(ge=1, le=1 << 20)]
