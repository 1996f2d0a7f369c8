"""gdnspec workloads from-requests: the calls that kernels get when a log's requests are served."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdnspec.catalog.definitions import Found, definition, definitions
from gdnspec.catalog.solutions import solutions
from gdnspec.catalog.writing import require_folder
from gdnspec.cli import offered, session_files
from gdnspec.cli.needs import needs
from gdnspec.cli.options import Convolution, DefinitionsDir, ForceFiles, Pooled, StatesName
from gdnspec.cli.replay import replay, say_replay, write_workloads
from gdnspec.cli.selection import chosen_solutions, heads_of
from gdnspec.cli.sessions_from_log import EngineOptions, LogOptions, PoolOptions, write_sessions
from gdnspec.model.errors import PlacedError, Problem, SpecError

if TYPE_CHECKING:
    from gdnspec.traffic.calls import Operator
    from gdnspec.traffic.cost import BoundTime, KernelTime, StepCost

FORMATS = "azure, mooncake, burstgpt or csv"
STAGES = ("prefill", "decode", "verify")  # the stages that an engine calls


Reduce = Annotated[
    int | None,
    typer.Option(min=1, help="Keep this many workloads per definition, each weighted by the calls it stands for."),
]
Columns = Annotated[
    str,
    typer.Option(help="Column names of a plain CSV: arrival (seconds or a date), prompt tokens, output tokens."),
]
Chunked = Annotated[
    bool,
    typer.Option("--chunked/--whole", help="Split long prompts over several steps beside decodes, or run each whole."),
]
CachedStates = Annotated[
    int, typer.Option(min=0, help="States that the prefix cache holds, one per block; 0 for no cache.")
]
BlockTokens = Annotated[
    int, typer.Option(min=1, max=1 << 20, help="Tokens per block of the prompt, as the log hashes them.")
]
TimedBy = Annotated[
    list[str] | None,
    typer.Option(help="Take step times from this solution's traces; repeatable.", show_default="fastest"),
]

DefinitionNames = Annotated[
    list[str] | None,
    typer.Option(
        "--definition", help="A prefill, decode or verify definition; repeatable.", autocompletion=offered.definitions
    ),
]
PresetName = Annotated[
    str,
    typer.Option(help="Head configuration: gdnspec list presets, or heads-QxKxV-dD.", autocompletion=offered.presets),
]


Layers = Annotated[
    int, typer.Option(min=1, max=10_000, help="Layers of this kind in the model; Qwen3-Next has 36 of 48.")
]
StepMs = Annotated[
    float,
    typer.Option(min=0, max=1e6, help="Milliseconds that everything else takes per step. Measure your engine."),
]
TokenUs = Annotated[
    float,
    typer.Option(min=0, max=1e6, help="Microseconds that everything else takes per token. Measure your engine."),
]
StepsFile = Annotated[
    Path | None,
    typer.Option("--steps", metavar="FILE", help="Also write every step in order, one line of JSON each."),
]
Sessions = Annotated[
    bool, typer.Option("--sessions", help="Write DIR/sessions.jsonl: sequences of calls on one pool of states.")
]
PerSession = Annotated[
    int | None, typer.Option("--requests", min=1, max=1000, help="Requests in a session.", show_default="8")
]
Shorten = Annotated[
    int | None,
    typer.Option(min=1, help="Divide prompts and answers by this, and not blocks.", show_default="1"),
]
Drafts = Annotated[
    int | None,
    typer.Option(min=0, max=15, help="Draft tokens per row.", show_default="3 for a verify, else 0"),
]
Interval = Annotated[
    int | None,
    typer.Option(min=1, help="Value of integer scalars, in tokens.", show_default="one block"),
]


def from_requests(
    log: Annotated[Path, typer.Argument(metavar="LOG", help=f"A request log: {FORMATS}; .gz too, or a pipe.")],
    preset: PresetName,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Write DIR/<definition>.jsonl.")],
    definition_: DefinitionNames = None,
    reduce: Reduce = None,
    kind: Annotated[str | None, typer.Option("--format", help=FORMATS, show_default="by its first line")] = None,
    columns: Columns = "arrival,prompt_tokens,output_tokens",
    skip_invalid: Annotated[bool, typer.Option("--skip-invalid", help="Skip rows that are invalid.")] = False,
    max_prompt: Annotated[int, typer.Option(min=1, help="Longest valid prompt, in tokens.")] = 1 << 18,
    step_tokens: Annotated[int, typer.Option(min=1, help="Tokens that the engine processes per step.")] = 8192,
    running: Annotated[int, typer.Option(min=1, max=1 << 16, help="Requests that may be running at a time.")] = 256,
    chunked: Chunked = True,
    cached_states: CachedStates = 1024,
    block_tokens: BlockTokens = 512,
    interval: Interval = None,
    drafts: Drafts = None,
    acceptance: Annotated[
        float, typer.Option(min=0, max=1, help="Probability that the next draft token is accepted.")
    ] = 0.7,
    solution: TimedBy = None,
    device: Annotated[str, typer.Option(help="Device whose traces and rates give step times.")] = "nvidia-h200",
    layers: Layers = 36,
    step_ms: StepMs = 5.0,
    token_us: TokenUs = 10.0,
    steps_file: StepsFile = None,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 62) - 1, help="The same seed gives the same workloads.")] = 0,
    force: ForceFiles = False,
    sessions: Sessions = False,
    per_session: PerSession = None,
    shorten: Shorten = None,
    states: StatesName = None,
    convolution: Convolution = False,
    pooled: Pooled = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Replay a request log in a simulated engine (continuous batching), and write the calls of its kernels as weighted
    workloads. With --reduce, a few workloads represent all calls.

    The workloads have no error budgets yet: gdnspec workloads freeze DEFINITION --workloads FILE adds them.
    """
    if sessions:
        of_calls = {
            "--definition": definition_, "--interval": interval, "--solution": solution, "--steps": steps_file,
            "--whole": not chunked, "--device": device != "nvidia-h200", "--layers": layers != 36,
            "--step-ms": step_ms != 5.0, "--token-us": token_us != 10.0,
        }  # fmt: skip
        session_files.refuse(of_calls)
        from_log = LogOptions(log, kind, columns, skip_invalid, max_prompt, block_tokens)
        engine = EngineOptions(step_tokens, running, drafts or 0, acceptance, cached_states, seed)
        pool = PoolOptions(session_files.states_named(states or "float32"), convolution, pooled)
        write_sessions(from_log, engine, pool, preset, output, reduce, per_session or 8, shorten or 1, force)
        return
    if per_session is not None or shorten is not None:
        raise SpecError("--requests and --shorten describe sessions: add --sessions")
    if states is not None or convolution or pooled:
        raise SpecError("--states, --convolution and --pooled describe sessions: add --sessions")
    if not definition_:
        raise SpecError("name a --definition: a prefill, a decode or a verify; or --sessions")
    needs("serving", "sklearn", "scipy")
    found = _definitions(definition_)
    _hold_outputs(output, found, steps_file, force)
    require_folder(output, "-o DIR")
    names = tuple(name.strip() for name in columns.split(","))
    if len(set(names)) != 3 or not all(names):
        raise SpecError(f"--columns {columns!r}: give three different names, for arrival, prompt and output")
    guesses = _guesses(found, drafts)

    from gdnspec.traffic.engine import Limits
    from gdnspec.traffic.formats import known
    from gdnspec.traffic.log import Log

    limits = Limits(step_tokens, running, chunked, guesses, acceptance, cached_states, block_tokens, seed)
    interval = interval or block_tokens
    operators = [_operator(item, preset, guesses + 1, interval) for item in found]
    requests = Log(log, known((names[0], names[1], names[2]), block_tokens), kind, skip_invalid, max_prompt)
    cost = _cost(operators, preset, guesses, interval, solution, device, (layers, step_ms / 1e3, token_us / 1e6))
    tally, totals = replay(requests, limits, cost, steps_file)
    say_replay(requests, totals, limits, cost)
    write_workloads(operators, tally, output, reduce, seed, cost.ceilings)


