"""gdnspec export and import: exchange definitions, solutions and workloads with another benchmark."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdnspec.catalog.definitions import Found, definition, definitions, preset_of
from gdnspec.catalog.solutions import Solution, solutions
from gdnspec.catalog.workloads import load_workloads, refuse_sessions, workloads
from gdnspec.cli import offered
from gdnspec.cli.console import complain, say
from gdnspec.cli.options import DefinitionsDir, ForceFiles, SolutionsDir
from gdnspec.cli.selection import chosen_solutions, heads_of, require_suites
from gdnspec.interop.layouts import LAYOUTS
from gdnspec.model.errors import PlacedError, Problem, SpecError, nearest
from gdnspec.model.preset import Preset
from gdnspec.model.workload import SUITES, Workload

if TYPE_CHECKING:
    from gdnspec.interop.dataset import Dataset
    from gdnspec.interop.meaning import Meaning

DATASET, PACKAGE = "flashinfer-bench", "hf-kernels"
FORMATS = (DATASET, PACKAGE)


def export(
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help=f"{' or '.join(FORMATS)}.")],
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help="A definition, or a solution with all definitions that it serves.",
            autocompletion=offered.exports,
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The root of what is written.")],
    preset: Annotated[
        str | None,
        typer.Option(help=f"Head configuration, for {DATASET}: gdnspec list presets, or heads-QxKxV-dD."),
    ] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(help=f"Also export workloads of {', '.join(SUITES)}; repeatable.", show_default="smoke"),
    ] = None,
    workloads_file: Annotated[
        Path | None, typer.Option("--workloads", help="Export the workloads of this file instead (one definition).")
    ] = None,
    solutions_dir: SolutionsDir = None,
    force: ForceFiles = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Export a definition or a solution as a dataset for another benchmark, or solutions as a package.

    The format flashinfer-bench gets the definition with the heads of one preset and its reference, tensors as
    safetensors files, and a solution with its sources. An input that a workload leaves out is written with its default.
    The format hf-kernels gets the sources of solutions, as a package that the `kernels` library loads.
    """
    _hold_format(format_, FORMATS)
    if format_ == PACKAGE:
        if preset is not None or suite or workloads_file is not None:
            raise SpecError(
                f"{PACKAGE} takes no --preset, --suite or --workloads: it is for any heads, without workloads"
            )
        _export_package(names, solutions_dir, output, force)
        return
    if preset is None:
        raise SpecError(f"{DATASET} needs --preset: gdnspec list presets")
    if len(names) > 1:
        raise SpecError(f"{DATASET} takes one name at a time, and {len(names)} were given")
    found, solution = _named(names[0], solutions_dir)
    heads = heads_of(found[0], preset)
    if workloads_file is not None and len(found) != 1:
        refuse_sessions(workloads_file)
        raise SpecError("--workloads holds workloads of one definition: name it, or a solution that serves only it")
    require_suites(suite)
    for item in found:
        chosen = load_workloads(workloads_file, item) if workloads_file else workloads(item)
        lines = [line for line in chosen if workloads_file or line.suite in (suite or ["smoke"])]
        _export(item.at(workloads_file) if workloads_file else item, solution, preset, heads, lines, output, force)
    if solution is not None:
        _export_applied(solution, found, heads, output)


def _export_applied(solution: Solution, found: list[Found], heads: Preset, root: Path) -> None:
    """Writes what FlashInfer's trace_apply loads. It takes one solution for each name."""
    from gdnspec.interop.dataset_paths import applied_file
    from gdnspec.interop.outward import applied_json

    for whole in applied_json(solution, found, heads):
        path = root / applied_file(found[0].family.name, whole["definition"], whole["name"])
        others = [file.name for file in path.parent.glob("*.json") if file != path]
        if others:
            complain(
                f"left out of trace_apply: FlashInfer takes one solution a name, and {path.parent} has {others[0]}"
            )
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
        say(f"for FlashInfer's trace_apply as {whole['definition']}: {path.parent.parents[2]}")


