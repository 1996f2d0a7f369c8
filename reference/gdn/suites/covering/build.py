"""A line of any definition from what sets it apart: heads, lengths, slots, scalars."""

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from gdnspec.family import Definition, Published, Tensor, sizes

from ..line import Line
from .names import INTERVAL, keeps_checkpoints, padding, takes_rows_behind

DRAFTS = "draft_tokens"  # an axis: the most that a row has
ACCEPTED = "accepted"  # an input: how many tokens of the step before count
OF_A_ROW = "drafts"  # an input: how many of them each row has
STARTS = "start_positions"  # an input: tokens of each request before the call
PARENTS = "parents"  # an input: which token of its row each draft follows


@dataclass(frozen=True)
class Heads:
    """Query, key and value heads and their sizes; `values`: of a value, where it is not that of a key."""

    q: int
    k: int
    v: int
    size: int
    values: int | None = None
    width: int = 4

    @property
    def preset(self) -> str:
        sizes = f"k{self.size}-v{self.values}" if self.values else f"d{self.size}"
        width = f"-w{self.width}" if self.width != 4 else ""
        return f"heads-{self.q}x{self.k}x{self.v}-{sizes}{width}"


@dataclass(frozen=True)
class Call:
    """One call, whatever its definition. `lengths` of sequences; of a batch they are rows, and their values say
    nothing. `kinds` of slots, counts of drafts and of accepted ones, and flags take turns, row after row; every
    `skip`th row is skipped, 0 none."""

    name: str
    heads: Heads
    lengths: Sequence[int]
    regime: str = "typical"
    omit: tuple[str, ...] = ()
    scalars: dict[str, bool | int | float] = field(default_factory=dict)
    drafts: int = 1
    kinds: tuple[str, ...] = ("in_place",)
    accept: tuple[str, ...] = ("none", "all", "some")
    drafted: tuple[str, ...] = ("all",)  # how many of `drafts` a row has, where each has a number of its own
    held: tuple[int, ...] = (1, 0)  # flags: whether a sequence goes on from its state
    skip: int = 0
    gap: int = 0
    num_slots: int = 0  # at least
    trees: tuple[str, ...] = ("branches", "chain", "flat")  # what drafts of a row follow, in turn, where they are one
    starts: tuple[int, ...] = (0,)  # tokens of requests before the call, in turn, where edges are absolute
    behind: int = 0  # rows of packed tensors behind the last sequence, where a definition takes them
    spare: int = 3  # slots that no row names, at least
    covers: str = ""


def ragged(definition: Definition) -> bool:
    return definition.conventions.packing == "ragged"


def naming(definition: Definition) -> list[Tensor]:
    """The inputs that name slots of a pool."""
    return [tensor for tensor in definition.inputs if tensor.indexes is not None]


def line(published: Published, call: Call) -> Line:
    """The line without suite, seed and hash."""
    definition, count = published.definition, len(call.lengths)
    axes: dict[str, int] = {}
    scalars = dict(call.scalars)
    row: Line = {"name": call.name, "preset": call.heads.preset}
    if ragged(definition):
        row["sequence_lengths"] = list(call.lengths)
        if keeps_checkpoints(definition):
            scalars.setdefault(INTERVAL, 64)
        axes = sizes(definition, call.lengths, scalars)
        if takes_rows_behind(definition):
            axes["total_seq_len"] += call.behind
    else:
        axes["batch_size"] = count
        if drafted(definition):
            axes[DRAFTS] = call.drafts
    slots, integers = _integers(definition, call, count)
    axes |= slots
    row |= {"axes": axes, "regime": call.regime}
    extras = {
        "omit": list(call.omit), "scalars": scalars, "integers": integers, "gaps": _gaps(definition, call.gap),
        "covers": call.covers,
    }  # fmt: skip
    return row | {key: value for key, value in extras.items() if value}


def drafted(definition: Definition) -> bool:
    return any(axis.name == DRAFTS for axis in definition.var_axes())


def numbered(definition: Definition) -> bool:
    """Whether each row has a number of drafts of its own."""
    return any(tensor.name == OF_A_ROW for tensor in definition.inputs)


def accepts(definition: Definition) -> bool:
    """Whether a call is told how many tokens count of the step before."""
    return any(tensor.name == ACCEPTED for tensor in definition.inputs)


def fewest(definition: Definition) -> int:
    """The fewest tokens of a step that count: none, or its first one always does."""
    domain = definition.input(ACCEPTED).domain or [0]
    return int(domain[0] or 0)


def absolute(definition: Definition) -> bool:
    """Whether checkpoints are counted from the beginning of a request, and not of the call."""
    return any(tensor.name == STARTS for tensor in definition.inputs)


