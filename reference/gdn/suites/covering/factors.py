"""The factors of a call and their levels: what a kernel may treat apart, and so get wrong apart.

A call exhibits levels of every factor that its definition has, of some several at once: one batch has empty sequences
first and between others. Every pair of levels of two factors must be exhibited by some row of smoke and conformance.
"""

from collections.abc import Callable
from itertools import groupby

from gdnspec.family import FLOATS, Definition, Published, Workload, is_state

from .build import (
    ACCEPTED,
    DRAFTS,
    OF_A_ROW,
    PARENTS,
    STARTS,
    Heads,
    absolute,
    accepts,
    branching,
    drafted,
    fewest,
    naming,
    numbered,
    ragged,
)
from .names import CHUNK, INTERVAL, keeps_checkpoints, padding, takes_rows_behind

Levels = dict[str, set[str]]
Axes = dict[str, int]  # const and variable

# Of a real or synthetic model the least heads that tell a ratio from the others.
RATIOS = {"mha": (1, 1, 1), "gva 2": (1, 1, 2), "gva 3": (1, 1, 3), "gva 4": (1, 1, 4), "gqa 2": (2, 1, 1),
          "gqa 4": (4, 1, 1)}  # fmt: skip
SIZES = (32, 64, 96, 120, 128, 256)
# Sizes of a key and a value where a definition has both; where it has only values the second.
PAIRS = ((32, 32), (64, 64), (128, 128), (256, 256), (64, 120), (120, 60), (96, 192))
VALUES = (32, 64, 96, 120, 128, 192, 256)
COUNTS = ("1", "2 to 8", "9 or more")
EMPTIES = ("none", "first", "middle", "last", "four in a row")
LENGTHS = ("one token", "within a chunk", "whole chunks", "past a chunk")
REGIMES = {
    "typical": "typical", "all ones": "long_memory", "ones among decay": "sparse_gates", "resets": "hard_reset",
    "large state": "large_initial_state", "keys alike": "near_parallel_keys", "each in turn": "in_turn",
}  # fmt: skip
# What `in_turn` has of other levels once there are sequences enough for one turn.
TURN = 6
IN_TURN = ("typical", "all ones", "ones among decay", "resets", "large state")
ALIKE = {
    "all ones": {"long_memory"}, "ones among decay": {"sparse_gates", "interleaved_gates", "padded_tails"},
    "resets": {"hard_reset"}, "large state": {"large_initial_state", "one_large_state", "decayed_large_state"},
    "keys alike": {"near_parallel_keys", "repeated_keys"}, "each in turn": {"in_turn"}, "typical": {"typical"},
}  # fmt: skip
KINDS = ("in_place", "moved", "shared", "last")  # of slots: which one a row reads, beside those that it writes


def factors(published: Published) -> dict[str, tuple[str, ...]]:
    """The factors of a definition, each with the levels that some legal call exhibits."""
    definition = published.definition
    const, names = set(definition.const_axes()), {tensor.name: tensor for tensor in definition.inputs}
    table: dict[str, tuple[str, ...]] = {}
    if "num_k_heads" in const:
        table["heads"] = tuple(
            ratio for ratio, heads in RATIOS.items() if legal(published, Heads(*heads, *sizes(published)[0]))
        )
        table["key heads"] = ("1", "several")
    elif "num_v_heads" in const:
        table["heads"] = ("1", "several")
    table["head size"] = tuple(size_name(published, size) for size in sizes(published))
    if "kernel_width" in const:
        table["kernel width"] = ("2", "3", "4")
    for tensor in definition.inputs:
        if tensor.optional and not tensor.is_scalar:
            table[tensor.name] = ("absent", "given")
        elif tensor.name == "scale":
            table["scale"] = ("absent", "zero", "negative", "one", "given")
        elif tensor.name == "eps":
            table["eps"] = ("absent", "zero", "given")
        elif tensor.is_switch:
            table[tensor.name] = ("left out", "true", "false")
    if keeps_checkpoints(definition):
        table["interval"] = ("64", "more")
    if absolute(definition):
        table["start"] = ("on an edge", "between edges")
    counted = "sequences" if ragged(definition) else "rows"
    table[counted] = COUNTS
    if ragged(definition):
        table["empty"] = EMPTIES
        table["length"] = LENGTHS
    if takes_rows_behind(definition):
        table["rows behind"] = ("none", "some")
    if any(tensor.is_flag for tensor in definition.inputs):
        table["state held"] = ("yes", "no")
    pools = naming(definition)
    if pools:
        table["skipped"] = ("none", "some")
        table["slots"] = ("side by side", "apart")
    if len(pools) > 1 and len({tensor.indexes for tensor in pools}) == 1:
        table["read"] = KINDS if drafted(definition) else KINDS[:-1]
    if drafted(definition):
        table["drafts"] = ("1", "2 to 8", "9 or more")
        table |= {"of a row": ("none", "some", "all")} if numbered(definition) else {}
        table |= {"accepted": ("none", "some", "all")} if accepts(definition) else {}
    if branching(definition):
        table["tree"] = ("chain", "flat", "branches")
    if "a_weight" not in names:
        table["regime"] = tuple(level for level in REGIMES if _expresses(definition, level))
    return table


