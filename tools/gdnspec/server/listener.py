"""Run a server: open its socket, start application and slots, and end them."""

import resource
import signal
import socket

import uvicorn

from gdnspec.model.errors import SpecError
from gdnspec.server.app import make_app
from gdnspec.server.connections import MOST_LINGERING, Connections, protocol
from gdnspec.server.database import Database
from gdnspec.server.gpu_slots import Slots
from gdnspec.server.queue import Queue
from gdnspec.server.retention import Retention
from gdnspec.server.settings import Settings
from gdnspec.server.tell import tell
from gdnspec.server.tokens import DAY

FILES = 512  # descriptors that are not connections: databases of threads, uploads, jobs
LEAST_CONNECTIONS = 16
KEEP_ALIVE = 5  # seconds between two requests on one connection
BACKLOG = 1024
FAREWELL = 3  # seconds that open streams have at the end


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens on the address. Raises `SpecError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(BACKLOG)  # connections wait from now on, and are answered when the application runs
    except OSError as error:
        raise SpecError(f"{host} port {port}: {error.strerror} (--host, --port)") from None
    return found


def _as_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def descriptors(connections: int) -> int:
    """Raises this process's limit of open files, and returns how many connections it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + MOST_LINGERING + FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    found = max(LEAST_CONNECTIONS, min(connections, wanted - MOST_LINGERING - FILES))
    if found < connections:
        tell(f"{found} connections at a time, not {connections}: raise the limit of open files, {hard} (ulimit -Hn)")
    return found


def serve(database: Database, settings: Settings, address: socket.socket) -> None:
    """Serves until SIGINT or SIGTERM. Jobs that run then go back to the queue."""
    connections = Connections(descriptors(settings.connections), settings.address_connections)
    slots = Slots(Queue(database, settings.lease), settings)
    retention = Retention(database, settings.keep_bundles * DAY)
    signal.signal(signal.SIGTERM, _as_interrupt)  # which uvicorn raises again when it has ended
    slots.start()
    retention.start()
    config = uvicorn.Config(
        make_app(database, settings), log_level="warning", access_log=False, server_header=False, lifespan="off",
        timeout_graceful_shutdown=FAREWELL, backlog=BACKLOG, timeout_keep_alive=KEEP_ALIVE, ws="none",
        http=protocol(connections, settings.request_seconds),
    )  # fmt: skip
    try:
        uvicorn.Server(config).run(sockets=[address])
    except KeyboardInterrupt:
        tell("ending; running jobs go back to the queue")
    finally:
        retention.stop()
        slots.stop()
