"""A workload: one line of definitions/<family>/<name>/workloads.jsonl, or of any file of the same form."""

from math import prod
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from gdnspec.model import roles
from gdnspec.model.base import Model
from gdnspec.model.budget import LIMITS, METRICS, Metric, freeze
from gdnspec.model.definition import Definition
from gdnspec.model.dtypes import INTEGERS
from gdnspec.model.elements import Name, Scope, Text
from gdnspec.model.errors import PlacedError, nearest
from gdnspec.model.preset import Preset

Suite = Literal["smoke", "conformance", "strict", "performance", "fresh"]
SUITES: tuple[Suite, ...] = ("smoke", "conformance", "strict", "performance")  # of a file; fresh ones are in none

MOST_KNOWN = 1000  # definitions
LARGEST = 1 << 40  # of an axis: past any machine, within 64 bits when multiplied out
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]  # a larger one is read as a float
Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Budget = dict[Name, dict[Metric, Positive]]


class Emulators(Model):
    """What a budget was frozen from: of each output and metric the error of every emulator. `names` is the list in the
    family's file whose order they have."""

    names: Name
    errors: dict[Name, dict[Metric, list[Figure]]]


class _Asked:
    """What every line is asked of its definition."""

    def __init__(self, definition: Definition) -> None:
        self.variable = {axis.name: axis for axis in definition.var_axes()}
        self.const = definition.const_axes()
        self.inputs = {tensor.name: tensor for tensor in definition.inputs}
        self.optional = [name for name, tensor in self.inputs.items() if tensor.optional]
        self.scalars = [name for name, tensor in self.inputs.items() if tensor.is_scalar]
        self.indices = {name: tensor for name, tensor in self.inputs.items() if tensor.is_index}
        self.spaced = [name for name, tensor in self.inputs.items() if tensor.spaced is not None]
        self.judged = {tensor.name: tensor for tensor in definition.judged}
        self.follow = roles.bounding(definition)  # from the lengths of sequences


_known: dict[int, tuple[Definition, _Asked]] = {}  # by identity: a definition has lists, and so no hash


def _asked(definition: Definition) -> _Asked:
    """Worked out once: a definition has a hundred lines."""
    if id(definition) not in _known:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        _known[id(definition)] = definition, _Asked(definition)  # held, so that no other gets its identity
    return _known[id(definition)][1]


class Judged(Model):
    """How much of a call is judged by numbers: so many sequences, or rows, and so many groups of heads, the first and
    the last among them and the others drawn from the line's seed; every head where `heads` is absent."""

    sequences: Annotated[int, Field(ge=2, le=1 << 16)]
    heads: Annotated[int, Field(ge=2, le=1 << 16)] | None = None


