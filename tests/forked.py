"""The command in a fork of a process that has torch loaded already: two seconds less than a start from nothing."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PRELOADED = [
    "gdnspec.cli.main",
    "gdnspec.inputs.fresh",
    "gdnspec.runner.bench",
    "gdnspec.runner.check",
    "gdnspec.runner.freeze",
    "gdnspec.runner.selftest",
    "torch",
]

# One server for each test process, from its first call on: it has one thread and runs nothing but forks.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PRELOADED)


def run(
    arguments: list[str], environment: dict[str, str], cwd: str | Path | None, timeout: float
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([python, "-m", "gdnspec", ..])` with its output captured."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        streams = [f"/proc/{os.getpid()}/fd/{stream.fileno()}" for stream in (out, err)]
        process = _context.Process(target=_command, args=(arguments, environment, str(cwd or Path.cwd()), streams))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(arguments, timeout)
        said = []
        for stream in (out, err):
            stream.seek(0)
            said.append(stream.read().decode())
        return subprocess.CompletedProcess(arguments, process.exitcode, *said)


def _command(arguments: list[str], environment: dict[str, str], cwd: str, streams: list[str]) -> None:
    for number, stream in enumerate(streams, start=1):
        file = os.open(stream, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = ["gdnspec", *arguments]

    from gdnspec.cli.main import main

    with contextlib.suppress(BrokenPipeError):
        main()
