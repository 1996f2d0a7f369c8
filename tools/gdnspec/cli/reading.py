"""For commands that only read files."""

import gc


def keep_all() -> None:
    """Turns garbage collection off: everything that is read stays in use, and scanning it takes a fifth of the time."""
    gc.disable()
