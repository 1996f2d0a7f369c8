"""gdnspec traces: keep measurements valid when sources change."""

from collections import Counter
from typing import Annotated

import typer

from gdnspec import paths
from gdnspec.catalog.carried_traces import CARRIED
from gdnspec.catalog.commit import Past, last_state, measured_at
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.solutions import Solution
from gdnspec.catalog.traces import load_traces, parse_traces, save, stale_question, stale_source, trace_files
from gdnspec.cli import offered
from gdnspec.cli.console import EPILOG, complain, say, warn
from gdnspec.cli.options import DefinitionsDir, SolutionsDir
from gdnspec.cli.selection import chosen_solutions
from gdnspec.model.errors import SpecError
from gdnspec.model.trace import Trace

app = typer.Typer(
    help="Keep measurements valid when sources change.", epilog=EPILOG, no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def traces() -> None:
    """Keep measurements valid when sources change."""


@app.command(epilog=EPILOG)
def carry(
    solution: Annotated[
        str,
        typer.Argument(metavar="NAME", help="The solution, or NAME:VARIANT.", autocompletion=offered.solutions),
    ],
    old_name: Annotated[
        str | None,
        typer.Option("--from", metavar="OLD", help="The former name of the solution, whose traces are read from git."),
    ] = None,
    solutions_dir: SolutionsDir = None,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Keep a solution's traces valid after a change of its sources that does not change what the GPU does.

    The command compiles two states: today's sources, and those of the commit at which the trace was measured. For a
    Triton solution, kernels, grids, arguments and PyTorch's operations must be the same on each measured workload. For
    a CUDA solution, nvcc must make the same machine code and the same host code. If so, a proof is written to
    traces/carried/, with both source hashes, the hash of the code and the compiler. No hash in a trace is rewritten.

    With --from, the traces of a former solution are read from git. Those with a proof are copied to this solution; a
    workload that already has a trace keeps it.

    Exit code 1 if a trace stays stale, 3 if nvcc is missing.
    """
    (found,), _ = chosen_solutions([solution], solutions_dir)
    if found.manifest.language not in ("triton", "cuda"):
        raise SpecError(f"{found.name} is a {found.manifest.language} solution: only Triton and CUDA code is compared")
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
            warn(f"{_counted(len(mine))}: no commit has the measured sources ({source_hash[:12]})")
            left += len(mine)
        else:
            left += len(mine) - len(_carry(found, past, mine))
    raise typer.Exit(1 if left else 0)


def _carry_from(solution: Solution, old_name: str) -> int:
    """Copies the traces of a solution that had another name. Returns how many have no proof."""
    name, _, variant = old_name.partition(":")
    past = last_state(solution.folder.parent / name, variant or None)
    if past is None:
        beside = paths.shown(solution.folder.parent)
        raise SpecError(f"no commit has a solution {name!r} in {beside}/: --from takes the former name of its folder")
    every = [trace for file in past.traces() for trace in parse_traces(past.text(file), past.named(file), warn)]
    if not every:
        raise SpecError(f"{past.label} has no traces")
    own = {(t.definition, t.workload, t.device) for file in trace_files(solution) for t in load_traces(file, warn)}
    left = 0
    for source_hash in sorted({trace.source_hash for trace in every}):
        mine = [trace for trace in every if trace.source_hash == source_hash]
        state = past.as_measured(source_hash) or measured_at(past.folder, source_hash, past.variant)
        if state is None:
            warn(f"{_counted(len(mine))}: no commit has the measured sources ({source_hash[:12]})")
            left += len(mine)
            continue
        carried = _carry(solution, state, mine)
        left += len(mine) - len(carried)
        for trace in carried:
            if (trace.definition, trace.workload, trace.device) not in own:
                save(solution, trace.model_copy(update={"solution": solution.name}))
    return left


def _carry(solution: Solution, past: Past, stale: list[Trace]) -> list[Trace]:
    """Writes a proof for the traces that can be kept, and returns these. Prints why others stay stale."""
    from gdnspec.bench.carry import carry as carried
    from gdnspec.build.cuda_code import NoCompilerError

    try:
        proof, outcomes = carried(solution, past, stale)
    except NoCompilerError as missing:
        complain(f"gdnspec: the two states cannot be compared here: {missing}")
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
        say(f"{_counted(count)} still stale: {why}")
    return [outcome.trace for outcome in outcomes if outcome.why_not is None]


def _stale(solution: Solution) -> list[Trace]:
    """The traces that are stale only because the sources changed."""
    every = [trace for file in trace_files(solution) for trace in load_traces(file, warn)]
    known = [trace for trace in every if trace.definition in definitions()]
    return [t for t in known if stale_source(t, solution) and not stale_question(t, definitions()[t.definition])]


def _counted(count: int) -> str:
    return f"{count} {'trace' if count == 1 else 'traces'}"
