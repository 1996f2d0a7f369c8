"""Entry point: the commands, and how their errors become messages and exit codes."""

import os
import signal
import sys

import typer

from gdnspec import __version__
from gdnspec.cli import lazy
from gdnspec.cli.console import EPILOG, complain
from gdnspec.model.errors import INSTALL, RUNNING, NotInstalled, SpecError

# Each help text repeats the start of the command's docstring: listing the commands must not import them.
COMMANDS: lazy.Listed = {
    "list": ("listing:list_", "List definitions, solutions, workloads, sessions, presets, regimes or faults."),
    "show": ("show:show", "Show one definition, solution, preset, regime, workload, session or family in full."),
    "validate": (
        "validate:validate",
        "Validate definitions, presets, workloads, sessions, solutions, faults, results, traces and captured tensors.",
    ),
    "check": (
        "check:check",
        "Check solutions for correctness on a definition's workloads, and on newly drawn ones.",
    ),
    "compare": ("compare:compare", "Compare the traces of two solutions, of two devices or of two commits."),
    "bench": (
        "bench:bench",
        "Check solutions, then time them. Every timed call gets new content, and its outputs are verified.",
    ),
    "which": ("which:which", "Show which solution is the fastest for a device and a shape, and why."),
    "tune": ("tune:tune", "Time the solutions for one shape on this machine, and keep the times for later choices."),
    "export": (
        "exchange:export",
        "Export a definition or a solution as a dataset for another benchmark, or solutions as a package.",
    ),
    "import": (
        "exchange:import_",
        "Import a dataset of another benchmark. Reports how its definitions differ from those here, and converts its "
        "workloads and solutions.",
    ),
    "capture": (
        "capture:capture",
        "Run a program and record its calls of an operator: `gdnspec capture .. -- python script.py`.",
    ),
    "new": ("new:new", "Scaffold a solution: a manifest, and a kernel file with every argument and its shape."),
    "doctor": ("doctor:doctor", "Show what this machine can run, and what is missing for the rest."),
    "selftest": (
        "selftest:selftest",
        "Test the judge: it must reject every known-bad solution and accept every honest one.",
    ),
    "report": (
        "report:report",
        "Write one self-contained HTML page: the fastest kernels, all traces, verdicts by regime, and the kill matrix.",
    ),
    "submit": (
        "submit:submit",
        "Check a solution on every suite that runs here, time it if there is a GPU, and pack it with the results.",
    ),
    "intake": (
        "intake:intake",
        "Judge a bundle from somebody else: audit its sources, check it in isolation, and measure the times that it "
        "claims. If all of this passes, copy it into the folder of solutions.",
    ),
    "serve": (
        "serve:serve",
        "Serve HTTP: accept bundles from users with a token, judge each as intake does, one per GPU, and keep the "
        "results.",
    ),
    "workloads": ("workloads:app", "Make, record and inspect workloads, and freeze their error budgets."),
    "vectors": (
        "vectors:app",
        "Test vectors for any language: write the inputs as files, and judge the outputs that you compute.",
    ),
    "traces": ("traces:app", "Keep measurements valid when sources change."),
}

app = typer.Typer(
    name="gdnspec",
    cls=lazy.group(COMMANDS),
    help="Executable specifications of operators: look up a definition, check a kernel against it.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gdnspec {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Executable specifications of operators: look up a definition, check a kernel against it."""


def _as_interrupt(*_: object) -> None:
    # SIGTERM is handled like Ctrl-C, so that children are stopped and finished results are kept and shown. Whoever ends
    # a whole group of processes may send it twice: the second must not cut the summary.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _usable_streams() -> None:
    # Neither a closed stream nor a character that the terminal cannot show may end the run.
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def main() -> None:
    """Runs the command. An error in a file or in the request becomes a message and exit code 2, a missing package
    exit code 3."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    _usable_streams()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for plugins opens a file of each package
    try:
        app()
    except SpecError as error:
        for line in [str(problem) for problem in error.problems] or [str(error)]:
            complain(f"gdnspec: {line}")
        sys.exit(3 if isinstance(error, NotInstalled) else 2)
    except KeyboardInterrupt:
        complain("gdnspec: interrupted")
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name not in RUNNING:
            raise
        complain(f"gdnspec: this command needs {error.name}, which is not installed: {INSTALL}")
        sys.exit(3)
    except BrokenPipeError:
        # The reader has closed the pipe (`gdnspec list | head`), so the rest is not printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        complain(f"gdnspec: {place}{error.strerror or error}")
        sys.exit(2)
