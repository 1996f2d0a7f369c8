"""The tables of what the suites cover, for the README of the family's definitions."""

from collections.abc import Iterator, Sequence

from gdnspec.family import Published

from . import pairs, scalars, sizes
from .build import DRAFTS
from .factors import factors_of
from .names import BY_HAND, CHECKPOINTS, SLOTS

COLUMNS = (*sizes.EXACT, *(number + 1 for number in sizes.PAST))
LAST_DRAFTS = sizes.DRAFTED[-1]
# Why a size is not asked for, where a cell holds a letter.
WHY = {
    "a": "a call has at most 16 draft tokens; 16 of them stand in the column of 17",
    "b": "a checkpoint takes 64 tokens or more, and 513 of them take minutes on a CPU",
    "c": "budgets come of twelve emulators that take one sequence at a time, which takes minutes",
    "d": "over hundreds of tokens one layer output is near zero, and the norm amplifies its rounding error",
    "e": "slot 0 stands for none: a pool of one slot has none for a sequence",
}


def letter(axis: str, size: int) -> str:
    if axis == DRAFTS:
        return "a"
    if axis == SLOTS:
        return "e"
    return "b" if axis == CHECKPOINTS else "d" if axis in sizes.NORMED else "c"


def markdown(known: Sequence[Published]) -> str:
    every = [published for published in known if published.definition.name not in BY_HAND]
    return "\n".join([*_sizes(every), "", *_scalars(every), "", *_pairs(every), "", *_factors(every), ""])


def _table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield "|" + "---|" * len(header)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _sizes(every: Sequence[Published]) -> Iterator[str]:
    yield "**Sizes.** How many rows of smoke and conformance have each size of an axis. From 17 on a column also counts"
    yield "what is past the same power of two by no more than an eighth. A letter says why a size is not asked for."
    yield ""
    header = ("definition", "axis", *map(str, COLUMNS))
    yield from _table(header, (row for published in every for row in _of_sizes(published)))
    yield ""
    yield from (f"- {key}: {why}." for key, why in WHY.items())


def _of_sizes(published: Published) -> Iterator[tuple[str, ...]]:
    have = [sizes.sizes_of(published, row) for row in published.lines]
    for axis, wanted in sizes.required(published).items():
        cells = []
        for size in COLUMNS:
            asked = LAST_DRAFTS if axis == DRAFTS and size == LAST_DRAFTS + 1 else size
            count = sum(sizes.matches(each[axis], asked) for each in have if axis in each)
            cells.append(str(count) if asked in wanted else letter(axis, size))
        yield published.definition.name, axis, *cells


def _scalars(every: Sequence[Published]) -> Iterator[str]:
    yield "**Scalars.** How many rows have each kind of value. Tiny is 1e-5 or less, huge 1e5 or more, of either sign."
    yield ""
    header = ("definition", "scalar", *scalars.KINDS)
    yield from _table(header, (row for published in every for row in _of_scalars(published)))
    yield ""
    yield from (f"- {name} is never {kind}: {why}." for (name, kind), why in scalars.REFUSED.items())


def _of_scalars(published: Published) -> Iterator[tuple[str, ...]]:
    have = [row for row in published.lines if row.suite in scalars.SUITES and row.device == "any"]
    for name, kinds in scalars.required(published).items():
        counts = {kind: sum(kind in scalars.kinds_of(row.scalars.get(name)) for row in have) for kind in scalars.KINDS}
        yield published.definition.name, name, *(str(counts[kind]) if kind in kinds else "never" for kind in counts)


def _pairs(every: Sequence[Published]) -> Iterator[str]:
    yield "**Pairs.** Every pair of levels of two factors occurs in some row, but for those that no call exhibits."
    yield ""
    header = ("definition", "factors", "levels", "pairs", "missing", "not possible", "rows")
    yield from _table(header, map(_of_pairs, every))
    yield ""
    yield "What is not possible:"
    yield ""
    reasons = {why for published in every for why in _reasons(published)}
    yield from (f"- {why}." for why in sorted(reasons))


def _of_pairs(published: Published) -> tuple[str, ...]:
    table, rows = factors_of(published), published.lines
    wanted = pairs.pairs(published)
    figures = (
        len(table), sum(map(len, table.values())), len(wanted), len(pairs.missing(published, rows)),
        len(_reasons(published)), sum(row.suite in pairs.SUITES for row in rows),
    )  # fmt: skip
    return (published.definition.name, *map(str, figures))


def _reasons(published: Published) -> list[str]:
    levels = [(factor, level) for factor, each in factors_of(published).items() for level in each]
    both = [(a, b) for i, a in enumerate(levels) for b in levels[i + 1 :] if a[0] != b[0]]
    return [why for a, b in both if (why := pairs.impossible(a, b)) is not None]


def _factors(every: Sequence[Published]) -> Iterator[str]:
    yield "**Factors.** The levels of each, over all definitions; a definition has those that it can exhibit."
    yield ""
    union: dict[str, dict[str, None]] = {}
    for published in every:
        for factor, levels in factors_of(published).items():
            union.setdefault(factor, {}).update(dict.fromkeys(levels))
    yield from _table(("factor", "levels"), ((factor, ", ".join(levels)) for factor, levels in union.items()))
