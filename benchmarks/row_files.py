"""What the scripts that time rows share: what a line of their files was made with, reading such files, and options that
are refused before anything is measured. Needs no GPU."""

import argparse
import json
import math
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

Record = dict[str, Any]  # a row on a device: a line of the file that --json writes
PACKAGES = ("torch", "triton", "flash-qla", "tilelang", "flashinfer-python", "fla-core", "attn-gym", "gdnspec")


@cache
def made_with() -> Record:
    """The versions of what is installed, and the commit of these files; an empty one if they are in no repository."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=8", "HEAD"]
    return {"versions": versions, "commit": subprocess.run(git, capture_output=True, text=True).stdout.strip()}


def said_with(found: Record) -> str:
    """The same in one line; empty for a record of before it was kept."""
    commit = [f"commit {found['commit']}"] if found.get("commit") else []
    return ", ".join([*commit, *(f"{name} {version}" for name, version in found.get("versions", {}).items())])


def shown(parser: argparse.ArgumentParser, files: Iterable[Path], keys: Iterable[str]) -> list[Record]:
    """The lines of files that --json wrote. Ends with an error for a file that is none."""
    records: list[Record] = []
    for file in files:
        if not file.is_file():
            parser.error(f"--show: there is no file {file}; --json writes one")
        for number, text in enumerate(file.read_text(errors="replace").splitlines(), 1):
            try:
                found = json.loads(text)
            except ValueError:
                found = None
            lacking = [key for key in keys if not isinstance(found, dict) or key not in found]
            if lacking:
                parser.error(
                    f"--show: line {number} of {file} is none that --json of this script wrote: no {lacking[0]!r}"
                )
            records.append(found)
    if not records:
        parser.error(f"--show: nothing was measured in {', '.join(map(str, files))}")
    return records


def refuse(parser: argparse.ArgumentParser, options: argparse.Namespace, folders: Iterable[Path]) -> None:
    """Ends with an error for options that would end a run later, perhaps after minutes. `folders`: of solutions."""
    file = options.json
    if file is not None and not file.absolute().parent.is_dir():
        parser.error(f"--json: there is no folder {file.parent}: make it first")
    decay = getattr(options, "decay", 0.0)
    if not (math.isfinite(decay) and decay >= 0):
        parser.error(f"--decay: {decay:g} is none; give 0 or more")
    for folder in folders:
        if not (folder / "solution.json").is_file():
            parser.error(f"{folder.name} is no solution: there is no {folder / 'solution.json'}")
