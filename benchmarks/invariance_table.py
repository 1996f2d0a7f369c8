"""Which solutions, variants and peers keep the bits of a sequence in other batches: a table, from what has been judged.

    python benchmarks/invariance_table.py [FILE.jsonl ..] [--traces] [--show FILE.json ..] [--save FILE.json]
                                          [--page FILE.md]
    python benchmarks/invariance_rows.py --results DIR --save FILE.json     asks all of them on a GPU

FILE.jsonl is what `gdnspec check .. --invariance --json` wrote. --traces adds what `--save` of that command wrote into
the traces of solutions, variants and peers, --show what this script saved before: `--traces --show
benchmarks/invariance/*.json` is what the page shows. --save writes all of it into one file instead of the table, --page
puts the table between the marks of a page, which names no solution that nobody asked. Needs no GPU.

Answers about other sources than the present ones say `an earlier version`, and are shown where there is no other:
a solution that has changed is to be asked again.

A row is a solution on a device. It counts the definitions on which it is batch-invariant, and says how alike pieces of
a prefill are to one call. The last column names the definitions where it gave other bits or failed. Below the table
stand the solutions, variants and peers that nobody asked.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gdnspec.catalog.earlier import measured_as
from gdnspec.catalog.solutions import Solution, solutions
from gdnspec.catalog.traces import load_traces, stale_source
from gdnspec.model.batch_invariance import WORDS, invariant, pieces
from gdnspec.model.result import LIKENESSES, CheckResult, Likeness

NAMED = 3  # definitions that a row names
EARLIER = ", an earlier version"
BEGIN, END = "<!-- invariance: begin -->", "<!-- invariance: end -->"


@dataclass(frozen=True)
class Found:
    """One solution on one definition. `same` and `pieces` None: not asked. `ran` false: no workload ran, and `why` says
    what came instead. `source_hash`: of what was asked; "" where nothing ran."""

    solution: str
    device: str
    definition: str
    same: bool | None = None
    pieces: Likeness | None = None
    failed: bool = False
    ran: bool = True
    why: str = ""
    source_hash: str = ""


def from_results(files: Iterable[Path]) -> Iterator[Found]:
    """From the results that `--json` wrote. Several files may have workloads of one definition."""
    grouped: dict[tuple[str, str, str], list[CheckResult]] = defaultdict(list)
    for file in files:
        for text in file.read_text().splitlines():
            result = CheckResult.model_validate_json(text)
            grouped[result.solution, result.device, result.definition].append(result)
    for key, results in grouped.items():
        # A GPU that other processes have filled says nothing about a kernel.
        ran = [r for r in results if r.status != "UNSUPPORTED" and "out of memory" not in r.message]
        if not ran:
            yield Found(*key, ran=False, why=results[0].message)
            continue
        wrong = [result for result in ran if result.failed and result.status != "NOT_INVARIANT"]
        why = f"{wrong[0].workload}: {wrong[0].status}" if wrong else ""
        yield Found(*key, invariant(ran), pieces(ran), bool(wrong), why=why)


def from_traces(known: Iterable[Solution]) -> Iterator[Found]:
    """From traces without times, of solutions, variants and peers."""
    for solution in known:
        for file in sorted(solution.traces.glob("*.jsonl")):
            for trace in load_traces(file, print):
                if trace.batch_invariant is not None or trace.pieces is not None:
                    hash_of = solution if stale_source(trace, solution) is None else trace  # as other traces are held
                    yield Found(
                        solution.name, trace.device, trace.definition, trace.batch_invariant, trace.pieces,
                        source_hash=hash_of.source_hash,
                    )  # fmt: skip


def of_present_sources(found: Iterable[Found], known: Iterable[Solution]) -> Iterator[Found]:
    """With the hash of the solution as it is: of answers that have just come."""
    hashes = {solution.name: solution.source_hash for solution in known}
    for one in found:
        yield replace(one, source_hash=hashes.get(one.solution, "")) if one.ran else one


def with_age(found: Iterable[Found], known: Iterable[Solution]) -> list[Found]:
    """Marks answers about sources that have changed since, or leaves them out where the present ones have an answer."""
    by_name = {solution.name: solution for solution in known}
    new: dict[tuple[str, str, str], Found] = {}
    rest: dict[tuple[str, str, str], Found] = {}
    for one in found:
        solution = by_name.get(one.solution)
        present = one.ran and solution is not None and one.source_hash in measured_as(solution, one.definition)
        (new if present else rest)[one.solution, one.device, one.definition] = one
    old = [one for key, one in rest.items() if key not in new]
    return [*new.values(), *(replace(one, device=f"{one.device}{EARLIER}") if one.ran else one for one in old)]


def saved(file: Path) -> list[Found]:
    """What `save` wrote."""
    return [Found(**row) for row in json.loads(file.read_text())["found"]]


def save(found: Iterable[Found], file: Path) -> None:
    """One row a line, in an order that does not depend on who answered first."""
    rows = sorted(found, key=lambda one: (one.solution, one.device, one.definition))
    lines = ",\n".join(json.dumps(asdict(one)) for one in rows)
    file.write_text(f'{{"schema_version": 1, "found": [\n{lines}\n]}}\n')


def table(found: Iterable[Found], known: Iterable[Solution] = ()) -> str:
    """In Markdown, a row for each solution and device; below it those of `known` that nobody asked."""
    known = list(known)
    rows: dict[tuple[str, str], list[Found]] = defaultdict(list)
    for one in found:
        rows[one.solution, one.device].append(one)
    asked = {solution for (solution, _), mine in rows.items() if any(one.ran for one in mine)}
    peers = {solution.name for solution in known if solution.is_peer}
    lines = ["| solution | device | batch-invariant on | pieces | other bits, or failed |", "|---|---|---|---|---|"]
    for (name, device), mine in sorted(rows.items()):
        if any(one.ran for one in mine):
            lines.append(f"| {_titled(name, peers)} | {device} | {_counted(mine)} | {_pieces(mine)} | {_wrong(mine)} |")
    unasked = ", ".join(_titled(one, peers) for one in sorted(one.name for one in known) if one not in asked)
    return "\n".join([*lines, "", f"Not asked yet: {unasked}."] if unasked else lines)


def _titled(name: str, peers: set[str]) -> str:
    return f"{name} (peer)" if name in peers else name


def _counted(mine: list[Found]) -> str:
    """`3 of 4 definitions`, of those that were asked, and how many gave no answer."""
    asked, silent = [one for one in mine if one.same is not None], sum(not one.ran for one in mine)
    said = [f"{sum(bool(one.same) for one in asked)} of {len(asked)} definitions"] if asked else []
    return ", ".join([*said, f"{silent} without an answer"] if silent else said)


def _pieces(mine: list[Found]) -> str:
    """The worst answer."""
    alike = [one.pieces for one in mine if one.pieces is not None]
    return WORDS[max(alike, key=LIKENESSES.index)] if alike else ""


def _wrong(mine: list[Found]) -> str:
    """Where a solution failed, and where it gave other bits."""
    names = [f"{one.definition} (failed)" for one in mine if one.failed]
    names += [one.definition for one in mine if one.same is False and not one.failed]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(sorted(names)[:NAMED]) + more


def paged(page: str, found: Iterable[Found], known: Iterable[Solution]) -> str:
    """The page with the table between its marks. It names the peers that nobody asked: a new solution edits no page."""
    text = table(found, [one for one in known if one.is_peer])
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"the page has no {BEGIN} and {END}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--traces", action="store_true")
    parser.add_argument("--show", nargs="+", type=Path, default=[])
    parser.add_argument("--save", type=Path)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    known = list(solutions()[0].values())
    found = [*of_present_sources(from_results(options.files), known), *(from_traces(known) if options.traces else ())]
    found += [one for file in options.show for one in saved(file)]
    if options.save is not None:
        save(found, options.save)
        return
    found = with_age(found, known)
    if options.page is not None:
        options.page.write_text(paged(options.page.read_text(), found, known))
        return
    print(table(found, known))


if __name__ == "__main__":
    main()
