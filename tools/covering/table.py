"""The tables of what the suites cover, for definitions/gdn/README.md: python tools/make_workloads.py --table."""

from collections.abc import Iterator
from pathlib import Path

from gdnspec.catalog.definitions import Found, definitions
from gdnspec.catalog.workloads import workloads

from covering import pairs, scalars, sizes
from covering.build import DRAFTS
from covering.factors import factors_of
from covering.names import CHECKPOINTS

BEGIN = "<!-- coverage: begin (python tools/make_workloads.py --table writes it) -->"
END = "<!-- coverage: end -->"
COLUMNS = (*sizes.EXACT, *(number + 1 for number in sizes.PAST))
LAST_DRAFTS = sizes.DRAFTED[-1]
# Why a size is not asked for, where a cell holds a letter.
WHY = {
    "a": "a call has at most 16 draft tokens; 16 of them stand in the column of 17",
    "b": "a checkpoint takes 64 tokens or more, and 513 of them take minutes on a CPU",
    "c": "budgets come of twelve emulators that take one sequence at a time, which takes minutes",
    "d": "of some hundred tokens the layer reads one as nearly nothing, and its norm makes any rounding of that large",
}


def letter(axis: str, size: int) -> str:
    if axis == DRAFTS:
        return "a"
    return "b" if axis == CHECKPOINTS else "d" if axis in sizes.NORMED else "c"


def write(readme: Path) -> None:
    """Puts the tables between their marks."""
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    readme.write_text(f"{before}{BEGIN}\n\n{markdown()}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def markdown() -> str:
    return "\n".join([*_sizes(), "", *_scalars(), "", *_pairs(), "", *_factors(), ""])


def _table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _sizes() -> Iterator[str]:
    yield "**Sizes.** How many rows of smoke and conformance have each size of an axis. From 17 on a column also counts"
    yield "what is past the same power of two by no more than an eighth. A letter says why a size is not asked for."
    yield ""
    header = ("definition", "axis", *map(str, COLUMNS))
    yield from _table(header, (row for found in definitions().values() for row in _of_sizes(found)))
    yield ""
    yield from (f"- {key}: {why}." for key, why in WHY.items())


def _of_sizes(found: Found) -> Iterator[tuple[str, ...]]:
    have = [sizes.sizes_of(found, row) for row in workloads(found)]
    for axis, wanted in sizes.required(found).items():
        cells = []
        for size in COLUMNS:
            asked = LAST_DRAFTS if axis == DRAFTS and size == LAST_DRAFTS + 1 else size
            count = sum(sizes.matches(each[axis], asked) for each in have if axis in each)
            cells.append(str(count) if asked in wanted else letter(axis, size))
        yield found.definition.name, axis, *cells


def _scalars() -> Iterator[str]:
    yield "**Scalars.** How many rows have each kind of value. Tiny is 1e-5 or less, huge 1e5 or more, of either sign."
    yield ""
    header = ("definition", "scalar", *scalars.KINDS)
    yield from _table(header, (row for found in definitions().values() for row in _of_scalars(found)))
    yield ""
    yield from (f"- {name} is never {kind}: {why}." for (name, kind), why in scalars.REFUSED.items())


def _of_scalars(found: Found) -> Iterator[tuple[str, ...]]:
    have = [row for row in workloads(found) if row.suite in scalars.SUITES and row.device == "any"]
    for name, kinds in scalars.required(found).items():
        counts = {kind: sum(kind in scalars.kinds_of(row.scalars.get(name)) for row in have) for kind in scalars.KINDS}
        yield found.definition.name, name, *(str(counts[kind]) if kind in kinds else "never" for kind in counts)


def _pairs() -> Iterator[str]:
    yield "**Pairs.** Every pair of levels of two factors occurs in some row, but for those that no call exhibits."
    yield ""
    header = ("definition", "factors", "levels", "pairs", "missing", "not possible", "rows")
    yield from _table(header, map(_of_pairs, definitions().values()))
    yield ""
    yield "What is not possible:"
    yield ""
    yield from (f"- {why}." for why in sorted({why for found in definitions().values() for why in _reasons(found)}))


def _of_pairs(found: Found) -> tuple[str, ...]:
    table, rows = factors_of(found), workloads(found)
    wanted = pairs.pairs(found)
    figures = (
        len(table), sum(map(len, table.values())), len(wanted), len(pairs.missing(found, rows)), len(_reasons(found)),
        sum(row.suite in pairs.SUITES for row in rows),
    )  # fmt: skip
    return (found.definition.name, *map(str, figures))


def _reasons(found: Found) -> list[str]:
    levels = [(factor, level) for factor, each in factors_of(found).items() for level in each]
    both = [(a, b) for i, a in enumerate(levels) for b in levels[i + 1 :] if a[0] != b[0]]
    return [why for a, b in both if (why := pairs.impossible(a, b)) is not None]


def _factors() -> Iterator[str]:
    yield "**Factors.** The levels of each, over all definitions; a definition has those that it can exhibit."
    yield ""
    union: dict[str, dict[str, None]] = {}
    for found in definitions().values():
        for factor, levels in factors_of(found).items():
            union.setdefault(factor, {}).update(dict.fromkeys(levels))
    yield from _table(("factor", "levels"), ((factor, ", ".join(levels)) for factor, levels in union.items()))
