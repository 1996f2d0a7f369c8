"""gdnspec bench: check solutions, then time them."""

import contextlib
import secrets
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdnspec.catalog.definitions import Found
from gdnspec.catalog.solutions import MANIFEST
from gdnspec.catalog.writing import require_file, require_folder
from gdnspec.cli import amounts, offered
from gdnspec.cli.command_line import command_line
from gdnspec.cli.console import add_row, complain, print_table, say, table, warn
from gdnspec.cli.device import chosen_device, likely_device, require_device
from gdnspec.cli.live import LiveTable, ratios_of
from gdnspec.cli.options import Definitions, DefinitionsDir, Solutions, SolutionsDir, Workloads, WorkloadsFile
from gdnspec.cli.selection import chosen_solutions, select, unserved
from gdnspec.cli.weighted import weighted
from gdnspec.model.errors import SpecError
from gdnspec.model.loading import is_file
from gdnspec.model.trace import METHODS, Trace
from gdnspec.model.workload import SUITES, Workload
from gdnspec.report.units import shown_resolved, shown_time

if TYPE_CHECKING:
    from gdnspec.bench.executor import Task
    from gdnspec.build.machine import Device
    from gdnspec.catalog.solutions import Solution
    from gdnspec.check.plan import Job


EXECUTORS = ("local", "ray")
SAVE = "Write each trace into traces/ of its solution. One that cannot be believed replaces none of the same sources."
Against = Annotated[
    str | None,
    typer.Option(
        metavar="S,S", help="Baselines, each timed in turns with every solution.", autocompletion=offered.baselines
    ),
]
TimedSuites = Annotated[
    list[str] | None,
    typer.Option(
        help=f"{', '.join(SUITES)} or all; repeatable.",
        show_default="performance; on a CPU smoke",
        autocompletion=offered.suites,
    ),
]
Traces = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Append each trace as a line of JSON; - is stdout.")
]
Seed = Annotated[
    int | None, typer.Option(min=0, max=(1 << 62) - 1, help="Seed of the content of calls.", show_default="new")
]


