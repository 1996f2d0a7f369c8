"""Rows of the regimes that mix gates of 1 with decay, and of every region of each gate function."""

from collections.abc import Iterator

from gdnspec.family import Definition, Published

from ..line import Line
from .build import Call, Heads, drafted, line, ragged
from .sizes import ONE_BY_ONE

GATED = {"g", "decay", "a", "a_weight"}  # inputs of which a definition has one, where it has gates that forget
WRITING = {"beta", "b", "z"}  # the same of gates that write, or that let through

SMALL, GROUPS = Heads(1, 1, 2, 64), Heads(2, 2, 4, 32)
# Of sequences of one token nothing hides what a gate has left of a state. Where keys are rounded for a matrix product a
# few tokens are better: of one the output is a multiple of q k, and where that is near 0 an honest error is large.
REGIONS = (1, 1, 1, 2, 1, 1, 0, 1, 1, 3, 1, 1, 1, 1, 1, 1, 1, 66)
OF_PRODUCTS = (4, 5, 4, 3, 4, 6, 0, 4, 5, 4, 4, 5, 3, 4, 4, 5, 4, 66)
# A projection rounds the arguments of gates, and the rate of a region multiplies that: no budget would say anything.
PROJECTED = "a_weight"


# The gradient of a gate is one number for each token and head. Of few tokens, or beside a state of 1e36, rounding
# leaves nothing of some. A definition that returns gradients has its rows of regions in the strict suite.
GRADIENTS = "backward"  # a stage
LEAST = 8  # tokens of a sequence there


def inputs_of(definition: Definition) -> set[str]:
    return {tensor.name for tensor in definition.inputs}


def gate_rows(published: Published) -> Iterator[Line]:
    definition = published.definition
    names, gradients = inputs_of(definition), definition.stage == GRADIENTS
    if names & GATED:
        sparse: tuple[int, ...] = (130, 66, 1, 17) if ragged(definition) else (1,) * 12
        mixed: tuple[int, ...] = (65, 1, 40, 0, 6, 3) if ragged(definition) else (1,) * 9
        ends: tuple[int, ...] = (1, 1, 2, 1)
        if gradients:
            sparse, mixed, ends = (
                tuple(length and max(length, LEAST) for length in each) for each in (sparse, mixed, ends)
            )
        yield _row(published, "gates_sparse", SMALL, sparse, "sparse_gates", "alpha exactly 1 at random among decay")
        yield _row(published, "gates_interleaved", GROUPS, mixed, "interleaved_gates", "alpha 1 at every second token")
        yield _row(published, "gates_padded", GROUPS, mixed, "padded_tails", "padding at the end: alpha 1, beta 0")
        yield _row(published, "gates_in_turn", GROUPS, (*mixed, *ends), "in_turn", "gates of another kind for each")
    if gradients:
        return
    # Where nothing is read before the next token decays it, a sequence of one token alone shows what its gate has left.
    read = definition.stage in ONE_BY_ONE and bool(names & {"q", "qkv", "v", "x"})
    few = OF_PRODUCTS if read else REGIONS
    regions = few if ragged(definition) else (1,) * 18
    if names & GATED - {PROJECTED}:
        yield _row(published, "gates_forget", GROUPS, regions, "forget_regions", "each region of the gate that forgets")
    if names & WRITING and PROJECTED not in names:
        yield _row(published, "gates_write", GROUPS, regions, "write_regions", "each region of the gate that writes")


def _row(
    published: Published, name: str, heads: Heads, lengths: tuple[int, ...], regime: str, covers: str
) -> Line:  # fmt: skip
    drafts = 3 if drafted(published.definition) and regime not in ("forget_regions", "write_regions") else 1
    call = Call(name, heads, lengths, regime, drafts=drafts, kinds=("in_place", "moved"), covers=covers)
    return line(published, call)