def _export(
    found: Found, solution: Solution | None, preset: str, heads: Preset, lines: list[Workload], root: Path, force: bool
) -> None:
    from gdnspec.interop import dataset_paths
    from gdnspec.interop.outward import definition_json, solution_json
    from gdnspec.interop.workloads_out import rebound, workload_json

    _hold_heads(found, preset, heads)
    data = definition_json(found, heads)
    name, family = data["name"], found.family.name
    files = {dataset_paths.definition_file(family, name): json.dumps(data, indent=2) + "\n"}
    if solution is not None:
        whole = solution_json(solution, found, heads)
        files[dataset_paths.solution_file(family, name, whole["name"])] = json.dumps(whole, indent=2) + "\n"
    lines_file = root / dataset_paths.workloads_file(family, name)
    for path in (*(root / file for file in files), lines_file):
        if path.exists() and not force:
            raise SpecError([Problem(path, "exists already", hint="--force overwrites it")])
    rows = []
    for line in lines:
        if line.drawn is not None:
            complain(f"{line.name}: left out, because each check draws it on its own device")
            continue
        other = rebound(found, line, preset, heads)
        if other is None:
            complain(f"{line.name}: left out, because its tensors were recorded with other heads")
            continue
        try:
            other.check(found.definition, heads)
        except PlacedError as error:
            complain(f"{line.name}: left out, with {preset} it {error}")
            continue
        rows.append(json.dumps(workload_json(found, other, heads, root)) + "\n")
    files[dataset_paths.workloads_file(family, name)] = "".join(rows)
    for file, text in files.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text, encoding="utf-8")
    beside = f", {solution.name}" if solution is not None else ""
    say(f"{found.definition.name} as {name}{beside}: {len(rows)} workloads in {root}")


def _hold_heads(found: Found, preset: str, heads: Preset) -> None:
    definition, why = found.definition, ""
    if heads.stages is not None and definition.stage not in heads.stages:
        why = f"it is for {', '.join(heads.stages)}"
    else:
        try:
            scope = definition.bind({axis: heads.axes[axis] for axis in definition.const_axes()})
            why = next((message for _, _, message in definition.broken(scope)), "")
        except (PlacedError, KeyError) as error:
            why = str(error)
    if why:
        raise SpecError(f"{definition.name} cannot have the heads of {preset}: {why}")


def _export_package(names: list[str], extra: Path | None, root: Path, force: bool) -> None:
    from gdnspec.interop.hf_kernels import write

    chosen, _ = chosen_solutions(names, extra)
    variants = write(chosen, root, force, complain)
    say(f"{', '.join(solution.name for solution in chosen)}: {', '.join(variants)} in {root / 'build'}")


