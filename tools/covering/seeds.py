"""A seed for a generated row: the first on which honest arithmetic stays well within what a budget may be."""

import json
import math
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from gdnspec.catalog.definitions import Found, preset_of
from gdnspec.model.budget import ALLOWANCE, LIMITS
from gdnspec.model.errors import SpecError
from gdnspec.model.workload import Workload

from covering.build import Line

SUITE = "conformance"
ROOM = 0.8  # of the limit of a budget, at most
TRIES = 8
LONG = 300  # tokens above which a trial takes longer than it saves


@cache
def stands(file: Path) -> dict[str, dict[str, Any]]:
    """The rows of a definition's file, by name."""
    if not file.is_file():
        return {}
    return {row["name"]: row for row in map(json.loads, file.read_text().splitlines())}


def with_seed(found: Found, row: Line) -> Line:
    """The row with the seed that it has in the file, where it stands there already; a new one with one that is tried.

    Raises `SpecError` where no seed will do.
    """
    before = stands(found.workloads_file).get(row["name"])
    plain = Workload.model_validate(row | {"suite": SUITE, "seed": 0}).model_dump(mode="json", exclude_defaults=True)
    if before is not None and without(before) | {"seed": 0} == without(plain):
        return row | {"seed": before["seed"]}
    worst, tokens = 0.0, row["axes"].get("total_seq_len", 0)
    for attempt in range(TRIES):
        seed = zlib.crc32(f"{SUITE}/{row['name']}{f'/{attempt}' if attempt else ''}".encode())
        worst = share(found, row | {"seed": seed}) if tokens <= LONG else 0.0  # a freeze tells soon enough
        if worst <= ROOM:
            return row | {"seed": seed}
    raise SpecError(f"{found.definition.name} {row['name']}: honest arithmetic takes {worst:.2f} of a budget's limit")


def without(row: Line) -> Line:
    """A line of a file without what was measured on it."""
    return {k: v for k, v in row.items() if k not in ("sha256", "budget", "emulators", "suite")}


def share(found: Found, row: Line) -> float:
    """The budget that honest emulators give the row, as a share of what a budget may be; infinite where they fail."""
    from gdnspec.runner.expected import Expected
    from gdnspec.runner.freeze import figures

    workload = Workload.model_validate(row | {"suite": SUITE})
    workload.check(found.definition, preset_of(workload))
    try:
        measured = figures(found, workload, Expected("cpu", print))
    except SpecError:
        return math.inf
    return max(
        ALLOWANCE * max(by_name.values()) / LIMITS[metric]
        for by_metric in measured.values()
        for metric, by_name in by_metric.items()
    )
