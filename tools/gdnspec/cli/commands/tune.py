"""gdnspec tune: time the solutions for one shape on this machine, and keep the times."""

import contextlib
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from gdnspec.catalog.definitions import Found, definition, preset_of
from gdnspec.catalog.solutions import Solution
from gdnspec.catalog.workloads import workloads
from gdnspec.choice.asking import INTERVAL, ask, batch_of
from gdnspec.choice.candidates import Asked, serving
from gdnspec.choice.choose import Choice, choose
from gdnspec.choice.expected_time import lengths_said
from gdnspec.choice.tuned import keep_tuned
from gdnspec.cli import amounts
from gdnspec.cli.chosen import print_choices
from gdnspec.cli.command_line import command_line
from gdnspec.cli.commands.which import Batch, Lengths, Name, PresetName, Tokens
from gdnspec.cli.console import complain, say
from gdnspec.cli.options import DefinitionsDir, Solutions
from gdnspec.cli.selection import chosen_solutions, heads_of
from gdnspec.model.errors import SpecError, nearest
from gdnspec.model.trace import Trace
from gdnspec.model.workload import Workload

if TYPE_CHECKING:
    from gdnspec.build.machine import Device

SLOW = 20  # a solution that is expected to take so many times the best time is left out
EPILOG = (
    "Exit codes: 0 tuned; 1 a solution failed; 2 the request or a file is invalid; 3 nothing could run here, or a "
    "package is missing."
)


def tune(
    name: Name,
    preset: PresetName,
    lengths: Lengths = None,
    batch: Batch = None,
    tokens: Tokens = None,
    solution: Solutions = None,
    device: Annotated[
        str, typer.Option(help="cuda; or cpu, whose times decide only between solutions on this processor.")
    ] = "cuda",
    seconds: Annotated[float, typer.Option(min=0.1, max=amounts.SECONDS, help="Seconds per solution.")] = 3.0,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=amounts.SECONDS, help="Seconds that one window may take.")
    ] = 120.0,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Time the solutions for one shape on this machine, and keep the times for later choices.

    Each solution that serves the shape is checked and timed as `gdnspec bench` does. The times are kept in the cache
    folder, which GDNSPEC_CACHE names. On this machine they outrank the traces of the repository: `gdnspec.kernel` and
    `gdnspec which` use them.
    """
    found = definition(name)
    each, heads = batch_of(found, lengths, batch, tokens), heads_of(found, preset)
    if device not in ("cpu", "cuda"):
        raise SpecError(f"no device {device!r}: --device takes cuda or cpu")
    if solution is not None:
        chosen_solutions(solution, None)  # before torch is imported: a name may be misspelt
    where = _device(device)
    asked = ask(found, heads, preset, each, where.slug)
    chosen = _chosen(asked, where, solution)
    file = keep_tuned(name, [])  # before anything is measured: can it be written?
    lost = []
    for trace in _measured(found, _line(found, preset, each, asked), chosen, where, seconds, timeout):
        if trace.status == "PASSED" and trace.timing is not None:
            keep_tuned(name, [trace])
        else:
            lost.append(trace)
    if len(lost) < len(chosen):
        say(f"kept {len(chosen) - len(lost)} of {len(chosen)} times in {file}")
        print_choices(asked, preset, *choose(asked, peers=solution is not None))
    if lost:
        raise typer.Exit(1 if any(trace.status != "UNSUPPORTED" for trace in lost) else 3)


def _device(name: str) -> "Device":
    from gdnspec.build import machine

    found = machine.device(name)
    if found is None:
        complain("gdnspec: this machine has no CUDA GPU to tune for; --device cpu tunes for its processor")
        raise typer.Exit(3)
    return found


def _chosen(asked: Asked, where: "Device", wanted: list[str] | None) -> list[Solution]:
    """The solutions to time: those of --solution, or all that serve and are not expected to be far slower."""
    from gdnspec.build.machine import lacking

    choices, candidates = choose(asked, lambda one: lacking(one.manifest, where), peers=wanted is not None)
    known = {choice.name: choice for choice in choices}
    for name in wanted or ():
        if name in candidates.refused:
            raise SpecError(f"--solution: {name} cannot serve this call: {candidates.refused[name]}")
        if name not in known:
            raise SpecError(f"--solution: no solution {name!r} serves this call ({nearest(name, known)})")
    if not choices:
        reasons = "; ".join(f"{name}: {why}" for name, why in candidates.refused.items())
        complain(f"gdnspec: nothing serves this call here ({reasons}): {serving(asked.found)}")
        raise typer.Exit(3)
    if wanted is not None:
        return [known[name].solution for name in wanted]
    slow = [choice for choice in choices if _slow(choice, choices[0])]
    for choice in slow:
        complain(f"gdnspec: {choice.name} is left out, being over {SLOW}x slower; --solution {choice.name} times it")
    return [choice.solution for choice in choices if choice not in slow]


def _slow(choice: Choice, best: Choice) -> bool:
    """Whether it was measured, or is expected, to be far slower on the same device."""
    known = choice.time is not None and best.time is not None
    return known and (choice.time or 0) > SLOW * (best.time or 0)


def _line(found: Found, preset: str, each: list[int], asked: Asked) -> Workload:
    """The workload: a published one of this shape, or a new one, whose budget the check measures."""
    from gdnspec.traffic.calls import Operator

    drawn = Operator(found, preset, max(each, default=1), INTERVAL).line("tuned", each, True, secrets.randbits(62))
    for line in workloads(found):
        if line.suite == "performance" and line.judged is None and _alike(found, line, drawn):
            return line
    said = lengths_said(found.definition, asked.scope, asked.sequence_lengths)
    name = "".join(c if c.isalnum() else "_" for c in said)
    continued = {tensor.name: [1] * len(each) for tensor in found.definition.inputs if tensor.is_flag}
    integers = drawn.integers | continued  # each sequence continues from the state in its slot
    line = drawn.model_copy(update={"suite": "fresh", "name": f"tuned_{name}"[:100], "integers": integers})
    line.check(found.definition, preset_of(found, line))
    return line


def _alike(found: Found, line: Workload, other: Workload) -> bool:
    same_axes = line.axes == other.axes and line.sequence_lengths == other.sequence_lengths
    return same_axes and preset_of(found, line).axes == preset_of(found, other).axes


def _measured(
    found: Found, line: Workload, chosen: list[Solution], where: "Device", seconds: float, timeout: float
) -> Iterator[Trace]:
    from gdnspec.bench.executor import Settings, Task, local
    from gdnspec.check.plan import plan
    from gdnspec.cli.console import warn
    from gdnspec.cli.live import LiveTable

    tasks = [Task(job, []) for job in plan(chosen, [(found, [line])], where)]
    command = command_line()
    settings = Settings(where.kind, seconds, timeout, secrets.randbits(62), command, 1)
    with LiveTable(len(tasks)) as live, contextlib.closing(local(tasks, settings, live, warn)) as measured:
        for _, (trace, *_beside) in measured:
            live.add(trace)
            yield trace
