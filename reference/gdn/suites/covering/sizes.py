"""Sizes that every variable axis must have in some row: small ones, and one just past each power of two that a kernel
may take for its block; and cheap rows that have them: one token a sequence, few heads, a small head size."""

from collections.abc import Iterable, Iterator

from gdnspec.family import Published, SuiteError, Workload

from ..line import Line
from .build import DRAFTS, Call, Heads, absolute, drafted, line, naming, numbered, ragged
from .names import CHECKPOINTS, CHUNK, SLOTS, counts_chunks, padding

EXACT = (1, 2, 3, 5, 8)
PAST = (16, 32, 64, 128, 256, 512, 1024, 4096)
DRAFTED = (1, 2, 3, 5, 8, 16)  # of at most 16
MOST = {CHECKPOINTS: 256}  # a checkpoint takes 64 tokens or more; of other axes the last of `PAST`
# Where budgets come of matrix products each of twelve emulators takes one sequence at a time: 1,025 take half a minute.
EMULATED = {"num_seqs": 512, "num_chunks": 512}
# Of some hundred tokens one is read as nearly nothing, and the norm behind it makes any rounding of that large.
NORMED = {"total_seq_len": 256, "longest sequence": 256}
ONE_BY_ONE = ("prefill", "chunk_stage", "layer", "backward")  # stages
LONGEST, PRODUCT = "longest sequence", "rows times drafts"  # no axes, and as good as some
SUITES = ("smoke", "conformance")
SCALES = (-1.0, 1.0, 0.5, None)


def required(published: Published) -> dict[str, tuple[int, ...]]:
    """The sizes of each axis, those just past a number named by it plus one."""
    table: dict[str, tuple[int, ...]] = {}
    most = MOST | (EMULATED if published.definition.stage in ONE_BY_ONE else {})
    most |= NORMED if published.definition.stage == "layer" else {}
    for axis in published.definition.var_axes():
        past = tuple(number + 1 for number in PAST if number <= most.get(axis.name, PAST[-1]))
        exact = EXACT[1:] if axis.name == SLOTS and padding(published.definition) == 0 else EXACT
        table[axis.name] = DRAFTED if axis.name == DRAFTS else (*exact, *past)
    everything = (*EXACT, *(number + 1 for number in PAST))
    if ragged(published.definition):
        table[LONGEST] = tuple(size for size in everything if size <= 1 + most.get(LONGEST, PAST[-1]))
    if drafted(published.definition):
        table[PRODUCT] = everything
    return table


