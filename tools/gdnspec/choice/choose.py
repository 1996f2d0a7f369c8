"""Chooses a solution for a call: the best measured time, or the best expected one."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gdnspec.catalog.solutions import Solution
from gdnspec.choice.candidates import Asked, Candidates, candidates
from gdnspec.choice.expected_time import Figure, bound, efficiency, figures, lengths_said, nearest, same
from gdnspec.model.trace import Trace
from gdnspec.report import shapes
from gdnspec.report.units import shown_part, shown_time

# Where a time comes from, the best ground for a choice first.
Basis = Literal["tuned", "measured", "expected", "elsewhere", "unmeasured"]
LANGUAGES = ("cuda", "triton", "python")  # without any measurement, the first one that serves


@dataclass(frozen=True)
class Choice:
    """One solution that may serve a call. `reason`: why it has its place, in words. `time`: seconds per call, measured
    or expected; None if nothing says. `near`: the measurements behind it."""

    solution: Solution
    reason: str
    basis: Basis = "unmeasured"
    time: float | None = None
    near: tuple[Trace, ...] = ()
    efficiency: float | None = None
    earlier: bool = False  # by an earlier version's measurements

    @property
    def name(self) -> str:
        return self.solution.name

    @property
    def measured(self) -> bool:
        """Whether this very shape was measured on this device."""
        return self.basis in ("tuned", "measured")


def choose(
    asked: Asked, refuse: Callable[[Solution], str | None] = lambda solution: None, peers: bool = False
) -> tuple[list[Choice], Candidates]:
    """The solutions that may serve the call, the best first, and who was asked."""
    found = candidates(asked, refuse, peers)
    known = {solution.name: figures(asked.found, solution) for solution in found.serving}
    choices = sorted((_choice(asked, one, known[one.name]) for one in found.serving), key=_order)
    return [replace(choice, reason=_reason(asked, choices, choice)) for choice in choices], found


def _here(asked: Asked, figure: Figure) -> bool:
    return figure.trace.device == asked.slug


def _choice(asked: Asked, solution: Solution, known: list[Figure]) -> Choice:
    here = [figure for figure in known if _here(asked, figure)]
    exact = next((figure for figure in here if same(asked, figure)), None)
    if exact is not None:
        return Choice(
            solution,
            "",
            "tuned" if exact.tuned else "measured",
            exact.time,
            (exact.trace,),
            exact.efficiency,
            exact.earlier,
        )
    among: tuple[tuple[Basis, list[Figure]], ...] = (("expected", here), ("elsewhere", known))
    for basis, counted in among:
        near = nearest(asked, [figure for figure in counted if figure.efficiency is not None])
        share = efficiency(near)
        if share is not None:
            limits = near[0].trace.ceilings  # of the run that measured the share
            least = bound(asked, limits) if basis == "expected" and limits is not None else None
            time = None if least is None else least / share
            earlier = any(figure.earlier for figure in near)
            return Choice(solution, "", basis, time, tuple(figure.trace for figure in near), share, earlier)
    return Choice(solution, "")


_GROUPS: dict[Basis, int] = {"tuned": 0, "measured": 1, "expected": 1, "elsewhere": 2, "unmeasured": 3}


def _order(choice: Choice) -> tuple[object, ...]:
    """What was tuned on this machine comes first. Measured and expected times on one device compare. Efficiencies on
    another device only order what has no time here."""
    time = choice.time if choice.time is not None else math.inf
    language = LANGUAGES.index(choice.solution.manifest.language)
    return _GROUPS[choice.basis], time, -(choice.efficiency or 0), language, choice.name


# --- in words ---------------------------------------------------------------------------------------------------


def _reason(asked: Asked, choices: Sequence[Choice], choice: Choice) -> str:
    time = "" if choice.time is None else shown_time(choice.time)
    if not choice.near:
        languages = {other.solution.manifest.language for other in choices if not other.near}
        order = "CUDA before Triton before PyTorch" if len(languages) > 1 else "the first by name"
        return f"nothing was measured, so {order} (gdnspec tune measures)"
    where, device = _where(asked, choice), _device(choice.near[0])
    rivals = [other for other in choices if _GROUPS[other.basis] == _GROUPS[choice.basis]]
    rank = _rank(1 + rivals.index(choice), len(rivals))
    if choice.basis == "tuned":
        return f"{rank} tuned on this machine at {where}: {time}"
    if choice.basis == "measured":
        return f"{rank} measured on {device} at {where}: {time}{', by an earlier version' if choice.earlier else ''}"
    reached = f"the nearest measured workload ({where}) reached {shown_part(choice.efficiency or 0)} of the bound"
    if choice.basis == "elsewhere":
        return f"not measured on this device; {rank} on {device}, where {reached}"
    return f"{rank} expected on {device}: {f'about {time}; ' if time else ''}{reached}"


def _rank(place: int, count: int) -> str:
    return "the only one" if count == 1 else f"{'fastest' if place == 1 else f'number {place}'} of {count}"


def _where(asked: Asked, choice: Choice) -> str:
    """`1x8192`, with the preset unless it is the shape that was asked for."""
    if len(choice.near) > 1:
        return f"the mean of {len(choice.near)}"
    trace = choice.near[0]
    said = lengths_said(asked.found.definition, dict(trace.axes), trace.sequence_lengths) or trace.workload
    return said if choice.measured else f"{said} of {trace.preset}"


def _device(trace: Trace) -> str:
    """`an NVIDIA H200`."""
    name = shapes.device(trace)
    return f"{shapes.article(name)} {name}"
