"""Numbers that a call gives and a kernel may take for absent or cut off, and every depth of the gate that forgets."""

from collections.abc import Iterator

from .layer import layer, layer_rows
from .rows import GROUPS, SMALL, Line, Rows, decode, in_place, kept, packed, pool, prefill, verify

NO_BOUND, ZEROS = {"lower_bound": 0.0}, {"lower_bound": 0.0, "scale": 0.0}
ONE, LARGE, NEGATIVE = {"scale": 1.0}, {"scale": 1e6}, {"scale": -0.3}
OF_ZEROS = "0.0 given: no bound, and a scale of zero"
OF_ONE, OF_LARGE, OF_NEGATIVE = "scale 1.0 is not absent", "a scale that nobody cuts off", "a scale of its own"
OF_DEPTHS = "from alpha of almost 1 to e^-80, each before a state as large as that is small"
OF_STEPS = "gates that forget nearly all, before states as large as they are small"
DEPTHS = 18  # rows: two of each depth
# Few tokens, for each decays what the one before has left; and one sequence long enough that the budget holds where a
# check calls again with other lengths.
FEW = (4, 5, 4, 3, 4, 6, 1, 4, 5, 4, 4, 5, 3, 4, 4, 5, 4, 66)
# For gradients: dbeta of few tokens may cancel to almost nothing.
EVEN = (20, 21, 19, 20, 21, 19, 20, 21, 20)


def of_decode() -> Iterator[Line]:
    yield decode("zeros_given", SMALL, "typical", 3, scalars=ZEROS, covers=OF_ZEROS)
    yield decode("scale_one", SMALL, "mild_decay", 3, scalars=ONE, covers=OF_ONE)
    yield decode("scale_large", SMALL, "mild_decay", 3, scalars=LARGE, covers=OF_LARGE)
    yield decode("every_depth", GROUPS, "every_depth", DEPTHS, covers=OF_DEPTHS)


def of_pool() -> Iterator[Line]:
    yield pool("zeros_given", SMALL, "typical", 5, in_place("zeros", 3, 5), scalars=ZEROS, covers=OF_ZEROS)
    yield pool("scale_one", SMALL, "mild_decay", 5, in_place("one", 3, 5), scalars=ONE, covers=OF_ONE)
    yield pool("scale_large", SMALL, "mild_decay", 5, in_place("large", 3, 5), scalars=LARGE, covers=OF_LARGE)
    rows = in_place("depths", DEPTHS, DEPTHS + 2)
    yield pool("every_depth", GROUPS, "every_depth", DEPTHS + 2, rows, covers=OF_DEPTHS)


def of_verify() -> Iterator[Line]:
    yield verify("zeros_given", SMALL, "typical", 2, [0, 2], scalars=ZEROS, covers=OF_ZEROS)
    yield verify("scale_one", SMALL, "mild_decay", 2, [1, 0], scalars=ONE, covers=OF_ONE)
    yield verify("scale_large", SMALL, "mild_decay", 2, [2, 1], scalars=LARGE, covers=OF_LARGE)
    yield verify("every_depth", GROUPS, "every_depth", 1, [n % 2 for n in range(DEPTHS)], covers=OF_DEPTHS)


def of_raw_prefill() -> Iterator[Line]:
    yield prefill("zeros_given", SMALL, "typical", (20, 3), scalars=ZEROS, covers=OF_ZEROS)
    yield from of_prefill()


def of_prefill() -> Iterator[Line]:
    yield prefill("scale_one", SMALL, "mild_decay", (40,), scalars=ONE, covers=OF_ONE)
    yield prefill("scale_large", SMALL, "mild_decay", (40,), scalars=LARGE, covers=OF_LARGE)
    yield prefill("every_depth", GROUPS, "every_depth", FEW, covers=OF_DEPTHS)


def of_checkpoints() -> Iterator[Line]:
    yield kept("scale_negative", SMALL, "mild_decay", 64, (70,), scalars=NEGATIVE, covers=OF_NEGATIVE)
    yield kept("scale_large", SMALL, "mild_decay", 64, (70,), scalars=LARGE, covers=OF_LARGE)
    yield kept("every_depth", GROUPS, "every_depth", 64, FEW, covers=OF_DEPTHS)


def of_backward() -> Iterator[Line]:
    # Of other seeds honest arithmetic takes more than a budget.
    yield prefill("every_depth", GROUPS, "every_depth", EVEN, seed=1, covers=OF_DEPTHS)
    yield prefill("scale_large", SMALL, "mild_decay", (40,), scalars=LARGE, covers=OF_LARGE)


def of_layer() -> Iterator[Line]:
    yield layer("zeros_given", SMALL, (9, 5), "+-", scalars=NO_BOUND, covers="0.0 given: no bound")
    yield layer("deep_steps", GROUPS, (1, 2, 1, 9), "++++", regime="deep_steps", covers=OF_STEPS)


def of_layer_decode() -> Iterator[Line]:
    yield layer_rows("zeros_given", SMALL, 4, scalars=NO_BOUND, covers="0.0 given: no bound")
    yield layer_rows("deep_steps", GROUPS, 6, regime="deep_steps", covers=OF_STEPS)


SCALARS: dict[str, Rows] = {
    "kda_decode_k_last": of_decode, "kda_decode_k_last_bf16_state": of_decode,
    "kda_decode_packed_k_last": packed(of_decode), "kda_decode_packed_k_last_bf16_state": packed(of_decode),
    "kda_decode_pool_k_last": of_pool,
    "kda_decode_pool_k_last_bf16_state": of_pool, "kda_verify_k_last": of_verify,
    "kda_prefill_raw_gates": of_raw_prefill, "kda_prefill_k_last": of_prefill, "kda_prefill_k_first": of_prefill,
    "kda_prefill_checkpoints": of_checkpoints, "kda_prefill_backward_k_last": of_backward,
    "kda_layer_prefill": of_layer, "kda_layer_decode": of_layer_decode,
}  # fmt: skip
