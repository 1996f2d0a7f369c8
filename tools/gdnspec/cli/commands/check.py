"""gdnspec check: check whether solutions are correct.

What the request names is looked up before torch is imported, and the first solution's process starts before that too:
both import torch at the same time.
"""

import contextlib
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from gdnspec.catalog.families import same_families
from gdnspec.catalog.solutions import Solution
from gdnspec.cli import amounts, check_sessions, offered, watching
from gdnspec.cli.console import complain, warn
from gdnspec.cli.device import chosen_device, likely_device, require_device
from gdnspec.cli.matching import matching
from gdnspec.cli.options import (
    CallTimeout,
    DefinitionsDir,
    DeviceName,
    Solutions,
    SolutionsDir,
    Targets,
    Workloads,
    WorkloadsFile,
)
from gdnspec.cli.progress import writer
from gdnspec.cli.selection import FRESH, Selected, chosen_solutions, select, some, with_fresh, with_pieces
from gdnspec.cli.targets import solution_at, split, words_for
from gdnspec.model.errors import SpecError
from gdnspec.model.workload import SUITES
from gdnspec.sandbox.parent.output import printable
from gdnspec.sandbox.parent.process import Child, ChildFailed

if TYPE_CHECKING:
    from gdnspec.check.run import Checker
    from gdnspec.cli.judged_round import Round


SuitesAndFresh = Annotated[
    list[str] | None,
    typer.Option(
        help=f"{', '.join(SUITES)}, fresh or all; repeatable. Fresh workloads are added to each.",
        show_default="smoke, or all with --workload",
        autocompletion=offered.suites,
    ),
]
Results = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Append each result as a line of JSON, and reuse results that the file holds; - is stdout.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=(1 << 62) - 1,
        help="Seed of fresh workloads and of the content of second calls.",
        show_default="new in each run",
    ),
]
Repeat = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=amounts.REPEATS,
        help="Repeat each call this often with the same content, and beside other work.",
        show_default="20 on a GPU, within 1 s; 0 on a CPU",
    ),
]
Invariance = Annotated[
    bool,
    typer.Option(
        "--invariance",
        help="Instead of all further calls, ask whether a sequence keeps its bits alone, first, last, among others, "
        "beside other lengths, in a CUDA graph, and in pieces. Exit code 1 if a manifest claims "
        '"batch_invariant" and is wrong.',
    ),
]
Save = Annotated[
    bool,
    typer.Option("--save", help="With --invariance: write what was found into traces/ of each solution."),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Name each workload that passed, and show each failure whole.")
]
Matching = Annotated[
    str | None,
    typer.Option(
        "-k", metavar="EXPR", help="Only workloads whose name, suite or regime contains these words: and, or, not."
    ),
]
Sessions = Annotated[
    bool,
    typer.Option("--sessions", help="Judge sequences of calls on one pool of states, instead of single calls."),
]
Echo = Callable[[bytes], object]


