"""gdnspec show NAME: one definition, solution, workload, session, preset, regime or family."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from gdnspec import paths
from gdnspec.catalog.definitions import Found, definitions, preset, presets
from gdnspec.catalog.families import Family, families, having_regime, regimes, same_families
from gdnspec.catalog.sessions import sessions, with_sessions
from gdnspec.catalog.solutions import Solution, no_variant, solutions
from gdnspec.catalog.workloads import workloads
from gdnspec.cli import offered, session_files
from gdnspec.cli.console import add_row, out, print_json, print_table, say, table, warn
from gdnspec.cli.options import AsJson, DefinitionsDir, SolutionsDir
from gdnspec.cli.reading import keep_all
from gdnspec.model.elements import DerivedAxis, Tensor, VarAxis
from gdnspec.model.errors import SpecError, nearest
from gdnspec.model.session_line import SessionLine


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A definition, solution, preset, regime, family, session, workload or DEFINITION/WORKLOAD.",
            autocompletion=offered.everything,
        ),
    ],
    solutions_dir: SolutionsDir = None,
    workloads_file: Annotated[
        Path | None, typer.Option("--workloads", metavar="FILE", help="Show the session of this name in a file.")
    ] = None,
    as_json: AsJson = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Show one definition, solution, preset, regime, workload, session or family in full."""
    keep_all()
    if workloads_file is not None:
        family, session = session_files.one_of(workloads_file, name)
        _session(family, session, as_json, workloads_file)
        return
    if name in definitions():
        found = definitions()[name]
        print_json(found.definition.model_dump(mode="json")) if as_json else _definition(found)
        return
    if (found_preset := preset(name)) is not None:
        print_json(found_preset.model_dump(mode="json", exclude_none=True))
        return
    if meanings := {family.name: family.about.regimes[name] for family in having_regime(name)}:
        print_json({name: meanings}) if as_json else say("\n".join(f"{name} of {f}: {w}" for f, w in meanings.items()))
        return
    if name in families():
        _family(families()[name], as_json)
        return
    known, problems = solutions(solutions_dir)
    base, _, variant = name.partition(":")
    if variant and base in known and name not in known:
        raise no_variant(known[base], variant)
    if name in known:
        print_json(known[name].manifest.model_dump(mode="json")) if as_json else _solution(known[name])
        return
    found_sessions = [(f, line) for f in with_sessions().values() for line in sessions(f) if line.name == name]
    lines = _workload_lines(name)
    if found_sessions:
        for family, session in found_sessions:
            _session(family, session, as_json)
        if lines:
            warn(f"{len(lines)} workloads have this name too: gdnspec show {lines[0]['definition']}/{name}")
        return
    if lines:
        print_json(lines if len(lines) > 1 else lines[0])
        return
    for problem in problems:
        warn(str(problem))
    of_sessions = [line.name for family in with_sessions().values() for line in sessions(family)]
    everything = [*families(), *definitions(), *presets(), *regimes(), *known, *of_sessions]
    raise SpecError(f"nothing is named {name!r} ({nearest(name, everything)})")


def _workload_lines(name: str) -> list[dict[str, object]]:
    definition, _, workload = name.rpartition("/")
    return [
        {"definition": found.definition.name, **line.model_dump(mode="json", exclude_none=True)}
        for found in definitions().values()
        if definition in ("", found.definition.name)
        for line in workloads(found)
        if line.name == workload
    ]


def _definition(found: Found) -> None:
    d = found.definition
    out().print(d.name, style="bold")
    say(f"{d.stage}: {d.description}\n")
    say("  ".join(f"{key}: {value}" for key, value in d.conventions.model_dump().items()) + "\n")
    axes = table("", "axis", "kind", "binding", "description")
    for axis in d.axes:
        binding = "preset"
        if isinstance(axis, VarAxis):
            binding = f"workload, >= {axis.minimum}"
        elif isinstance(axis, DerivedAxis):
            binding = axis.expression
        add_row(axes, axis.name, axis.kind, binding, axis.description)
        for part in (axis.parts or []) if isinstance(axis, DerivedAxis) else []:
            add_row(axes, f"  {part.name}", "part", f"[{', '.join(map(str, part.shape))}]", part.description)
    print_table(axes)
    say()
    tensors = table("", "tensor", "", "shape", "dtype", "default", "domain", "drawn as", "description")
    for side, group in (("in", d.inputs), ("out", d.outputs)):
        for t in group:
            shape = "scalar" if t.shape is None else "[" + ", ".join(map(str, t.shape)) + "]"
            more = "updated" if t.mutates else "" if t.strides is None else f"{t.strides} apart"
            how = f"{side}, {more}" if more else side
            add_row(tensors, t.name, how, shape, t.dtype, t.default or "", _domain(t), t.draw or "", t.description)
            for part in t.parts or []:
                shape = "[" + ", ".join(map(str, part.shape)) + "]"
                add_row(tensors, f"  {part.name}", "part", shape, "", "", "", part.draw or "", part.description)
    print_table(tensors)
    say()
    for constraint in d.constraints:
        say(f"constraint  {constraint.expression}\n            {constraint.message}")
    for symmetry in d.symmetries:
        but = "" if symmetry.exact else ", but for the order of sums"
        say(f"symmetry    {symmetry.name} ({', '.join(symmetry.dimension)}){but}")
    say(f"flops       {d.flops}\nreference   {paths.shown(found.family.reference)}/{d.reference}")
    if d.second_reference is not None:
        second = d.second_reference
        say(f"            {second.function} above {second.above_tokens} tokens")
    if d.extends is not None:
        say(f"extends     {d.extends}: {paths.shown(found.file)} holds what differs")
    say(f"workloads   {len(workloads(found))}: {_listed('workloads', d.name)}")
    say(f"solutions   {_listed('solutions', d.name)}")


