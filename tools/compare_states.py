"""Compares two states of the tree: does every workload line draw the same tensors and keep its budget?

    python tools/compare_states.py fb7edf8                     every line that a CPU can draw, by sha256
    python tools/compare_states.py fb7edf8 --suite smoke       some of them
    python tools/compare_states.py fb7edf8 --no-draw           what the lines say, and the hash of each definition

Each state runs with its own tools, in a process of its own. Exit code 1 where a line of before is missing or
differs. Lines that are new are counted.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Only what both states have: these three names have not moved.
PROBE = """
import json, sys
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.materialise import InvalidWorkload, materialise
draw, suites = json.loads(sys.argv[1])
for name, found in definitions().items():
    for line in workloads(found):
        if suites and line.suite not in suites:
            continue
        said = {"budget": line.model_dump(mode="json")["budget"], "sha256": line.sha256, "axes": line.axes}
        if draw and line.device != "cuda" and line.suite != "performance" and line.sha256 is not None:
            try:
                said["drawn"] = materialise(found, line.model_copy(update={"sha256": None})).sha256
            except InvalidWorkload as error:
                said["drawn"] = str(error)
        print(json.dumps([name, line.name, said]), flush=True)
"""


def lines(tree: Path, draw: bool, suites: list[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """What each workload line says, and the hash of what it draws, by definition and name."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "tools"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", PROBE, json.dumps([draw, suites])]
    done = subprocess.run(words, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return {(definition, name): said for definition, name, said in map(json.loads, done.stdout.splitlines())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="the state before, as git names it")
    parser.add_argument("--suite", action="append", default=[], help="only this suite; repeatable")
    parser.add_argument("--no-draw", action="store_true", help="compare what the lines say, draw nothing")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gdnspec-before-") as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, asked.revision], cwd=ROOT, check=True)
        try:
            before = lines(tree, not asked.no_draw, asked.suite)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    after = lines(ROOT, not asked.no_draw, asked.suite)
    lost = [key for key in before if key not in after]
    moved = [
        (key, part) for key in before if key in after for part in before[key] if before[key][part] != after[key][part]
    ]
    for definition, name in lost:
        print(f"missing: {definition}/{name}")
    for (definition, name), part in moved:
        print(f"differs: {definition}/{name}: {part}")
    drawn = sum("drawn" in said for said in before.values())
    print(
        f"{len(before)} lines before, {len(after)} now, {drawn} drawn in both: {len(lost)} missing, {len(moved)} differ"
    )
    return 1 if lost or moved else 0


if __name__ == "__main__":
    sys.exit(main())
