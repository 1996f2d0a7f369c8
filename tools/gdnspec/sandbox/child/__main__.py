"""python -m gdnspec.sandbox.child FD: serves one solution on the socket FD until it is told to stop.

It shuts itself in before it imports anything that starts a thread: Landlock binds the thread that asks for it and what
that thread starts, never a thread that was there before.
"""

import gc
import os
import socket
import sys

from gdnspec.sandbox.child.isolation import shut_in
from gdnspec.sandbox.wire.channel import Channel
from gdnspec.sandbox.wire.lifetime import die_with_parent


def main() -> None:
    channel = Channel(socket.socket(fileno=int(sys.argv[1])), accept_fds=True)
    die_with_parent()
    hello, _ = channel.receive()
    isolation = shut_in(hello, channel.close)

    gc.disable()  # there is no garbage in what torch loads, and looking for it takes a tenth of the time
    from gdnspec.sandbox.child.loop import serve

    gc.enable()
    serve(channel, hello, isolation)
    if hello["device"] == "cpu":
        # At once: nothing is left to be said, and the interpreter would take a third of a second to take torch down.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


main()
