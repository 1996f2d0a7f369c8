"""Entry point: the commands, and what becomes of their errors."""

import os
import signal
import sys

import typer

from gdnspec import __version__
from gdnspec.cli.commands import (
    bench,
    capture,
    check,
    compare,
    doctor,
    exchange,
    intake,
    listing,
    new,
    report,
    selftest,
    serve,
    show,
    submit,
    traces,
    validate,
    vectors,
    workloads,
)
from gdnspec.cli.console import EPILOG, complain
from gdnspec.model.errors import SpecError

app = typer.Typer(
    name="gdnspec",
    help="The executable specification of Gated Delta Net: look up a definition, check a kernel against it.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("list", epilog=EPILOG)(listing.list_)
app.command("show", epilog=EPILOG)(show.show)
app.command("validate", epilog=EPILOG)(validate.validate)
app.command("check", epilog=EPILOG)(check.check)
app.command("compare", epilog=compare.EPILOG)(compare.compare)
app.command("bench", epilog=EPILOG)(bench.bench)
app.command("export", epilog=EPILOG)(exchange.export)
app.command("import", epilog=EPILOG)(exchange.import_)
app.command("capture", epilog=EPILOG)(capture.capture)
app.command("new", epilog=EPILOG)(new.new)
app.command("doctor", epilog=EPILOG)(doctor.doctor)
app.command("selftest", epilog=EPILOG)(selftest.selftest)
app.command("report", epilog=EPILOG)(report.report)
app.command("submit", epilog=EPILOG)(submit.submit)
app.command("intake", epilog=EPILOG)(intake.intake)
app.command("serve", epilog=EPILOG)(serve.serve)
app.add_typer(workloads.app, name="workloads")
app.add_typer(vectors.app, name="vectors")
app.add_typer(traces.app, name="traces")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gdnspec {__version__}")
        raise typer.Exit


@app.callback()
def options(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Say it.")) -> None:
    """The executable specification of Gated Delta Net: look up a definition, check a kernel against it."""


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
