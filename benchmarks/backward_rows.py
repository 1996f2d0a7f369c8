"""The backward pass over the rows of prefill_rows.py, solutions beside FlashQLA, in one process.

    python benchmarks/backward_rows.py [--solutions triton_backward] [--gates decay|typical] [--decay 0.1]
                                       [--rows TEXT,TEXT] [--json FILE] [--jobs 9]
    python benchmarks/backward_rows.py --show FILE [--show FILE]

gdn_prefill_backward_k_last, with an initial state and the gradient of the final one. A name with a slash is a folder
elsewhere.

flash_qla is FlashQLA's backward pass, which splits a sequence where it chooses to; flash_qla:whole never does. Either
is given the sums of gates and the inverses that its forward pass keeps. A solution is given nothing, and computes them
again. If FlashQLA is not installed, the script says so, and leaves both columns out.

Microseconds per call: the median of replays of a CUDA graph of two calls, on two sets of inputs, all in turns. A call
that no graph records is marked with `*`: then its kernels' times are added up, by the profiler. Before they are timed,
all gradients are compared with those of the first solution: `!` marks one that differs by more than 2% of the norm.
Whether they are right `gdnspec check` says. The bound is the larger of the products (508 kFLOP per token and value head
of 128 elements, at 790 TFLOP/s) and the bytes. MB is what the first solution allocates in a call.

--gates typical draws alpha as models have it; decay is that of prefill_rows.py, exp(-decay u) with u from 0 to 1.
--jobs compiles everything first, in so many processes side by side: TileLang takes a minute for each number of heads.
--show prints the tables of files that --json wrote, without a GPU. Files of either gates are to be shown apart.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from gdnspec.build.loader import load_function
from gdnspec.catalog.solutions import load_variant
from graph_times import Unrecorded, medians, recorded, said_of
from prefill_rows import copy_rate, folder_of, short
from prefill_shapes import PRODUCTS, Row, build_of, chosen
from prefill_tables import KEYS, head, line, record, summary, tables
from row_files import Record, made_with, refuse, said_with, shown

DEFINITION, SETS, WINDOWS, CHUNK = "gdn_prefill_backward_k_last", 2, 7, 64
OUTPUTS = ("dq", "dk", "dv", "dg", "dbeta", "dh0")
PEERS = ("flash_qla", "flash_qla:whole")
INSTALL = "pip install flash-qla==0.1.3 tilelang==0.1.15"
Tensors = dict[str, Any]


def bound(row: Row, copy: float) -> float:
    """Microseconds."""
    (hk, h), total, D, C = row.heads, sum(row.lengths), row.head_size, CHUNK
    moved = total * (2 * D * (4 * hk + 3 * h) + 16 * h) + 12 * len(row.lengths) * h * D * D
    products = 2 * (8 * D * D + 14 * C * D + 2 * C * C)  # the inverse kept, states computed again
    return 1e6 * max(moved / copy, total * h * products / PRODUCTS)


def inputs(row: Row, gates: str, decay: float) -> Tensors:
    (hk, h), D, lengths = row.heads, row.head_size, row.lengths
    total, count = sum(lengths), len(lengths)
    normal = lambda *shape: torch.randn(*shape, device="cuda")  # noqa: E731
    uniform = lambda *shape: torch.rand(*shape, device="cuda")  # noqa: E731
    q, k = (torch.nn.functional.normalize(normal(total, hk, D), dim=-1).bfloat16() for _ in range(2))
    if gates == "typical":  # A up to 16, steps log-uniform from 0.001 to 0.1
        g = torch.exp(-16 * uniform(h) * torch.exp(math.log(1e-3) + math.log(100.0) * uniform(total, h)))
    else:
        g = torch.exp(-decay * uniform(total, h))
    return {
        "q": q, "k": k, "v": normal(total, h, D).bfloat16(), "g": g, "beta": uniform(total, h),
        "cu_seqlens": torch.tensor([0, *lengths], device="cuda").cumsum(0), "initial_state": normal(count, h, D, D),
        "scale": None, "do": normal(total, h, D).bfloat16(), "dht": normal(count, h, D, D),
    }  # fmt: skip


class Subject(Protocol):
    name: str

    def bound(self, given: Tensors) -> Callable[[], Tensors]:
        """A call on these inputs. It returns the gradients by name, dg that of alpha."""


class Solution:
    """A solution, as the judge calls it."""

    def __init__(self, name: str, build: Path, definition: str = DEFINITION, among: str = "solutions") -> None:
        folder, self.among = folder_of(name, among), among
        solution = load_variant(folder, Path(name).name.partition(":")[2] or None)
        self.name, self.entry = short(name), solution.manifest.entries[definition]
        load = partial(load_function, folder, build_dir=build_of(build, folder, name), **solution.settings)
        self.call = load(self.entry.entry)
        self.prepare = load(self.entry.prepare) if self.entry.prepare else None

    def bound(self, given: Tensors) -> Callable[[], Tensors]:
        like = zip(OUTPUTS, ("q", "k", "v", "g", "beta", "initial_state"), strict=True)
        return self.calling(given, {name: torch.full_like(given[of], math.nan) for name, of in like})

    def calling(self, given: Tensors, out: Tensors) -> Callable[[], Tensors]:
        """A call that leaves its results in `out`, or returns others of these names."""
        more = {"prepared": self.prepare(**given)} if self.prepare else {}

        def call() -> Tensors:
            if self.entry.call == "return":
                return dict(zip(out, self.call(**given, **more), strict=True))
            if self.entry.entry.split("::")[0].endswith(".cu"):
                self.call(*given.values(), *out.values())
            else:
                self.call(**given, **out, **more)
            return out

        return call


class FlashQLA:
    """Its backward pass, behind its forward pass, by the functions that its autograd calls."""

    def __init__(self, name: str) -> None:
        from flash_qla.ops.gated_delta_rule import chunk

        self.name, self.library, self.splits = name, chunk, name == PEERS[0]

    def passes(self, given: Tensors) -> tuple[Callable[[], Any], Callable[[Any], Tensors]]:
        """Its forward pass, which returns what the backward pass is given, and that."""
        # From the lengths on the host, so ahead of the call: a model has it once for all of its layers.
        context = self.library.build_cp_context(
            given["cu_seqlens"].clone(), enable_intra=self.splits, num_v_heads=given["v"].shape[1],
            chunk_size=self.library.CHUNK_SIZE, is_train=True,
        )  # fmt: skip
        q, k, v, beta, do = (given[name][None] for name in ("q", "k", "v", "beta", "do"))
        scale, alpha = given["q"].shape[-1] ** -0.5, given["g"]
        log_alpha = alpha.log()[None]
        common = {"initial_state": given["initial_state"], "cu_seqlens": context.cu_seqlens, "state_v_first": True,
                  "cp_context": context, "scale": scale}  # fmt: skip

        def forward() -> Any:
            return self.library.chunk_gated_delta_rule_fwd(
                q, k, v, log_alpha, beta, enable_fwd_cp_cache=True, is_train=True, **common
            )

        def backward(of_forward: Any) -> Tensors:
            sums, inverses, *_, kept = of_forward
            dq, dk, dv, dbeta, dg, dh0 = self.library.chunk_gated_delta_rule_bwd(
                q, k, v, sums, beta, inverses, do, dht=given["dht"], cp_cache=kept, **common
            )
            found = {"dq": dq, "dk": dk, "dv": dv, "dg": dg, "dbeta": dbeta}
            return {name: x[0] for name, x in found.items()} | {"dh0": dh0, "of log alpha": alpha}

        return forward, backward

    def bound(self, given: Tensors) -> Callable[[], Tensors]:
        forward, backward = self.passes(given)
        return partial(backward, forward())


def compared(found: Tensors) -> Tensors:
    """Copies of the gradients, dg of alpha."""
    alpha = found.get("of log alpha")
    copies = {name: found[name].float().clone() for name in OUTPUTS}
    return copies if alpha is None else copies | {"dg": copies["dg"] / alpha}


def apart(found: Tensors, expected: Tensors) -> bool:
    return not all((found[x] - expected[x]).norm() <= 0.02 * expected[x].norm() for x in OUTPUTS)  # NaN is apart


def measure(
    subjects: list[Subject], row: Row, options: argparse.Namespace
) -> tuple[dict[str, tuple[float, str]], float]:
    """Microseconds and marks of each subject, and the MB that the first allocates."""
    sets = [inputs(row, options.gates, options.decay) for _ in range(SETS)]
    found: dict[str, tuple[float, str]] = {}
    timed: dict[str, Any] = {}
    expected, device, allocated = None, torch.device("cuda"), math.nan
    for subject in subjects:
        try:
            calls = [subject.bound(given) for given in sets]
            gradients = compared(calls[0]())
            torch.cuda.synchronize()
            if expected is None:
                expected, allocated = gradients, allocated_by(calls[0])
            timed[subject.name] = recorded(lambda calls=calls: [call() for call in calls], device)
        except Exception as error:  # a library may refuse a shape; the others go on
            found[subject.name] = (math.nan, said_of(error))
            print(f"{row.name}, {subject.name}: {said_of(error)}", file=sys.stderr)
            continue
        unrecorded = isinstance(timed[subject.name], Unrecorded)
        found[subject.name] = (0.0, "!" * apart(gradients, expected) + "*" * unrecorded)
    seconds = medians(timed, WINDOWS, device)
    times = {name: (seconds[name] * 1e6 / SETS, said) if name in seconds else (us, said)
             for name, (us, said) in found.items()}  # fmt: skip
    return times, allocated


def allocated_by(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def compile_before(asked: list[Row], options: argparse.Namespace) -> None:
    """Calls everything once on each row, rows of as many heads in one process: they share what is compiled."""
    of_heads: dict[tuple[Any, ...], list[str]] = {}
    for row in asked:
        of_heads.setdefault((row.heads, row.head_size), []).append(row.name)
    script = [sys.executable, __file__, "--once", "--gates", options.gates, "--decay", str(options.decay)]
    script += ["--solutions", options.solutions, *(["--build", str(options.build)] if options.build else []), "--rows"]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda names: subprocess.run([*script, ",".join(names)], check=False), of_heads.values()))


def call_once(subjects: list[Subject], row: Row, options: argparse.Namespace) -> None:
    given = inputs(row, options.gates, options.decay)
    for subject in subjects:
        try:
            subject.bound(given)()
        except Exception as error:
            print(f"{row.name}, {subject.name}: {said_of(error)}", file=sys.stderr)


def loaded(names: list[str], build: Path) -> list[Subject]:
    subjects: list[Subject] = [Solution(name, build) for name in names]
    try:
        subjects += [FlashQLA(name) for name in PEERS]
    except Exception as error:  # not installed, or it fails as it is imported, by the version of another library
        print(f"FlashQLA is missing, and both its columns with it: {said_of(error)}\nTo add it: {INSTALL}\n")
    return subjects


def measure_all(subjects: list[Subject], asked: list[Row], options: argparse.Namespace) -> None:
    device = torch.cuda.get_device_name()
    rate, records = copy_rate(device), list[Record]()
    print(f"{device}, copy {rate / 1e12:.2f} TB/s, gates {options.gates}; microseconds; peer: best of FlashQLA / "
          f"{subjects[0].name}, share: of the bound\n{said_with(made_with())}\n")  # fmt: skip
    print(head(subject.name for subject in subjects) + f"{'MB':>7}")
    for row in asked:
        us, allocated = measure(subjects, row, options)
        records.append(record(row, device, bound(row, rate), us, list(PEERS)) | {"allocated": allocated})
        print(f"{line(records[-1])}{allocated:7.0f}", flush=True)
        if options.json:
            with options.json.open("a") as to:
                to.write(json.dumps(records[-1] | {"gates": options.gates}) + "\n")
    print("", *summary(records, device), sep="\n")


def parsed() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--solutions", default="triton_backward", metavar="S,S", help="the first is compared with peers"
    )
    parser.add_argument("--gates", choices=("decay", "typical"), default="decay", help="how alpha is drawn")
    parser.add_argument("--decay", type=float, default=0.1, help="for --gates decay")
    of_rows = "rows whose name or group has one of these texts; the groups are long, short and d64"
    parser.add_argument("--rows", default="long,short", metavar="TEXT,TEXT", help=of_rows)
    parser.add_argument("--build", type=Path, help="where builds are kept for the next run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line per row")
    parser.add_argument("--show", type=Path, metavar="FILE", action="append", help="print the tables of such a file")
    parser.add_argument("--jobs", type=int, default=0, help="compile in so many processes before anything is timed")
    parser.add_argument("--once", action="store_true", help="one call of each on each row; nothing is timed")
    return parser, parser.parse_args()


def main() -> None:
    parser, options = parsed()
    if options.show:
        print(tables(shown(parser, options.show, KEYS)))
        return
    asked = chosen(options.rows)
    names = [name for name in options.solutions.split(",") if name]
    if not asked:
        parser.error(f"--rows: no row has one of {options.rows!r} in its name; --rows d64 takes heads of 64")
    if not names:
        parser.error("--solutions: name one at least, such as triton_backward")
    refuse(parser, options, [folder_of(name, "solutions") for name in names])
    if not torch.cuda.is_available():
        raise SystemExit("backward_rows.py: needs a CUDA GPU; --show prints what was measured on another machine")
    if options.jobs > 0:
        compile_before(asked, options)
    with tempfile.TemporaryDirectory() as scratch:
        subjects = loaded(names, options.build or Path(scratch))
        if not options.once:
            measure_all(subjects, asked, options)
            return
        for row in asked:
            call_once(subjects, row, options)


if __name__ == "__main__":
    main()