class Workload(Model):
    """Everything that fixes the inputs of one call, and the error that it allows."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$", max_length=100)]
    suite: Suite
    covers: Text | None = None  # why the row is kept where another kills the same faults with a wider margin
    preset: str
    axes: dict[Name, Annotated[int, Field(ge=0, le=LARGEST)]]
    sequence_lengths: list[Annotated[int, Field(ge=0, le=LARGEST)]] | None = None
    regime: str | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    omit: list[Name] = Field(default_factory=list)
    scalars: dict[Name, bool | Whole | float] = Field(default_factory=dict)
    integers: dict[Name, list[int]] = Field(default_factory=dict)
    gaps: dict[Name, Annotated[int, Field(ge=1, le=1 << 20)]] = Field(default_factory=dict)
    device: Literal["any", "cuda"] = "any"
    drawn: Literal["device"] | None = None  # by the generator of the device that the check runs on
    judged: Judged | None = None  # a sample; absent: all
    tensors: Annotated[str, Field(max_length=200)] | None = None
    weight: Annotated[int, Field(ge=1, le=LARGEST)] | None = None  # how often it occurs in what it was taken from
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    budget: Budget | None = None
    emulators: Emulators | None = None

    @field_validator("budget")
    @classmethod
    def _limited(cls, budget: Budget | None) -> Budget | None:
        for output, limits in (budget or {}).items():
            for metric in METRICS:
                if metric not in limits:
                    raise PlacedError(f"/{output}", f"no limit for {metric}: a budget judges by it")
                if limits[metric] > LIMITS[metric]:
                    message = f"{limits[metric]} is above {LIMITS[metric]}: what it lets pass is not right"
                    raise PlacedError(f"/{output}/{metric}", message)
        return budget

    @model_validator(mode="after")
    def _one_source(self) -> "Workload":
        drawn = self.regime is not None and self.seed is not None
        if self.tensors is None and not drawn:
            raise PlacedError("", "a workload has a regime and a seed, or a tensors file")
        if self.tensors is not None and (self.regime is not None or self.seed is not None):
            raise PlacedError("/tensors", "tensors are read, not drawn: leave out regime and seed")
        if self.tensors is not None and (self.tensors.startswith("/") or ".." in self.tensors.split("/")):
            raise PlacedError("/tensors", "a path below the definition's own folder")
        self._check_sample()
        return self

    def _check_sample(self) -> None:
        """A line that is judged on a sample gets its budget from each check, for that sample."""
        if self.judged is not None and (self.budget is not None or self.emulators is not None):
            raise PlacedError("/budget", "each check measures the budget of a sample: leave out budget and emulators")
        if self.drawn is None:
            return
        if self.judged is None:
            raise PlacedError("/drawn", "what is drawn on the device is judged on a sample: say of what, in judged")
        if self.regime != "typical":
            raise PlacedError("/regime", "the device draws the regime typical alone")
        if self.sha256 is not None:
            raise PlacedError("/sha256", "what is drawn on the device has no hash: leave it out")

    # --- against a definition -----------------------------------------------------------------------------------

    def integer_inputs(self, definition: Definition) -> dict[str, list[int]]:
        """The values of the integer inputs, row by row, as far as the line alone gives them."""
        if self.sequence_lengths is None:
            return dict(self.integers)
        return self.integers | roles.starts(definition, self.sequence_lengths, self.scalars)

    def scope(self, definition: Definition, preset: Preset) -> Scope:
        """The names of the definition's expressions, bound by this line."""
        const = {name: preset.axes[name] for name in _asked(definition).const if name in preset.axes}
        scope = definition.bind({**const, **self.axes})
        scope.update(self.integer_inputs(definition))
        scope.update(self.scalars)
        return scope

    def check(self, definition: Definition, preset: Preset) -> None:
        """Raises `PlacedError` where this line does not fit the definition."""
        asked = _asked(definition)
        variable = asked.variable
        for name in self.axes:
            if name not in variable:
                raise PlacedError(f"/axes/{name}", f"{name!r} is not a var axis", nearest(name, variable))
        for name, axis in variable.items():
            if name not in self.axes:
                raise PlacedError("/axes", f"axis {name!r} is not bound")
            if self.axes[name] < axis.minimum:
                raise PlacedError(f"/axes/{name}", f"{self.axes[name]} is below the minimum, {axis.minimum}")
        for name in asked.const:
            if name not in preset.axes:
                raise PlacedError("/preset", f"preset {self.preset!r} does not bind {name!r}")
        if preset.stages is not None and definition.stage not in preset.stages:
            raise PlacedError("/preset", f"preset {self.preset!r} is for {', '.join(preset.stages)}")
        ragged = definition.conventions.packing == "ragged"
        if ragged and self.tensors is None and self.sequence_lengths is None:
            raise PlacedError("", "a ragged workload needs sequence_lengths")
        if not ragged and self.sequence_lengths is not None:
            raise PlacedError("/sequence_lengths", f"{definition.name} takes no sequences")
        self._check_names(definition)
        scope = self.scope(definition, preset)
        self._check_integers(definition, scope)
        for _, constraint, why in definition.broken(scope):
            raise PlacedError("", f"breaks {constraint.expression!r}: {why}")

    def _check_integers(self, definition: Definition, scope: Scope) -> None:
        if self.tensors is not None:
            return
        for name, tensor in _asked(definition).indices.items():
            wanted = prod(definition.shape(tensor, scope))
            if name not in scope:
                raise PlacedError("/integers", f"no values of {name!r}, which takes {wanted}")
            # Sequence lengths are held to the axes by constraints, which say more.
            if name in self.integers and len(scope[name]) != wanted:
                raise PlacedError(f"/integers/{name}", f"{len(scope[name])} values, not {wanted}")
            if tensor.is_flag and not set(scope[name]) <= {0, 1}:
                raise PlacedError(f"/integers/{name}", "a truth is 0 or 1")

    def _check_names(self, definition: Definition) -> None:
        asked = _asked(definition)
        inputs, optional, scalars = asked.inputs, asked.optional, asked.scalars
        for i, name in enumerate(self.omit):
            if name not in optional:
                raise PlacedError(f"/omit/{i}", f"{name!r} is not an optional input", nearest(name, optional))
            if name in self.scalars:
                raise PlacedError(f"/omit/{i}", f"{name!r} is given under scalars: one or the other")
        for name, value in self.scalars.items():
            if name not in scalars:
                raise PlacedError(f"/scalars/{name}", f"{name!r} is not a scalar input", nearest(name, scalars))
            dtype = inputs[name].dtype
            if isinstance(value, bool) != (dtype == "bool") or (dtype in INTEGERS and type(value) is not int):
                raise PlacedError(f"/scalars/{name}", f"{name!r} takes a {dtype}")
        for name in scalars:
            if not inputs[name].optional and name not in self.scalars:
                raise PlacedError("/scalars", f"no value of {name!r}, which is not optional")
        for name in self.integers:
            if name in asked.follow and self.sequence_lengths is not None:
                raise PlacedError(f"/integers/{name}", "it follows from sequence_lengths: one or the other")
            if name not in asked.indices:
                hint = nearest(name, asked.indices)
                raise PlacedError(f"/integers/{name}", f"{name!r} is not an integer input", hint)
        for name in self.gaps:
            if name not in asked.spaced:
                message = f"{name!r} always arrives contiguous: no pool, and the definition gives it no strides"
                raise PlacedError(f"/gaps/{name}", message, nearest(name, asked.spaced))
            if name in self.omit:
                raise PlacedError(f"/gaps/{name}", f"{name!r} is left out, under /omit: one or the other")
        errors = self.emulators.errors if self.emulators is not None else {}
        for key, named in (("budget", self.budget or {}), ("emulators/errors", errors)):
            for name in named:
                if name not in asked.judged:
                    hint = nearest(name, asked.judged)
                    raise PlacedError(f"/{key}/{name}", f"{name!r} is not an output", hint)
        self._check_frozen(definition)

    def _check_frozen(self, definition: Definition) -> None:
        """A budget that says what it was frozen from follows from that."""
        if self.emulators is None and self.budget is None:
            return
        if self.emulators is None:
            message = "a budget without the figures that it was frozen from"
            raise PlacedError("/budget", message, "gdnspec workloads freeze writes both")
        if self.budget is None:
            raise PlacedError("/emulators", "figures without a budget", "gdnspec workloads freeze writes both")
        for output in _asked(definition).judged.values():
            figures, at = self.emulators.errors.get(output.name, {}), f"/emulators/errors/{output.name}"
            for metric in METRICS:
                if not figures.get(metric):
                    raise PlacedError(at, f"no figure of {metric}: gdnspec workloads freeze writes them")
            budget, wanted = self.budget.get(output.name), freeze(output, figures)
            if budget is None:
                raise PlacedError("/budget", f"no budget for {output.name}: nothing can be judged by it")
            if budget != wanted:
                said = ", ".join(f"{metric} {limit:g}" for metric, limit in wanted.items())
                message = f"not twice the largest of its emulators: {said}"
                raise PlacedError(f"/budget/{output.name}", message, "freeze it again: gdnspec workloads freeze")

    def omitted(self, definition: Definition) -> frozenset[str]:
        """The inputs that arrive as None: those left out, and optional scalars without a value."""
        absent = {t.name for t in definition.inputs if t.is_scalar and t.optional and t.name not in self.scalars}
        # A switch or a count always arrives: left out, as its default.
        return (frozenset(self.omit) | absent) - {
            t.name for t in definition.inputs if t.is_scalar and t.dtype in ("bool", *INTEGERS)
        }

    def contiguous(self, definition: Definition) -> bool:
        """Whether everything but pools arrives in contiguous memory."""
        return all(definition.input(name).mutates for name in self.gaps)