def _expresses(definition: Definition, level: str) -> bool:
    names = {tensor.name for tensor in definition.inputs}
    gated = bool(names & {"g", "decay", "a"})
    if level in ("all ones", "ones among decay", "resets", "each in turn") and not gated:
        return False
    if level == "large state":
        return any(is_state(definition, tensor) or tensor.mutates for tensor in definition.inputs)
    if level == "keys alike":
        # Where each row of w is judged, or gradients, such keys belong to the strict suite. A sigmoid does not reach
        # their betas.
        keys = "k" in names or any(tensor.parts for tensor in definition.inputs)
        strict = definition.name == "gdn_chunk_wy" or definition.stage == "backward"
        return keys and definition.conventions.update_gate == "sigmoid" and not strict
    return True


# --- heads --------------------------------------------------------------------------------------------------------


def sizes(published: Published) -> list[tuple[int, int | None]]:
    """Head sizes of a key and, where it has another, of a value."""
    const = set(published.definition.const_axes())
    if "head_size" in const:
        return [(size, None) for size in SIZES]
    if "key_head_dim" in const:
        return [(key, None if key == value else value) for key, value in PAIRS]
    return [(size, None) for size in VALUES]


def size_name(published: Published, size: tuple[int, int | None]) -> str:
    return f"{size[0]}/{size[1] or size[0]}" if "key_head_dim" in published.definition.const_axes() else str(size[0])


def legal(published: Published, heads: Heads) -> bool:
    """Whether a definition takes these heads."""
    if heads.q != heads.k and (
        "num_q_heads" not in published.definition.const_axes()
        or published.definition.stage not in ("prefill", "backward")
    ):
        return False
    return not list(published.definition.broken(published.definition.bind(bound(published, heads.preset))))


def bound(published: Published, preset: str) -> dict[str, int]:
    """The const axes of a definition, by a preset."""
    axes = published.heads(preset)
    return {name: axes[name] for name in published.definition.const_axes()}


# --- what a row exhibits ------------------------------------------------------------------------------------------


def exhibits(published: Published, workload: Workload) -> Levels:
    """The levels of every factor that a row exhibits. A row from a file of tensors has no regime."""
    axes = bound(published, workload.preset) | workload.axes
    levels: Levels = {}
    for factor in factors_of(published):
        levels[factor] = set(_EXHIBITED.get(factor, _of_input)(factor, published, workload, axes))
    return levels


def factors_of(published: Published) -> dict[str, tuple[str, ...]]:
    key = published.definition.name
    if key not in _known:
        _known[key] = factors(published)
    return _known[key]


_known: dict[str, dict[str, tuple[str, ...]]] = {}


