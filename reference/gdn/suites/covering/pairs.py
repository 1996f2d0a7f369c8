"""Pairs of levels: which there are, which a set of rows lacks, and rows that make up for it (a greedy covering array).

Deterministic: the same rows and factors give the same new rows. Rows that stand in a file are kept as they are, so a
new level adds rows and changes none.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations

from gdnspec.family import Published, SuiteError, Workload

from ..line import Line
from .build import OF_A_ROW, Call, Heads, drafted, line
from .factors import EMPTIES, RATIOS, REGIMES, exhibits, factors_of, size_name, sizes
from .names import INTERVAL, padding

Level = tuple[str, str]  # a factor and one of its levels
Pair = tuple[Level, Level]
Recipe = dict[str, str]  # factor -> level, or EVERY where a row can exhibit all of them
EVERY = "every"
SEVERAL = ("empty", "read")  # factors of which one row may exhibit every level
CANDIDATES = 24
SCALES = {"negative": (-1.5, -1e-6, -1e6), "given": (0.3, 1e-6, 1e6)}
EPS = (1e-4, 1.0, 1e-12, 1e6)
SUITES = ("smoke", "conformance")


def pairs(published: Published) -> list[Pair]:
    """Every pair of levels of two factors that some legal call exhibits."""
    table = factors_of(published)
    levels = [[(factor, level) for level in each] for factor, each in table.items()]
    return [
        (a, b) for one, other in combinations(levels, 2) for a in one for b in other if impossible(a, b) is None
    ]  # fmt: skip


def impossible(a: Level, b: Level) -> str | None:
    """Why no call exhibits both, in words."""
    both = {a, b}
    alone = {("sequences", "1"), ("rows", "1")} & both
    if alone and ({("empty", level) for level in EMPTIES[1:]} & both):
        return "a sequence that is empty and alone leaves nothing to judge"
    if alone and ({("skipped", "some"), ("read", "shared")} & both):
        return "of one row none is skipped beside others, and no slot is shared"
    if ("drafts", "1") in both and "tree" in (a[0], b[0]):
        return "one draft follows none, whatever the tree"
    if alone and ("of a row", "none") in both:
        return "a row without drafts and alone leaves nothing to judge"
    if ("drafts", "1") in both and ({("accepted", "some"), ("of a row", "some"), ("read", "last")} & both):
        return "with one draft the first is the last, and some is none or all"
    return None


def covered(published: Published, workload: Workload) -> set[Pair]:
    """The pairs that a row exhibits where it can be seen: not those of a call that has nothing to do. Of a scale of 0.0
    the output says nothing else."""
    table = factors_of(published)
    if workload.suite not in SUITES or workload.device != "any" or blind(published, workload):
        return set()
    shown = exhibits(published, workload)
    levels = [[(factor, level) for level in table[factor] if level in shown[factor]] for factor in table]
    both = {(a, b) for one, other in combinations(levels, 2) for a in one for b in other}
    if workload.scalars.get("scale") == 0:
        both = {(a, b) for a, b in both if "scale" in (a[0], b[0])}
    return both


def blind(published: Published, workload: Workload) -> bool:
    """Whether a row has no token, does none, or writes none."""
    lengths = workload.sequence_lengths
    slots = [workload.integers[tensor.name] for tensor in published.definition.inputs if tensor.indexes is not None]
    skipped = bool(slots) and all(set(each) <= {padding(published.definition)} for each in slots)
    nothing = not any(lengths) if lengths is not None else workload.axes.get("batch_size") == 0
    nothing = nothing or not any(workload.integers.get(OF_A_ROW, [1]))
    return nothing or skipped or workload.regime == "beta_zero"


def missing(published: Published, rows: Iterable[Workload]) -> list[Pair]:
    """The pairs that no row exhibits, in order."""
    seen: set[Pair] = set()
    for row in rows:
        seen |= covered(published, row)
    return [pair for pair in pairs(published) if pair not in seen]


# --- rows for what is missing -------------------------------------------------------------------------------------


def rows_for(
    published: Published, rows: list[Workload], first: int, seeded: Callable[[Line], Line | None]
) -> Iterator[Line]:
    """Rows that exhibit all pairs which the given ones lack, numbered from `first` on. `seeded` gives a row its seed,
    or refuses it."""
    drawn = random.Random(len(factors_of(published)))
    lacking = dict.fromkeys(missing(published, rows))
    number = first
    while lacking:
        target = next(iter(lacking))
        tried: list[tuple[float, int, Line, set[Pair]]] = []
        for n in range(CANDIDATES):
            row = line(published, call_of(published, recipe(published, target, drawn), f"pairs_{number:02}", number))
            shown = covered(published, Workload.model_validate(row | {"suite": "conformance", "seed": 0}))
            if target in shown:
                tried.append((-len(shown & lacking.keys()) / (1 + cost(row) / 200), n, row, shown))
        best = sorted(tried, key=lambda each: each[:2])
        accepted = next(((new, each[3]) for each in best if (new := seeded(each[2])) is not None), None)
        if accepted is None:
            raise SuiteError(f"no row exhibits {said(target)}: build one, or say why not")
        for pair in accepted[1]:
            lacking.pop(pair, None)
        number += 1
        yield accepted[0]


def said(pair: Pair) -> str:
    return " with ".join(f"{factor} {level}" for factor, level in pair)


def cost(row: Line) -> int:
    """Tokens times heads, about."""
    heads = [int(x) for x in row["preset"].split("-")[1].split("x")]
    axes = row["axes"]
    tokens = axes["total_seq_len"] if "total_seq_len" in axes else axes["batch_size"] * axes.get("draft_tokens", 1)
    return int(tokens) * max(heads)


def recipe(published: Published, target: Pair, drawn: random.Random) -> Recipe:
    """A level for every factor, at random but for those of the target."""
    chosen = {}
    for factor, levels in factors_of(published).items():
        several = (EVERY,) * len(levels) if factor in SEVERAL else ()
        chosen[factor] = drawn.choice((*levels, *several))
    if "regime" in chosen and drawn.random() < 0.5 and "each in turn" in factors_of(published)["regime"]:
        chosen["regime"] = "each in turn"
    for factor, level in target:
        chosen[factor] = level
    for count in {"sequences", "rows"} & chosen.keys():
        # What one row cannot exhibit asks for more.
        crowd = ("empty", "none"), ("skipped", "none"), ("read", "in_place"), ("of a row", "all")
        for factor, least in crowd if chosen[count] == "1" else ():
            if (factor, chosen.get(factor)) not in target:
                chosen |= {factor: least} if factor in chosen else {}
    return chosen


def call_of(published: Published, chosen: Recipe, name: str, number: int) -> Call:
    """The call of a recipe. `number` turns over the values of levels that have several."""
    by_name = {size_name(published, size): size for size in sizes(published)}
    key, value = by_name[chosen["head size"]]
    if "key heads" in chosen:
        q, k, v = (x * (1 if chosen["key heads"] == "1" else 2) for x in RATIOS[chosen["heads"]])
    else:
        q = k = v = 1 if chosen["heads"] == "1" else 3
    scalars: dict[str, bool | int | float] = {}
    if chosen.get("scale", "absent") != "absent":
        values = {"zero": (0.0,), "one": (1.0,)} | SCALES
        scalars["scale"] = values[chosen["scale"]][number % len(values[chosen["scale"]])]
    if chosen.get("eps", "absent") != "absent":
        scalars["eps"] = 0.0 if chosen["eps"] == "zero" else EPS[number % len(EPS)]
    for tensor in published.definition.inputs:
        if tensor.is_switch and chosen[tensor.name] != "left out":
            scalars[tensor.name] = chosen[tensor.name] == "true"
    if "interval" in chosen:
        scalars[INTERVAL] = 64 if chosen["interval"] == "64" else (128, 192)[number % 2]
    optional = [tensor.name for tensor in published.definition.inputs if tensor.optional and not tensor.is_scalar]
    lengths = _lengths(chosen, number)
    kinds = tuple(factors_of(published).get("read", ("in_place",))) if chosen.get("read") == EVERY else ()
    return Call(
        name, Heads(q, k, v, key, value, int(chosen.get("kernel width", 4))), lengths,
        REGIMES[chosen["regime"]] if "regime" in chosen else "typical",
        omit=tuple(input_ for input_ in optional if chosen[input_] == "absent"), scalars=scalars,
        drafts=_tokens(chosen, number) if drafted(published.definition) else 1,
        kinds=kinds or (chosen.get("read", "in_place"),), accept=(chosen.get("accepted", "none"),),
        trees=(chosen.get("tree", "chain"),),
        starts=(0, 64 * 192, 192) if chosen.get("start") == "on an edge" else (1, 63, 200 + 7 * number, 61),
        drafted=("none", "all") if chosen.get("of a row") == "none" else (chosen.get("of a row", "all"),),
        held=(int(chosen.get("state held", "yes") == "yes"), number % 2) if len(lengths) > 1
        else (int(chosen.get("state held", "yes") == "yes"),),
        skip=3 if chosen.get("skipped") == "some" else 0, gap=64 if chosen.get("slots") == "apart" else 0,
        behind=(1, 5, 17)[number % 3] if chosen.get("rows behind") == "some" else 0,
        covers="; ".join(f"{factor} {level}" for factor, level in chosen.items() if factor != "kernel width"),
    )  # fmt: skip


def _tokens(chosen: Recipe, number: int) -> int:
    """How many tokens the longest row has: enough of them for a tree, or for a count between one and all."""
    least = 3 if "tree" in chosen or {"accepted", "of a row"} <= chosen.keys() else 2
    return {"1": 1, "2 to 8": least + number % 4, "9 or more": 9 + number % 3}[chosen["drafts"]]


def _lengths(chosen: Recipe, number: int) -> list[int]:
    """Lengths of sequences, or ones for rows: how many, the first that is not empty as its level says, empty ones."""
    count = chosen.get("sequences", chosen.get("rows", "1"))
    longest = {
        "one token": 1, "within a chunk": 5 + 7 * (number % 5), "whole chunks": 64, "past a chunk": 65 + number % 4
    }[chosen.get("length", "one token")]  # fmt: skip
    if "rows" in chosen:
        return [1] * {"1": 1, "2 to 8": 3 + number % 6, "9 or more": 9 + number % 9}[count]
    if count == "1":
        return [longest]
    empty = chosen.get("empty", "none")
    full = [longest, *((1, 2, 3)[n % 3] for n in range(2 if count == "2 to 8" else 9))]
    if empty in ("middle", EVERY):
        full[2:2] = [0]
    if empty in ("four in a row", EVERY):
        full[1:1] = [0] * 4
    if empty in ("first", EVERY):
        full = [0, *full]
    if empty in ("last", EVERY):
        full = [*full, 0]
    return full if count != "2 to 8" else full[: 8 - (empty == EVERY)] + [0] * (empty == EVERY)
