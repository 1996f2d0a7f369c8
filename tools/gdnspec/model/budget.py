"""What error a workload allows: twice the largest of its honest emulators, within floors and limits."""

import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Literal

from gdnspec.model.definition import Definition
from gdnspec.model.elements import Tensor

Metric = Literal["relative_l2", "worst_vector", "max_over_rms", "bias"]
METRICS: tuple[Metric, ...] = ("relative_l2", "worst_vector", "max_over_rms")  # of every output
# Of 16-bit outputs there is the bias as well: what rounding up, down or toward zero adds up to, and rounding to nearest
# does not. The distance of neighbouring numbers of each type, relative to the power of two below them.
SPACING: dict[str, float] = {"bfloat16": 2**-7, "float16": 2**-10}

# Where an honest emulator errs by more than this, three roundings of every element, the bias is not limited: errors
# that a whole vector shares, as those of a norm do, add up to more than truncation leaves.
OWN_ROUNDING = 5e-3

ALLOWANCE = 2.0  # times the largest emulator
# Above these a workload tells right from wrong no longer, and is refused. The last is an error of one element against
# the root mean square of all: four times the others for the largest of a few thousand normal numbers, and more where
# a few tokens outweigh the rest.
LIMITS: dict[Metric, float] = {"relative_l2": 0.1, "worst_vector": 0.1, "max_over_rms": 1.0, "bias": 1.0}

# Honest kernels stay below budget / margin; a strict workload is close to what careful arithmetic can do.
MARGIN, STRICT_MARGIN = 1.5, 1.25

# A state in float32 that was stored in bfloat16 on its way has a relative L2 error of 1.7e-3.
FLOAT32_STATE: dict[Metric, float] = {"relative_l2": 5e-4, "worst_vector": 1e-3, "max_over_rms": 5e-3}
# Rounding to bfloat16 once costs at most 2^-9 of each element, so of each vector; twice that is always allowed.
BFLOAT16: dict[Metric, float] = {"relative_l2": 2**-8, "worst_vector": 2**-8, "max_over_rms": 2**-6}


def metrics_of(output: Tensor) -> tuple[Metric, ...]:
    """What an output is measured by."""
    return (*METRICS, "bias") if output.dtype in SPACING else METRICS


def floors(output: Tensor) -> dict[Metric, float]:
    """The least budget of an output, where emulators are exact: no kernel has to be better than its output's type.

    Truncation has a bias of about a third of the spacing, rounding to nearest none.
    """
    return _floors(output.dtype)


@cache
def _floors(dtype: str) -> dict[Metric, float]:
    return FLOAT32_STATE if dtype == "float32" else BFLOAT16 | {"bias": SPACING.get(dtype, 2**-7) / 8}


def freeze(output: Tensor, figures: Mapping[Metric, Sequence[float]]) -> dict[Metric, float]:
    """Metric to budget, from metric to the figures of all emulators, rounded as they are stored. Lines that were frozen
    before there was a bias have none, and those where it says nothing about the output's own rounding."""
    rounds = max(figures["relative_l2"]) <= OWN_ROUNDING
    known = [m for m in metrics_of(output) if m in METRICS or (m in figures and rounds)]
    least = floors(output)
    return {m: significant(max(least[m], ALLOWANCE * max(figures[m])), 4) for m in known}


@lru_cache(maxsize=4096)  # most budgets are one of a few floors
def significant(x: float, digits: int = 3) -> float:
    """Rounded to what is worth storing."""
    return float(f"{x:.{digits}g}") if math.isfinite(x) else x


def missing(definition: Definition, budget: Mapping[str, object] | None) -> list[str]:
    """What is judged, without a budget."""
    return [output.name for output in definition.judged if output.name not in (budget or {})]
