"""A workload: one line of definitions/<family>/<name>/workloads.jsonl, or of another file in the same format."""

from math import inf, isfinite, prod
from struct import pack, unpack
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from gdnspec.model import roles
from gdnspec.model.base import Model
from gdnspec.model.budget import LIMITS, METRICS, Metric, freeze
from gdnspec.model.definition import Definition
from gdnspec.model.dtypes import INTEGERS
from gdnspec.model.elements import Name, Scope, Tensor, Text
from gdnspec.model.errors import PlacedError, nearest
from gdnspec.model.preset import Preset

Suite = Literal["smoke", "conformance", "strict", "performance", "fresh"]
SUITES: tuple[Suite, ...] = ("smoke", "conformance", "strict", "performance")  # fresh workloads are in no file

MOST_KNOWN = 1000  # definitions
LARGEST = 1 << 40  # size of an axis: larger than any machine, and products with small numbers fit in 64 bits
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]  # pydantic reads a larger one as a float
Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Budget = dict[Name, dict[Metric, Positive]]


class Emulators(Model):
    """The errors that a budget was computed from: for each output and metric, the error of every emulator. `names` is
    the list in family.json that gives their order."""

    names: Name
    errors: dict[Name, dict[Metric, list[Figure]]]


def _not_held(value: float, scalar: Tensor) -> str | None:
    """Why a scalar input cannot have this value; None if it can."""
    if scalar.dtype == "float32":  # a solution gets the value in this type, and the reference as it is
        try:
            held = unpack("f", pack("f", value))[0]
        except OverflowError:
            held = inf
        if not isfinite(held) or (value and not held):
            return f"is {value}, which is {held} as a float32"
    low, high = scalar.domain or (None, None)
    if low is not None and value < low:
        return f"is {value}, below {low}, the least of its domain"
    if high is not None and value > high:
        return f"is {value}, above {high}, the largest of its domain"
    return None


class _Asked:
    """Facts about a definition that every check of a workload needs."""

    def __init__(self, definition: Definition) -> None:
        self.variable = {axis.name: axis for axis in definition.var_axes()}
        self.const = definition.const_axes()
        self.inputs = {tensor.name: tensor for tensor in definition.inputs}
        self.optional = [name for name, tensor in self.inputs.items() if tensor.optional]
        self.scalars = [name for name, tensor in self.inputs.items() if tensor.is_scalar]
        self.indices = {name: tensor for name, tensor in self.inputs.items() if tensor.is_index}
        self.spaced = [name for name, tensor in self.inputs.items() if tensor.spaced is not None]
        self.judged = {tensor.name: tensor for tensor in definition.judged}
        self.follow = roles.bounding(definition)


_known: dict[int, tuple[Definition, _Asked]] = {}  # by identity: a definition contains lists, so it has no hash


def _asked(definition: Definition) -> _Asked:
    """Cached: a definition has a hundred workloads."""
    if id(definition) not in _known:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        # The definition is kept alive, so that no other object gets its identity.
        _known[id(definition)] = definition, _Asked(definition)
    return _known[id(definition)][1]


class Judged(Model):
    """The sample of a call that the judge compares with expected values: the number of sequences (or rows), and of
    groups of heads. The first and the last are always part of it; the seed of the line draws the others. Without
    `heads`, all heads are judged."""

    sequences: Annotated[int, Field(ge=2, le=1 << 16)]
    heads: Annotated[int, Field(ge=2, le=1 << 16)] | None = None


