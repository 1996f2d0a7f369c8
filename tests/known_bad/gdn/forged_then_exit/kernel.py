"""Cheats on purpose. Says that it is done in the worker's name, and ends the process."""

import json
import os
import stat
import sys


def run(output, new_state, **inputs):
    """The message and no work."""
    say_done()
    os._exit(0)


def say_done():
    """Writes the worker's reply to the request that it is serving into the worker's socket."""
    frame = sys._getframe()
    while frame is not None and "id" not in (frame.f_locals.get("message") or ()):
        frame = frame.f_back
    number = frame.f_locals["message"]["id"] if frame else 2
    reply = {"op": "done", "id": number, "returned": None, "seconds": 1e-6, "prepare_seconds": None}
    for fd in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                os.write(fd, json.dumps(reply).encode() + b"\n")
        except OSError:
            continue