def _hold_format(name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise SpecError(f"no format {name!r} ({nearest(name, known)})")


def _named(name: str, extra: Path | None) -> tuple[list[Found], Solution | None]:
    from gdnspec.interop.outward import hold

    if name in definitions():
        return [definition(name)], None
    known, _ = solutions(extra)
    if name not in known:
        raise SpecError(f"no definition or solution {name!r} ({nearest(name, [*definitions(), *known])})")
    found: list[Found] = []
    refused: dict[str, None] = {}  # why, each once
    for served in known[name].manifest.entries:
        try:
            hold(definition(served))
            found.append(definition(served))
        except SpecError as error:
            refused[str(error)] = None
    if not found:
        raise SpecError(f"the format cannot express any definition that {name} serves: {'; '.join(refused)}")
    for text in refused:
        complain(f"left out: {text}")
    return found, known[name]


# --- import -----------------------------------------------------------------------------------------------------


def import_(
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help=f"{DATASET}.")],
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A dataset's root, or one JSON file of it.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Write DIR/<definition>.jsonl and DIR/solutions/ too."),
    ] = None,
    judge: Annotated[
        bool, typer.Option("--judge", help="Run each embedded reference in isolation, and report where it differs.")
    ] = False,
    state_layout: Annotated[
        str | None,
        typer.Option(
            help=f"Layout of the states of definitions that do not name one: {' or '.join(LAYOUTS)}.",
            show_default="none: such definitions are not imported",
        ),
    ] = None,
    force: ForceFiles = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Import a dataset of another benchmark. Reports how its definitions differ from those here, and converts its
    workloads and solutions.

    No imported code is run without --judge. Exit code 1 if something could not be read or expressed.
    """
    _hold_format(format_, (DATASET,))

    if state_layout is not None and state_layout not in LAYOUTS:
        raise SpecError(f"no layout {state_layout!r} ({nearest(state_layout, LAYOUTS)})")

    from gdnspec.cli.judging_imports import judge as judge_all
    from gdnspec.interop.dataset import read
    from gdnspec.interop.meaning import meaning

    data = read(path)
    for problem in data.problems:
        complain(f"gdnspec: {problem}")
    meanings = {name: meaning(item, state_layout) for name, item in data.definitions.items()}
    lost = len(data.problems)
    for name, found in meanings.items():
        names = " or ".join(match.found.definition.name for match in found.candidates)
        here = f"{found.ours.definition.name} with {found.preset}" if found.ours else names or "nothing here"
        say(f"{name}: {here}" + (", exactly" if found.same else ""))
        for text in found.differences:
            say(f"  differs: {text}")
        for text in found.lost:
            say(f"  cannot be expressed: {text}")
        lost += bool(found.lost)
    if output is not None:
        if output.exists() and any(output.iterdir()) and not force:
            raise SpecError([Problem(output, "is not empty", hint="--force writes into it")])
        lost += _write_workloads(meanings, data, output) + _write_solutions(meanings, data, output)
    _say_traces(data)
    if judge:
        judge_all(meanings)
    raise typer.Exit(1 if lost else 0)


def _write_workloads(meanings: "dict[str, Meaning]", data: "Dataset", output: Path) -> int:
    from gdnspec.inputs.contract import NotExpressed
    from gdnspec.interop.workloads_in import line_json

    lost, notes = 0, Counter[str]()
    rows: dict[str, list[str]] = {}
    output.mkdir(parents=True, exist_ok=True)
    for trace in data.workloads:
        found = meanings.get(trace.definition)
        where = f"workload {trace.workload.uuid} of {trace.definition}"
        if found is None or found.ours is None:
            complain(f"{where}: left out, because no definition here matches its definition")
            lost += 1
            continue
        try:
            line, changed = line_json(found, trace, data.root, output)
            workload = Workload.model_validate(line)
            workload.check(found.ours.definition, preset_of(found.ours, workload))
        except (NotExpressed, PlacedError, ValueError) as error:
            complain(f"{where}: left out, {error}")
            lost += 1
            continue
        notes.update(changed)
        rows.setdefault(found.ours.definition.name, []).append(json.dumps(line) + "\n")
    for name, lines in rows.items():
        (output / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        say(f"{len(lines)} workloads of {name} in {output / f'{name}.jsonl'}; next: gdnspec workloads freeze")
    for text, count in notes.items():
        say(f"  in {count} of them: {text}")
    return lost


def _write_solutions(meanings: "dict[str, Meaning]", data: "Dataset", output: Path) -> int:
    from gdnspec.inputs.contract import NotExpressed
    from gdnspec.interop.solutions_in import write_solution

    lost = 0
    for theirs in data.solutions:
        found = meanings.get(theirs.definition)
        try:
            if found is None or found.ours is None:
                raise NotExpressed(
                    f"its definition {theirs.definition} is not in the dataset, or no definition here matches it"
                )
            folder = write_solution(found, theirs, output / "solutions")
            say(f"solution {theirs.name}: {folder}")
        except NotExpressed as error:
            complain(f"solution {theirs.name}: left out, {error}")
            lost += 1
    return lost


def _say_traces(data: "Dataset") -> None:
    """Prints how many traces the dataset has. Figures of another judge are never used as traces here."""
    groups: dict[tuple[str, str], Counter[str]] = {}
    for trace in data.traces:
        status = trace.evaluation.status if trace.evaluation else "none"
        groups.setdefault((trace.definition, trace.solution or ""), Counter())[status] += 1
    for (definition_name, solution), counts in sorted(groups.items()):
        said = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        say(f"traces of {solution} on {definition_name}: {said} (judged elsewhere, so not imported)")
