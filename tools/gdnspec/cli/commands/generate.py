"""gdnspec workloads generate: draw new workloads."""

import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, TextIO

import typer

from gdnspec.catalog.definitions import Found, definition
from gdnspec.catalog.families import same_families
from gdnspec.catalog.writing import require_file
from gdnspec.cli import offered, session_files
from gdnspec.cli.console import complain, number_of, warn
from gdnspec.cli.device import chosen_device, require_device
from gdnspec.cli.options import Convolution, DefinitionsDir, ForceFile, Pooled, StatesName
from gdnspec.cli.progress import counted
from gdnspec.cli.selection import heads_of, no_preset, no_regime
from gdnspec.model import roles
from gdnspec.model.definition import Definition
from gdnspec.model.dtypes import FLOATS
from gdnspec.model.errors import PlacedError, Problem, SpecError, nearest
from gdnspec.model.expression import ExpressionError
from gdnspec.model.preset import Preset
from gdnspec.model.workload import Workload

SPEC = "a list (1,63,1000), uniform:LO:HI or lognormal:MEDIAN:SIGMA"


Name = Annotated[
    str | None,
    typer.Argument(
        metavar="DEFINITION",
        help="The definition to make workloads for; with --sessions, a family.",
        autocompletion=offered.definitions,
    ),
]
Sessions = Annotated[bool, typer.Option("--sessions", help="Draw sessions: sequences of calls on one pool of states.")]
Regime = Annotated[
    str | None,
    typer.Option(
        help="How values are drawn: gdnspec list regimes.",
        show_default="the first of the family",
        autocompletion=offered.regimes,
    ),
]


