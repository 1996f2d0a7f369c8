"""Freezes the budget of a session: runs it with every honest emulator, and measures the errors of all steps."""

import math

from gdnspec.catalog.families import FAMILY_FILE, Family
from gdnspec.inputs.materialise import InvalidWorkload
from gdnspec.model.budget import LIMITS, SPACING, Metric, freeze, metrics_of, significant
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.session_line import SessionEmulators, SessionLine
from gdnspec.numerics.metrics import as_vectors, errors, multiplies_tokens
from gdnspec.numerics.threads import one_thread
from gdnspec.sessions.case import Case
from gdnspec.sessions.follow import Pair, follow
from gdnspec.sessions.honest import emulator

OF_PREFILL = ("prefill", "keep", "prefill_pool", "keep_absolute")
FROZEN = ("sha256", "steps_sha256", "budget", "emulators")  # what freezing gives a line
Figures = dict[str, dict[str, dict[Metric, float]]]  # definition -> judged tensor -> metric -> error


def emulators(family: Family, line: SessionLine) -> str:
    """The list of emulators that a session is run with: that of the prefill that it has, or of its decode. Raises
    `SpecError`."""
    has_prefill = any(kind in OF_PREFILL for kind in line.kinds)
    wanted = "prefill" if has_prefill else "float32_recurrence"
    if wanted not in family.about.emulators:
        raise SpecError([Problem(family.file, f"no list of emulators {wanted!r}", "/emulators")])
    return wanted


def bare(line: SessionLine) -> SessionLine:
    """A line without what is measured on it."""
    return line.model_copy(update=dict.fromkeys(FROZEN))


def frozen(family: Family, line: SessionLine) -> SessionLine:
    """The line with the hash of its steps and tokens, its budget and the errors of the emulators. Raises `SpecError` if
    the session cannot be judged."""
    unfrozen = bare(line)
    try:
        with one_thread():
            case = Case.of(family, unfrozen)
    except InvalidWorkload as error:
        raise SpecError(f"session {line.name!r}: {error}") from None
    listed = emulators(family, line)
    with one_thread():
        measured = [measure(case, name) for name in family.about.emulators[listed]]
    together: dict[str, dict[str, dict[Metric, list[float]]]] = {}
    for name, tensors in measured[0].items():
        together[name] = {
            tensor: {metric: [one[name][tensor][metric] for one in measured] for metric in metrics}
            for tensor, metrics in tensors.items()
        }
    budget = {
        name: {tensor: _budget(case, line, name, tensor, figures) for tensor, figures in tensors.items()}
        for name, tensors in together.items()
    }
    made = SessionEmulators(names=listed, errors=together)
    found = {"sha256": case.tokens.sha256, "steps_sha256": line.steps_hash, "budget": budget, "emulators": made}
    return unfrozen.model_copy(update=found)


def _budget(
    case: Case, line: SessionLine, name: str, tensor: str, figures: dict[Metric, list[float]]
) -> dict[Metric, float]:
    found = next(found for found in case.served.values() if found.definition.name == name)
    limits = freeze(next(model for model in found.definition.judged if model.name == tensor), figures)
    for metric, limit in limits.items():
        if not limit <= LIMITS[metric]:
            raise SpecError(
                f"session {line.name!r} cannot be judged: twice the error of an honest emulator ({metric} "
                f"{max(figures[metric]):.3g} on {tensor} of {name}) is above {LIMITS[metric]}; make it shorter, or "
                f"choose another of the regimes in {FAMILY_FILE}"
            )
    return limits


def measure(case: Case, name: str) -> Figures:
    """The largest errors of one emulator over all steps. Raises `SpecError` if one is not finite."""
    worst: Figures = {}
    for pair in follow(case, emulator(case.words, name)):
        if pair.fault is not None:
            raise SpecError(f"session {case.line.name!r}: {pair.place}: {pair.fault.message}")
        maxima = of_pair(pair)
        kept = worst.setdefault(pair.found.definition.name, {}).setdefault(pair.tensor.name, {})
        for metric in metrics_of(pair.tensor):
            value = significant(maxima[metric])
            if not math.isfinite(value):
                message = f"emulator {name} has no finite {metric} on {pair.tensor.name}"
                raise SpecError(f"session {case.line.name!r}: {pair.place}: {message}")
            kept[metric] = max(kept.get(metric, 0.0), value)
    return worst


def of_pair(pair: Pair) -> dict[str, float]:
    """The errors of one judged tensor of a step."""
    definition = pair.found.definition
    values = (x.double() for x in (pair.got, pair.expected))
    got, want = (as_vectors(x, pair.tensor, definition, pair.scope) for x in values)
    return errors(got, want, SPACING.get(pair.tensor.dtype), multiplies_tokens(definition)).maxima
