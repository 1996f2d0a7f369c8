"""The command, or a script, in a fork of a process that has torch and the definitions loaded: over two seconds less
than from nothing."""

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import forked_workers
import gdnspec
from gdnspec.catalog import families
from gdnspec.catalog.definitions import loaded
from patience import PATIENCE, until

COMMANDS = sorted((Path(gdnspec.__file__).parent / "cli/commands").glob("*.py"))
PRELOADED = [
    "no_garbage_yet",  # the first, as what follows stays
    "gdnspec.cli.main",
    *(f"gdnspec.cli.commands.{command.stem}" for command in COMMANDS),
    "gdnspec.inputs.fresh",
    "gdnspec.bench.speed",
    "gdnspec.check.run",
    "gdnspec.numerics.freeze",
    "gdnspec.build.dry",
    "gdnspec.check.selftest",
    "forked_workers",
    "torch",
    # What some commands load once they are asked: a second and more each, and no thread.
    "altair",
    "jinja2",
    "safetensors.torch",
    "scipy.optimize",
    "sklearn.cluster",
    "gdnspec.server.data_folder",
    "gdnspec.server.listener",
    "preload_catalog",  # the last: it keeps what is there
]

HERE = str(Path(__file__).parent)
MODULE = Path(HERE) / "module_process.py"  # a script whose arguments are a module of any package, and its own

# Commands that start no worker: none is forked that would fork them.
READING = [[name] for name in ("compare", "list", "new", "report", "show", "validate", "which", "workloads")]

# One server for each test process: it has one thread and runs nothing but forks.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(PRELOADED)


def ensure_server() -> None:
    """Before whatever starts a process of `context`: by itself that starts a server which finds nothing of this folder,
    and passes over what it does not find."""
    path = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
    with mock.patch.dict(os.environ, PYTHONPATH=path):
        multiprocessing.forkserver.ensure_running()  # a server learns of no other path, at least in 3.11


def run(
    arguments: list[str],
    environment: dict[str, str],
    cwd: str | Path | None = None,
    timeout: float = PATIENCE,
    script: Path | None = None,
    before: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([python, "-m", "gdnspec", ..])`, or of a script, with its output captured. `before`: a
    function of a module beside this one, called in the command's process before the command. A script finds modules in
    the PYTHONPATH of its environment, too."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        streams = [f"/proc/{os.getpid()}/fd/{stream.fileno()}" for stream in (out, err)]
        where = str(cwd or Path.cwd())
        ensure_server()
        process = context.Process(target=_start, args=(arguments, environment, where, streams, script, before))
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


class Forked:
    """A script that goes on beside the test, with what a test uses of a `subprocess.Popen`."""

    def __init__(
        self, script: Path, arguments: list[str], log: Path, environment: dict[str, str] | None = None
    ) -> None:
        """`log`: a file that gets what it says on stderr, after what is there."""
        log.touch()
        self._out = tempfile.NamedTemporaryFile()  # noqa: SIM115
        streams = [self._out.name, str(log)]
        ensure_server()
        self._process = context.Process(
            target=_start,
            args=(arguments, {**os.environ, **(environment or {})}, str(Path.cwd()), streams, script, None),
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def first_line(self) -> str:
        """What it says first on stdout, empty if it ends before."""
        file = Path(self._out.name)
        until(lambda: file.read_text().endswith("\n") or self._process.exitcode is not None)
        return file.read_text().partition("\n")[0]

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        assert self._process.exitcode is not None, "it has not ended"
        self.out = Path(self._out.name).read_text()
        self._out.close()
        return self._process.exitcode


def answers_from_forks(beside: bool) -> None:
    """From now on a Triton solution runs up to its launches (build/dry.py) in a fork: of the server, `beside` a process
    that is no good to fork, or of this process."""
    from gdnspec.build import dry

    def answer(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if command[:2] != [sys.executable, "-m"]:
            return subprocess.run(command, **options)
        with tempfile.NamedTemporaryFile("w") as given:
            given.write(options["input"])
            given.flush()
            run_it = run if beside else _run_fork
            return run_it([command[2], given.name], options["env"], script=Path(HERE) / "asked_process.py")

    dry.subprocess = SimpleNamespace(**{**vars(subprocess), "run": answer})  # type: ignore[attr-defined]


def _run_fork(arguments: list[str], environment: dict[str, str], script: Path) -> subprocess.CompletedProcess[str]:
    """As `run`, of a process that has torch and no thread besides its first."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = os.fork()
        if process == 0:
            code = 1
            try:
                streams = [f"/proc/self/fd/{stream.fileno()}" for stream in (out, err)]
                _start(arguments, environment, str(Path.cwd()), streams, script, None)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush(), sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        said = []
        for stream in (out, err):
            stream.seek(0)
            said.append(stream.read().decode())
        return subprocess.CompletedProcess(arguments, code, *said)


def _start(
    arguments: list[str],
    environment: dict[str, str],
    cwd: str,
    streams: list[str],
    script: Path | None,
    before: Callable[[], None] | None,
) -> None:
    for number, stream in enumerate(streams, start=1):
        file = os.open(stream, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    assert PRELOADED[-1] in sys.modules, "the server of forks has not loaded what every command reads first"
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if families.VARIABLE in environment or any(word.startswith("--definitions-dir") for word in arguments):
        families.families.cache_clear()  # what is loaded are those of the checkout alone
        loaded.cache_clear()
    if before is not None:
        before()
    if script is not None:
        added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.argv, sys.path[:0] = [str(script), *arguments], [str(script.parent), *filter(None, added)]
        runpy.run_path(str(script), run_name="__main__")
        return
    sys.argv = ["gdnspec", *arguments]

    from gdnspec.cli.main import main

    answers_from_forks(beside=False)
    reads = arguments[:1] in READING or "--help" in arguments
    with contextlib.suppress(BrokenPipeError), contextlib.nullcontext() if reads else forked_workers.below():
        main()