def matches(size: int, wanted: int) -> bool:
    """Whether a size is the wanted one, or as little past the same number: by up to an eighth of it."""
    return size == wanted or (wanted > max(*EXACT, DRAFTED[-1]) and wanted <= size <= wanted - 1 + (wanted - 1) // 8)


def sizes_of(published: Published, workload: Workload) -> dict[str, int]:
    """The sizes that a row has. One on a GPU alone has none: most who check have no GPU."""
    if workload.suite not in SUITES or workload.device != "any":
        return {}
    sizes = dict(workload.axes)
    if workload.tensors is None and workload.sequence_lengths:
        sizes[LONGEST] = max(workload.sequence_lengths)
    if drafted(published.definition):
        sizes[PRODUCT] = sizes["batch_size"] * sizes[DRAFTS]
    return sizes


def missing(published: Published, rows: Iterable[Workload]) -> list[tuple[str, int]]:
    """(axis, size) that no row has."""
    have = [sizes_of(published, row) for row in rows]
    return [
        (axis, wanted)
        for axis, sizes in required(published).items()
        for wanted in sizes
        if not any(matches(each[axis], wanted) for each in have if axis in each)
    ]


# --- rows for what is missing -------------------------------------------------------------------------------------


def rows_for(published: Published, rows: list[Workload]) -> Iterator[Line]:
    """Rows that have all sizes which the given ones lack: first many sequences or rows, which have many slots, tokens
    and chunks as well; then what is left, axis by axis."""
    have = list(rows)
    many = "num_seqs" if ragged(published.definition) else "batch_size"
    for axis in (many, DRAFTS, PRODUCT, LONGEST, CHECKPOINTS, "num_slots", "total_seq_len", "num_chunks"):
        for wanted in required(published).get(axis, ()):
            lacking = missing(published, have)
            if (axis, wanted) in lacking:
                row = line(published, _call(published, axis, wanted, lacking))
                have.append(Workload.model_validate(row | {"suite": "conformance", "seed": 0}))
                yield row
    left = missing(published, have)
    if left:
        raise SuiteError(f"no row has {left}: build one, or lower what is required")


def _call(published: Published, axis: str, wanted: int, lacking: list[tuple[str, int]]) -> Call:
    """A cheap call with this size of an axis; with as many slots, and as long a sequence, as are lacking too."""
    turn = wanted.bit_length()
    heads = Heads(1, 1, 1 + turn % 2, 32) if wanted < 256 else Heads(1, 1, 1, 16)
    scale = SCALES[turn % len(SCALES)]
    takes = any(tensor.name == "scale" for tensor in published.definition.inputs)
    scalars = {"scale": scale} if takes and scale is not None else {}
    drafts, slots = 1, 0
    lengths = [1] * 2
    if axis in ("num_seqs", "batch_size"):
        lengths = _ones(wanted, axis == "num_seqs" and not counts_chunks(published.definition))
        drafts = DRAFTED[turn % len(DRAFTED)] if wanted < 256 else 16 if wanted < 512 else 1
    elif axis == DRAFTS:
        drafts = wanted
    elif axis == PRODUCT:
        drafts = next(each for each in (16, 8, 5, 3, 1) if wanted % each == 0 or wanted > 16 * each)
        lengths = [1] * -(-wanted // drafts)
    elif axis == CHECKPOINTS:
        # The last of two sequences ends within an interval.
        more = 3 - CHUNK if absolute(published.definition) else 3  # a row is kept for it, or none
        lengths = [CHUNK * (wanted // 2), CHUNK * (wanted - wanted // 2) + more]
    elif axis == "num_chunks":
        lengths = [CHUNK * (wanted - 1) + 5] if wanted < 20 else _ones(wanted, False)
    elif axis in (LONGEST, "total_seq_len"):
        lengths = [wanted]
    elif axis == "num_slots":
        lengths = [1] * min(2, wanted - 1 - padding(published.definition))
        slots = wanted
    if axis == "num_seqs" and published.definition.stage == "backward":
        # Of one token a gradient of a gate is one number: of a thousand numbers, rounding leaves nothing of one. Of
        # hundreds of sequences it leaves too little of one that has three: then half of them are longer, half empty.
        lengths = [length and 2 + length for length in lengths]
        lengths = [0 if n % 2 else 4 + n % 3 for n in range(wanted)] if wanted > 512 else lengths
    short = [size for each, size in lacking if each == LONGEST and size <= 65]
    if axis == "num_seqs" and short:
        lengths[0] = short[0]
    if naming(published.definition) and not slots:
        needed = len(lengths) * (1 if numbered(published.definition) else drafts)
        slots = min((size for each, size in lacking if each == "num_slots" and size >= needed), default=_next(needed))
    return Call(
        f"size_{axis.replace(' ', '_').removeprefix('num_')}_{wanted}", heads, lengths, "typical", scalars=scalars,
        drafts=drafts, accept=("all", "none", "some"), drafted=("all", "some", "none"),
        starts=(0, 5, 62), num_slots=slots, spare=0,
        # Of one token from zeros a layer reads a multiple of q k, whose sign an honest rounding may turn.
        held=(1,) if published.definition.stage == "layer" else (1, 0),
        covers=f"a size that a block may not hold: {axis} {wanted}",
    )  # fmt: skip


def _ones(count: int, empty: bool) -> list[int]:
    """Sequences of one token, some of two, and as many empty ones."""
    return [0 if empty and n % 16 == 5 else 2 if n % 16 == 9 else 1 for n in range(count)]


def _next(least: int) -> int:
    """The next of the sizes that holds this many."""
    return next((size for size in (*EXACT, *(number + 1 for number in PAST)) if size >= least), least)
