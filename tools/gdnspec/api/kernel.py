"""gdnspec.kernel: the fastest solution for a device and a shape, as a function."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gdnspec import paths
from gdnspec.api.allocate import output_axes, outputs_of, with_axes
from gdnspec.api.call_form import Form, bound, defaults, form
from gdnspec.api.precise import precise
from gdnspec.api.spec import Spec
from gdnspec.api.spec import definition as spec
from gdnspec.api.words import name_of
from gdnspec.build import machine
from gdnspec.build.kept_builds import NoCompiler
from gdnspec.build.loader import apart, load_function
from gdnspec.catalog.definitions import Found
from gdnspec.catalog.solutions import Solution
from gdnspec.choice.candidates import FORCED, Asked, forced, from_environment, refusal, serving
from gdnspec.choice.choose import Choice, choose
from gdnspec.model import roles
from gdnspec.model.definition import Definition
from gdnspec.model.errors import SpecError
from gdnspec.model.expression import parse

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
    device decide the choice, and so do inputs that are integers, and the lengths of sequences if those are on the CPU;
    no other value is read. `solution` names one instead, and so does the environment variable GDNSPEC_SOLUTION.
    `device`: where to run if `like` has no tensor; by default a GPU if there is one. On a CPU the solutions in PyTorch
    serve.

    Raises `SpecError` in one line: no such definition or solution, inputs that do not fit, or nothing that serves them.
    """
    found = (definition if isinstance(definition, Spec) else spec(definition)).found
    given = _like(found, like)
    if solution is not None:
        name_of("solution", solution)
    looks = form(found, given)
    where = _where(looks, device)
    asked = Asked(found, looks.scope, where.kind, where.slug, looks.contiguous, _lengths(found.definition, given))
    name = solution or from_environment(found)
    if name is not None:
        return _forced(asked, where, name, "the argument solution" if solution else FORCED)
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
    if like is not None and (isinstance(like, str) or not isinstance(like, Iterable)):
        said = f"like is of type {type(like).__name__}"
        raise SpecError(f"{said}: give a tuple of inputs, or a dict of inputs by name")
    return bound(found.definition, tuple(like or ()), {}, partial=True)


def _lengths(definition: Definition, given: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The lengths of the sequences; None if reading them would wait for a GPU."""
    starts = given.get(roles.bounds(definition) or "")
    if definition.conventions.packing != "ragged" or not isinstance(starts, Tensor) or starts.device.type != "cpu":
        return None
    return tuple(end - start for start, end in pairwise(starts.tolist()))


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

    def bind(self, *inputs: Any, axes: Mapping[str, int] | None = None) -> Callable[..., Outputs]:
        """A function of all inputs by position, for calls with the same shapes, strides, types, device and left-out
        inputs as these. It checks nothing, so that a caller that knows its shapes pays for the check once. Raises
        `SpecError` if they do not fit.

        `axes`: sizes of outputs that no shape says, such as num_checkpoints. Each call reads what is left out from the
        inputs' values: it waits for the GPU, and no CUDA graph can record it."""
        if len(inputs) != len(self._names):
            inputs = tuple(bound(self._found.definition, inputs, {}).values())
        try:
            key = tuple([(x.shape, x.dtype, x.device, x.stride()) if isinstance(x, Tensor) else x for x in inputs])
            key = (*key, *sorted(axes.items())) if axes else key
            call = self._forms.get(key)
        except (AttributeError, RuntimeError, TypeError):  # neither a dense tensor nor a number, or axes are no dict
            key, call = (), None
        if call is None:
            call = self._bound(inputs, axes)
            if len(self._forms) >= MOST_FORMS:
                self._forms.clear()
            self._forms[key] = call
        return call

    def _bound(self, inputs: tuple[Any, ...], axes: Mapping[str, int] | None) -> Callable[..., Outputs]:
        definition = self._found.definition
        values = bound(definition, inputs, {})
        looks = form(self._found, values, self._needed)
        kind = self.device if looks.device is None else looks.device.type
        asked = Asked(self._found, looks.scope, kind, "", looks.contiguous)
        why = refusal(asked, self._choice.solution) if kind == self.device else f"it was chosen for {self.device}"
        if why is not None:
            raise SpecError(f"{self.solution} cannot serve this call: {why}; {serving(self._found)}")
        left_out = defaults(definition, values, looks.scope)
        return self._call(replace(looks, scope=with_axes(definition, looks.scope, axes or {})), left_out)

    def _call(self, looks: Form, left_out: list[tuple[int, Any]]) -> Callable[..., Outputs]:
        names, function, prepare = self._names, self._function, self._prepare
        allocated = outputs_of(self._found.definition, looks) if self._entry.call == "out" else None
        by_position = self._entry.file.endswith(".cu")  # an exported C++ function has no keywords

        def positional(*inputs: Any) -> Outputs:
            outputs = () if allocated is None else allocated(inputs)
            function(*inputs, *outputs)
            return _together(outputs)

        def named(*inputs: Any) -> Outputs:
            values = dict(zip(names, inputs, strict=True))
            extra = {} if prepare is None else {"prepared": prepare(**values)}
            if allocated is None:
                return _together(function(**values, **extra))
            outputs = allocated(inputs)
            function(**values, **dict(zip(output_names, outputs, strict=True)), **extra)
            return _together(outputs)

        output_names = [tensor.name for tensor in self._found.definition.outputs]
        call = positional if by_position else named
        if self._choice.solution.manifest.language == "python":  # whose products PyTorch might shorten
            call = precise(call)
        return _on(looks.device, _filled(call, left_out))

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
    return needed | (output_axes(found.definition) if entry.call == "out" else frozenset())


def _together(returned: Any) -> Outputs:
    if isinstance(returned, Tensor):
        return returned
    if returned is None:  # the operator has no outputs
        return ()
    return returned[0] if len(returned) == 1 else tuple(returned)


def _filled(call: Callable[..., Outputs], left_out: list[tuple[int, Any]]) -> Callable[..., Outputs]:
    """The same call with defaults in place of the inputs that were left out."""
    if not left_out:
        return call

    def filled(*inputs: Any) -> Outputs:
        given = list(inputs)
        for at, value in left_out:
            given[at] = value
        return call(*given)

    return filled


def _on(device: torch.device | None, call: Callable[..., Outputs]) -> Callable[..., Outputs]:
    """The same call with its GPU as the current one: launches go there."""
    if device is None or device.type != "cuda" or torch.cuda.device_count() == 1:
        return call

    def there(*inputs: Any) -> Outputs:
        if torch.cuda.current_device() == device.index:
            return call(*inputs)
        with torch.cuda.device(device):
            return call(*inputs)

    return there
