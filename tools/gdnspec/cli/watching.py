"""The option --watch: waits until a source of a solution changes."""

import time
from collections.abc import Iterable
from pathlib import Path

from gdnspec.catalog.solutions import MANIFEST, Solution

SECONDS = 0.25  # between two looks at the files


def sources(solutions: Iterable[Solution]) -> list[Path]:
    """The files that a verdict on these solutions depends on."""
    return [one.folder / name for one in solutions for name in (MANIFEST, *one.manifest.sources)]


def state(files: list[Path]) -> list[tuple[int, int] | None]:
    """What changes with a file; None for one that is not there."""
    found: list[tuple[int, int] | None] = []
    for file in files:
        try:
            about = file.stat()
        except OSError:
            found.append(None)
        else:
            found.append((about.st_mtime_ns, about.st_size))
    return found


def changed(files: list[Path], before: list[tuple[int, int] | None]) -> None:
    """Returns when a file differs from `before` and has stopped changing: an editor may write in several steps."""
    now = state(files)
    while now == before:
        time.sleep(SECONDS)
        now = state(files)
    while True:
        time.sleep(SECONDS)
        later = state(files)
        if later == now:
            return
        now = later
