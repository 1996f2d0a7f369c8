"""Freezes a workload's budget: runs every honest emulator on its inputs, and measures the errors."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from gdnspec.build.reference import FAMILY_CODE, judged, running
from gdnspec.catalog.definitions import Found
from gdnspec.inputs.contract import Emulated
from gdnspec.inputs.materialise import Inputs, InvalidWorkload, materialise
from gdnspec.model.budget import LIMITS, METRICS, SPACING, Metric, budget_of, freeze, metrics_of, significant
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.roles import packed_tokens
from gdnspec.model.workload import Emulators, Workload
from gdnspec.numerics.arguments import arguments
from gdnspec.numerics.code_steps import coded
from gdnspec.numerics.expected import Expected, by_name, in_chunks, oracle
from gdnspec.numerics.metrics import as_vectors, errors
from gdnspec.numerics.pools import compact
from gdnspec.numerics.products import OF_FRESH

Figures = dict[str, dict[Metric, dict[str, float]]]  # output -> metric -> emulator -> error
DRIFT = 0.1  # largest relative difference of a figure between two machines


def frozen(found: Found, workload: Workload, expected: Expected) -> Workload:
    """The line with its budget and the emulators' errors. Raises `SpecError` if the budget would exceed the limit."""
    try:
        inputs = materialise(found, workload)
        measured = measure(found, workload, inputs, expected.values(found, inputs), expected.device)
    except InvalidWorkload as error:
        raise SpecError(f"workload {workload.name!r} of {found.definition.name}: {error}") from None
    return recorded(found, workload, measured).model_copy(update={"sha256": inputs.sha256})


def with_budget(found: Found, workload: Workload, measured: Figures) -> Workload:
    """The line with the budget that follows from `measured`. Raises `SpecError` if it exceeds the limit."""
    budget = {}
    for output in found.definition.judged:
        by_emulator = measured[output.name]
        names = sorted(by_emulator["relative_l2"], key=_is_of_fresh)  # the usual ones first
        errors_in_order = {metric: [errors[x] for x in names if x in errors] for metric, errors in by_emulator.items()}
        budget[output.name] = freeze(output, errors_in_order, len(names) - sum(map(_is_of_fresh, names)))
        for metric, limit in budget[output.name].items():
            if not limit <= LIMITS[metric]:
                name, worst = max(by_emulator[metric].items(), key=lambda item: item[1])
                raise _too_large(found, workload, output.name, metric, name, worst)
    return workload.model_copy(update={"budget": budget})


def _is_of_fresh(emulator: str) -> bool:
    return emulator.endswith(tuple(OF_FRESH))


def _too_large(found: Found, workload: Workload, output: str, metric: Metric, emulator: str, error: float) -> SpecError:
    return SpecError(
        f"workload {workload.name!r} of {found.definition.name} cannot be judged: twice the error of an honest "
        f"emulator ({emulator}: {metric} {error:.3g} on {output}) is above {LIMITS[metric]}; make the sequences "
        "shorter, or the keys less alike"
    )


def recorded(found: Found, workload: Workload, measured: Figures) -> Workload:
    """Like `with_budget`, with the emulators' errors, as a file stores it. Raises `SpecError`."""
    line = with_budget(found, workload, measured)
    names = next([*errors] for metrics in measured.values() for errors in metrics.values())
    lists = found.family.about.emulators
    name = next((name for name, emulators in lists.items() if emulators == names), None)
    if name is None:
        message = f"no list consists of the emulators {', '.join(names)}"
        hint = "add the list under a name: workloads store errors in its order"
        raise SpecError([Problem(found.family.file, message, "/emulators", hint)])
    errors = {o: {m: [*by_name.values()] for m, by_name in metrics.items()} for o, metrics in measured.items()}
    return line.model_copy(update={"emulators": Emulators(names=name, errors=errors)})


def known(found: Found, workload: Workload) -> Figures:
    """The stored errors of a line, by emulator."""
    if workload.emulators is None:
        return {}
    names = found.family.about.emulators[workload.emulators.names]
    return {
        output: {metric: dict(zip(names, errors, strict=True)) for metric, errors in metrics.items()}
        for output, metrics in workload.emulators.errors.items()
    }


