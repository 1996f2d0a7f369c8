"""A solution as it was at a commit, read from git's store: nothing is checked out."""

import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gdnspec.catalog.solutions import MANIFEST, source_hash
from gdnspec.catalog.traces import TRACES
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import build, parse_json
from gdnspec.model.solution import Manifest

GIT_SECONDS = 30
MOST_COMMITS = 1000


def resolve(folder: Path, word: str) -> str | None:
    """The hash of the commit that a word names in the folder's repository; None where it names none, or there is no
    repository."""
    if word.startswith("-"):
        return None
    done = _git(folder, "rev-parse", "--verify", "--quiet", f"{word}^{{commit}}")
    return done.stdout.decode().strip() if done.returncode == 0 else None


@dataclass(frozen=True)
class Past:
    """The folder of a solution at a commit. `label` is what messages call it."""

    folder: Path
    commit: str
    label: str

    def named(self, name: str) -> Path:
        """What a message calls one of its files."""
        return Path(self.label) / name

    def read(self, name: str) -> bytes:
        """A file of it; raises `SpecError` where there was none."""
        done = _git(self.folder, "cat-file", "blob", f"{self.commit}:./{name}")
        if done.returncode != 0:
            raise SpecError([Problem(self.named(name), "no such file at that commit")])
        return done.stdout

    def traces(self) -> list[str]:
        """The names of its trace files, below its folder."""
        done = _git(self.folder, "ls-tree", "-z", "--name-only", self.commit, f"{TRACES}/")
        return sorted(name for name in done.stdout.decode(errors="replace").split("\0") if name.endswith(".jsonl"))

    @cached_property
    def source_hash(self) -> str:
        """As `Solution.source_hash`, of its sources then."""
        file = self.named(MANIFEST)
        return source_hash(build(Manifest, parse_json(self.text(MANIFEST), file), file), self.read)

    def text(self, name: str) -> str:
        """As `read`, of a file of text."""
        try:
            return self.read(name).decode()
        except UnicodeDecodeError as error:
            raise SpecError([Problem(self.named(name), f"not UTF-8 text: {error.reason}")]) from None


def measured_at(folder: Path, source_hash: str) -> Past | None:
    """The solution of a folder at the last commit at which its sources had this hash; None where it never had, or there
    is no repository."""
    done = _git(folder, "log", f"-{MOST_COMMITS}", "--format=%H", "--", ".")
    for commit in done.stdout.decode().split():
        past = Past(folder, commit, f"{folder.name}@{commit[:12]}")
        try:
            if past.source_hash == source_hash:
                return past
        except SpecError:
            continue  # it was no solution yet
    return None


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, timeout=GIT_SECONDS)
    except FileNotFoundError:
        raise SpecError("git is not installed: a solution at a commit cannot be read") from None
    except subprocess.TimeoutExpired:
        raise SpecError(f"git did not answer within {GIT_SECONDS} s") from None