# --- the request ------------------------------------------------------------------------------------------------


def _guesses(found: list[Found], drafts: int | None) -> int:
    """The draft tokens per row. Raises `SpecError` if they do not fit the definitions."""
    stages = {item.definition.stage for item in found}
    guesses = drafts if drafts is not None else 3 if "verify" in stages else 0
    if "verify" in stages and not guesses:
        raise SpecError("a verify definition needs draft tokens: use --drafts 1 or more")
    if guesses and "decode" in stages:
        raise SpecError(
            "an engine with --drafts verifies and never decodes: leave out --drafts, or the decode definition"
            if drafts
            else "an engine verifies or decodes, never both: leave out the verify definition, or the decode definition"
        )
    return guesses


def _definitions(names: list[str]) -> list[Found]:
    found = [definition(name) for name in dict.fromkeys(names)]
    for item in found:
        if item.definition.stage not in STAGES:
            served = [
                name
                for name, other in definitions().items()
                if other.definition.stage in STAGES and other.family.name == item.family.name
            ]
            raise SpecError(
                f"{item.definition.name} is not a prefill, decode or verify: use one of {', '.join(served)}"
            )
    return found


def _hold_outputs(folder: Path, found: list[Found], steps_file: Path | None, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise SpecError([Problem(folder, "is a file", hint="name a folder: it gets one file per definition")])
    files = [folder / f"{item.definition.name}.jsonl" for item in found]
    for file in (*files, *([steps_file] if steps_file else [])):
        if file.exists() and not force:
            raise SpecError([Problem(file, "exists already", hint="--force overwrites it")])
        if file.exists() and not file.resolve().is_file():
            raise SpecError([Problem(file, "is not a regular file, so it is not replaced")])
    if steps_file is not None and not steps_file.parent.is_dir():
        raise SpecError([Problem(steps_file, "its folder does not exist")])


def _operator(found: Found, preset: str, each: int, interval: int) -> "Operator":
    from gdnspec.traffic.calls import Operator

    heads = heads_of(found, preset)
    operator = Operator(found, preset, each if found.definition.stage == "verify" else 1, interval)
    try:
        operator.line("probe", (1,), True, 0).check(found.definition, heads)
    except PlacedError as error:
        raise SpecError(f"{found.definition.name} with {preset}: {error.message}") from None
    return operator


def _cost(
    operators: "list[Operator]", preset: str, guesses: int, interval: int, names: list[str] | None, device: str,
    engine: tuple[int, float, float],
) -> "StepCost":  # fmt: skip
    from gdnspec.traffic.cost import BoundTime, Engine, StepCost, ceilings_of, kernel_time, measured

    chosen, _ = chosen_solutions(names, None)
    ceilings = ceilings_of(solutions()[0].values(), device)

    def usual(stage: str) -> Found:
        family = operators[0].found.family
        if stage not in family.about.usual:
            raise SpecError(f"add --definition with a {stage}: family {family.name} names none for its step times")
        return definition(family.about.usual[stage])

    def of(stage: str) -> "tuple[Operator, KernelTime | BoundTime]":
        # Of several definitions of a stage, the first by name: the result must not depend on the order of options.
        asked = sorted(
            (o for o in operators if o.found.definition.stage == stage), key=lambda o: o.found.definition.name
        )
        operator = asked[0] if asked else _operator(usual(stage), preset, guesses + 1, interval)
        fitted = kernel_time(measured(chosen, operator.found, device), device)
        return operator, fitted or BoundTime(ceilings)

    return StepCost(Engine(*engine), ceilings, of("prefill"), of("verify" if guesses else "decode"))
