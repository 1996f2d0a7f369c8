"""Writes the workload files of definitions: the suites that their families ship.

    python tools/make_workloads.py            writes all, with the sha256 of every workload's inputs
    python tools/make_workloads.py NAME ..    those of these definitions
    python tools/make_workloads.py --fast     leaves the hashes of workloads for a GPU as they are
    python tools/make_workloads.py --table    writes what the suites cover into the README of each family

A family says which workloads it ships: `suites` of its FAMILY (gdnspec.family.Family). Frozen budgets stay where a
line's inputs have not changed; `gdnspec workloads freeze --missing` adds others.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gdnspec import paths
from gdnspec.build.reference import FAMILY_CODE, judged
from gdnspec.catalog import families
from gdnspec.catalog.definitions import Found, definition, definitions, preset_of
from gdnspec.inputs.contract import SuiteError, Suites
from gdnspec.inputs.fresh import published
from gdnspec.inputs.materialise import materialise
from gdnspec.model.budget import LIMITS
from gdnspec.model.errors import PlacedError, Problem, SpecError
from gdnspec.model.loading import load_lines
from gdnspec.model.workload import Workload

FROZEN = {"budget", "emulators"}  # kept where the inputs are the same
BEGIN = "<!-- coverage: begin (python tools/make_workloads.py --table writes it) -->"
END = "<!-- coverage: end -->"


def suites(found: Found) -> Suites:
    """Those of a definition's family. Raises `SpecError` where it has none."""
    load = judged(found.family).suites
    if load is None:
        hint = "name definitions of families that have, or give its FAMILY suites"
        raise SpecError([Problem(found.family.reference / FAMILY_CODE, "this family ships no suites", hint=hint)])
    listed: Suites = load()
    return listed


def held(found: Found) -> list[Workload]:
    """The lines of a definition's file as they stand, whether or not they still fit the definition."""
    file = found.workloads_file
    return [workload for _, workload in load_lines(Workload, file)] if file.is_file() else []


class Shares:
    """Which part of the largest budget honest arithmetic takes on a line; keeps the budgets that it has measured."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.frozen: dict[str, Workload] = {}

    def __call__(self, line: Workload) -> float | None:
        from gdnspec.numerics.expected import Expected
        from gdnspec.numerics.freeze import frozen

        line.check(self.found.definition, preset_of(self.found, line))
        try:
            done = frozen(self.found, line, Expected("cpu", print))
        except SpecError:
            return None
        self.frozen[line.name] = done
        return max(limit / LIMITS[name] for limits in (done.budget or {}).values() for name, limit in limits.items())


def bare(line: Workload) -> Workload:
    """A line without what is measured on it."""
    return line.model_copy(update=dict.fromkeys(("sha256", *FROZEN)))


def lines(found: Found, before: list[Workload], share: Shares) -> Iterator[Workload]:
    """Every workload of a definition, but for those whose file of tensors is not there."""
    for workload in suites(found).lines(published(found, before), share):
        if workload.tensors is not None and not found.tensors(workload.tensors).is_file():
            print(f"{found.definition.name} {workload.name} left out: no {workload.tensors}")
            continue
        workload.check(found.definition, preset_of(found, workload))
        yield workload


def text(found: Found, fast: bool) -> str:
    """The file of a definition: hashes, and budgets that still hold."""
    before, share = held(found), Shares(found)
    known = {line.name: line for line in before}
    rows = []
    for workload in lines(found, before, share):
        row: dict[str, Any] = workload.model_dump(mode="json", exclude_defaults=True)
        held_as = [line for line in (known.get(workload.name), share.frozen.get(workload.name)) if line is not None]
        same = [line for line in held_as if bare(line).model_copy(update={"covers": workload.covers}) == workload]
        if workload.drawn is None:  # else neither a hash nor a budget: both depend on the device
            kept = same[0].sha256 if same and fast and workload.device == "cuda" else None
            row["sha256"] = kept or materialise(found, workload).sha256
            for line in same:
                if line.sha256 == row["sha256"]:
                    row |= line.model_dump(mode="json", exclude_defaults=True, include=FROZEN)
        rows.append(json.dumps(row) + "\n")
        print(found.definition.name, workload.name, row.get("sha256", "drawn on the device")[:12], flush=True)
    return "".join(rows)


def write(found: Found, fast: bool) -> None:
    try:
        content = text(found, fast)
    except (SuiteError, PlacedError) as error:
        raise SpecError(f"{found.definition.name}: {error}") from None
    found.workloads_file.write_text(content, encoding="utf-8")


def table(family: families.Family) -> str:
    """What the suites of a family cover."""
    of_it = [found for found in definitions().values() if found.family.name == family.name]
    return suites(of_it[0]).table([published(found, held(found)) for found in of_it])


def write_table(family: families.Family) -> None:
    """Puts the table between its marks in the family's README."""
    readme = family.folder / "README.md"
    content = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    if content.count(BEGIN) != 1 or content.count(END) != 1:
        raise SpecError([Problem(readme, "no place for the table", hint=f"put it between {BEGIN} and {END}")])
    before, rest = content.split(BEGIN)
    readme.write_text(f"{before}{BEGIN}\n\n{table(family)}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    print(f"written: {paths.shown(readme)}")


def run(names: Iterable[str], fast: bool, only_table: bool) -> None:
    chosen = [definition(name) for name in names] or list(definitions().values())
    for found in chosen:
        suites(found)  # before anything is written
    if only_table:
        for family in {found.family.name: found.family for found in chosen}.values():
            write_table(family)
        return
    for found in chosen:
        write(found, fast)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="do not draw again what is for a GPU")
    parser.add_argument("--table", action="store_true", help="only write the tables")
    parser.add_argument("--definitions-dir", type=Path, action="append", default=[], help="families from elsewhere")
    parser.add_argument("definition", nargs="*", help="none: all")
    options = parser.parse_args()
    try:
        for folder in options.definitions_dir:
            families.add(folder)
        run(options.definition, options.fast, options.table)
    except SpecError as error:
        print(f"make_workloads: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