class Workload(Model):
    """Everything that fixes the inputs of one call, and the error that it allows."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$", max_length=100)]
    suite: Suite
    covers: Text | None = None  # why the line is kept although another one kills the same faults by a wider margin
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
    drawn: Literal["device"] | None = None  # "device": the device that runs the check draws the inputs
    judged: Judged | None = None  # None: everything
    tensors: Annotated[str, Field(max_length=200)] | None = None
    weight: Annotated[int, Field(ge=1, le=LARGEST)] | None = None  # how often it occurs in its request log
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    budget: Budget | None = None
    emulators: Emulators | None = None

    @field_validator("budget")
    @classmethod
    def _limited(cls, budget: Budget | None) -> Budget | None:
        for output, limits in (budget or {}).items():
            for metric in METRICS:
                if metric not in limits:
                    raise PlacedError(f"/{output}", f"the budget has no limit for {metric}")
                if limits[metric] > LIMITS[metric]:
                    message = f"{limits[metric]} is above {LIMITS[metric]}: such a budget lets wrong outputs pass"
                    raise PlacedError(f"/{output}/{metric}", message)
        return budget

    @model_validator(mode="after")
    def _one_source(self) -> "Workload":
        drawn = self.regime is not None and self.seed is not None
        if self.tensors is None and not drawn:
            raise PlacedError("", "a workload needs a regime and a seed, or a tensors file")
        if self.tensors is not None and (self.regime is not None or self.seed is not None):
            raise PlacedError("/tensors", "leave out regime and seed: a workload with a tensors file has neither")
        if self.tensors is not None and (self.tensors.startswith("/") or ".." in self.tensors.split("/")):
            raise PlacedError("/tensors", f"{self.tensors!r} is not a path inside the definition's folder")
        self._check_sample()
        return self

    def _check_sample(self) -> None:
        if self.judged is not None and (self.budget is not None or self.emulators is not None):
            message = "with `judged`, each check measures the budget of its sample: leave out budget and emulators"
            raise PlacedError("/budget", message)
        if self.drawn is None:
            return
        if self.judged is None:
            raise PlacedError("/drawn", "a workload that the device draws is judged on a sample: add `judged`")
        if self.regime != "typical":
            raise PlacedError("/regime", "the device draws only the regime typical")
        if self.sha256 is not None:
            raise PlacedError("/sha256", "a workload that the device draws has no hash: leave it out")

    # --- checks against a definition ----------------------------------------------------------------------------

    def integer_inputs(self, definition: Definition) -> dict[str, list[int]]:
        """The values of the integer inputs, flat, row by row, as far as this line gives them."""
        if self.sequence_lengths is None:
            return dict(self.integers)
        return self.integers | roles.starts(definition, self.sequence_lengths, self.scalars)

    def scope(self, definition: Definition, preset: Preset) -> Scope:
        """The values that this line gives to the names in the definition's expressions."""
        const = {name: preset.axes[name] for name in _asked(definition).const if name in preset.axes}
        scope = definition.bind({**const, **self.axes})
        scope.update(self.integer_inputs(definition))
        scope.update(self.scalars)
        return scope

    def check(self, definition: Definition, preset: Preset) -> None:
        """Raises `PlacedError` if this line does not fit the definition."""
        asked = _asked(definition)
        variable = asked.variable
        for name in self.axes:
            if name not in variable:
                raise PlacedError(f"/axes/{name}", f"{name!r} is not a var axis", nearest(name, variable))
        for name, axis in variable.items():
            if name not in self.axes:
                raise PlacedError("/axes", f"axis {name!r} has no value")
            if self.axes[name] < axis.minimum:
                raise PlacedError(f"/axes/{name}", f"{self.axes[name]} is below the minimum, {axis.minimum}")
        for name in asked.const:
            if name not in preset.axes:
                raise PlacedError("/preset", f"preset {self.preset!r} gives axis {name!r} no value")
        if preset.stages is not None and definition.stage not in preset.stages:
            message = f"preset {self.preset!r} is for {', '.join(preset.stages)}, not {definition.stage}"
            raise PlacedError("/preset", message)
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
                raise PlacedError("/integers", f"no values for {name!r}, which takes {wanted}")
            # Constraints compare sequence lengths with the axes, and their messages say more.
            if name in self.integers and len(scope[name]) != wanted:
                raise PlacedError(f"/integers/{name}", f"{len(scope[name])} values instead of {wanted}")
            if tensor.is_flag and not set(scope[name]) <= {0, 1}:
                raise PlacedError(f"/integers/{name}", "the values of a boolean input are 0 or 1")

    def _check_names(self, definition: Definition) -> None:
        asked = _asked(definition)
        inputs, optional, scalars = asked.inputs, asked.optional, asked.scalars
        for i, name in enumerate(self.omit):
            if name not in optional:
                raise PlacedError(f"/omit/{i}", f"{name!r} is not an optional input", nearest(name, optional))
            if name in self.scalars:
                raise PlacedError(f"/omit/{i}", f"{name!r} also has a value under scalars: remove one of the two")
        for name, value in self.scalars.items():
            if name not in scalars:
                raise PlacedError(f"/scalars/{name}", f"{name!r} is not a scalar input", nearest(name, scalars))
            dtype = inputs[name].dtype
            if isinstance(value, bool) != (dtype == "bool") or (dtype in INTEGERS and type(value) is not int):
                raise PlacedError(f"/scalars/{name}", f"{name!r} takes a {dtype}")
            if (why := _not_held(value, inputs[name])) is not None:
                raise PlacedError(f"/scalars/{name}", f"{name!r} {why}")
        for name in scalars:
            if not inputs[name].optional and name not in self.scalars:
                raise PlacedError("/scalars", f"no value for {name!r}, which is not optional")
        for name in self.integers:
            if name in asked.follow and self.sequence_lengths is not None:
                raise PlacedError(f"/integers/{name}", f"{name!r} follows from sequence_lengths: remove one of the two")
            if name not in asked.indices:
                hint = nearest(name, asked.indices)
                raise PlacedError(f"/integers/{name}", f"{name!r} is not an integer input", hint)
        for name in self.gaps:
            if name not in asked.spaced:
                message = f"{name!r} cannot have gaps: it is not a pool, and the definition gives it no strides"
                raise PlacedError(f"/gaps/{name}", message, nearest(name, asked.spaced))
            if name in self.omit:
                raise PlacedError(f"/gaps/{name}", f"/omit also names {name!r}: remove one of the two")
        errors = self.emulators.errors if self.emulators is not None else {}
        for key, named in (("budget", self.budget or {}), ("emulators/errors", errors)):
            for name in named:
                if name not in asked.judged:
                    hint = nearest(name, asked.judged)
                    raise PlacedError(f"/{key}/{name}", f"{name!r} is not an output", hint)
        self._check_frozen(definition)

    def _check_frozen(self, definition: Definition) -> None:
        """Checks that the budget follows from the errors of the emulators."""
        if self.emulators is None and self.budget is None:
            return
        if self.emulators is None or self.budget is None:
            given, absent = ("budget", "emulators") if self.emulators is None else ("emulators", "budget")
            message = f"a workload with `{given}` needs `{absent}` as well"
            raise PlacedError(f"/{given}", message, "gdnspec workloads freeze writes both")
        for output in _asked(definition).judged.values():
            figures, at = self.emulators.errors.get(output.name, {}), f"/emulators/errors/{output.name}"
            for metric in METRICS:
                if not figures.get(metric):
                    raise PlacedError(at, f"no errors for {metric}", "gdnspec workloads freeze writes them")
            budget, wanted = self.budget.get(output.name), freeze(output, figures)
            if budget is None:
                raise PlacedError("/budget", f"no budget for {output.name}", "gdnspec workloads freeze writes it")
            if budget != wanted:
                said = ", ".join(f"{metric} {limit:g}" for metric, limit in wanted.items())
                message = f"the budget does not follow from its emulators, which give {said}"
                raise PlacedError(f"/budget/{output.name}", message, "freeze it again: gdnspec workloads freeze")

    def omitted(self, definition: Definition) -> frozenset[str]:
        """The inputs that a solution receives as None: those left out, and optional scalars without a value."""
        absent = {t.name for t in definition.inputs if t.is_scalar and t.optional and t.name not in self.scalars}
        # A switch or a count is always passed; without a value, as its default.
        return (frozenset(self.omit) | absent) - {
            t.name for t in definition.inputs if t.is_scalar and t.dtype in ("bool", *INTEGERS)
        }

    def contiguous(self, definition: Definition) -> bool:
        """Whether all inputs except pools are in contiguous memory."""
        pools = roles.pools(definition)
        return all(definition.input(name).mutates or name in pools for name in self.gaps)
