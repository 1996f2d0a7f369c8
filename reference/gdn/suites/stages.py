"""Rows of the stages of the chunkwise form."""

from collections.abc import Iterator
from typing import Any

from .heads import GROUPS, GROUPS_128, GROUPS_OF_3, K64_V120, K120_V60, QWEN3_NEXT, SMALL, SMALL_128
from .line import Line, Rows
from .prefill import prefill


def stage(name: str, preset: str, regime: str, lengths: tuple[int, ...], counted: bool, **more: Any) -> Line:
    """A stage of a prefill; `counted`: it has something of every chunk."""
    line = prefill(name, preset, regime, lengths, **more)
    if counted:
        line["axes"]["num_chunks"] = sum(-(-length // 64) for length in lengths)
    return line


def stage_smoke(counted: bool) -> Iterator[Line]:
    yield stage("ragged", GROUPS_128, "typical", (1, 65, 63), counted, covers="sequences around one chunk")
    yield stage("empty", SMALL, "typical", (0, 64, 0, 20, 0), counted, covers="empty sequences, which have no chunk")
    yield stage("resets", SMALL, "hard_reset", (130,), counted, covers="alpha = 0 at tokens and at edges of chunks")
    yield stage("k64_v120", K64_V120, "slow_decay", (66,), counted, covers="heads of values wider than those of keys")
    yield stage("k120_v60", K120_V60, "hard_reset", (20, 65), counted, covers="heads of keys wider, no powers of two")


def stage_conformance(counted: bool, of_state: bool, scaled: bool) -> Iterator[Line]:
    yield stage(
        "padded", SMALL_128, "typical", (100, 100, 100), counted, covers="sequences equally long: a padded batch"
    )
    for regime in ("long_memory", "fast_decay", "beta_zero", "beta_two", "one_large_state"):
        yield stage(f"regime_{regime}", GROUPS, regime, (65, 1, 64), counted, covers=f"the regime {regime}")
    yield stage("no_tokens", SMALL, "typical", (0, 0), counted, covers="no chunk at all")
    yield stage("long", SMALL_128, "slow_decay", (640, 129), counted, covers="many chunks")
    yield stage("groups_of_three", GROUPS_OF_3, "typical", (70,), counted, covers="three value heads a key head")
    yield stage("qwen3_next_heads", QWEN3_NEXT, "typical", (20, 41), counted, covers="16 and 32 heads")
    if of_state:
        left_out = {"omit": ["initial_state"]}
        yield stage(
            "from_zeros", SMALL, "typical", (70, 0, 5), counted, covers="initial_state absent: zeros", **left_out
        )
    if scaled:
        yield stage("scale_zero", SMALL, "typical", (70,), counted, scalars={"scale": 0.0}, covers="scale 0.0 is 0.0")
        yield stage(
            "scale_given", SMALL, "typical", (70,), counted, scalars={"scale": -0.3}, covers="a scale of its own"
        )


def wy_strict() -> Iterator[Line]:
    """Each row of w is judged, and no sum of them: with keys alike, T in bfloat16 is not enough."""
    yield stage("strict_same_key", SMALL, "repeated_keys", (64, 30), False, covers="a system far from the identity")
    yield stage("strict_near_parallel", GROUPS_128, "near_parallel_keys", (70,), False, covers="as models have it")


def stage_performance(counted: bool) -> Iterator[Line]:
    for name, lengths in (("1x2048", (2048,)), ("4x2048", (2048,) * 4)):
        yield stage(f"16x32_{name}", QWEN3_NEXT, "typical", lengths, counted)


def stages(counted: bool, of_state: bool = False, scaled: bool = False) -> dict[str, Rows]:
    return {
        "smoke": lambda: stage_smoke(counted), "conformance": lambda: stage_conformance(counted, of_state, scaled),
        "performance": lambda: stage_performance(counted),
    }  # fmt: skip
