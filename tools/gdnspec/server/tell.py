"""Messages of a server on stderr."""

import contextlib
import sys


def tell(text: str) -> None:
    """Prints one line on stderr. If this fails, on a full disk for example, the server goes on."""
    with contextlib.suppress(OSError, ValueError):
        print(f"gdnspec: {text}", file=sys.stderr, flush=True)
