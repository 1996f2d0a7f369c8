"""gdnspec serve: judge bundles for several users on one machine."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdnspec import paths
from gdnspec.cli import amounts
from gdnspec.cli.console import complain, print_table, say, table, warn
from gdnspec.cli.needs import needs
from gdnspec.cli.options import CallTimeout, DefinitionsDir
from gdnspec.model.errors import Problem, SpecError

if TYPE_CHECKING:
    from gdnspec.server.database import Database
    from gdnspec.server.settings import Settings

USER = re.compile(r"[a-z0-9][a-z0-9._-]{0,38}")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    data: Annotated[
        Path | None, typer.Option(help="Keep users, jobs and results in this folder.", show_default="state folder")
    ] = None,
    add_user: Annotated[
        str | None,
        typer.Option("--add-user", metavar="NAME", help="Make a token for a new user, show it once, and exit."),
    ] = None,
    days: Annotated[float, typer.Option(min=0, max=amounts.DAYS, help="Days that a new token is valid.")] = 90.0,
    revoke: Annotated[str | None, typer.Option(metavar="NAME", help="Revoke a user's token, and exit.")] = None,
    users: Annotated[
        bool, typer.Option("--users", help="List users and the states of their tokens, and exit.")
    ] = False,
    backup: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Copy the database to FILE, and exit; a server may be running.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = 8642,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda: auto is cuda where there is a GPU.")] = "auto",
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="Jobs that run at a time; at most one per GPU.", show_default="one per GPU, or 1"),
    ] = None,
    lease: Annotated[
        float,
        typer.Option(
            min=0.2, max=amounts.SECONDS, help="Seconds without a sign of life after which another server takes a job."
        ),
    ] = 10.0,
    rate: Annotated[float, typer.Option(min=1, help="Requests per user and minute.")] = 600.0,
    burst: Annotated[int, typer.Option(min=1, help="Requests that a user may send at once.")] = 60,
    queue_limit: Annotated[int, typer.Option(min=1, help="Jobs of one user that may wait or run.")] = 8,
    upload_limit: Annotated[float, typer.Option(min=0.01, max=amounts.MIB, help="Largest bundle, in MiB.")] = 64.0,
    uploads: Annotated[int, typer.Option(min=1, help="Bundles that one user may upload at a time.")] = 4,
    connections: Annotated[int, typer.Option(min=16, max=100_000, help="Connections that may be open.")] = 1000,
    address_connections: Annotated[int, typer.Option(min=4, help="Connections that one address may have open.")] = 256,
    request_seconds: Annotated[
        float, typer.Option(min=0.1, max=amounts.SECONDS, help="Seconds that a connection has to send its request.")
    ] = 10.0,
    minutes: Annotated[float, typer.Option(min=0.05, max=amounts.MINUTES, help="Minutes that a job may take.")] = 60.0,
    timeout: CallTimeout = 120.0,
    keep_bundles: Annotated[
        float,
        typer.Option(min=0, metavar="DAYS", help="Days that a bundle is kept after its job has ended; inf keeps it."),
    ] = 30.0,
    trusted: Annotated[
        bool, typer.Option("--trusted", help="Run bundles even where Linux cannot isolate them fully.")
    ] = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Serve HTTP: accept bundles from users with a token, judge each as intake does, one per GPU, and keep the results.

    A bundle cannot bring a family of operators. --definitions-dir adds families for all jobs.
    """
    if not (add_user or revoke or users or backup):
        needs("serve", "fastapi", "uvicorn")
        needs("run", "torch")  # a job would miss it only when a bundle is there
    from gdnspec.server.settings import MIB, Settings

    kind, devices = _devices(device, slots)
    settings = Settings(
        (data or paths.state_dir()).absolute(), kind, devices, lease, rate, burst, queue_limit,
        upload_limit=int(upload_limit * MIB), minutes=minutes, timeout=timeout, trusted=trusted,
        keep_bundles=keep_bundles, uploads=uploads, connections=connections, address_connections=address_connections,
        request_seconds=request_seconds,
    )  # fmt: skip
    from gdnspec.server.data_folder import opened

    database = opened(settings)
    if _administered(database, add_user, days, revoke, users, backup):
        return
    _serve(database, settings, host, port)


