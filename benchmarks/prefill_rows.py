"""Prefill over many shapes, solutions and other libraries side by side in one process.

    python benchmarks/prefill_rows.py [--solutions hopper_prefill,triton_chunkwise] [--against flashinfer,fla,flash_qla]
                                      [--rows TEXT,TEXT] [--decay 0.01] [--json FILE] [--jobs 9]
    python benchmarks/prefill_rows.py --show FILE [--show FILE]

A name with a slash is a folder elsewhere, of another version perhaps; old/x is shown as such beside x.
--jobs: what libraries compile when they first meet a shape (TileLang a minute for each number of heads, and again for
some lengths) is compiled before, in so many processes side by side; they keep it for later ones.

gdn_prefill_k_last, three groups of rows: `long` is six head counts by eight sets of lengths, and twelve sets drawn from
a log-normal; `short` is three head counts by nine batches of short sequences; `d64` is three counts of heads of 64 by
seven batches. Each group has a summary of its own, which counts the rows that were not run. --show prints those of
files that --json wrote, a table for each device, without a GPU. Microseconds a call: the median of replays of a CUDA
graph of six calls over two sets of inputs, kernels in turns; what cannot be captured is timed by events over eager
calls and marked with `*`. Before it is timed each is compared with the first solution; what differs by more than 2% of
the output's norm is marked with `!`. Whether they are right `gdnspec check` says.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gdnspec.bench.ceilings import copy_bandwidth
from gdnspec.build.loader import load_function
from gdnspec.catalog.solutions import load_variant
from prefill_shapes import COPY_RATES, Row, bound, build_of, chosen
from prefill_tables import KEYS, head, line, record, summary, tables
from row_files import made_with, refuse, said_with, shown

HERE = Path(__file__).resolve().parent
DEFINITION, SETS, CALLS, WINDOWS = "gdn_prefill_k_last", 2, 6, 7
Arguments = dict[str, Any]


def arguments(row: Row, decay: float) -> Arguments:
    (hk, h), D, lengths = row.heads, row.head_size, row.lengths
    total, count = sum(lengths), len(lengths)
    normal = lambda *shape: torch.randn(*shape, device="cuda")  # noqa: E731
    q, k = (torch.nn.functional.normalize(normal(total, hk, D), dim=-1).bfloat16() for _ in range(2))
    v = normal(total, h, D).bfloat16()
    return {
        "q": q, "k": k, "v": v, "g": torch.exp(-decay * torch.rand(total, h, device="cuda")),
        "beta": torch.rand(total, h, device="cuda"), "cu_seqlens": torch.tensor([0, *lengths], device="cuda").cumsum(0),
        "initial_state": normal(count, h, D, D), "scale": None,
        "output": torch.empty_like(v), "final_state": torch.empty(count, h, D, D, device="cuda"),
    }  # fmt: skip


class Subject:
    """A solution, as the judge calls it, under the name that it was asked for by."""

    def __init__(self, name: str, folder: Path, build: Path) -> None:
        solution = load_variant(folder, Path(name).name.partition(":")[2] or None)
        self.name, self.entry = short(name), solution.manifest.entries[DEFINITION]
        load = partial(load_function, folder, build_dir=build_of(build, folder, name), **solution.settings)
        self.call = load(self.entry.entry)
        self.prepare = load(self.entry.prepare) if self.entry.prepare else None

    def bound(self, given: Arguments) -> Callable[[], Any]:
        inputs = {name: x for name, x in given.items() if name not in ("output", "final_state")}
        out = {name: given[name] for name in ("output", "final_state")} if self.entry.call == "out" else {}
        more = {"prepared": self.prepare(**inputs)} if self.prepare else {}
        if self.entry.entry.split("::")[0].endswith(".cu"):
            return lambda: self.call(*given.values())
        return lambda: self.call(**inputs, **out, **more)


class Timed:
    """Calls of one subject, captured where that can be done."""

    def __init__(self, calls: list[Callable[[], Any]]) -> None:
        self.calls = [calls[i % len(calls)] for i in range(CALLS)]
        self.graph: torch.cuda.CUDAGraph | None = torch.cuda.CUDAGraph()
        self.seen: list[float] = []
        for call in calls * 2:
            call()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(self.graph):
                self._run()
        except RuntimeError:  # it waits for the device, or allocates where it may not
            self.graph = None
            torch.cuda.synchronize()

    def _run(self) -> None:
        for call in self.calls:
            call()

    def window(self) -> None:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        if self.graph is not None:
            self.graph.replay()
        else:
            self._run()
        end.record()
        end.synchronize()
        self.seen.append(start.elapsed_time(end) * 1e3 / CALLS)

    @property
    def median(self) -> float:
        return statistics.median(self.seen[1:])


def measure(subjects: list[Subject], row: Row, decay: float) -> dict[str, tuple[float, str]]:
    sets = [arguments(row, decay) for _ in range(SETS)]
    found: dict[str, tuple[float, str]] = {}
    timed: dict[str, Timed] = {}
    expected = None
    for subject in subjects:
        try:
            calls = [subject.bound(given) for given in sets]
            sets[0]["output"].fill_(math.nan)
            answer = calls[0]()
            output = (sets[0]["output"] if answer is None else answer[0]).float()
            expected = output if expected is None else expected
            apart = float((output - expected).norm() / expected.norm())
            timed[subject.name] = Timed(calls)
        except Exception as error:  # a library may refuse a shape; the others go on
            found[subject.name] = (math.nan, f"{type(error).__name__}: {str(error).splitlines()[:1]}")
            continue
        marks = ("" if apart < 0.02 else "!") + ("" if timed[subject.name].graph else "*")
        found[subject.name] = (0.0, marks)
    for _ in range(1 + WINDOWS):
        for one in timed.values():
            one.window()
    return {name: (timed[name].median, said) if name in timed else (us, said) for name, (us, said) in found.items()}


def call_once(subjects: list[Subject], row: Row, decay: float) -> None:
    given = arguments(row, decay)
    for subject in subjects:
        try:
            subject.bound(given)()
        except Exception as error:  # what it refuses is said when it is timed
            print(f"{subject.name}: {type(error).__name__}", file=sys.stderr)


def compile_before(asked: Iterable[Row], peers: list[str], decay: float, jobs: int) -> None:
    """Calls every library once on each row, rows of as many heads in one process: they share what is compiled. With the
    gates that will be timed, by which FlashQLA chooses its kernels."""
    of_heads: dict[tuple[Any, ...], list[str]] = {}
    for row in asked:
        of_heads.setdefault((row.heads, row.head_size), []).append(row.name)
    script = [sys.executable, __file__, "--once", "--decay", str(decay), "--solutions", "", "--against"]
    commands = [[*script, peer, "--rows", ",".join(rows)] for peer in peers for rows in of_heads.values()]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda command: subprocess.run(command, stdout=subprocess.DEVNULL, check=False), commands))


def short(name: str) -> str:
    """The last two parts of a path; a name as it is."""
    return "/".join(Path(name).parts[-2:])


def folder_of(name: str, among: str) -> Path:
    """A solution's: by its name, or, with a slash in it, by its path; a variant's name behind a colon is none of it."""
    path = Path(name)
    path = path.with_name(path.name.partition(":")[0])
    return path if "/" in name else HERE.parent / among / path


def copy_rate(device: str) -> float:
    """Bytes a second: as known of a device, or as measured where nothing is."""
    return next((rate for name, rate in COPY_RATES.items() if name in device), None) or copy_bandwidth()


def loaded(mine: list[str], peers: list[str], build: Path) -> list[Subject]:
    subjects = []
    for name, among in [*((name, "solutions") for name in mine), *((name, "peers") for name in peers)]:
        try:
            subjects.append(Subject(name, folder_of(name, among), build))
        except Exception as error:
            if among == "solutions":
                raise
            # A library may fail as it is imported, by the version of another one.
            print(f"{short(name)} is left out: {type(error).__name__}: {str(error).splitlines()[:1]}")
    return subjects


def measure_all(subjects: list[Subject], asked: list[Row], peers: list[str], decay: float, file: Path | None) -> None:
    device, records = torch.cuda.get_device_name(), []
    rate = copy_rate(device)
    print(f"{device}, copy {rate / 1e12:.2f} TB/s; peer: best of those / this, share: of the bound")
    print(f"{said_with(made_with())}\n")
    print(head(subject.name for subject in subjects))
    for row in asked:
        found = measure(subjects, row, decay)
        us = {subject.name: found[subject.name] for subject in subjects}
        records.append(record(row, device, bound(row, rate), us, peers))
        print(line(records[-1]), flush=True)
        if file:
            with file.open("a") as to:
                to.write(json.dumps(records[-1]) + "\n")
    print("", *summary(records, device), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solutions", default="hopper_prefill,triton_chunkwise")
    parser.add_argument("--against", default="flashinfer,fla,flash_qla")
    parser.add_argument("--rows", default="", metavar="TEXT,TEXT", help="groups, or parts of names")
    parser.add_argument("--decay", type=float, default=0.1, help="alpha is exp(-decay u), u from 0 to 1")
    parser.add_argument("--build", type=Path, help="where builds are kept for the next run")
    parser.add_argument("--json", type=Path, help="append a line a row")
    parser.add_argument(
        "--show", type=Path, action="append", help="print the tables of such a file, and measure nothing"
    )
    parser.add_argument("--jobs", type=int, default=0, help="compile in so many processes before anything is timed")
    parser.add_argument("--once", action="store_true", help="one call of each on each row; nothing is timed")
    options = parser.parse_args()
    if options.show:
        print(tables(shown(parser, options.show, KEYS)))
        return
    asked = chosen(options.rows)
    if not asked:
        parser.error(f"--rows: no group and no name of a row has one of {options.rows!r}")
    mine = [name for name in options.solutions.split(",") if name]
    peers = [name for name in options.against.split(",") if name]
    if not mine and not options.once:
        parser.error("--solutions: name one at least, such as hopper_prefill")
    refuse(
        parser, options, [folder_of(name, "solutions") for name in mine] + [folder_of(name, "peers") for name in peers]
    )
    if not torch.cuda.is_available():
        raise SystemExit("prefill_rows.py: needs a CUDA GPU; --show prints what was measured on another machine")
    if options.jobs > 0:
        compile_before(asked, peers, options.decay, options.jobs)
    with tempfile.TemporaryDirectory() as scratch:
        subjects = loaded(mine, peers, options.build or Path(scratch))
        if options.once:
            for row in asked:
                call_once(subjects, row, options.decay)
            return
        measure_all(subjects, asked, [short(name) for name in peers], options.decay, options.json)


if __name__ == "__main__":
    main()
