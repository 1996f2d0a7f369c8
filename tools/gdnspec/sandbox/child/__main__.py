"""python -m gdnspec.sandbox.child FD: serves one solution on the socket FD until the parent tells it to stop.

It confines itself before it imports anything that starts a thread: Landlock applies to the thread that asks for it and
to the threads that this one starts later, but not to threads that exist already.
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

    gc.disable()  # importing torch makes no garbage, and looking for it takes a tenth of the time
    from gdnspec.sandbox.child.loop import serve

    gc.enable()
    serve(channel, hello, isolation)
    if hello["device"] == "cpu":
        # Exit at once: nothing is left to do, and unloading torch would take a third of a second.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


main()
