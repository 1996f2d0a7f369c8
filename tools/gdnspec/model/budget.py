"""The error that a workload allows: twice the largest error of its honest emulators, within floors and limits."""

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache
from typing import Literal

from gdnspec.model.definition import Definition
from gdnspec.model.elements import Tensor

Metric = Literal["relative_l2", "worst_vector", "max_over_rms", "bias", "steps", "moved"]
METRICS: tuple[Metric, ...] = ("relative_l2", "worst_vector", "max_over_rms")  # of every output
# 16-bit outputs are also judged by their bias: it grows when a kernel rounds up, down or toward zero, and stays near
# zero when it rounds to nearest. SPACING is the distance of neighbouring numbers, relative to a power of two.
SPACING: dict[str, float] = {"bfloat16": 2**-7, "float16": 2**-10}

# If an honest emulator has a larger error than this (three roundings of every element), the bias has no limit: errors
# that a whole vector shares, such as those of a norm, add up to more than the bias of truncation.
OWN_ROUNDING = 5e-3

ALLOWANCE = 2.0  # times the largest emulator
# A workload with a budget above these cannot tell right from wrong, and is refused. `max_over_rms` compares one element
# with the root mean square of all. For the largest of a few thousand normal numbers it is four times the other metrics,
# and more if a few tokens outweigh the rest.
LIMITS: dict[Metric, float] = {
    "relative_l2": 0.1, "worst_vector": 0.1, "max_over_rms": 1.0, "bias": 1.0, "steps": 1.5, "moved": 0.1,
}  # fmt: skip

# Honest kernels stay below budget / margin; a strict workload is close to what careful arithmetic can do.
MARGIN, STRICT_MARGIN = 1.5, 1.25

# A float32 state that a kernel stored in bfloat16 at some point has a relative L2 error of 1.7e-3: above this floor.
FLOAT32_STATE: dict[Metric, float] = {"relative_l2": 5e-4, "worst_vector": 1e-3, "max_over_rms": 5e-3}
# Rounding to bfloat16 once costs at most 2^-9 of each element, so of each vector; twice that is always allowed.
BFLOAT16: dict[Metric, float] = {"relative_l2": 2**-8, "worst_vector": 2**-8, "max_over_rms": 2**-6}
# The scales of codes are computed in float32, from a state in float32. Scales that were rounded to float16 on their way
# have a relative error of about 1.4e-4, far above this.
SCALES: dict[Metric, float] = {"relative_l2": 2**-15, "worst_vector": 2**-14, "max_over_rms": 2**-12}
# A code whose number lies within the error of float32 of a rounding boundary may be the next one: `steps` lets it be
# off by one, never by two. Few numbers lie there. `moved` lets two codes in 128 be off: in a state that has just been
# reset, all rows have the same digits, so a column is off as a whole. Rounding up, down or toward zero moves half of
# all codes. The limits of the other metrics are those of as many codes that are off by one, eight of them in one row.
CODE_METRICS: tuple[Metric, ...] = ("steps", "moved")
OF_CODES: dict[str, dict[Metric, float]] = {
    "float8_e4m3fn": {"relative_l2": 2**-6, "worst_vector": 2**-4, "max_over_rms": 1.0, "steps": 1.5, "moved": 2**-6},
    "int8": {"relative_l2": 2**-8, "worst_vector": 2**-6, "max_over_rms": 2**-3, "steps": 1.5, "moved": 2**-6},
}


def metrics_of(output: Tensor) -> tuple[Metric, ...]:
    """The metrics that judge an output."""
    if output.is_code:
        return (*METRICS, *CODE_METRICS)
    return (*METRICS, "bias") if output.dtype in SPACING else METRICS


def floors(output: Tensor) -> dict[Metric, float]:
    """The smallest budget of an output, used when emulators are exact: no kernel has to be better than its output type.

    Truncation has a bias of about a third of the spacing, rounding to nearest none.
    """
    return SCALES if output.scales is not None else _floors(output.dtype)


@cache
def _floors(dtype: str) -> dict[Metric, float]:
    if dtype in OF_CODES:
        return OF_CODES[dtype]
    return FLOAT32_STATE if dtype == "float32" else BFLOAT16 | {"bias": SPACING.get(dtype, 2**-7) / 8}


def freeze(output: Tensor, figures: Mapping[Metric, Sequence[float]], usual: int | None = None) -> dict[Metric, float]:
    """The budget for each metric, rounded as it is stored. `figures` maps a metric to the errors of all emulators.

    The bias has no budget if `figures` lacks it (the line is older than this metric), or if the errors are so large
    that the bias says nothing about the rounding of the output. Only the first `usual` errors decide this:
    those that fresh lines have besides would take the limit from more lines."""
    rounds = max(figures["relative_l2"][:usual]) <= OWN_ROUNDING
    known = [m for m in metrics_of(output) if m != "bias" or (m in figures and rounds)]
    return {m: significant(budget_of(output, m, figures[m]), 4) for m in known}


def budget_of(output: Tensor, metric: Metric, figures: Collection[float]) -> float:
    """The budget for one metric, from the errors of all emulators."""
    least = floors(output)[metric]
    # Codes may never be off by two, whatever emulators do.
    return least if metric == "steps" else max(least, ALLOWANCE * max(figures))


@lru_cache(maxsize=4096)  # most budgets equal one of a few floors
def significant(x: float, digits: int = 3) -> float:
    """`x` rounded to the digits that are worth storing."""
    return float(f"{x:.{digits}g}") if math.isfinite(x) else x


def missing(definition: Definition, budget: Mapping[str, object] | None) -> list[str]:
    """The names of the judged tensors that have no budget."""
    return [output.name for output in definition.judged if output.name not in (budget or {})]
