"""gdnspec submit --to: send a bundle to a server, show progress on stderr, and exit as the verdict says."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from gdnspec.cli.console import complain, say, warn
from gdnspec.cli.verdicts import Summary, print_summary
from gdnspec.model.errors import Problem, SpecError, visible
from gdnspec.model.loading import read_text

if TYPE_CHECKING:
    from gdnspec.server.api import Event, Result
    from gdnspec.server.client import Client

TOKEN = "GDNSPEC_TOKEN"
EXIT_CODES = {"accepted": 0, "refused": 1, "cancelled": 1, "invalid": 2, "unverified": 3, "lost": 3}


def client(url: str, token_file: Path | None) -> "Client":
    """A client of a server that answers, has this version, and accepts the token. Raises `SpecError`; exits with code 2
    or 3 if the server cannot be used."""
    from gdnspec.server.client import Client, ServiceError

    # No option takes the token itself: other users of the machine can read a command line.
    token = os.environ.get(TOKEN, "") if token_file is None else read_text(token_file).strip()
    if token_file is not None and not token:
        raise SpecError([Problem(token_file, "is empty")])
    if not token:
        raise SpecError(f"no token: use --token-file FILE, or set {TOKEN}")
    try:
        found = Client(url, token, warn)
        found.service()
        found.jobs(most=1)  # fails unless the token is valid
    except ServiceError as error:
        _give_up(error)
    return found


def follow(server: "Client", bundle: bytes) -> NoReturn:
    """Sends a bundle, waits until it is judged, and exits with the code of the verdict."""
    from gdnspec.server.client import ServiceError

    name = ""
    try:
        job = server.submit(bundle)
        name = job.id
        complain(f"job {name} on {server.url}" + (f", {job.ahead} before it" if job.ahead else ""))
        for event in server.events(name):
            _tell(event)
        _conclude(server, server.result(name))
    except ServiceError as error:
        _give_up(error)
    except KeyboardInterrupt:
        if name:
            complain(f"gdnspec: job {name} continues on the server: {server.url}/v1/jobs/{name}")
        raise


def _give_up(error: Exception) -> NoReturn:
    complain(f"gdnspec: {error}")
    raise typer.Exit(getattr(error, "exit_code", 2)) from None


def _tell(event: "Event") -> None:
    text = visible(event.text)
    if event.kind == "workloads":
        complain(f"the server checks it on {event.total} workloads")
    elif event.kind == "verdict" and event.status in ("PASSED", "UNSUPPORTED"):
        pass  # the table at the end counts them
    elif event.kind == "trace":
        complain(f"timed {text}: {event.status}")
    elif event.kind in ("finding", "warning", "verdict", "started", "again"):
        complain(f"  {event.kind if event.kind != 'verdict' else event.status}  {text}".rstrip())


def _conclude(server: "Client", result: "Result") -> NoReturn:
    job = result.job
    summary = Summary(result.verdicts[0].device if result.verdicts else "")
    for verdict in result.verdicts:
        summary.add(verdict)
    if summary.count:
        say(f"judged by {server.url}:")
        print_summary(summary)
    say(f"{job.state}: {job.solution or 'the bundle'}, job {job.id}" + ("" if job.reasons else "."))
    for reason in job.reasons:
        say(f"  {visible(reason)}")
    if result.verdicts:
        complain(f"report: {server.url}/v1/jobs/{job.id}/report")
    raise typer.Exit(EXIT_CODES.get(job.state, 3))