def check(
    names: Targets = None,
    solution: Solutions = None,
    suite: SuitesAndFresh = None,
    workload: Workloads = None,
    workloads_file: WorkloadsFile = None,
    keyword: Matching = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", "-x", help="Stop at the first failure.")] = False,
    verbose: Verbose = False,
    watch: Annotated[bool, typer.Option("--watch", help="Judge again whenever a source changes.")] = False,
    show_output: Annotated[bool, typer.Option("--show-output", help="Show what a kernel prints, on stderr.")] = False,
    device: DeviceName = "auto",
    solutions_dir: SolutionsDir = None,
    json_file: Results = None,
    resume: Annotated[bool, typer.Option(help="Reuse results in FILE for the same sources and workload.")] = True,
    timeout: CallTimeout = 120.0,
    seed: Seed = None,
    symmetries: Annotated[
        bool, typer.Option("--symmetries", help="Check each symmetry by itself, and sequences permuted, alone, split.")
    ] = False,
    repeat: Repeat = None,
    errors: Annotated[
        bool, typer.Option("--errors", help="Report errors by regime and by position in the sequence.")
    ] = False,
    invariance: Invariance = False,
    save: Save = False,
    sessions: Sessions = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Check solutions for correctness on a definition's workloads, and on newly drawn ones.

    A kernel is a folder with a solution.json, a Python file with a function, FILE.py::FUNCTION or MODULE:FUNCTION.
    Definitions beside it say what it is to serve; without one, those of its manifest or of its function's name.
    """
    require_device(device)
    if invariance or save:
        _require_together(invariance, save, symmetries, repeat, errors, watch, suite, workload, workloads_file)
    wanted, targets = split(names)
    only = matching(keyword) if keyword is not None else None
    find = _finder(targets, wanted, solution, solutions_dir)
    if sessions:
        _refuse_with_sessions(wanted, seed, symmetries, repeat, errors, watch, invariance, save)
    chosen, broken = find()
    given = {one.name: words_for(one, target) for one, target in zip(chosen, targets, strict=False)}
    if sessions:
        request = check_sessions.Request(suite, workload, workloads_file, keyword, fail_fast, verbose, device,
                                         solutions_dir, json_file, resume, timeout)  # fmt: skip
        code = check_sessions.check_sessions(request, chosen, given, _echo if show_output else None)
        _end(broken, code)
    if watch and not (targets or solution):
        raise SpecError("--watch needs a kernel: name its folder or file, or --solution NAME")
    definitions = wanted or (_served(chosen) if targets or solution else None)
    selected = _selected(definitions, suite, workload, workloads_file, invariance)
    to_stdout = str(json_file) == "-"
    reused = json_file if resume and not to_stdout else None
    with contextlib.ExitStack() as stack:
        write = writer(stack, json_file, to_stdout)
        echo = _echo if show_output else None
        started = None if reused else _started(stack, chosen, selected, likely_device(device), echo)

        from gdnspec.check.plan import Extras
        from gdnspec.check.run import Checker, Options
        from gdnspec.cli.judged_round import Round

        where = chosen_device(device)
        drawn = secrets.randbits(62) if seed is None else seed  # a solution cannot be prepared for it
        some_fresh = workload is None or any(name.startswith(FRESH) for name in workload)
        if workloads_file is None and some_fresh and not invariance:
            from gdnspec.inputs.fresh import fresh

            selected = with_fresh(selected, lambda item: fresh(item, drawn, where.kind), workload)
        if only is not None:
            selected = _matching(selected, only)
        flags = tuple(_flags(solutions_dir, workloads_file, symmetries, timeout))
        options = Options(timeout, drawn, flags, given=given, echo=echo)
        checker = Checker(where.kind, options, warn, started)
        extras = Extras(symmetries, errors, repeat, invariance)
        this = Round(some(selected), where, extras, write, fail_fast, verbose, not to_stdout, reused, save)
        code = _watched(this, checker, chosen, find) if watch else _judged(this, checker, chosen)
    _end(broken, code)


def _served(chosen: list[Solution]) -> list[str]:
    """The definitions of solutions that are named: the workloads of others need not be read or drawn."""
    return sorted({name for one in chosen for name in one.manifest.entries})


def _selected(
    names: list[str] | None, suite: list[str] | None, workload: list[str] | None, file: Path | None, invariance: bool
) -> Selected:
    """The published workloads that are asked for; without a word about them, also one that `--invariance` can cut."""
    selected = select(names, suite, workload, file, draws=True)
    unsaid = suite is None and workload is None and file is None
    return with_pieces(selected) if invariance and unsaid else selected


def _refuse_with_sessions(
    wanted: list[str], seed: int | None, symmetries: bool, repeat: int | None, errors: bool, watch: bool,
    invariance: bool, save: bool,
) -> None:  # fmt: skip
    """Raises `SpecError` for what `--sessions` makes no sense with."""
    given = {"--seed": seed is not None, "--repeat": repeat is not None, "--errors": errors, "--watch": watch}
    check_sessions.refuse(wanted, {**given, "--symmetries": symmetries, "--invariance": invariance, "--save": save})


def _end(broken: list[object], code: int) -> NoReturn:
    for problem in broken:
        complain(f"gdnspec: {problem}")
    raise typer.Exit(2 if broken else code)


def _require_together(
    invariance: bool, save: bool, symmetries: bool, repeat: int | None, errors: bool, watch: bool,
    suites: list[str] | None, workloads: list[str] | None, file: Path | None,
) -> None:  # fmt: skip
    """Raises `SpecError` for an option that `--invariance` or `--save` would ignore."""
    if not invariance:
        raise SpecError("--save writes what --invariance finds: add --invariance, or leave out --save")
    ignored = {"--symmetries": symmetries, "--repeat": repeat is not None, "--errors": errors, "--watch": watch}
    for option, given in ignored.items():
        if given:
            raise SpecError(f"--invariance asks its own questions only: leave out {option}, or check in two runs")
    if FRESH in (suites or ()) or any(name.startswith(FRESH) for name in workloads or ()):
        raise SpecError("--invariance compares calls on published workloads: name another suite than fresh")
    if save and file is not None:
        raise SpecError("--save writes about published workloads only: use --json FILE with --workloads")


Find = Callable[[], tuple[list[Solution], list[object]]]


def _finder(targets: list[str], wanted: list[str], names: list[str] | None, folder: Path | None) -> Find:
    """A function that looks up the solutions: those given by position first. It raises `SpecError`."""

    def find() -> tuple[list[Solution], list[object]]:
        given = [solution_at(target, wanted) for target in targets]
        more, broken = chosen_solutions(names, folder) if names or not targets else ([], [])
        chosen = [*given, *more]
        twice = [one.name for i, one in enumerate(chosen) if one.name in [other.name for other in chosen[:i]]]
        if twice:
            raise SpecError(f"two kernels have the name {twice[0]!r}: check one after the other")
        return chosen, broken

    return find


def _started(
    stack: contextlib.ExitStack, chosen: list[Solution], selected: Selected, device: str, echo: Echo | None
) -> Child | None:
    """The process of the first solution that can probably run, already starting."""
    names = {item.definition.name for item, _ in selected}
    able = (
        one for one in chosen if one.manifest.requires.device in ("any", device) and names & {*one.manifest.entries}
    )
    first = next(able, None)
    if first is None:
        return None
    child = Child(first, device, device == "cpu" and first.manifest.language == "triton", echo=echo)
    stack.callback(child.end)
    with contextlib.suppress(ChildFailed):  # the check meets the same, and reports it
        child.start()
    return child


def _echo(printed: bytes) -> None:
    sys.stderr.write(printable(printed.decode(errors="replace"), len(printed)))
    sys.stderr.flush()


def _matching(selected: Selected, only: Callable[[str], bool]) -> Selected:
    return [
        (item, [line for line in lines if only(f"{line.name} {line.suite} {line.regime or ''}")])
        for item, lines in selected
    ]


def _judged(this: "Round", checker: "Checker", chosen: list[Solution]) -> int:
    summary = this.judge(checker, this.jobs(chosen))
    return 130 if summary.interrupted else summary.exit_code()


def _watched(this: "Round", checker: "Checker", chosen: list[Solution], find: Find) -> int:
    """Judges, and again after every change, until Ctrl-C. The exit code is that of the last whole round."""
    code = 3
    while True:
        files = watching.sources(chosen)
        before = watching.state(files)
        try:
            chosen = find()[0]
            code = _judged(this, checker, chosen)
        except SpecError as error:
            complain(f"gdnspec: {error}")
            code = 2
        if code == 130:
            return code
        complain(f"watching {len(files)} files; Ctrl-C ends")
        try:
            watching.changed(files, before)
        except KeyboardInterrupt:
            return code
        this = replace(this, reused=None)


def _flags(solutions_dir: Path | None, workloads_file: Path | None, symmetries: bool, timeout: float) -> Iterator[str]:
    """The options that a command needs to repeat one workload in the same way."""
    from gdnspec.check.run import Options

    if solutions_dir is not None:
        yield from ("--solutions-dir", str(solutions_dir.resolve()))
    if workloads_file is not None:
        yield from ("--workloads", str(workloads_file.resolve()))
    if symmetries:
        yield "--symmetries"
    if timeout != Options.timeout:
        yield from ("--timeout", f"{timeout:g}")
    yield from same_families()
