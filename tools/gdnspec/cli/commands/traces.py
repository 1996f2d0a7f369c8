"""gdnspec traces: what becomes of figures when sources change."""

from collections import Counter
from typing import Annotated

import typer

from gdnspec import paths
from gdnspec.catalog.carried_traces import CARRIED
from gdnspec.catalog.commit import Past, last_state, measured_at
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.solutions import Solution
from gdnspec.catalog.traces import load_traces, parse_traces, save, stale_question, stale_source, trace_files
from gdnspec.cli.console import EPILOG, complain, say, warn
from gdnspec.cli.options import DefinitionsDir, SolutionsDir
from gdnspec.cli.selection import chosen_solutions
from gdnspec.model.errors import SpecError
from gdnspec.model.trace import Trace

app = typer.Typer(
    help="What was measured, when sources change.", epilog=EPILOG, no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def traces() -> None:
    """What was measured, when sources change."""


@app.command(epilog=EPILOG)
def carry(
    solution: Annotated[str, typer.Argument(help="Its name, or NAME:VARIANT.")],
    old_name: Annotated[
        str | None,
        typer.Option("--from", metavar="OLD", help="Its name when it was measured: its last state in git."),
    ] = None,
    solutions_dir: SolutionsDir = None,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Carry a solution's traces over a change of its sources that left what a GPU does as it was.

    Both states are compiled: today's, and the one of the commit at which the trace was measured. For a Triton solution,
    kernels, grids, arguments and PyTorch's operations must be the same on each measured workload. For a CUDA solution,
    nvcc must make the same machine code and the same host code. Then a proof is kept in traces/carried/, with both
    source hashes, the hash of the code and the compiler. No hash in a trace is rewritten.

    With --from, the traces of a solution that is gone are read from git. Those with a proof come to this one under its
    name; a workload that has a trace already keeps that one.

    Exit code 1 where a trace stays stale, 3 where nvcc is missing.
    """
    (found,), _ = chosen_solutions([solution], solutions_dir)
    if found.manifest.language not in ("triton", "cuda"):
        what = "the code of Triton and CUDA solutions alone is compared"
        raise SpecError(f"{found.name} is {found.manifest.language}: {what}")
    if old_name is not None:
        raise typer.Exit(1 if _carry_from(found, old_name) else 0)
    stale = _stale(found)
    if not stale:
        say(f"no trace of {found.name} is stale because its sources changed")
        return
    left = 0
    for source_hash in sorted({trace.source_hash for trace in stale}):
        mine = [trace for trace in stale if trace.source_hash == source_hash]
        past = measured_at(found.folder, source_hash, found.variant)
        if past is None:
            warn(f"{_counted(len(mine))}: no commit here has the sources that were measured ({source_hash[:12]})")
            left += len(mine)
        else:
            left += len(mine) - len(_carry(found, past, mine))
    raise typer.Exit(1 if left else 0)


def _carry_from(solution: Solution, old_name: str) -> int:
    """Takes over the traces of a solution that had another name; how many have no proof."""
    name, _, variant = old_name.partition(":")
    past = last_state(solution.folder.parent / name, variant or None)
    if past is None:
        beside = paths.shown(solution.folder.parent)
        raise SpecError(f"no commit here has a solution {name!r} in {beside}/: --from names the folder that it had")
    every = [trace for file in past.traces() for trace in parse_traces(past.text(file), past.named(file), warn)]
    if not every:
        raise SpecError(f"{past.label} has no traces")
    own = {(t.definition, t.workload, t.device) for file in trace_files(solution) for t in load_traces(file, warn)}
    left = 0
    for source_hash in sorted({trace.source_hash for trace in every}):
        mine = [trace for trace in every if trace.source_hash == source_hash]
        state = past.as_measured(source_hash) or measured_at(past.folder, source_hash, past.variant)
        if state is None:
            warn(f"{_counted(len(mine))}: no commit here has the sources that were measured ({source_hash[:12]})")
            left += len(mine)
            continue
        carried = _carry(solution, state, mine)
        left += len(mine) - len(carried)
        for trace in carried:
            if (trace.definition, trace.workload, trace.device) not in own:
                save(solution, trace.model_copy(update={"solution": solution.name}))
    return left


def _carry(solution: Solution, past: Past, stale: list[Trace]) -> list[Trace]:
    """Carries over what can be, and says what stays stale. Those that are carried."""
    from gdnspec.bench.carry import carry as carried
    from gdnspec.build.cuda_code import NoCompilerError

    try:
        proof, outcomes = carried(solution, past, stale)
    except NoCompilerError as missing:
        complain(f"gdnspec: nothing can be compared here: {missing}")
        raise typer.Exit(3) from None
    except RuntimeError as error:
        why = "cannot be compiled" if solution.manifest.language == "cuda" else "cannot be run without a GPU"
        raise SpecError(f"{solution.name} {why}: {error}") from None
    if proof is not None:
        file = solution.folder / CARRIED / f"{proof.before[:12]}-{proof.after[:12]}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(proof.model_dump_json(indent=1) + "\n", encoding="utf-8")
        say(f"{_counted(len(proof.same))} carried over from {past.commit[:12]}: {file.relative_to(solution.folder)}")
    kept = Counter(outcome.why_not for outcome in outcomes if outcome.why_not is not None)
    for why, count in kept.most_common():
        say(f"{_counted(count)} stale still: {why}")
    return [outcome.trace for outcome in outcomes if outcome.why_not is None]


def _stale(solution: Solution) -> list[Trace]:
    """Traces that would hold, had the sources not changed."""
    every = [trace for file in trace_files(solution) for trace in load_traces(file, warn)]
    known = [trace for trace in every if trace.definition in definitions()]
    return [t for t in known if stale_source(t, solution) and not stale_question(t, definitions()[t.definition])]


def _counted(count: int) -> str:
    return f"{count} {'trace' if count == 1 else 'traces'}"
