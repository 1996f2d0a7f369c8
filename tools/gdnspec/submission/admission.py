"""Unpack a bundle's solution to judge it, and copy it into the folder of solutions, completely or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gdnspec.catalog.solutions import MANIFEST, Solution, load_solution, solutions, traces_below
from gdnspec.catalog.trace_check import check_traces
from gdnspec.catalog.writing import require_folder
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.trace import Trace
from gdnspec.submission.bundle import Bundle
from gdnspec.submission.evidence import line


def refuse_taken(name: str, into: Path) -> None:
    """Raises `SpecError` if a solution already has this name, or if there is no folder `into`."""
    if not into.is_dir():
        raise SpecError([Problem(into, "no such folder", hint="--into DIR")])
    require_folder(into, "--into DIR")
    if os.path.lexists(into / name):
        raise SpecError(
            [Problem(into / name, "the name is taken", hint="rename the solution, or name another folder with --into")]
        )
    known = solutions()[0].get(name)
    if known is not None:
        raise SpecError([Problem(known.folder / MANIFEST, f"this solution already has the name {name!r}", "/name")])


@contextlib.contextmanager
def unpacked(bundle: Bundle) -> Iterator[Solution]:
    """The solution, unpacked into a temporary folder and validated. Raises `SpecError`."""
    with tempfile.TemporaryDirectory(prefix="gdnspec-intake-") as folder:
        yield load_solution(_write(bundle, Path(folder)))


def admit(bundle: Bundle, traces: list[Trace], into: Path) -> Path:
    """Copies the solution into `into`, with traces that were measured here, and returns its folder. The folder appears
    in one step. Raises `SpecError`."""
    target = into / bundle.solution.name
    try:
        # Inside `into`, because a rename must stay within one file system, but too deep to be found as a solution.
        with tempfile.TemporaryDirectory(prefix=".intake-", dir=into) as stage:
            folder = _write(bundle, Path(stage))
            for name, device in sorted({(trace.solution, trace.device) for trace in traces}):
                file = traces_below(folder, name.partition(":")[2] or None) / f"{device}.jsonl"
                file.parent.mkdir(parents=True, exist_ok=True)
                mine = [trace for trace in traces if (trace.solution, trace.device) == (name, device)]
                file.write_text("".join(map(line, mine)))
                check_traces(file)
            _settle(folder)
            if os.path.lexists(target):
                raise SpecError(
                    [
                        Problem(
                            target, "the name is taken", hint="rename the solution, or name another folder with --into"
                        )
                    ]
                )
            folder.rename(target)
    except OSError as error:
        shown = error.strerror or str(error)
        raise SpecError(
            [Problem(target, f"cannot be written: {shown}; nothing was changed", hint="--into DIR")]
        ) from None
    return target


def _write(bundle: Bundle, root: Path) -> Path:
    folder = root / bundle.solution.name
    for name, data in bundle.folder.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return folder


def _settle(folder: Path) -> None:
    """Writes the folder to disk before it gets its name, and makes it readable by all, as in a checkout."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
