"""Asks every solution, variant and peer that runs on a device whether it keeps the bits of a sequence in other batches.

    python benchmarks/invariance_rows.py --results DIR --save FILE.json [--device cuda] [--seconds 220] [--jobs 16]
                                         [--only NAME ..] [--without NAME ..] [--traces]

Runs `gdnspec check .. --invariance` on the smoke suite, many at a time: one process for a kernel in CUDA, which is
built once, and one for each definition of the others. Where a solution supports no smoke row, the conformance suite is
asked. DIR gets what each process printed and its results. FILE gets all of it: `invariance_table.py --show FILE` makes
the table. What has not answered in time is in the file without an answer. --only and --without choose by name, without
its variant. --traces keeps the answers in the solutions' traces as well, from which lists, reports and the page of each
take their badges. Prints the table.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.solutions import Solution, solutions
from invariance_table import Found, from_results, of_present_sources, save, table

# What takes long begins first: builds of CUDA, then gradients, then whatever has sequences.
STAGES = ("backward", "chunk_stage", "layer", "prefill")
LAST_SECONDS = 5  # a process that begins later than that answers nothing


def on_device(device: str, only: Iterable[str], without: Iterable[str]) -> list[Solution]:
    """The solutions, variants and peers that run there. Plain PyTorch is nobody's kernel, and left out on a GPU."""
    wanted, unwanted = set(only), set(without)
    found = []
    for one in solutions()[0].values():
        runs = one.manifest.requires.device in ("any", device)
        plain = device == "cuda" and one.manifest.language == "python" and not one.is_peer
        named = one.manifest.name in wanted if wanted else not plain
        if runs and named and one.manifest.name not in unwanted:
            found.append(one)
    return found


def tasks(chosen: Iterable[Solution]) -> Iterator[tuple[Solution, list[str]]]:
    """A solution and the definitions that one process asks it, in the order in which they begin."""
    made = []
    for solution in chosen:
        served = [name for name in solution.manifest.entries if name in definitions()]
        if solution.manifest.language == "cuda":
            made.append((0, solution, served))
            continue
        for name in served:
            stage = definitions()[name].definition.stage
            rank = STAGES.index(stage) if stage in STAGES else len(STAGES)
            made.append((1 + rank, solution, [name]))
    for _, solution, names in sorted(made, key=lambda one: one[0]):
        yield solution, names


class Asking:
    """Asks one task after another until `until`, on the monotonic clock. `results`: where files go. `keep`: whether
    answers become traces."""

    def __init__(self, results: Path, device: str, until: float, keep: bool = False) -> None:
        self.results, self.device, self.until, self.keep = results, device, until, keep

    def __call__(self, task: tuple[Solution, list[str]]) -> list[Found]:
        """What came out for each definition."""
        solution, names = task
        found = self._asked(solution, names, "smoke")
        again = [one.definition for one in found if not one.ran and one.why.startswith("the solution supports")]
        if again:
            found = [one for one in found if one.definition not in again]
            found += self._asked(solution, again, "conformance")
        return found

    def _asked(self, solution: Solution, names: list[str], suite: str) -> list[Found]:
        label = f"{solution.name.replace(':', '_')}__{names[0] if len(names) == 1 else 'all'}__{suite}"
        file, log = self.results / f"{label}.jsonl", self.results / f"{label}.txt"
        left = self.until - time.monotonic()
        if left < LAST_SECONDS:
            return [self._nothing(solution, name, "no time was left") for name in names]
        words = ["check", *names, "--invariance", "--solution", solution.name, "--seed", "1", "--device", self.device]
        words += ["--save"] * self.keep
        suites = ["--suite", suite] if suite != "smoke" else []  # without it, a row that can be cut is asked as well
        command = [sys.executable, "-m", "gdnspec", *words, *suites, "--json", str(file)]
        with log.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
            try:
                process.wait(left)
                late = ""
            except subprocess.TimeoutExpired:
                late = "stopped when time was over"
                _end(process)
        found = {one.definition: one for one in from_results([file] if file.is_file() else [])}
        last = next((text for text in reversed(log.read_text().splitlines()) if text.strip()), "")
        return [found.get(name) or self._nothing(solution, name, late or last[:300]) for name in names]

    def _nothing(self, solution: Solution, name: str, why: str) -> Found:
        return Found(solution.name, self.device, name, ran=False, why=why)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process: its results so far stay."""
    process.terminate()
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=220)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("--traces", action="store_true")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    ask = Asking(options.results, options.device, time.monotonic() + options.seconds, options.traces)
    chosen = on_device(options.device, options.only, options.without)
    with ThreadPoolExecutor(options.jobs) as pool:
        found = [one for some in pool.map(ask, tasks(chosen)) for one in some]
    slug = next((one.device for one in found if one.ran), options.device)  # what answered knows the device's name
    found = [one if one.ran else replace(one, device=slug) for one in found]
    found = list(of_present_sources(found, chosen))
    save(found, options.save)
    print(table(found, chosen))
    for one in found:
        if not one.ran:
            print(f"no answer: {one.solution} on {one.definition}: {one.why}")


if __name__ == "__main__":
    main()
