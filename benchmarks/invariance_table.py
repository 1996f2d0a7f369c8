"""Which solutions keep the bits of a sequence in other batches: a table, from what has been judged.

    gdnspec check DEFINITION --solution S --invariance --json FILE.jsonl        once for each, on the device in question
    python benchmarks/invariance_table.py [FILE.jsonl ..] [--traces]

A row is a solution on a device. It counts the definitions on which it is batch-invariant, and says how alike pieces of
a prefill are to one call. --traces adds what `--save` wrote into solutions/*/traces. Needs no GPU.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from gdnspec.catalog.traces import load_traces
from gdnspec.model.batch_invariance import invariant, pieces
from gdnspec.model.result import LIKENESSES, CheckResult

ROOT = Path(__file__).resolve().parent.parent
WORDS = {"same_bits": "same bits", "within_budget": "within budget", "differs": "differs"}


class Found(NamedTuple):
    """One solution on one definition. None: it was not asked."""

    solution: str
    device: str
    same: bool | None
    pieces: str | None
    failed: bool


def from_results(files: Iterable[Path]) -> Iterator[Found]:
    """From the results that `--json` wrote."""
    grouped: dict[tuple[str, str, str], list[CheckResult]] = defaultdict(list)
    for file in files:
        for text in file.read_text().splitlines():
            result = CheckResult.model_validate_json(text)
            grouped[result.solution, result.device, result.definition].append(result)
    for (solution, device, _), results in grouped.items():
        ran = [result for result in results if result.status != "UNSUPPORTED"]
        if ran:
            failed = any(result.failed and result.status != "NOT_INVARIANT" for result in ran)
            yield Found(solution, device, invariant(ran), pieces(ran), failed)


def from_traces(root: Path) -> Iterator[Found]:
    """From traces without times."""
    for file in sorted(root.glob("solutions/*/traces/*.jsonl")):
        for trace in load_traces(file, print):
            if trace.batch_invariant is not None or trace.pieces is not None:
                yield Found(trace.solution, trace.device, trace.batch_invariant, trace.pieces, False)


def table(found: Iterable[Found]) -> str:
    """In Markdown, a row for each solution and device."""
    rows: dict[tuple[str, str], list[Found]] = defaultdict(list)
    for one in found:
        rows[one.solution, one.device].append(one)
    lines = ["| solution | device | batch-invariant on | pieces | failed |", "|---|---|---|---|---|"]
    for (solution, device), mine in sorted(rows.items()):
        asked = [one for one in mine if one.same is not None]
        alike = [one.pieces for one in mine if one.pieces is not None]
        worst = WORDS[max(alike, key=LIKENESSES.index)] if alike else ""
        count = f"{sum(bool(one.same) for one in asked)} of {len(asked)} definitions" if asked else ""
        lines.append(f"| {solution} | {device} | {count} | {worst} | {sum(one.failed for one in mine) or ''} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--traces", action="store_true")
    options = parser.parse_args()
    print(table([*from_results(options.files), *(from_traces(ROOT) if options.traces else ())]))


if __name__ == "__main__":
    main()
