"""How many Python functions a command may call that only reads files: as many on a busy machine as on an idle one."""

import subprocess
import sys

import pytest
from conftest import ROOT

# Counts what the code behind it calls, from the import of its first module on, and writes the count as the last line.
COUNTED = """
import sys
calls = 0

def count(frame, event, argument):
    global calls
    calls += event == "call"

sys.setprofile(count)
try:
    {code}
except SystemExit as end:
    assert not end.code, end.code
finally:
    sys.setprofile(None)
print("\\n" + str(calls))
"""


def calls_of(code: str) -> int:
    process = [sys.executable, "-c", COUNTED.format(code=code)]
    done = subprocess.run(process, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def libraries() -> int:
    """What a command cannot do without, and what no change of this project alters."""
    return calls_of("import pydantic, pydantic.main, typer, typer.main")


@pytest.mark.parametrize(
    ("arguments", "most"),
    [
        (["validate"], 48),
        pytest.param(["list"], 44, marks=pytest.mark.thorough),
        (["show", "gdn_decode_k_last"], 16),
        (["--help"], 1),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_reading_command_costs_a_few_times_its_libraries(arguments: list[str], most: int, libraries: int) -> None:
    """They take about two thirds of the bound."""
    command = f"sys.argv = ['gdnspec', *{arguments!r}]; from gdnspec.cli.main import main; main()"
    assert calls_of(command) < most * libraries