def _heads(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    v = axes["num_v_heads"]
    if "num_k_heads" not in axes:
        return ["1" if v == 1 else "several"]
    k = axes["num_k_heads"]
    q = axes.get("num_q_heads", k)
    return [f"gqa {q // k}" if q > k else "mha" if v == k else f"gva {v // k}"]


def _key_heads(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    return ["1" if axes["num_k_heads"] == 1 else "several"]


def _head_size(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    key = axes.get("head_size", axes.get("key_head_dim", axes.get("value_head_dim")))
    return [size_name(published, (int(key or 0), int(axes.get("value_head_dim", key) or 0)))]


def _width(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    return [str(axes["kernel_width"])]


def _of_input(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    tensor = published.definition.input(factor)
    if tensor.is_switch:
        value = workload.scalars.get(factor)
        return ["left out" if value is None else "true" if value else "false"]
    if not tensor.is_scalar:
        return ["absent" if factor in workload.omit else "given"]
    assert tensor.dtype in FLOATS
    return [scalar_level(workload.scalars.get(factor), factor)]


def scalar_level(value: float | None, name: str) -> str:
    if value is None:
        return "absent"
    if value == 0:
        return "zero"
    if name == "eps":
        return "given"
    return "negative" if value < 0 else "one" if value == 1 else "given"


def _interval(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    return ["64" if workload.scalars[INTERVAL] == 64 else "more"]


def _starts(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    lengths, interval = workload.sequence_lengths or [], int(workload.scalars[INTERVAL])
    inside = {start % interval != 0 for start, length in zip(workload.integers[STARTS], lengths, strict=True) if length}
    return [level for level, between in (("on an edge", False), ("between edges", True)) if between in inside]


def lengths_of(published: Published, workload: Workload, axes: Axes) -> list[int]:
    return workload.sequence_lengths or [1] * axes.get("batch_size", 0)


def _counts(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    count = axes["num_seqs"] if "num_seqs" in axes else axes["batch_size"]
    return [COUNTS[0] if count == 1 else COUNTS[1] if 2 <= count <= 8 else COUNTS[2]] if count else []


def _empty(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    lengths = lengths_of(published, workload, axes)
    full = [n for n, length in enumerate(lengths) if length]
    if not full:
        return []
    runs = [len(list(run)) for empty, run in groupby(lengths, lambda length: length == 0) if empty]
    held = {
        "none": 0 not in lengths, "first": lengths[0] == 0, "last": lengths[-1] == 0,
        "middle": 0 in lengths[full[0] : full[-1]], "four in a row": any(run >= 4 for run in runs),
    }  # fmt: skip
    return [level for level, yes in held.items() if yes]


def _lengths(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    lengths = {length for length in lengths_of(published, workload, axes) if length}
    return [length_level(length) for length in lengths]


def length_level(length: int) -> str:
    if length == 1:
        return LENGTHS[0]
    return LENGTHS[1] if length < CHUNK else LENGTHS[2] if length % CHUNK == 0 else LENGTHS[3]


def _held(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    (flag,) = (tensor.name for tensor in published.definition.inputs if tensor.is_flag)
    return ["yes" if value else "no" for value in set(workload.integers[flag])]


def _skipped(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    skip = padding(published.definition)
    return ["some" if any(skip in workload.integers[t.name] for t in naming(published.definition)) else "none"]


def _slots(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    return ["apart" if workload.gaps else "side by side"]


def _read(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    pools = naming(published.definition)
    starts = workload.integers[next(tensor.name for tensor in pools if not tensor.writes)]
    ends = workload.integers[next(tensor.name for tensor in pools if tensor.writes)]
    each = len(ends) // len(starts)
    levels = set()
    for n, slot in enumerate(starts):
        own = ends[n * each : (n + 1) * each]
        if slot == -1:
            continue
        if slot in own:
            levels |= {"in_place"} if slot == own[0] else {"last"} if slot == own[-1] else set()
        else:
            levels |= {"shared"} if starts.count(slot) > 1 else {"moved"}
    return list(levels)


def _behind(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    return ["some" if axes["total_seq_len"] > sum(workload.sequence_lengths or []) else "none"]


def _drafts(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    count = axes[DRAFTS]
    return ["1" if count == 1 else "2 to 8" if count <= 8 else "9 or more"]


def _accepted(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    drafts, levels = axes[DRAFTS], set()
    counts, least = (ACCEPTED, fewest(published.definition)) if factor == "accepted" else (OF_A_ROW, 0)
    starts = "initial_slots" if "initial_slots" in workload.integers else "slots"
    for n, count in enumerate(workload.integers[counts]):
        if workload.integers[starts][n] != -1:
            levels |= {"none"} if count == least else set()
            levels |= {"all"} if count == drafts else {"some"} if count != least else set()
    return list(levels)


def _tree(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    count, levels = axes[DRAFTS], set()
    for n in range(axes["batch_size"]):
        row = workload.integers[PARENTS][n * count : (n + 1) * count]
        if count > 1 and workload.integers["slots"][n] != -1 and workload.integers[OF_A_ROW][n] > 1:
            flat, chain = set(row) == {-1}, row == list(range(-1, count - 1))
            levels.add("flat" if flat else "chain" if chain else "branches")
    return list(levels)


def _regime(factor: str, published: Published, workload: Workload, axes: Axes) -> list[str]:
    if workload.regime is None:
        return []
    levels = {level for level, regimes in ALIKE.items() if workload.regime in regimes}
    if workload.regime == "in_turn" and len([x for x in lengths_of(published, workload, axes) if x]) >= TURN:
        levels |= set(IN_TURN)
    return [level for level in levels if level in factors_of(published)["regime"]]


_EXHIBITED: dict[str, Callable[[str, Published, Workload, Axes], list[str]]] = {
    "heads": _heads, "key heads": _key_heads, "head size": _head_size, "kernel width": _width, "interval": _interval,
    "start": _starts,
    "sequences": _counts, "rows": _counts, "empty": _empty, "length": _lengths, "state held": _held,
    "skipped": _skipped, "slots": _slots, "read": _read, "drafts": _drafts, "accepted": _accepted,
    "of a row": _accepted, "rows behind": _behind, "tree": _tree, "regime": _regime,
}  # fmt: skip
