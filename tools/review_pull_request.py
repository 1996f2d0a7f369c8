"""Judges the solutions that a branch adds or changes, with the tools, definitions and workloads that it is based on.

    python tools/review_pull_request.py main               this branch, before it is sent
    python tools/review_pull_request.py BASE --head SHA    as .github/workflows/solutions.yml calls it

Each solution is validated, submitted and taken in, in a checkout of BASE: a branch does not bring its own judge. A
solution with a symbolic link is refused. What the branch changes elsewhere is not looked at. Exit codes are those of
gdnspec, of the worst solution.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "solutions"
MANIFEST = "solution.json"
PLAIN = ("100644", "100755")  # of git's modes


def git(*arguments: str) -> bytes:
    """What git says; ends the program where it fails."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True)
    if done.returncode != 0:
        sys.exit(f"review: git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def listed(commit: str, path: str) -> Iterator[tuple[str, str]]:
    """Each file under a path: its mode and its own path."""
    for entry in filter(None, git("ls-tree", "-r", "-z", commit, "--", path).decode(errors="replace").split("\0")):
        about, _, name = entry.partition("\t")
        yield about.split(" ")[0], name


def changed(base: str, head: str) -> list[str]:
    """The names of the solutions in which anything differs."""
    names = git("diff", "--name-only", "-z", base, head, "--", FOLDER + "/").decode(errors="replace").split("\0")
    return sorted({name.split("/")[1] for name in names if name.count("/") >= 2})


def extract(commit: str, name: str, target: Path) -> bool:
    """A solution's folder as it is at a commit; False where it is not there. Refuses what is no plain file."""
    for mode, path in listed(commit, f"{FOLDER}/{name}/"):
        if mode not in PLAIN:
            sys.exit(f"review: {path}: a symbolic link or a repository: a solution is made of plain files")
        file = target / Path(path).relative_to(FOLDER)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(git("cat-file", "blob", f"{commit}:{path}"))
    return (target / name / MANIFEST).is_file()


def gdnspec(checkout: Path, *arguments: str | Path) -> int:
    """Runs a command of the base's own gdnspec."""
    words = ["gdnspec", *map(str, arguments)]
    print("$ " + " ".join(words), flush=True)
    environment = {**os.environ, "PYTHONPATH": str(checkout / "tools")}
    return subprocess.run([sys.executable, "-P", "-m", *words], env=environment, cwd=checkout).returncode


def review(name: str, checkout: Path, mine: Path) -> int:
    """The exit code of the first command that does not pass."""
    shutil.rmtree(checkout / FOLDER / name, ignore_errors=True)  # an altered solution is taken in like a new one
    bundle = mine / f"{name}.bundle.tar"
    return (
        gdnspec(checkout, "validate", mine / name)
        or gdnspec(checkout, "submit", name, "--solutions-dir", mine / name, "-o", bundle)
        or gdnspec(checkout, "intake", bundle)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("base", help="the branch or commit that the change is meant for")
    parser.add_argument("--head", default="HEAD", help="the commit to be judged")
    given = parser.parse_args()
    head = git("rev-parse", "--verify", f"{given.head}^{{commit}}").decode().strip()
    base = git("merge-base", given.base, head).decode().strip()
    names = changed(base, head)
    if not names:
        print("no solution is changed")
        return 0
    codes = {}
    with tempfile.TemporaryDirectory(prefix="gdnspec-review-") as folder:
        checkout, mine = Path(folder) / "base", Path(folder) / "head"
        git("worktree", "add", "--detach", str(checkout), base)
        try:
            for name in names:
                if extract(head, name, mine):
                    codes[name] = review(name, checkout, mine)
                else:
                    print(f"{FOLDER}/{name}: no {MANIFEST} any more: nothing to judge")
        finally:
            git("worktree", "remove", "--force", str(checkout))
    for name, code in codes.items():
        print(f"{name}: {'accepted' if code == 0 else f'not accepted, exit code {code}'}")
    return max(codes.values(), default=0)


if __name__ == "__main__":
    sys.exit(main())