def bench(
    names: Definitions = None,
    solution: Solutions = None,
    against: Against = None,
    suite: TimedSuites = None,
    workload: Workloads = None,
    workloads_file: WorkloadsFile = None,
    device: Annotated[str, typer.Option(help="cuda, or cpu, whose times are shown but never ranked.")] = "cuda",
    solutions_dir: SolutionsDir = None,
    save: Annotated[bool, typer.Option("--save", help=SAVE)] = False,
    save_baselines: Annotated[
        bool, typer.Option("--save-baselines", help="Also write the traces of baselines into theirs.")
    ] = False,
    json_file: Traces = None,
    seconds: Annotated[
        float,
        typer.Option(min=0.1, max=amounts.SECONDS, help="Seconds per workload; fewer where 1% precision comes sooner."),
    ] = 10.0,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=amounts.SECONDS, help="Seconds that one window may take.")
    ] = 120.0,
    seed: Seed = None,
    executor: Annotated[
        str, typer.Option(help="local; or ray, which uses every GPU of the cluster at RAY_ADDRESS, or of this machine.")
    ] = "local",
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Check solutions, then time them. Every timed call gets new content, and its outputs are verified."""
    save = save or save_baselines
    _require_possible(save, workloads_file, device, executor)
    _refuse_folders(names)
    kind = likely_device(device)
    selected = select(names, suite or _default(kind, workload, workloads_file), workload, workloads_file)
    chosen, broken = chosen_solutions(solution, solutions_dir)
    baselines, _ = chosen_solutions(_split(against), solutions_dir) if against else ([], [])
    _require_folders([*(chosen if save else ()), *(baselines if save_baselines else ())])
    if json_file is not None and str(json_file) != "-":
        require_file(json_file, "--json FILE")

    from gdnspec.bench.executor import NothingToRunOn, Settings
    from gdnspec.bench.executor import executor as executor_named

    execute = executor_named(executor)
    where = _device(device, executor)
    if where.kind != kind:  # only torch knows
        selected = select(names, suite or _default(where.kind, workload, workloads_file), workload, workloads_file)
    tasks = _tasks(chosen, baselines, selected, where)
    command = command_line()
    seed = secrets.randbits(62) if seed is None else seed
    settings = Settings(where.kind, seconds, timeout, seed, command, 1 + len(baselines))
    traces: list[Trace] = []
    interrupted = False
    to_stdout = str(json_file) == "-"
    with contextlib.ExitStack() as stack:
        write = _writer(stack, json_file, save, save_baselines)
        live = stack.enter_context(LiveTable(len(tasks)))
        measured = stack.enter_context(contextlib.closing(execute(tasks, settings, live, warn)))
        try:
            for task, (trace, *beside_it) in measured:
                traces.append(trace)
                live.add(trace)
                write(task, trace, beside_it)
        except KeyboardInterrupt:
            interrupted = True
        except NothingToRunOn as nothing:
            complain(f"gdnspec: {nothing}")
            raise typer.Exit(3) from None
    if not to_stdout:
        _print(traces)
        for text in weighted(traces, selected):
            say(text)
    for text in _no_rivals(tasks, baselines):
        complain(f"gdnspec: {text}")
    if interrupted:
        raise typer.Exit(130)
    for problem in broken:
        complain(f"gdnspec: {problem}")
    raise typer.Exit(2 if broken else _exit_code(traces))


def _require_possible(save: bool, workloads_file: Path | None, device: str, executor: str) -> None:
    """Raises `SpecError` if the options do not go together."""
    if save and workloads_file is not None:
        # A saved trace names its workload, which could not be found later.
        raise SpecError("--save writes traces of shipped workloads only: use --json FILE with --workloads")
    require_device(device)
    if executor not in EXECUTORS:
        raise SpecError(f"no executor {executor!r} ({', '.join(EXECUTORS)})")


def _refuse_folders(names: list[str] | None) -> None:
    """Raises `SpecError` if a definition is the folder of a solution, which `gdnspec check` takes."""
    for folder in map(Path, names or ()):
        if is_file(folder / MANIFEST):
            options = shlex.join(["--solution", folder.resolve().name, "--solutions-dir", str(folder.parent)])
            raise SpecError(f"{folder} is the folder of a solution: name a definition, and add {options}")


def _tasks(
    chosen: "list[Solution]", baselines: "list[Solution]", selected: list[tuple[Found, list[Workload]]], where: "Device"
) -> "list[Task]":
    """Each solution on each workload, with the baselines for it. Raises `SpecError` if there is nothing to run."""
    from gdnspec.bench.executor import Task
    from gdnspec.check.plan import plan
    from gdnspec.numerics.allowed import require

    for item, lines in selected:
        require(item.definition, lines)
    jobs = list(plan(chosen, selected, where))
    if not jobs:
        raise SpecError(unserved([item.definition.name for item, _ in selected], chosen))
    beside = list(plan(baselines, selected, where))
    return [Task(job, [b for b in beside if _same(b, job) and b.solution != job.solution]) for job in jobs]


def _require_folders(saved: "list[Solution]") -> None:
    """Raises `SpecError`, before anything runs, if a trace could not be written."""
    for solution in saved:
        require_folder(solution.traces, "--save writes traces there; --json FILE writes them elsewhere")


def _writer(
    stack: contextlib.ExitStack, json_file: Path | None, save: bool, save_baselines: bool
) -> "Callable[[Task, Trace, list[Trace]], None]":
    """A function that writes each trace where --json and --save say."""
    from gdnspec.catalog.traces import save as save_trace
    from gdnspec.check.record import Lines

    to_stdout = str(json_file) == "-"
    recorded = stack.enter_context(Lines(json_file)) if json_file and not to_stdout else None

    def write(task: "Task", trace: Trace, beside_it: list[Trace]) -> None:
        if recorded is not None:
            recorded.append(trace.model_dump_json())
        if to_stdout:
            print(trace.model_dump_json(), flush=True)
        if save and trace.timing is not None:
            save_trace(task.job.solution, trace)
        if save_baselines:
            _save_baselines(task, beside_it)

    return write


def _no_rivals(tasks: "list[Task]", baselines: "list[Solution]") -> Iterator[str]:
    """One sentence per baseline that was not timed against any solution, with the reason."""
    for name in dict.fromkeys(task.job.found.definition.name for task in tasks):
        here = [task for task in tasks if task.job.found.definition.name == name]
        raced = {rival.solution.name for task in here for rival in task.rivals}
        for baseline in baselines:
            if baseline.name not in raced:
                serves = name in baseline.manifest.entries
                why = "no other solution was timed" if serves else f"it does not serve {name}"
                yield f"no ratio to {baseline.name} on {name}: {why}"


def _save_baselines(task: "Task", traces: list[Trace]) -> None:
    from gdnspec.catalog.traces import save

    rivals = {rival.solution.name: rival.solution for rival in task.rivals}
    for trace in traces:
        if trace.timing is not None:
            save(rivals[trace.solution], trace)


def _device(name: str, executor: str) -> "Device":
    """The device to plan for. In a Ray cluster, each machine checks its own GPU later."""
    from gdnspec.build import machine

    if executor == "ray" and name == "cuda":
        return machine.device("cuda") or machine.Device("cuda", "GPU of a Ray cluster")
    if name != "cpu":
        _require_gpu(name)
    return chosen_device(name)


def _require_gpu(device: str) -> None:
    from gdnspec.build import machine

    if device == "cuda" and machine.device("cuda") is None:
        complain("gdnspec: this machine has no CUDA GPU, and only GPU times are ranked: nothing is timed")
        complain("  gdnspec bench --device cpu    shows wall times on this CPU, which are never ranked")
        complain("  gdnspec check                 checks whether solutions are correct")
        raise typer.Exit(3)


def _default(kind: str, workload: list[str] | None, file: Path | None) -> list[str] | None:
    if workload or file:
        return None
    return ["performance"] if kind == "cuda" else ["smoke"]


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _same(one: "Job", other: "Job") -> bool:
    return one.found is other.found and one.workload is other.workload


def _print(traces: list[Trace]) -> None:
    rows = table(
        "", "definition", "workload", "solution", "status", "time", "p10 - p90", "of the bound", "host", "ratio"
    )
    for t in traces:
        if t.timing is None:
            if t.status != "UNSUPPORTED":
                add_row(rows, t.definition, t.workload, t.solution, t.status, "", "", "", "", "")
            continue
        share = ""
        if t.timing.bound and t.timing.median >= t.timing.resolved:
            share = f"{t.timing.bound / t.timing.median:.0%} ({t.timing.bound_by})"
        median, p10, p90 = (
            shown_resolved(seconds, t.timing.resolved) for seconds in (t.timing.median, t.timing.p10, t.timing.p90)
        )
        spread = f"{p10} - {p90}"
        host = shown_time(t.timing.host) if t.timing.host is not None else ""
        add_row(rows, t.definition, t.workload, t.solution, t.status, median, spread, share,
                host, ratios_of(t))  # fmt: skip
    print_table(rows)
    for reason in dict.fromkeys(t.message for t in traces if t.status == "UNSUPPORTED"):
        count = sum(t.message == reason and t.status == "UNSUPPORTED" for t in traces)
        say(f"unsupported: {count} workloads: {reason}")
    if missing := [lost for t in traces for lost in t.missing]:
        counts = Counter((lost.baseline, lost.status, (lost.why.splitlines() or [""])[0]) for lost in missing)
        for (baseline, status, why), count in counts.items():
            say(f"no ratio to {baseline}: {count} workloads: {status}  {why}")
    for method in dict.fromkeys(t.timing.method for t in traces if t.timing):
        say(f"{method}: {METHODS[method]}")


def _exit_code(traces: list[Trace]) -> int:
    if any(t.status not in ("PASSED", "UNSUPPORTED") for t in traces):
        return 1
    return 0 if any(t.timing is not None for t in traces) else 3
