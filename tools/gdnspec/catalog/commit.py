"""Reads a solution as it was at a commit from git's object store, without checking anything out."""

import contextlib
import subprocess
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from gdnspec.catalog.earlier import EARLIER
from gdnspec.catalog.solutions import MANIFEST, source_hash, traces_below
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import build, parse_json
from gdnspec.model.solution import Manifest

GIT_SECONDS = 30
MOST_COMMITS = 1000


def resolve(folder: Path, word: str) -> str | None:
    """The hash of the commit that `word` names in the repository of `folder`, or None."""
    if word.startswith("-"):
        return None
    done = _git(folder, "rev-parse", "--verify", "--quiet", f"{word}^{{commit}}")
    return done.stdout.decode().strip() if done.returncode == 0 else None


@dataclass(frozen=True)
class Past:
    """The folder of a solution at a commit. The folder need not exist today. `label`: its name in messages.
    `manifest_file`: the manifest in use, which may be an earlier one that was kept beside those sources."""

    folder: Path
    commit: str
    label: str
    variant: str | None = None
    manifest_file: str = MANIFEST

    def named(self, name: str) -> Path:
        """The name of one of its files in messages."""
        return Path(self.label) / name

    def read(self, name: str) -> bytes:
        """The content of one of its files. Raises `SpecError` if it does not exist at that commit."""
        file = self.manifest_file if name == MANIFEST else name
        wanted = f"{self.commit}:./{self.folder.name}/{file}\n"
        # Links are followed: old versions of a solution may have links to files of a neighbour.
        done = _git(self.folder.parent, "cat-file", "--batch", "--follow-symlinks", asked=wanted.encode())
        header, _, content = done.stdout.partition(b"\n")
        if done.returncode != 0 or header.split()[1:2] != [b"blob"]:
            raise SpecError([Problem(self.named(name), "no such file at that commit")])
        return content[: int(header.split()[2])]

    def traces(self) -> list[str]:
        """The names of its trace files, relative to its folder."""
        return self._names(traces_below(Path(), self.variant), ".jsonl")

    def _names(self, below: Path, ending: str) -> list[str]:
        where = f"{Path(self.folder.name) / below}/"
        done = _git(self.folder.parent, "ls-tree", "-z", "--name-only", self.commit, where)
        names = done.stdout.decode(errors="replace").split("\0")
        return sorted(name.removeprefix(f"{self.folder.name}/") for name in names if name.endswith(ending))

    def as_measured(self, source_hash: str) -> "Past | None":
        """The same sources with the manifest that gives this hash: the one of the commit, or one that was kept. None if
        no manifest gives it."""
        for file in (MANIFEST, *self._names(EARLIER, ".json")):
            past = replace(self, manifest_file=file)
            with contextlib.suppress(SpecError):  # an invalid manifest proves nothing
                if past.source_hash == source_hash:
                    return past
        return None

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest at that commit, as the variant if there is one. Raises `SpecError` if there was none."""
        file = self.named(MANIFEST)
        found = build(Manifest, parse_json(self.text(MANIFEST), file), file)
        if self.variant is None:
            return found
        if self.variant not in found.variants:
            raise SpecError([Problem(file, f"no variant {self.variant!r} at that commit", "/variants")])
        return found.as_variant(self.variant)

    @cached_property
    def source_hash(self) -> str:
        """Like `Solution.source_hash`, for the sources at that commit."""
        return source_hash(self.manifest, self.read, self.variant)

    def text(self, name: str) -> str:
        """Like `read`, for a text file."""
        try:
            return self.read(name).decode()
        except UnicodeDecodeError as error:
            raise SpecError([Problem(self.named(name), f"not UTF-8 text: {error.reason}")]) from None


def commits_of(folder: Path) -> list[str]:
    """The commits that changed a folder, newest first. The folder need not exist today."""
    done = _git(folder.parent, "log", f"-{MOST_COMMITS}", "--format=%H", "--", folder.name)
    return done.stdout.decode().split()


def last_state(folder: Path, variant: str | None = None) -> Past | None:
    """The solution in a folder at the newest commit that has it; None if no commit has it or there is no repository."""
    # If the newest commit that touched the folder removed it, the commit before has the last state.
    for word in ("HEAD", *(word for commit in commits_of(folder) for word in (commit, f"{commit}^"))):
        found = resolve(folder.parent, word)
        if found is None:
            continue
        past = Past(folder, found, f"{folder.name}@{found[:12]}", variant)
        with contextlib.suppress(SpecError):
            past.read(MANIFEST)
            return past
    return None


def measured_at(folder: Path, source_hash: str, variant: str | None = None) -> Past | None:
    """The solution in a folder at the newest commit at which its sources had this hash; None if there is no such commit
    or no repository."""
    for commit in commits_of(folder):
        past = Past(folder, commit, f"{folder.name}@{commit[:12]}", variant)
        try:
            if past.source_hash == source_hash:
                return past
        except SpecError:
            continue  # the folder was not yet a valid solution
    return None


def _git(folder: Path, *arguments: str, asked: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, input=asked, capture_output=True, timeout=GIT_SECONDS)
    except FileNotFoundError:
        raise SpecError("cannot read a solution at a commit: git is not installed") from None
    except subprocess.TimeoutExpired:
        raise SpecError(f"git did not answer within {GIT_SECONDS} s") from None