def lacks_bias(found: Found, workload: Workload) -> bool:
    """Whether the line has a budget without the bias, although an output has that metric."""
    wanted = [output.name for output in found.definition.judged if "bias" in metrics_of(output)]
    return any("bias" not in known(found, workload).get(name, {}) for name in wanted)


def with_bias(found: Found, workload: Workload, expected: Expected) -> Workload:
    """The line with limits for the bias added; its other limits stay."""
    emulated = known(found, workload)
    for name, of_output in figures(found, workload, expected).items():
        if "bias" in of_output:
            emulated[name]["bias"] = of_output["bias"]
    return recorded(found, workload, emulated)


def figures(found: Found, workload: Workload, expected: Expected) -> Figures:
    """The error of every emulator, rounded as stored. Raises `SpecError` for an invalid workload."""
    try:
        inputs = materialise(found, workload)
        return measure(found, workload, inputs, expected.values(found, inputs), expected.device)
    except InvalidWorkload as error:
        raise SpecError(f"workload {workload.name!r} of {found.definition.name}: {error}") from None


def measure(found: Found, workload: Workload, inputs: Inputs, wanted: dict[str, Tensor], device: str) -> Figures:
    """Like `figures`, from given inputs and expected values. Of a fresh line, raises `SpecError` at the first emulator
    that leaves it without a budget: others would not help."""
    definition, fresh = found.definition, workload.suite == "fresh"
    result: Figures = {output.name: {metric: {} for metric in metrics_of(output)} for output in definition.judged}
    for name, values in _emulators(found, workload, inputs, device):
        for output in definition.judged:
            pair = values[output.name].double(), wanted[output.name]
            got, want = (as_vectors(x, output, definition, inputs.scope) for x in pair)
            maxima = errors(got, want, SPACING.get(output.dtype), codes=coded(output)).maxima
            for metric in metrics_of(output):
                if not math.isfinite(maxima[metric]):
                    raise SpecError(
                        f"workload {workload.name!r}: emulator {name} has no finite {metric} on {output.name}"
                    )
                error = significant(maxima[metric])
                if fresh and metric in METRICS and budget_of(output, metric, [error]) > LIMITS[metric]:
                    raise _too_large(found, workload, output.name, metric, name, error)
                result[output.name][metric][name] = error
    return result


def drifts(found: Found, workload: Workload, measured: Figures) -> Iterator[str]:
    """The figures whose budget differs by more than a tenth from the frozen one, in words."""
    frozen_figures = known(found, workload)
    outputs = {output.name: output for output in found.definition.judged}
    for output, metrics in measured.items():
        for metric, now_by_name in metrics.items():
            then_by_name = frozen_figures.get(output, {}).get(metric, {})
            if metric == "bias" and not then_by_name:
                continue  # the line was frozen before this metric existed
            if others := then_by_name.keys() ^ now_by_name.keys():
                yield f"{output} {metric}: emulators {', '.join(sorted(others))} are new or gone"
                continue
            then, now = then_by_name.values(), now_by_name.values()
            before, after = (budget_of(outputs[output], metric, errors) for errors in (then, now))
            if abs(after - before) > DRIFT * before:
                yield f"{output} {metric}: {max(then):.3g} frozen, {max(now):.3g} now"


def _emulators(
    found: Found, workload: Workload, inputs: Inputs, device: str
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    definition, few = found.definition, compact(found.definition, inputs)
    tokens = packed_tokens(definition, inputs.scope)
    call = Emulated(
        definition, workload.suite == "strict", arguments(found, few, device), oracle(found, tokens), in_chunks(found),
        OF_FRESH if workload.suite == "fresh" else {},
    )  # fmt: skip
    file, seen = found.family.reference / FAMILY_CODE, False
    with torch.no_grad(), running(found.family, f"running the emulators of {definition.name}"):
        for name, values in judged(found.family).emulators(call):
            try:
                yield str(name), by_name(found, values, few)
            except ValueError as error:
                message = f"the emulator {name!r} of {definition.name} returned {error}"
                raise SpecError([Problem(file, message)]) from None
            seen = True
    if not seen:
        message = f"no emulators for {definition.name}: budgets follow from the errors of honest emulators"
        raise SpecError([Problem(file, message, hint="`emulators` must yield the name and the result of each")])
