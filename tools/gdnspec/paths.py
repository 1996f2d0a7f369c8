"""Where things are: the data that the package reads, and the folders it may write to.

An editable install reads the checkout; a wheel carries the same folders inside the package.
"""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
_PACKED = PACKAGE / "data"


def data_root() -> Path:
    """The folder that holds definitions/, reference/, solutions/ and tests/."""
    return _PACKED if _PACKED.is_dir() else PACKAGE.parents[1]


def definitions_dir() -> Path:
    return data_root() / "definitions"


def solutions_dir() -> Path:
    return data_root() / "solutions"


def peers_dir() -> Path:
    """Other libraries as solutions: adapters to their public functions, run where they are named."""
    return data_root() / "peers"


def known_bad_dir() -> Path:
    """A folder for each family: wrong and cheating solutions, all of which must be rejected."""
    return known_bad_below(data_root())


def known_bad_below(root: Path) -> Path:
    """The same beside the definitions of other families."""
    return root / "tests" / "known_bad"


def honest_dir() -> Path:
    """Right solutions in the arithmetic of tensor cores, every one of which must pass with a margin."""
    return data_root() / "tests" / "honest"


def cache_dir() -> Path:
    """$GDNSPEC_CACHE, else $XDG_CACHE_HOME/gdnspec, else ~/.cache/gdnspec. Not created here."""
    if explicit := os.environ.get("GDNSPEC_CACHE"):
        return Path(explicit).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gdnspec"


def state_dir() -> Path:
    """What is no cache: $XDG_STATE_HOME/gdnspec, else ~/.local/state/gdnspec. Not created here."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "gdnspec"


def expected_cache() -> Path:
    """Expected values: written by the judge alone, closed to the solutions it judges."""
    return cache_dir() / "expected"


def faults_cache() -> Path:
    """Rows of the tables of wrong solutions, written out as solutions; one folder a content."""
    return cache_dir() / "faults"


def build_cache(source_hash: str) -> Path:
    """What a solution's build leaves behind; one folder a source, so that none can poison another's."""
    return cache_dir() / "build" / source_hash[:24]


def shown(path: Path) -> str:
    """A path as a person wants to read it: relative to the current folder where it lies below it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError, RuntimeError):  # RuntimeError: a loop of links
        return str(path)
