"""gdnspec.kernel: the fastest solution for a device and a shape, as a function."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gdnspec import paths
from gdnspec.api.call_form import Form, bound, defaults, form
from gdnspec.api.spec import Spec
from gdnspec.api.spec import definition as spec
from gdnspec.build import machine
from gdnspec.build.kept_builds import NoCompiler
from gdnspec.build.loader import apart, load_function
from gdnspec.catalog.definitions import Found
from gdnspec.catalog.solutions import Solution
from gdnspec.choice.candidates import FORCED, Asked, forced, from_environment, refusal, serving
from gdnspec.choice.choose import Choice, choose
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope
from gdnspec.model.errors import SpecError
from gdnspec.model.expression import ExpressionError, parse
from gdnspec.model.values import whole

MOST_FORMS = 4096  # known forms of calls: a server meets a new number of tokens with every prefill

Outputs = Tensor | tuple[Tensor, ...]


def kernel(
    definition: str | Spec,
    like: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    solution: str | None = None,
    device: str | torch.device | None = None,
) -> "Kernel":
    """The fastest solution of a definition that passed, as a function of the definition's inputs.

    `like`: inputs such as it will get, the first ones in the definition's order or a dict by name. Their shapes and
    device decide the choice; their values are not read. `solution` names one instead, and so does the environment
    variable GDNSPEC_SOLUTION. `device`: where to run if `like` has no tensor; by default a GPU if there is one. On a
    CPU the solutions in PyTorch serve.

    Raises `SpecError` in one line: no such definition or solution, inputs that do not fit, or nothing that serves them.
    """
    found = (definition if isinstance(definition, Spec) else spec(definition)).found
    given = _like(found, like)
    looks = form(found, given)
    where = _where(looks, device)
    asked = Asked(found, looks.scope, where.kind, where.slug, looks.contiguous)
    name = solution or from_environment(found)
    if name is not None:
        return _forced(asked, where, name, "solution=" if solution else FORCED)
    choices, candidates = choose(asked, lambda one: machine.lacking(one.manifest, where, compiler=False))
    skipped: dict[str, str] = {}
    for choice in choices:
        try:
            made = Kernel(found, choice, where.kind)
        except Exception as error:  # of a compiler, or of the solution's own code
            skipped[choice.name] = str(error) if isinstance(error, NoCompiler) else _said(error)
            continue
        _warn_of(skipped, made)
        return made
    here = "; ".join(f"{name}: {why}" for name, why in (candidates.refused | skipped).items())
    raise SpecError(f"nothing serves this call on {where.name or where.kind} ({here}): {serving(found)}")


def _forced(asked: Asked, where: machine.Device, name: str, source: str) -> "Kernel":
    try:
        only = forced(asked, name)
    except SpecError as error:
        raise SpecError(f"{source}: {error}") from None
    why = machine.lacking(only.manifest, where, compiler=False)
    if why is not None:
        raise SpecError(f"{source}: {name} cannot run here: {why}")
    try:
        return Kernel(asked.found, Choice(only, f"named by {source}"), where.kind)
    except Exception as error:
        raise SpecError(f"{source}: {name} cannot be loaded: {_said(error)}") from error


def _said(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no details'])[0]}"[:300]


_told: set[str] = set()


def _warn_of(skipped: Mapping[str, str], made: "Kernel") -> None:
    """Says once per process and reason that better solutions were skipped."""
    for why in dict.fromkeys(skipped.values()):
        names = ", ".join(name for name, other in skipped.items() if other == why)
        if why not in _told:
            _told.add(why)
            text = f"{names} cannot be used: {why}; gdnspec.kernel takes {made.solution} for {made.definition}"
            warnings.warn(text, stacklevel=3)


def _like(found: Found, like: Sequence[Any] | Mapping[str, Any] | None) -> dict[str, Any]:
    if isinstance(like, Mapping):
        return bound(found.definition, (), like, partial=True)
    if isinstance(like, Tensor):
        raise SpecError("like takes a tuple of inputs or a dict of inputs by name, not a tensor: like=(q,)")
    return bound(found.definition, like or (), {}, partial=True)


def _where(looks: Form, device: str | torch.device | None) -> machine.Device:
    kind = None if device is None else str(device).partition(":")[0]
    if looks.device is not None and kind not in (None, looks.device.type):
        raise SpecError(f"device={str(device)!r}, but the tensors of like are on {looks.device}: leave device out")
    kind = kind if looks.device is None else looks.device.type
    if kind is None:
        return machine.best_device()
    where = machine.device(kind) if kind in ("cpu", "cuda") else None
    if where is None:
        raise SpecError(f"no device {kind!r} here: cpu, or cuda where there is a GPU")
    return where


class Kernel:
    """A solution as a function: `kernel(*inputs, **inputs)` returns the outputs in the definition's order, as a tuple,
    or the only one.

    It takes the inputs by position, by name, or both; optional ones may be left out. It allocates the outputs, and runs
    what the solution prepares. Inputs that the definition mutates, such as a pool, are written to. Shapes and types are
    checked at the first call of each form; values are never checked. Kernels in CUDA and Triton compute no gradients.
    """

    def __init__(self, found: Found, choice: Choice, device: str) -> None:
        solution = choice.solution
        self.definition = found.definition.name
        self.solution = solution.name
        self.reason = choice.reason
        self.device = device
        self._found, self._choice = found, choice
        self._entry = solution.manifest.entries[self.definition]
        self._names = [tensor.name for tensor in found.definition.inputs]
        self._needed = _needed(found, solution)
        self._function = _loaded(solution, self._entry.entry)
        self._prepare = None if self._entry.prepare is None else _loaded(solution, self._entry.prepare)
        self._forms: dict[Any, Callable[..., Outputs]] = {}

    def __call__(self, *inputs: Any, **named: Any) -> Outputs:
        """Runs on these inputs. Raises `SpecError` if they do not fit."""
        if named or len(inputs) != len(self._names):
            inputs = tuple(bound(self._found.definition, inputs, named).values())
        return self.bind(*inputs)(*inputs)

    def bind(self, *inputs: Any) -> Callable[..., Outputs]:
        """A function of all inputs by position, for calls with the same shapes, strides, types, device and left-out
        inputs as these. It checks nothing, so that a caller that knows its shapes pays for the check once. Raises
        `SpecError` if they do not fit."""
        if len(inputs) != len(self._names):
            inputs = tuple(bound(self._found.definition, inputs, {}).values())
        key = tuple([(x.shape, x.dtype, x.device, x.stride()) if isinstance(x, Tensor) else x for x in inputs])
        try:
            call = self._forms.get(key)
        except TypeError:  # not hashable: neither a tensor nor a number
            key, call = (), None
        if call is None:
            call = self._bound(inputs)
            if len(self._forms) >= MOST_FORMS:
                self._forms.clear()
            self._forms[key] = call
        return call

    def _bound(self, inputs: tuple[Any, ...]) -> Callable[..., Outputs]:
        definition = self._found.definition
        values = bound(definition, inputs, {})
        looks = form(self._found, values, self._needed)
        kind = self.device if looks.device is None else looks.device.type
        asked = Asked(self._found, looks.scope, kind, "", looks.contiguous)
        why = refusal(asked, self._choice.solution) if kind == self.device else f"it was chosen for {self.device}"
        if why is not None:
            raise SpecError(f"{self.solution} cannot serve this call: {why}; {serving(self._found)}")
        return self._call(looks, defaults(definition, values, looks.scope))

    def _call(self, looks: Form, left_out: list[tuple[int, Any]]) -> Callable[..., Outputs]:
        names, function, prepare = self._names, self._function, self._prepare
        allocated = self._allocated(looks) if self._entry.call == "out" else None
        by_position = self._entry.file.endswith(".cu")  # an exported C++ function has no keywords

        def call(*inputs: Any) -> Outputs:
            if left_out:
                filled = list(inputs)
                for at, value in left_out:
                    filled[at] = value
                inputs = tuple(filled)
            outputs = {} if allocated is None else allocated(inputs)
            if by_position:
                function(*inputs, *outputs.values())
                return _together(tuple(outputs.values()))
            values = dict(zip(names, inputs, strict=True))
            extra = {} if prepare is None else {"prepared": prepare(**values)}
            returned = function(**values, **outputs, **extra)
            return _together(tuple(outputs.values()) if outputs else returned)

        return _on(looks.device, call)

    def _allocated(self, looks: Form) -> Callable[[Sequence[Any]], dict[str, Tensor]]:
        """What makes the outputs of a call. Raises `SpecError` if their sizes do not follow from the call."""
        definition, scope = self._found.definition, looks.scope
        unknown = {axis for axis in _output_axes(definition) if axis not in scope}
        if unknown:
            return lambda inputs: _empty(definition, _with_values(definition, scope, unknown, inputs), looks.device)
        _empty(definition, scope, torch.device("meta"))  # the sizes follow
        shapes = {t.name: (definition.shape(t, scope), getattr(torch, t.dtype)) for t in definition.outputs}
        device = looks.device
        return lambda inputs: {n: torch.empty(s, dtype=d, device=device) for n, (s, d) in shapes.items()}

    def __repr__(self) -> str:
        return f"<gdnspec.Kernel {self.definition}: {self.solution} on {self.device}, {self.reason}>"


# --- parts of a call --------------------------------------------------------------------------------------------


def _loaded(solution: Solution, entry: str) -> Callable[..., Any]:
    with apart(solution.folder):
        return load_function(solution.folder, entry, paths.build_cache(solution.source_hash), **solution.settings)


def _needed(found: Found, solution: Solution) -> frozenset[str]:
    """The axes that a call must bind: those of conditions, and of outputs that are allocated here."""
    entry = solution.manifest.entries[found.definition.name]
    axes = {axis.name for axis in found.definition.axes}
    needed = frozenset[str]().union(*(parse(text).names for text in entry.supports)) & axes
    return needed | (_output_axes(found.definition) if entry.call == "out" else frozenset())


def _output_axes(definition: Definition) -> frozenset[str]:
    sizes = [str(size) for tensor in definition.outputs for size in tensor.shape or []]
    return frozenset[str]().union(*(parse(size).names for size in sizes))


def _empty(definition: Definition, scope: Scope, device: torch.device | None) -> dict[str, Tensor]:
    try:
        return {
            t.name: torch.empty(definition.shape(t, scope), dtype=getattr(torch, t.dtype), device=device)
            for t in definition.outputs
        }
    except ExpressionError as error:
        raise SpecError(f"{definition.name}: the sizes of its outputs do not follow from its inputs: {error}") from None


def _with_values(definition: Definition, scope: Scope, unknown: set[str], inputs: Sequence[Any]) -> Scope:
    """The scope with axes that only values say, such as the last of the starts. Reading them waits for the device."""
    scope, named = dict(scope), dict(zip((t.name for t in definition.inputs), inputs, strict=True))
    for constraint in definition.constraints:
        axis, _, text = constraint.expression.partition(" == ")
        if axis not in unknown:
            continue
        read = [t.name for t in definition.inputs if t.is_index and t.name in parse(text).names]
        scope[axis] = whole(parse(text), scope | {name: named[name].flatten().tolist() for name in read})
    return scope


def _together(returned: Any) -> Outputs:
    if isinstance(returned, Tensor):
        return returned
    return returned[0] if len(returned) == 1 else tuple(returned)


def _on(device: torch.device | None, call: Callable[..., Outputs]) -> Callable[..., Outputs]:
    """The same call with its GPU as the current one: launches go there."""
    if device is None or device.type != "cuda":
        return call

    def there(*inputs: Any) -> Outputs:
        if torch.cuda.current_device() == device.index:
            return call(*inputs)
        with torch.cuda.device(device):
            return call(*inputs)

    return there
