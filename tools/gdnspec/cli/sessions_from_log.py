"""gdnspec workloads from-requests --sessions: sessions from the requests of a log."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from gdnspec.cli import session_files
from gdnspec.cli.console import complain, number_of
from gdnspec.cli.selection import no_preset
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.session_line import SessionLine, States

FILE = "sessions.jsonl"
LONG = 10_000  # tokens: every emulator takes a loop over them


@dataclass(frozen=True)
class LogOptions:
    """How the log is read."""

    path: Path
    kind: str | None
    columns: str
    skip_invalid: bool
    max_prompt: int
    block: int


@dataclass(frozen=True)
class EngineOptions:
    """The engine that serves each session."""

    step_tokens: int
    running: int
    drafts: int
    acceptance: float
    cached_states: int
    seed: int


@dataclass(frozen=True)
class PoolOptions:
    """What the pool holds, and whether calls work on its slots."""

    states: States
    convolution: bool
    pooled: bool


def write_sessions(
    log: LogOptions, engine: EngineOptions, pool: PoolOptions, preset: str, folder: Path, most: int | None, size: int,
    shorten: int, force: bool,
) -> None:  # fmt: skip
    """Writes `folder/sessions.jsonl`: `size` requests in each session, and at most `most` sessions. Raises
    `SpecError`."""
    family = session_files.family_named(None)
    if family.preset(preset) is None:
        raise no_preset(family, preset)
    if engine.drafts and pool.states != "float32" and not pool.pooled:
        raise SpecError(f"no definition verifies drafts on {pool.states} states in slots: add --pooled, or leave out "
                        "--drafts")  # fmt: skip
    if folder.exists() and not folder.is_dir():
        raise SpecError([Problem(folder, "is a file", hint="name a folder: it gets sessions.jsonl")])
    names = tuple(name.strip() for name in log.columns.split(","))
    if len(set(names)) != 3 or not all(names):
        raise SpecError(f"--columns {log.columns!r}: give three different names, for arrival, prompt and output")

    from gdnspec.traffic.engine import Limits
    from gdnspec.traffic.formats import known
    from gdnspec.traffic.log import Log
    from gdnspec.traffic.served import Served, groups, shortened

    running = min(engine.running, size)
    limits = Limits(
        step_tokens=engine.step_tokens, running=running, drafts=engine.drafts, acceptance=engine.acceptance,
        cached_states=engine.cached_states, block=log.block, seed=engine.seed,
    )  # fmt: skip
    formats = known((names[0], names[1], names[2]), log.block)
    requests = Log(log.path, formats, log.kind, log.skip_invalid, log.max_prompt)
    regime = next(iter(family.about.regimes))

    tokens = 0

    def lines() -> Iterator[SessionLine]:
        nonlocal tokens
        short = (shortened(request, shorten) for request in requests)
        for i, group in enumerate(islice(groups(short, size), most)):
            blocks = len({block for request in group for block in request.blocks})
            served = Served(replace(limits, cached_states=min(blocks, limits.cached_states)), i * size, pool.pooled)
            served.serve(group)
            tokens += sum(request.prompt + request.output for request in group)
            yield SessionLine.model_validate(
                {
                    "name": f"log_{i}", "suite": "conformance", "preset": preset, "regime": regime,
                    "seed": (engine.seed * 1_000_003 + i * size) % (1 << 62), "slots": served.slots,
                    "states": pool.states, "convolution": pool.convolution, "pooled": pool.pooled,
                    "interval": log.block if served.kept else None, "steps": served.steps,
                }
            )  # fmt: skip

    made = list(lines())
    if tokens > LONG:
        advice = "--reduce N takes the first N, and --shorten N divides their prompts and answers"
        complain(f"{number_of(len(made), 'session')} and {tokens} tokens, which takes a while: {advice}")
    folder.mkdir(parents=True, exist_ok=True)
    session_files.write(family, made, len(made), folder / FILE, force, freeze=True)