def _serve(database: "Database", settings: "Settings", host: str, port: int) -> None:
    from gdnspec.server import listener
    from gdnspec.server.tokens import Tokens

    address = listener.listening(host, port)
    if host not in LOOPBACK:
        warn(f"{host} is not loopback, so tokens cross the network unencrypted: put a proxy with TLS in front of it")
    if not Tokens(database).listed():
        warn("nobody has a token yet: gdnspec serve --add-user NAME")
    shown = f"[{host}]" if ":" in host else host
    slots = f"{len(settings.devices)} {'slot' if len(settings.devices) == 1 else 'slots'}"
    say(f"serving on http://{shown}:{address.getsockname()[1]}: {slots} on {settings.device}, data in {settings.data}")
    listener.serve(database, settings, address)


def _devices(device: str, slots: int | None) -> tuple[str, tuple[str, ...]]:
    """The kind of device, and the value of CUDA_VISIBLE_DEVICES for each slot."""
    from gdnspec.server.devices import gpus

    if device not in ("auto", "cpu", "cuda"):
        raise SpecError(f"no device {device!r}: --device takes auto, cpu or cuda")
    found = gpus() if device != "cpu" else []
    if not found and device == "cuda":
        complain("gdnspec: this machine has no CUDA GPU; gdnspec doctor shows what it can run")
        raise typer.Exit(3)
    if not found:
        return "cpu", ("",) * (slots or 1)
    if slots is not None and slots > len(found):
        raise SpecError(f"--slots {slots}: this machine has {len(found)} GPUs, and each runs one job at a time")
    return "cuda", tuple(found[:slots])


def _administered(
    database: "Database", add_user: str | None, days: float, revoke: str | None, users: bool, backup: Path | None
) -> bool:
    """Does what an option about users or a backup asks for. False if there was no such option."""
    from gdnspec.server.database import StorageError

    try:
        if add_user is not None:
            _add(database, add_user, days)
        elif revoke is not None:
            _revoke(database, revoke)
        elif users:
            _list(database)
        elif backup is not None:
            if os.path.lexists(backup):
                raise SpecError([Problem(backup, "exists already", hint="name another file")])
            database.backup(backup)
            say(f"{backup}: {backup.stat().st_size:,} bytes")
        else:
            return False
    except StorageError as error:
        raise SpecError(str(error)) from None
    return True


def _add(database: "Database", user: str, days: float) -> None:
    from gdnspec.server.tokens import Tokens, UserExists

    if not USER.fullmatch(user):
        raise SpecError(
            f"invalid user name {user!r}: use at most 39 lower-case letters, digits, '.', '_' and '-', and start with "
            "a letter or digit"
        )
    try:
        token = Tokens(database).add(user, days)
    except UserExists:
        raise SpecError(f"{user} has a valid token: to replace it, first run gdnspec serve --revoke {user}") from None
    complain(f"the token of {user}, valid for {days:g} days; it is not shown again:")
    say(token)


def _revoke(database: "Database", user: str) -> None:
    from gdnspec.server.tokens import Tokens

    if not Tokens(database).revoke(user):
        raise SpecError(f"{user} has no valid token: see gdnspec serve --users")
    say(f"revoked: the token of {user}")


def _list(database: "Database") -> None:
    import time

    from gdnspec.server.jobs import moment
    from gdnspec.server.tokens import Tokens

    rows = table("", "user", "token", "made", "expires")
    now = time.time()
    for row in Tokens(database).listed():
        rows.add_row(row.user, row.state(now), moment(row.created)[:10], moment(row.expires)[:10])
    print_table(rows)
