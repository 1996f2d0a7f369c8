"""What a server says to whoever runs it."""

import contextlib
import sys


def tell(text: str) -> None:
    """One line on stderr. Where that cannot be written, a full disk for example, the server goes on without it."""
    with contextlib.suppress(OSError, ValueError):
        print(f"gdnspec: {text}", file=sys.stderr, flush=True)
