"""A server: the application, the slots, and their end."""

import signal
import socket
import sys

import uvicorn

from gdnspec.model.errors import SpecError
from gdnspec.service.app import make_app
from gdnspec.service.database import Database
from gdnspec.service.queue import Queue
from gdnspec.service.retention import Retention
from gdnspec.service.settings import Settings
from gdnspec.service.slots import Slots
from gdnspec.service.tokens import DAY

MOST_CONNECTIONS = 1000
BACKLOG = 1024
FAREWELL = 3  # seconds that open streams have


def listening(host: str, port: int) -> socket.socket:
    """A socket of that address. Raises `SpecError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(BACKLOG)  # who asks from now on waits for an answer
    except OSError as error:
        raise SpecError(f"{host} port {port}: {error.strerror} (--host, --port)") from None
    return found


def _as_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def serve(database: Database, settings: Settings, address: socket.socket) -> None:
    """Until SIGINT or SIGTERM; what runs then waits for the next server."""
    slots = Slots(Queue(database, settings.lease), settings)
    retention = Retention(database, settings.keep_bundles * DAY)
    signal.signal(signal.SIGTERM, _as_interrupt)  # which uvicorn raises again when it has ended
    slots.start()
    retention.start()
    config = uvicorn.Config(
        make_app(database, settings), log_level="warning", access_log=False, server_header=False, lifespan="off",
        limit_concurrency=MOST_CONNECTIONS, timeout_graceful_shutdown=FAREWELL, backlog=BACKLOG,
    )  # fmt: skip
    try:
        uvicorn.Server(config).run(sockets=[address])
    except KeyboardInterrupt:
        print("gdnspec: ending; jobs that run wait for the next server", file=sys.stderr, flush=True)
    finally:
        retention.stop()
        slots.stop()
