"""More than other rows have of heads, groups, sequences, tokens and rows of a batch; and sequences equally long.

A kernel that was tried on two sequences of two heads may be wrong from the third on.
"""

from collections.abc import Iterator

from .layer import layer, layer_rows
from .rows import GROUPS_OF_3, MANY_HEADS, SMALL, Line, Rows, decode, in_place, kept, packed, pool, prefill, verify
from .stages import stage

SMALL_SCALE = {"scale": 1e-6}
OF_GROUPS, OF_HEADS = "three value heads a key head", "64 heads, four a key head"
OF_BATCH, OF_SEQUENCES = "more rows than a block of them", "more sequences than a block of them"
OF_LENGTH, OF_EQUAL = "more than 1,024 tokens", "sequences equally long"
OF_SMALL = "a scale that is no 0"
MANY = (4, 5, 0) * 44
BATCH = 70


def of_backward() -> Iterator[Line]:
    yield prefill("groups_of_three", GROUPS_OF_3, "mild_decay", (20, 13), covers=OF_GROUPS)
    yield prefill("many_heads", MANY_HEADS, "mild_decay", (20,), covers=OF_HEADS)
    yield prefill("many", SMALL, "mild_decay", MANY, covers=OF_SEQUENCES)
    yield prefill("long", SMALL, "mild_decay", (1040,), covers=OF_LENGTH)
    yield prefill("scale_small", SMALL, "mild_decay", (40,), scalars=SMALL_SCALE, covers=OF_SMALL)


def of_prefill() -> Iterator[Line]:
    yield from of_backward()
    yield prefill("padded_batch", SMALL, "mild_decay", (33, 33), seed=1, covers=OF_EQUAL)


def of_checkpoints() -> Iterator[Line]:
    yield kept("groups_of_three", GROUPS_OF_3, "mild_decay", 64, (70, 13), covers=OF_GROUPS)
    yield kept("many_heads", MANY_HEADS, "mild_decay", 64, (66,), covers=OF_HEADS)
    yield kept("many", SMALL, "mild_decay", 64, (66, 5, 0) * 26, covers=OF_SEQUENCES)
    yield kept("long", SMALL, "mild_decay", 64, (2181,), covers="34 checkpoints of one sequence")
    yield kept("padded_batch", SMALL, "mild_decay", 64, (70, 70), covers=OF_EQUAL)
    yield kept("scale_small", SMALL, "mild_decay", 64, (70,), scalars=SMALL_SCALE, covers=OF_SMALL)


def of_stage(counted: bool, scaled: bool = False) -> Rows:
    def rows() -> Iterator[Line]:
        yield stage("groups_of_three", GROUPS_OF_3, "mild_decay", (20, 13), counted, covers=OF_GROUPS)
        yield stage("many_heads", MANY_HEADS, "mild_decay", (20,), counted, covers=OF_HEADS)
        yield stage("many", SMALL, "mild_decay", MANY, counted, covers=OF_SEQUENCES)
        yield stage("long", SMALL, "mild_decay", (1040,), counted, covers=OF_LENGTH)
        if scaled:
            yield stage("scale_small", SMALL, "mild_decay", (40,), counted, scalars=SMALL_SCALE, covers=OF_SMALL)

    return rows


def of_decode() -> Iterator[Line]:
    yield decode("groups_of_three", GROUPS_OF_3, "mild_decay", 4, covers=OF_GROUPS)
    yield decode("many_heads", MANY_HEADS, "mild_decay", 3, covers=OF_HEADS)
    yield decode("many", SMALL, "mild_decay", BATCH, covers=OF_BATCH)
    yield decode("scale_small", SMALL, "mild_decay", 3, scalars=SMALL_SCALE, covers=OF_SMALL)


def of_pool() -> Iterator[Line]:
    yield pool("groups_of_three", GROUPS_OF_3, "mild_decay", 6, in_place("groups", 4, 6), covers=OF_GROUPS)
    yield pool("many_heads", MANY_HEADS, "mild_decay", 4, in_place("heads", 2, 4), covers=OF_HEADS)
    yield pool("many", SMALL, "mild_decay", BATCH + 9, in_place("sizes", BATCH, BATCH + 9), covers=OF_BATCH)
    yield pool("scale_small", SMALL, "mild_decay", 5, in_place("small", 3, 5), scalars=SMALL_SCALE, covers=OF_SMALL)


def of_verify() -> Iterator[Line]:
    yield verify("groups_of_three", GROUPS_OF_3, "mild_decay", 3, [0, 3, 1], covers=OF_GROUPS)
    yield verify("many_heads", MANY_HEADS, "mild_decay", 2, [2, 1], covers=OF_HEADS)
    yield verify("many", SMALL, "mild_decay", 2, [n % 3 for n in range(BATCH)], covers=OF_BATCH)
    yield verify("scale_small", SMALL, "mild_decay", 2, [2, 1], scalars=SMALL_SCALE, covers=OF_SMALL)


def of_layer() -> Iterator[Line]:
    yield layer("many", SMALL, (2, 3, 0) * 24, "++-" * 24, covers=OF_SEQUENCES)
    yield layer("padded_batch", SMALL, (20, 20), "+-", covers=OF_EQUAL)


def of_layer_decode() -> Iterator[Line]:
    yield layer_rows("many", SMALL, BATCH, covers=OF_BATCH)


STATES = ("", "_bf16_state")
SIZES: dict[str, Rows] = {
    "kda_prefill_k_last": of_prefill, "kda_prefill_k_first": of_prefill, "kda_prefill_raw_gates": of_prefill,
    "kda_prefill_checkpoints": of_checkpoints, "kda_prefill_backward_k_last": of_backward,
    "kda_chunk_wy": of_stage(False), "kda_chunk_state": of_stage(True), "kda_chunk_output": of_stage(True, scaled=True),
    **{f"kda_decode_k_last{state}": of_decode for state in STATES},
    **{f"kda_decode_packed_k_last{state}": packed(of_decode) for state in STATES},
    **{f"kda_decode_pool_k_last{state}": of_pool for state in STATES},
    "kda_verify_k_last": of_verify, "kda_layer_prefill": of_layer, "kda_layer_decode": of_layer_decode,
}  # fmt: skip