def generate(
    preset: Annotated[
        str, typer.Option(help="Head configuration: gdnspec list presets.", autocompletion=offered.presets)
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The JSONL file to write; - is stdout.")],
    name: Name = None,
    regime: Regime = None,
    lengths: Annotated[str | None, typer.Option(help=f"Sequence lengths of one workload: {SPEC}.")] = None,
    batch: Annotated[
        str | None, typer.Option(help=f"Sequences in a workload, or batch sizes of a decode: {SPEC}.")
    ] = None,
    drafts: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens per row, for definitions whose rows have several.", show_default="4"),
    ] = None,
    scalar: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set a scalar input; repeatable.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=100_000, help="How many workloads.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 62) - 1, help="The same seed gives the same workloads.")] = 0,
    freeze: Annotated[bool, typer.Option(help="Also freeze error budgets, which a check needs.")] = True,
    device: Annotated[str, typer.Option(help="Freeze budgets here: auto, cpu or cuda.")] = "auto",
    force: ForceFile = False,
    sessions: Sessions = False,
    states: StatesName = None,
    convolution: Convolution = False,
    pooled: Pooled = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Draw workloads. The same options give the same lines and the same tensors on any machine."""
    require_device(device)
    if sessions:
        cuda = {f"--device {device}": device == "cuda"}
        of_calls = {"--lengths": lengths, "--batch": batch, "--drafts": drafts, "--scalar": scalar}
        session_files.refuse({**of_calls, **cuda})
        _sessions(name, preset, regime, states or "float32", convolution, pooled, count, seed, output, force, freeze)
        return
    if states is not None or convolution or pooled:
        raise SpecError("--states, --convolution and --pooled describe sessions: add --sessions")
    if name is None:
        raise SpecError("name a DEFINITION: gdnspec list definitions, or --sessions")
    found = definition(name)
    heads = heads_of(found, preset)
    known = found.family.about.regimes
    regime = regime or next(iter(known))
    if regime not in known:
        raise no_regime(found.family, regime)
    to_stdout = str(output) == "-"
    if not to_stdout:
        require_file(output, "-o FILE")
    lines = _lines(found, preset, heads, regime, lengths, batch, drafts, scalar or [], count, seed)
    done = 0 if to_stdout or force else _done(output, lines, freeze)
    freezer = _freezer(device) if freeze else None
    made = (freezer(found, drawn) if freezer else drawn for drawn in (_with_hash(found, line) for line in lines[done:]))
    written = done
    try:
        first = next(made)  # if it cannot be drawn, no file is opened, and an earlier one stays
        with (
            contextlib.nullcontext(sys.stdout) if to_stdout else _continued(output, done) as file,
            counted("workloads", len(lines), done) as tick,
        ):
            for drawn in chain([first], made):
                print(json.dumps(drawn.model_dump(mode="json", exclude_defaults=True)), file=file, flush=True)
                written += 1
                tick(written)
    except KeyboardInterrupt:
        if not to_stdout:
            complain(f"{written} of {len(lines)} workloads in {output}; the same command continues from there")
        raise
    if not to_stdout:
        then = ("check",) if freeze else ("workloads", "freeze")
        command = shlex.join(["gdnspec", *then, name, "--workloads", str(output), *same_families()])
        complain(f"{number_of(len(lines), 'workload')} in {output}; next: {command}")


def _sessions(
    name: str | None, preset: str, regime: str | None, states: str, convolution: bool, pooled: bool, count: int,
    seed: int, output: Path, force: bool, freeze: bool,
) -> None:  # fmt: skip
    family = session_files.family_named(name)
    known, stored = family.about.regimes, session_files.states_named(states)
    chosen = regime or next(iter(known))
    if chosen not in known:
        raise no_regime(family, chosen)
    if family.preset(preset) is None:
        raise no_preset(family, preset)

    from gdnspec.sessions.random_walk import draw

    lines = (draw(f"{chosen}_{i}", preset, chosen, seed + i, stored, convolution, pooled=pooled) for i in range(count))
    session_files.write(family, lines, count, output, force, freeze)


def _done(output: Path, lines: list[Workload], budgets: bool) -> int:
    """How many of the lines an interrupted run has already written. Raises `SpecError` if the file has another
    content, or is complete."""
    if not output.exists():
        return 0
    refused = SpecError([Problem(output, "exists already", hint="--force overwrites it")])
    if not output.is_file():  # a pipe, or a terminal
        return 0
    text = output.read_bytes()
    whole = text[: text.rfind(b"\n") + 1].decode(errors="replace").splitlines()
    if len(whole) >= len(lines) or not text.strip():
        raise refused
    for wanted, row in zip(lines, whole, strict=False):
        try:
            found = Workload.model_validate_json(row)
        except ValueError:
            raise refused from None
        bare = found.model_copy(update={"sha256": None, "budget": None, "emulators": None})
        if bare != wanted or bool(found.budget) != budgets:
            raise refused
    if not whole:
        raise refused
    return len(whole)


@contextlib.contextmanager
def _continued(output: Path, lines: int) -> Iterator[TextIO]:
    """The file behind its first lines. What follows them is cut off: an interrupted run may leave part of a line."""
    with output.open("r+", encoding="utf-8") if lines else output.open("w", encoding="utf-8") as file:
        if lines:
            for _ in range(lines):
                file.readline()
            file.seek(file.tell())
            file.truncate()
        yield file


def _freezer(device: str) -> Callable[[Found, Workload], Workload]:
    where = chosen_device(device)

    from gdnspec.numerics.expected import Expected
    from gdnspec.numerics.freeze import frozen

    expected = Expected(where.kind, warn)
    return lambda found, line: frozen(found, line, expected)


def _lines(
    found: Found, preset: str, heads: Preset, regime: str, lengths: str | None, batch: str | None,
    drafts: int | None, scalar: list[str], count: int, seed: int,
) -> list[Workload]:  # fmt: skip
    from gdnspec.inputs.lengths import parse
    from gdnspec.inputs.random import Stream
    from gdnspec.inputs.slots import slots

    several = roles.axis(found.definition, "drafts") is not None
    if drafts is not None and not several:
        raise SpecError(f"{found.definition.name} takes one token per row: leave out --drafts")
    tokens = (drafts or 4) if several else 1
    scalars = _scalars(found.definition, scalar)

    ragged = found.definition.conventions.packing == "ragged"
    if ragged and lengths is None:
        raise SpecError(f"{found.definition.name} takes sequences: add --lengths SPEC, where SPEC is {SPEC}")
    if not ragged and lengths is not None:
        raise SpecError(f"{found.definition.name} takes one token per sequence: use --batch SPEC instead of --lengths")
    length_spec = parse(lengths, "--lengths") if lengths is not None else None
    fixed = length_spec is not None and length_spec.fixed is not None
    if fixed and batch is not None:
        raise SpecError("a list in --lengths already fixes the number of sequences: leave out --batch")
    batch_spec = parse(batch or "8", "--batch")
    length_stream, batch_stream = Stream(seed, "lengths"), Stream(seed, "batch")
    sizes = batch_spec.draw(batch_stream, count)
    lines = []
    for i in range(count):
        if length_spec is not None:
            drawn = list(length_spec.fixed or ()) if fixed else length_spec.draw(length_stream, max(sizes[i], 1))
        else:
            drawn = [tokens] * sizes[i]
        try:
            axes = roles.sizes(found.definition, drawn, scalars)
        except ExpressionError as error:
            raise SpecError(f"{error}: set its value with --scalar NAME=VALUE") from None
        each = 1 if ragged else tokens
        more, integers = slots(found.definition, len(drawn), each, Stream(seed, f"slots/{i}"))
        values = {"axes": axes | more, "integers": integers, "scalars": scalars}
        if ragged:
            values["sequence_lengths"] = drawn
        suite = (
            "strict" if regime in found.family.about.strict else "conformance"
        )  # decides which emulators set its budget
        line = {"name": f"{regime}_{i}", "suite": suite, "preset": preset, "regime": regime, "seed": seed + i}
        try:
            workload = Workload.model_validate({**line, **values})
            workload.check(found.definition, heads)
        except PlacedError as error:
            raise SpecError(f"workload {i}: {error.message}") from None
        lines.append(workload)
    return lines


def _scalars(definition: Definition, given: list[str]) -> dict[str, bool | int | float]:
    """The scalar inputs that `--scalar` sets, by name. Raises `SpecError`."""
    known = {tensor.name: tensor for tensor in definition.inputs if tensor.is_scalar}
    found: dict[str, bool | int | float] = {}
    for item in given:
        name, _, text = item.partition("=")
        if name not in known:
            raise SpecError(f"--scalar {item}: {name!r} is not a scalar input ({nearest(name, known)})")
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, bool | int | float):
            raise SpecError(f"--scalar {item}: {text!r} is not a number, true or false")
        found[name] = float(value) if known[name].dtype in FLOATS and not isinstance(value, bool) else value
    return found


def _with_hash(found: Found, line: Workload) -> Workload:
    from gdnspec.inputs.materialise import InvalidWorkload, materialise
    from gdnspec.inputs.memory import require

    try:
        require(found, line)
        return line.model_copy(update={"sha256": materialise(found, line).sha256})
    except (InvalidWorkload, MemoryError) as error:
        raise SpecError(f"workload {line.name!r}: {error}") from None
