"""gdnspec traces: what becomes of figures when sources change."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from gdnspec.catalog.carried_traces import CARRIED
from gdnspec.catalog.commit import Past, measured_at
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.solutions import Solution
from gdnspec.catalog.traces import load_traces, stale_question, stale_source, trace_files
from gdnspec.cli.console import EPILOG, say, warn
from gdnspec.cli.outside import DefinitionsDir
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
    solution: Annotated[str, typer.Argument(help="Its name.")],
    solutions_dir: Annotated[Path | None, typer.Option(help="Also look for solutions here.")] = None,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Carry a Triton solution's traces over a change of its sources that left what a GPU does as it was.

    Both states are compiled for each measured workload: today's, and the one of the commit at which the trace was
    measured. Where kernels, grids, arguments and PyTorch's operations are the same, a proof is kept beside the traces,
    in traces/carried/, with both source hashes, the hash of the code and the compiler. No trace is rewritten.

    Exit code 1 where a trace stays stale.
    """
    (found,), _ = chosen_solutions([solution], solutions_dir)
    if found.manifest.language != "triton":
        raise SpecError(f"{found.name} is {found.manifest.language}: the code of Triton solutions alone is compared")
    stale = _stale(found)
    if not stale:
        say(f"no trace of {found.name} is stale because its sources changed")
        return
    left = 0
    for source_hash in sorted({trace.source_hash for trace in stale}):
        mine = [trace for trace in stale if trace.source_hash == source_hash]
        past = measured_at(found.folder, source_hash)
        if past is None:
            warn(f"{_counted(len(mine))}: no commit here has the sources that were measured ({source_hash[:12]})")
            left += len(mine)
        else:
            left += _carry(found, past, mine)
    raise typer.Exit(1 if left else 0)


def _carry(solution: Solution, past: Past, stale: list[Trace]) -> int:
    """Carries over what can be; how many stay stale."""
    from gdnspec.bench.carry import carry as carried

    try:
        proof, outcomes = carried(solution, past, stale)
    except RuntimeError as error:
        raise SpecError(f"{solution.name} cannot be run without a GPU: {error}") from None
    if proof is not None:
        file = solution.folder / CARRIED / f"{proof.before[:12]}-{proof.after[:12]}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(proof.model_dump_json(indent=1) + "\n", encoding="utf-8")
        say(f"{_counted(len(proof.same))} carried over from {past.commit[:12]}: {file.relative_to(solution.folder)}")
    kept = Counter(outcome.why_not for outcome in outcomes if outcome.why_not is not None)
    for why, count in kept.most_common():
        say(f"{_counted(count)} stale still: {why}")
    return kept.total()


def _stale(solution: Solution) -> list[Trace]:
    """Traces that would hold, had the sources not changed."""
    every = [trace for file in trace_files(solution) for trace in load_traces(file, warn)]
    known = [trace for trace in every if trace.definition in definitions()]
    return [t for t in known if stale_source(t, solution) and not stale_question(t, definitions()[t.definition])]


def _counted(count: int) -> str:
    return f"{count} {'trace' if count == 1 else 'traces'}"
