"""Rows of the gradients of prefill that are given checkpoints."""

from collections.abc import Iterator

from .backward import NO_COTANGENTS, NO_STATES, SAMPLED
from .checkpoints import kept
from .far import far
from .heads import (
    D120,
    GQA,
    GROUPS,
    GROUPS_128,
    GROUPS_OF_3,
    GROUPS_OF_7,
    QWEN3_NEXT,
    QWEN_397B,
    QWEN_397B_TP4,
    SMALL,
    SMALL_128,
)
from .line import RAGGED_16, Line


def residuals_smoke() -> Iterator[Line]:
    yield kept("ragged", SMALL, "slow_decay", 64, (3, 64, 130), covers="none, one and two checkpoints a sequence")
    yield kept("empty_sequences", GROUPS, "slow_decay", 64, (0, 70, 0, 64, 0), covers="no tokens: dh0 is dht")
    yield kept("resets", SMALL, "hard_reset", 64, (130,), covers="alpha = 0: finite, and dg right")
    yield kept("gqa", GQA, "slow_decay", 64, (65, 31), covers="more query heads than key heads: dk and dv are sums")
    yield kept(
        "only_required", SMALL, "slow_decay", 64, (70,), omit=["g", "beta", "initial_state", "dht"],
        covers="every optional input left out but do",
    )  # fmt: skip


def residuals_conformance() -> Iterator[Line]:
    for regime in ("typical", "long_memory", "beta_one", "beta_two", "large_initial_state", "one_large_state"):
        line = kept(f"regime_{regime}", GROUPS, regime, 64, (65, 9, 130, 64), covers=f"the regime {regime}")
        yield line | ({"seed": 1} if regime == "typical" else {})  # of others honest kernels are too far apart
    yield kept("no_checkpoint", SMALL, "slow_decay", 128, (100, 0, 127), covers="no sequence reaches an interval")
    yield kept("all_empty", SMALL, "slow_decay", 64, (0, 0, 0), covers="empty sequences alone")
    mixed = (127, 1, 0, 300, 63, 64, 65, 128, 129)
    for interval in (128, 192, 256):
        line = kept(
            f"interval_{interval}", SMALL, "slow_decay", interval, mixed,
            covers=f"an interval of {interval}, lengths around every edge",
        )  # fmt: skip
        yield line | ({"seed": 1} if interval == 128 else {})
    yield kept("interval_320_resets", SMALL_128, "hard_reset", 320, (640, 65), covers="a long interval, and resets")
    yield kept("groups_of_three", GROUPS_OF_3, "slow_decay", 64, (65, 130), covers="sums over three value heads")
    yield kept("head_size_120", D120, "slow_decay", 64, (129, 64), covers="a head size that no power of two divides")
    yield kept("qwen3_next_heads", QWEN3_NEXT, "slow_decay", 64, (70, 41), covers="16 and 32 heads")
    yield kept("many", SMALL, "slow_decay", 64, (1000, 129), covers="15 checkpoints of one sequence")
    yield kept("from_state", GROUPS_128, "slow_decay", 64, (65, 0, 64), omit=["do"], covers="do absent: zeros")
    yield kept(
        "from_zeros", SMALL, "slow_decay", 64, (130, 0, 5), omit=["initial_state"],
        covers="no initial state: dg of the first token is 0, and dh0 is not",
    )  # fmt: skip
    for name in ("g", "beta", "dht"):
        covers = f"{name} absent, all other inputs given"
        yield kept(f"without_{name}", SMALL, "slow_decay", 64, (66, 0, 9), omit=[name], covers=covers)
    yield kept(
        "no_cotangents", SMALL, "slow_decay", 64, (66, 0, 9), **NO_COTANGENTS, covers="no gradient: zeros, not NaN"
    )
    yield kept(
        "dht_alone", SMALL, "slow_decay", 64, (66, 0, 9), omit=["g", "beta", "initial_state", "do"],
        covers="every optional input left out but dht",
    )  # fmt: skip
    yield kept("scale_negative", SMALL, "slow_decay", 64, (70,), scalars={"scale": -1.5}, covers="a negative scale")
    yield kept(
        "scale_zero", SMALL, "slow_decay", 64, (70,), scalars={"scale": 0.0}, covers="scale 0.0 is no absent one"
    )
    yield kept(
        "scale_large", SMALL, "slow_decay", 64, (70,), scalars={"scale": 1e6}, covers="a scale that nobody cuts off"
    )
    yield kept("scale_small", SMALL, "slow_decay", 64, (70,), scalars={"scale": 1e-6}, covers="a scale that is no 0")
    for regime in ("beta_zero", "tiny_cotangents", "huge_cotangents"):
        line = kept(f"regime_{regime}", SMALL, regime, 64, (65, 9, 64), covers=f"the regime {regime}")
        yield line | ({"seed": 2} if regime == "beta_zero" else {})
    yield kept("interval_320", SMALL, "slow_decay", 320, (700, 65), covers="a long interval, whose checkpoints count")
    yield kept("padded_batch", SMALL, "slow_decay", 64, (70, 70), covers="sequences equally long")
    yield kept("groups_of_seven", GROUPS_OF_7, "slow_decay", 64, (70, 9), covers="35 heads, sums over seven of them")
    yield kept(
        "sequences_78", "heads-1x1x1-d16", "slow_decay", 64, (66, 4, 0) * 26,
        covers="more sequences than a block of them, each with its rows of checkpoints",
    )  # fmt: skip
    yield kept("checkpoints_34", "heads-1x1x1-d16", "slow_decay", 64, (2181,), covers="34 checkpoints of one sequence")
    yield kept("states_absent", SMALL, "slow_decay", 64, (66, 0, 9), **NO_STATES, covers="as in training: no states")
    yield kept(
        "gates_absent", SMALL, "slow_decay", 64, (66, 0, 9), omit=["g", "beta"], covers="the delta rule, from a state"
    )


def far_residuals() -> Iterator[Line]:
    """All heads of a sample of sequences: dq and dk are sums over heads."""
    yield kept(
        "past_2_31_states", QWEN3_NEXT, "typical", 64, (*((8, 9, 0, 8, 10) * 820)[:-1], 65), **far(4, None),
        covers="more than 2^31 elements of states, 131,200 pairs, the last with a checkpoint",
    )  # fmt: skip
    yield kept(
        "past_2_31_checkpoints", QWEN3_NEXT, "typical", 64, (4160,) * 64, **far(2, None),
        covers="more than 2^31 elements of checkpoints",
    )  # fmt: skip


def residuals_performance() -> Iterator[Line]:
    for label, preset in (("4x16", QWEN_397B_TP4), ("16x32", QWEN3_NEXT), ("16x64", QWEN_397B)):
        yield kept(f"{label}_1x8192_every_64", preset, "typical", 64, (8192,), drawn="device", **SAMPLED)
        yield kept(f"{label}_ragged_16_every_256", preset, "typical", 256, RAGGED_16, drawn="device", **SAMPLED)


RESIDUALS = {"smoke": residuals_smoke, "conformance": residuals_conformance, "performance": residuals_performance}
