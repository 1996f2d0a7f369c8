"""python -m gdnspec.worker FD: serves one solution on the socket FD until it is told to stop."""

import socket
import sys

from gdnspec.protocol.channel import Channel
from gdnspec.worker.serve import serve


def main() -> None:
    channel = Channel(socket.socket(fileno=int(sys.argv[1])), accept_fds=True)
    serve(channel)


main()