def branching(definition: Definition) -> bool:
    """Whether drafts of a row are a tree."""
    return any(tensor.name == PARENTS for tensor in definition.inputs)


def tree(kind: str, name: str, drafts: int) -> list[int]:
    """The parent of each draft: the one before it, none of them, or any before it; the same for each name."""
    drawn = random.Random(zlib.crc32(f"tree {name}".encode()))
    if kind == "branches":  # one at least that the two others do not have
        rest = [drawn.randint(-1, t - 1) for t in range(2, drafts)]
        return ([-1, -1, 0] if drafts > 2 else [-1, -1])[:drafts] + rest[1:]
    return [t - 1 if kind == "chain" else -1 for t in range(drafts)]


def _gaps(definition: Definition, gap: int) -> dict[str, int]:
    pools = {tensor.indexes for tensor in naming(definition)}
    return {str(pool): gap * (1 + i) for i, pool in enumerate(sorted(map(str, pools)))} if gap else {}


def _integers(definition: Definition, call: Call, count: int) -> tuple[dict[str, int], dict[str, list[int]]]:
    tensors = naming(definition)
    values: dict[str, list[int]] = {}
    axes: dict[str, int] = {}
    if tensors:
        each = call.drafts if any(len(tensor.shape or []) == 2 for tensor in tensors) else 1
        paired = len(tensors) > len({tensor.indexes for tensor in tensors})
        moved = sum(call.kinds[n % len(call.kinds)] == "moved" for n in range(count)) if paired else 0
        shared = int(paired and "shared" in call.kinds)
        first = 1 + padding(definition)  # the first slot that a row may have
        axes["num_slots"] = max(count * each + moved + shared + call.spare + first, call.num_slots)
        values = _slots(tensors, call, count, each, range(first, axes["num_slots"]))
    if accepts(definition):
        values[ACCEPTED] = accepted(call, count, fewest(definition))
    if numbered(definition):
        counts = {"none": 0, "all": call.drafts, "some": (call.drafts + 1) // 2}
        values[OF_A_ROW] = [counts[call.drafted[n % len(call.drafted)]] for n in range(count)]
    if branching(definition):
        trees = [tree(call.trees[n % len(call.trees)], f"{call.name} {n}", call.drafts) for n in range(count)]
        values[PARENTS] = [parent for row in trees for parent in row]
    if absolute(definition):
        values[STARTS] = [call.starts[n % len(call.starts)] for n in range(count)]
    for tensor in definition.inputs:
        if tensor.is_flag:
            values[tensor.name] = [call.held[n % len(call.held)] for n in range(count)]
    return axes, values


def accepted(call: Call, count: int, least: int = 0) -> list[int]:
    """How many drafts each row had accepted, `least` or more. A row that shares its start with others had none, for it
    starts there."""
    counts = {"none": least, "all": call.drafts, "some": least + (call.drafts - least + 1) // 2}
    kinds = [call.kinds[n % len(call.kinds)] for n in range(count)]
    # As many turns as kinds would always meet in the same way.
    turns = [call.accept[(n + n // len(call.kinds)) % len(call.accept)] for n in range(count)]
    return [0 if kind == "shared" else counts[turn] for kind, turn in zip(kinds, turns, strict=True)]


def _slots(tensors: list[Tensor], call: Call, count: int, each: int, known: range) -> dict[str, list[int]]:
    """Slots anywhere in each pool. A pool that one input names has a slot for each row. Where one input names what is
    read and another what is written, `kinds` says how the two go together."""
    values: dict[str, list[int]] = {}
    pools = [tensor.indexes for tensor in tensors]
    drawn = random.Random(zlib.crc32(call.name.encode()))
    for pool in dict.fromkeys(pools):
        named = [tensor for tensor in tensors if tensor.indexes == pool]
        free = iter(drawn.sample(known, len(known)))
        if len(named) == 1:
            values[named[0].name] = [next(free) for _ in range(count)]
            continue
        start = next(tensor.name for tensor in named if not tensor.writes)
        end = next(tensor.name for tensor in named if tensor.writes)
        values[start], values[end] = [], []
        shared = next(free) if "shared" in call.kinds else -1
        for n in range(count):
            kind = call.kinds[n % len(call.kinds)]
            written = [next(free) for _ in range(each)]
            if kind == "shared":
                first = shared
            elif kind == "moved":
                first = next(free)
            else:  # one of the row's own: the first or the last that it writes
                first = written[-1 if kind == "last" else 0]
            values[start].append(first)
            values[end] += written
    if call.skip:
        for name, slots in values.items():
            step = len(slots) // max(1, count)
            for n in range(call.skip - 1, count, call.skip):
                values[name][n * step : (n + 1) * step] = [known.start - 1] * step
    return values