def _listed(what: str, word: str) -> str:
    """The command that lists them, also where --definitions-dir has added the family."""
    return shlex.join(["gdnspec", "list", what, "-k", word, *same_families()])


def _family(family: Family, as_json: bool) -> None:
    names = [name for name, found in definitions().items() if found.family.name == family.name]
    if as_json:
        print_json({"family": family.name, "definitions": names, "presets": [*family.presets],
                    "regimes": family.about.regimes})  # fmt: skip
        return
    out().print(family.name, style="bold")
    say(f"conventions {paths.shown(family.folder)}/README.md\nreference   {paths.shown(family.reference)}")
    say(f"presets     {len(family.presets)}: {_listed('presets', family.name)}")
    say(f"regimes     {len(family.about.regimes)}: {_listed('regimes', family.name)}")
    say("definitions " + "\n            ".join(names))


def _session(family: Family, session: SessionLine, as_json: bool, file: Path | None = None) -> None:
    if as_json:
        print_json(session.model_dump(mode="json", exclude_none=True))
        return
    out().print(session.name, style="bold")
    say(f"{session.covers}\n" if session.covers else "")
    how = [session.suite, f"{session.slots} slots", f"{session.states} states"]
    how += [word for word, there in (("convolution", session.convolution), ("on the pool", session.pooled)) if there]
    say(f"family {family.name}, {', '.join(how)}")
    say(f"preset {session.preset}, regime {session.regime}, seed {session.seed}\n")
    steps = table("", "step", "do", "")
    for number, step in enumerate(session.steps):
        add_row(steps, number, step.do, _words(step.model_dump(mode="json", exclude={"do"}, exclude_defaults=True)))
    print_table(steps)
    of_file = f" --workloads {shlex.quote(paths.shown(file))}" if file is not None else ""
    say(f"\njudge it    gdnspec check --sessions --workload {session.name}{of_file}")


def _words(value: Any) -> str:
    """What a step says, in words: request a, slot 4."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(x)}" for key, x in value.items())
    if isinstance(value, list) and value and isinstance(value[0], dict | None):
        return "; ".join(f"({_words(x)})" for x in value)
    return "padding" if value is None else str(value)


def _domain(tensor: Tensor) -> str:
    if tensor.indexes is not None:
        return f"slots of {tensor.indexes}{', written' if tensor.writes else ''}"
    if tensor.domain is None:
        return ""
    low, high = tensor.domain
    return f"{'-inf' if low is None else f'{low:g}'} .. {'inf' if high is None else f'{high:g}'}"


def _solution(solution: Solution) -> None:
    m = solution.manifest
    out().print(solution.name, style="bold")
    say(f"{m.language}, {m.license}, by {', '.join(m.authors)}\n{m.description}\n")
    needs = [f"device: {m.requires.device}", *m.requires.packages]
    if m.requires.compute_capability:
        needs.append(f"compute capability >= {m.requires.compute_capability}")
    say(f"needs       {', '.join(needs)}")
    say(f"sources     {', '.join(m.sources)} in {paths.shown(solution.folder)}")
    say(f"hash        {solution.source_hash[:16]}")
    for name, entry in m.entries.items():
        limits = f"; supports {' and '.join(entry.supports)}" if entry.supports else ""
        say(f"serves      {name} by {entry.entry} ({entry.call}){limits}")
    for kind, values in solution.settings.items():
        if values:
            say(f"{kind:<11} {', '.join(f'{name}={value}' for name, value in values.items())}")
    for one in solution.variants:
        say(f"variant     {one.name}: {one.manifest.description}")
