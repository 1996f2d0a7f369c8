"""A definition as an object: what it says, its reference, its workloads."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

from gdnspec.api.words import name_of
from gdnspec.catalog import definitions as catalog
from gdnspec.catalog.definitions import Found
from gdnspec.catalog.workloads import workloads
from gdnspec.model.definition import Definition
from gdnspec.model.errors import SpecError, installed, nearest
from gdnspec.model.expression import parse
from gdnspec.model.workload import SUITES, Workload

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gdnspec.api.verdict import Verdict


@dataclass(frozen=True)
class Case:
    """One workload of a definition."""

    found: Found = field(repr=False)
    line: Workload = field(repr=False)
    name: str
    suite: str

    def inputs(self, device: "str | torch.device" = "cpu") -> "dict[str, Tensor | float | bool | None]":
        """Every input by name, in the definition's order, on `device`: tensors, scalars, and None for what is left out.

        The same workload gives the same bits on every machine. Raises `InvalidWorkload`, and `SpecError` for a device
        that is not here."""
        with installed("Case.inputs"):
            from gdnspec.numerics.arguments import arguments

        return arguments(self.found, self._drawn(), _present(device))

    def expected(self, device: "str | torch.device" = "cpu") -> "dict[str, Tensor]":
        """Every output by name in the definition's order, as the reference computes it in float64. Of a pool, the slots
        that the call writes."""
        with installed("Case.expected"):
            from gdnspec.numerics.expected import Expected

        return Expected(_present(device), lambda text: None).values(self.found, self._drawn())

    def check(self, function: Callable[..., Any], **options: Any) -> "Verdict":
        """The verdict on a function for this workload alone; options as of `gdnspec.check`."""
        with installed("Case.check"):
            from gdnspec.api.function_check import check

        return check(function, Spec(self.found, self.found.definition.name), workload=self.name, **options)

    def _drawn(self) -> Any:
        from gdnspec.inputs.materialise import materialise

        return materialise(self.found, self.line)


def _present(device: "str | torch.device") -> str:
    """The device in words. Raises `SpecError` if this machine does not have it."""
    from gdnspec.build import machine

    kind = str(device).partition(":")[0]
    if kind not in ("cpu", "cuda") or machine.device(kind) is None:
        raise SpecError(f"no device {str(device)!r} here: cpu, or cuda where there is a GPU")
    return str(device)


@dataclass(frozen=True)
class Spec:
    """A definition. `contract` has every field of its `definition.json`."""

    found: Found = field(repr=False)
    name: str

    @property
    def contract(self) -> Definition:
        return self.found.definition

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs, in order."""
        return tuple(tensor.name for tensor in self.contract.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in order."""
        return tuple(tensor.name for tensor in self.contract.outputs)

    @property
    def reference(self) -> "Callable[..., tuple[Tensor, ...] | Tensor]":
        """The reference in plain PyTorch. It takes the inputs by keyword and computes in the widest float type among
        them, float32 at least. None for an optional input means its default."""
        from gdnspec.build.reference import function

        with installed("Spec.reference"):
            made = function(self.found.family, self.contract.reference)
        switches = {
            tensor.name: parse(tensor.default).evaluate({})
            for tensor in self.contract.inputs
            if tensor.dtype == "bool" and tensor.is_scalar and tensor.default is not None
        }
        return _with_switches(made, switches) if switches else made

    def workloads(self, suite: str = "smoke") -> list[Case]:
        """The workloads of a suite: smoke, conformance, strict, performance or all. Raises `SpecError`."""
        known = (*SUITES, "all")
        if name_of("suite", suite) not in known:
            raise SpecError(f"no suite {suite!r} ({nearest(suite, known)})")
        lines = [line for line in workloads(self.found) if suite in (line.suite, "all")]
        return [Case(self.found, line, line.name, line.suite) for line in lines]

    def workload(self, name: str) -> Case:
        """One workload by its name. Raises `SpecError`."""
        known = {case.name: case for case in self.workloads("all")}
        if name_of("workload", name) not in known:
            raise SpecError(f"{self.name} has no workload {name!r} ({nearest(name, known)})")
        return known[name]

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        import html

        rows = "".join(
            f"<tr><td>{html.escape(tensor.name)}</td><td>{html.escape(str(tensor.shape or 'scalar'))}</td>"
            f"<td>{tensor.dtype}</td><td style='text-align:left'>{html.escape(tensor.description)}</td></tr>"
            for tensor in (*self.contract.inputs, *self.contract.outputs)
        )
        return f"<b>{html.escape(self.name)}</b><p>{html.escape(self.contract.description)}</p><table>{rows}</table>"


def _with_switches(made: Callable[..., Any], switches: dict[str, Any]) -> Callable[..., Any]:
    """A reference that takes None for a switch as its default: references themselves are given every switch."""
    parameters = signature(made)

    @wraps(made)
    def reference(*args: Any, **inputs: Any) -> Any:
        call = parameters.bind(*args, **inputs)
        for name, default in switches.items():
            if call.arguments[name] is None:
                call.arguments[name] = default
        return made(*call.args, **call.kwargs)

    return reference


def definition(name: str) -> Spec:
    """One definition by name, of any family. Raises `SpecError` with the nearest name."""
    found = catalog.definition(name_of("the definition", name))
    return Spec(found, found.definition.name)


def definitions() -> dict[str, Spec]:
    """All definitions by name."""
    return {name: Spec(found, name) for name, found in catalog.definitions().items()}
