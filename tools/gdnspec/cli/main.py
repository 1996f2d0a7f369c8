"""Entry point: the commands, and what becomes of their errors."""

import os
import signal
import sys

import typer

from gdnspec import __version__
from gdnspec.cli import lazy
from gdnspec.cli.console import EPILOG, complain
from gdnspec.model.errors import SpecError

# The help of each, as its docstring begins: to list them imports none.
COMMANDS: lazy.Listed = {
    "list": ("listing:list_", "List definitions, solutions, workloads, presets or regimes."),
    "show": ("show:show", "Show one thing in full."),
    "validate": (
        "validate:validate",
        "Validate definitions, presets, workloads, solutions, faults, results, traces and captured tensors.",
    ),
    "check": (
        "check:check",
        "Check solutions for correctness on a definition's workloads, and on fresh ones that nobody has seen.",
    ),
    "compare": ("compare:compare", "Compare what was measured of two solutions, on two devices or at two commits."),
    "bench": (
        "bench:bench",
        "Check solutions, then time them: every timed call has content of its own, and its outputs are verified.",
    ),
    "export": (
        "exchange:export",
        "Write a definition or a solution, with workloads, as a dataset of another harness.",
    ),
    "import": (
        "exchange:import_",
        "Read a dataset of another harness: what its definitions mean here, by name what contradicts this "
        "specification or cannot be said in it, and its workloads and solutions in the form that they have here.",
    ),
    "capture": (
        "capture:capture",
        "Run a program and record what it calls an operator with: `gdnspec capture .. -- python script.py`.",
    ),
    "new": ("new:new", "Scaffold a solution: a manifest, and a kernel file with every argument and its shape."),
    "doctor": ("doctor:doctor", "Say what this machine can run, and why not."),
    "selftest": ("selftest:selftest", "Reject every known-bad solution, and accept every honest one."),
    "report": (
        "report:report",
        "Write one self-contained page: traces of all solutions, charts, verdicts by regime, and the kill matrix.",
    ),
    "submit": (
        "submit:submit",
        "Check a solution on every suite that runs here, time it where there is a GPU, and pack it with that evidence.",
    ),
    "intake": (
        "intake:intake",
        "Read a bundle safely, audit it, check it in isolation on workloads that nobody has seen, compare its claims "
        "of speed with what is measured here, and copy it to the solutions where all of that passes.",
    ),
    "serve": (
        "serve:serve",
        "Take bundles over HTTP from users with a token, judge each as intake does, one to a GPU, and keep the "
        "results.",
    ),
    "workloads": ("workloads:app", "Make workloads, record them, look at them, and freeze their error budgets."),
    "vectors": (
        "vectors:app",
        "Test vectors for any language: write the inputs as files, judge the outputs that come back.",
    ),
    "traces": ("traces:app", "What was measured, when sources change."),
}

app = typer.Typer(
    name="gdnspec",
    cls=lazy.group(COMMANDS),
    help="Executable specifications of operators: look up a definition, check a kernel against it.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gdnspec {__version__}")
        raise typer.Exit


@app.callback()
def options(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Say it.")) -> None:
    """Executable specifications of operators: look up a definition, check a kernel against it."""


def _as_interrupt(*_: object) -> None:
    """A polite end is like Ctrl-C: children are ended and what was judged is kept."""
    raise KeyboardInterrupt


def _usable_streams() -> None:
    """A closed stream swallows what is said; a character that a terminal cannot show does not end the run."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def main() -> None:
    """Runs the command; every error of a file or of the request is a message and exit code 2."""
    signal.signal(signal.SIGTERM, _as_interrupt)
    _usable_streams()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # to look for some opens a file of each package
    try:
        app()
    except SpecError as error:
        for line in [str(problem) for problem in error.problems] or [str(error)]:
            complain(f"gdnspec: {line}")
        sys.exit(2)
    except KeyboardInterrupt:
        complain("gdnspec: interrupted")
        sys.exit(130)
    except BrokenPipeError:
        # The reader has seen enough (`gdnspec list | head`); whatever else was to come is not done.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        complain(f"gdnspec: {place}{error.strerror or error}")
        sys.exit(2)
