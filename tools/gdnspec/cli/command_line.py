"""The command that a trace names, so that others can run it again."""

import shlex
import sys


def command_line() -> str:
    """This command without --json, which changes no figure and names a path of this machine."""
    words = iter(["gdnspec", *sys.argv[1:]])
    return shlex.join(
        word for word in words if not word.startswith("--json=") and (word != "--json" or not next(words, ""))
    )
