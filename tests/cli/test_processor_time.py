"""What commands that only read files may cost: processor time, against what it takes to import their libraries."""

import os
import sys

import pytest
from conftest import ROOT

RUNS = 2  # the least counts: others may load the machine
LIBRARIES = "import pydantic, pydantic.main, typer, typer.main"


def processor_seconds(*arguments: str) -> float:
    """User and system time of a Python process, the least of some runs."""
    found = []
    for _ in range(RUNS):
        silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        child = os.posix_spawn(
            sys.executable, [sys.executable, *arguments], os.environ | {"PWD": str(ROOT)}, file_actions=silent
        )
        _, status, usage = os.wait4(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        found.append(usage.ru_utime + usage.ru_stime)
    return min(found)


@pytest.fixture(scope="module")
def libraries() -> float:
    return processor_seconds("-c", LIBRARIES)


@pytest.mark.parametrize(
    ("arguments", "most"),
    [
        (["validate"], 18.0),
        pytest.param(["list"], 14.0, marks=pytest.mark.thorough),
        (["show", "gdn_decode_k_last"], 6.0),
        (["--help"], 2.0),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_reading_command_costs_a_few_times_its_libraries(arguments: list[str], most: float, libraries: float) -> None:
    """They take about two thirds of the bound."""
    assert processor_seconds("-m", "gdnspec", *arguments) < most * libraries
