"""Problems in files, described so that a user can fix them: file, place in it, message, hint."""

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gdnspec import paths

NEAR = "did you mean"  # the start of a hint that suggests one name
# What runs kernels. Whatever only reads files works without.
RUNNING = ("torch", "triton", "numpy", "safetensors")
INSTALL = "pip install 'gdnspec[run]', or first the torch for your CUDA version from pytorch.org"
MOST_NAMED = 12
_PARTS = re.compile(r"[-_:/ ]")  # between the parts of names
LONGEST = 1500  # characters of a message: a file may contain a key of a megabyte


@dataclass(frozen=True)
class Problem:
    """One problem. `place` is a JSON pointer, or `line 3` / `line 3: /axes` in a JSONL file."""

    file: Path
    message: str
    place: str = ""
    hint: str = ""

    def __str__(self) -> str:
        where = paths.shown(self.file) + (f": {_clipped(self.place)}" if self.place else "")
        return visible(f"{where}: {_clipped(self.message)}" + (f" ({_clipped(self.hint)})" if self.hint else ""))


def _clipped(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def visible(text: str) -> str:
    """The text as one printable line. It may quote a file, whose control characters must not reach a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def json_pointer(*parts: object) -> str:
    """The JSON pointer made of these keys and indices."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


class SpecError(Exception):
    """One or more problems in the files or in the request; the command ends with exit code 2."""

    def __init__(self, problems: Iterable[Problem] | str) -> None:
        self.problems = [] if isinstance(problems, str) else list(problems)
        super().__init__(problems if isinstance(problems, str) else "\n".join(map(str, self.problems)))


class NotInstalled(SpecError):
    """A package that is missing; the command ends with exit code 3. The message says how to install it."""


class PlacedError(ValueError):
    """A problem found by a model's validator. `pointer` is relative to the place of the model."""

    def __init__(self, pointer: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.pointer, self.message, self.hint = pointer, message, hint


class RegimeError(ValueError):
    """A regime that a definition cannot express."""


def nearest(word: str, valid: Iterable[str]) -> str:
    """`did you mean X?`, `did you mean one of X, Y?`, or the list of valid names if none is similar."""
    names = sorted(set(valid))
    same = [name for name in names if name.casefold() == word.casefold()]
    fuller = same or [name for name in names if _left_out(word, name)]
    fuller.sort(key=lambda name: not name.casefold().startswith(word.casefold()))
    if 1 < len(fuller) <= MOST_NAMED:
        return f"{NEAR} one of {', '.join(fuller)}?"
    near = fuller[0] if fuller else similar(word, names)
    if near is not None and len(fuller) < 2:
        return f"{NEAR} {near!r}?"
    names = fuller or names
    listed = ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")
    return f"valid: {listed}" if names else "there are none"


def near_ones(word: str, valid: Iterable[str], all_shown: str) -> str:
    """Like `nearest` where there are hundreds of names: the few that look the most like the word, and then what shows
    all of them."""
    names = sorted(set(valid))
    hint = nearest(word, names)
    if hint.startswith(NEAR):
        return f"{hint} {all_shown}"
    fuller = [name for name in names if _left_out(word, name)]
    return f"the nearest: {', '.join(difflib.get_close_matches(word, fuller or names, n=3, cutoff=0))}; {all_shown}"


def similar(word: str, valid: Iterable[str]) -> str | None:
    """The name that looks the most like a misspelt word, in whichever case; None if none does."""
    names = sorted(set(valid))
    near = difflib.get_close_matches(word.casefold(), {name.casefold() for name in names}, n=1, cutoff=0.6)
    alike = [name for name in names if name.casefold() in near]
    return max(alike, key=lambda name: difflib.SequenceMatcher(None, word, name).ratio(), default=None)


def _left_out(word: str, name: str) -> bool:
    """Whether the word is the name without some of its parts: `qwen3-next-tp4` for `qwen3-next-80b-a3b-tp4`."""
    rest = iter(_PARTS.split(name.casefold()))
    return word != "" and all(part in rest for part in _PARTS.split(word.casefold()))  # each `in` takes what it passes


@contextlib.contextmanager
def installed(what: str) -> Iterator[None]:
    """Says what to install if an import inside finds that a package that runs kernels is missing. `what` needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in RUNNING:
            raise
        message = f"{what} needs {error.name}, which is not installed: {INSTALL}"
        raise ModuleNotFoundError(message, name=error.name) from None
