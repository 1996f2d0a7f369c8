"""The command as a new user meets it: without torch, with a typo, in the middle of writing a kernel."""

import os
import sys
from pathlib import Path

import pytest

NO_TORCH = """
import runpy, sys
for name in ("torch", "triton"):
    sys.modules[name] = None
sys.argv = ["gdnspec", *sys.argv[1:]]
runpy.run_module("gdnspec", run_name="__main__")
"""


def without_torch(*arguments: str | Path) -> tuple[int, list[str], float]:
    """Exit code, lines on stderr and seconds of processor time of a command in a Python that has no torch."""
    reading, writing = os.pipe()
    files = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0), (os.POSIX_SPAWN_DUP2, writing, 2)]
    command = [sys.executable, "-c", NO_TORCH, *map(str, arguments)]
    child = os.posix_spawn(sys.executable, command, os.environ, file_actions=files)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read().splitlines()
    _, status, usage = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), said, usage.ru_utime + usage.ru_stime


RUNNING = {
    "doctor": ("doctor",),
    "check": ("check", "gdn_decode_k_last", "--workload", "one_row"),
    "bench": ("bench", "gdn_decode_k_last"),
    "selftest": ("selftest",),
    "submit": ("submit", "torch_recurrent"),
    "freeze": ("workloads", "freeze", "gdn_decode_k_last"),
}


@pytest.mark.parametrize("arguments", RUNNING.values(), ids=RUNNING)
def test_without_torch_a_command_says_in_one_line_what_to_install(arguments: tuple[str, ...]) -> None:
    code, said, _ = without_torch(*arguments)
    assert code == 3, said
    assert len(said) == 1
    assert "this command needs torch" in said[0]
    assert "pip install 'gdnspec[run]'" in said[0]
