"""Rows of two head sizes and write gates up to 2: prefill and decode."""

from collections.abc import Iterator

from .decode import decode
from .heads import (
    D120,
    GQA_K64_V96,
    GROUPS_128,
    GVA_K96_V192,
    K24_V40,
    K40_V256,
    K64_V120,
    K64_V128,
    K96_V192,
    K120_V60,
    K128_V64,
    K256_V48,
    OLMO,
    OLMO_TP2,
    SMALL_128,
)
from .line import LENGTHS, RAGGED_16, REGIMES, Line
from .prefill import prefill

NEGATIVE: Line = {"allow_neg_eigval": True}  # beta = 2 sigmoid(b)
# One regime after the other on wider values, wider keys, groups of three; the switch given true, false, and not at all.
IN_TURN = (K96_V192, K128_V64, K24_V40)
SWITCHED: tuple[Line, ...] = (NEGATIVE, {"allow_neg_eigval": False}, {})
PAST_ONE = ("repeated_keys", "near_parallel_keys", "beta_two")  # regimes whose write strength a sigmoid does not reach


def turn(regime: str) -> int:
    return REGIMES.index(regime) % 3


def switch(regime: str) -> Line:
    """The scalars of a row of this regime; where its beta passes 1 the gate must be doubled."""
    return NEGATIVE if regime in PAST_ONE else SWITCHED[turn(regime)]


def kv_prefill_smoke() -> Iterator[Line]:
    yield prefill("ragged", K96_V192, "typical", (1, 63, 65), covers="sequences of 1, 63 and 65 tokens together")
    yield prefill("empty_sequences", K128_V64, "typical", (0, 17, 0, 20, 0), covers="no tokens first, between and last")
    yield prefill("resets", K64_V128, "hard_reset", (130,), covers="alpha = 0 at tokens and at edges of chunks")
    yield prefill("same_key", GVA_K96_V192, "repeated_keys", (96,), covers="a triangular system far from the identity")
    yield prefill("beta_two", K96_V192, "beta_two", (40,), covers="write strengths of 2: a state that changes its sign")
    yield prefill("gqa", GQA_K64_V96, "typical", (33, 31), covers="more query heads than key heads")
    yield prefill("narrow", K24_V40, "slow_decay", (40,), covers="sizes that no power of two divides")
    yield prefill(
        "only_required", K120_V60, "typical", (50,), omit=["g", "beta", "initial_state"],
        covers="every optional input left out",
    )  # fmt: skip


def kv_prefill_conformance() -> Iterator[Line]:
    for regime in REGIMES:
        yield prefill(f"regime_{regime}", IN_TURN[turn(regime)], regime, (65, 1, 70), covers=f"the regime {regime}")
    for length, covers in LENGTHS.items():
        yield prefill(f"length_{length}", K24_V40, "typical", (length,), covers=covers)
    yield prefill("empty_first", GVA_K96_V192, "typical", (0, 64, 70), covers="an empty sequence first")
    yield prefill(
        "empty_without_state", K96_V192, "typical", (0, 5, 0), omit=["initial_state"],
        covers="empty sequences that end in zeros",
    )  # fmt: skip
    yield prefill("all_empty", K128_V64, "typical", (0, 0, 0, 0), covers="empty sequences alone")
    yield prefill("single_tokens", K128_V64, "hard_reset", (1,) * 24, covers="many sequences of one token")
    yield prefill(
        "mixed_lengths", K24_V40, "typical", (127, 1, 0, 200, 63, 64, 65, 2, 128),
        covers="lengths around every edge of a chunk in one batch",
    )  # fmt: skip
    yield prefill("sequences_70", K24_V40, "typical", (3,) * 70, covers="more sequences than a block of them")
    yield prefill("long", GVA_K96_V192, "slow_decay", (640, 129), covers="many chunks")
    yield prefill(
        "drift_long_memory", K64_V128, "long_memory", (4096,), covers="drift over 4,096 tokens that forget nothing"
    )
    yield prefill("replaced_state", K128_V64, "replaced_large_state", (600,), covers="a large state that keys replace")
    yield prefill("gqa_resets", GQA_K64_V96, "hard_reset", (129, 0, 20), covers="GQA with resets and an empty sequence")
    yield prefill(
        "gqa_only_required", GQA_K64_V96, "typical", (30, 40), omit=["g", "beta", "initial_state"],
        covers="GQA, every optional input absent",
    )  # fmt: skip
    yield prefill("same_size", GROUPS_128, "typical", (65, 30), covers="keys and values of one size")
    yield prefill("same_size_gva", SMALL_128, "repeated_keys", (70,), covers="one size of 128, one key")
    yield prefill("same_size_120", D120, "slow_decay", (20, 40), covers="one size that no power of two divides")
    yield prefill("widest_keys", K256_V48, "typical", (66,), covers="keys of 256, values below one block")
    yield prefill("widest_values", K40_V256, "beta_two", (66,), covers="values of 256, keys below one block")
    yield prefill("k64_v120", K64_V120, "hard_reset", (65, 40), covers="values of 120")
    yield prefill("olmo_hybrid_heads", OLMO, "typical", (20, 41), covers="30 and 30 heads of a real model")
    yield prefill(
        "olmo_hybrid_heads_ragged", OLMO_TP2, "beta_two", (65, 0, 1, 30), covers="15 heads, a ragged batch, beta 2"
    )
    for name in ("g", "beta", "initial_state"):
        yield prefill(f"no_{name}", K96_V192, "typical", (65, 20), omit=[name], covers=f"{name} absent")
    for first, second in (("g", "beta"), ("g", "initial_state"), ("beta", "initial_state")):
        yield prefill(
            f"no_{first}_no_{second}", K128_V64, "typical", (65, 9), omit=[first, second],
            covers=f"{first} and {second} absent",
        )  # fmt: skip
    for name, scale in (("zero", 0.0), ("negative", -1.5), ("one", 1.0), ("tiny", 1e-4), ("huge", 1e3)):
        yield prefill(
            f"scale_{name}", K64_V128 if scale > 0 else K128_V64, "typical", (70,), scalars={"scale": scale},
            covers=f"a scale of {scale:g}",
        )  # fmt: skip
    yield prefill(
        "scale_without_gate", K96_V192, "typical", (40, 30), omit=["g"], scalars={"scale": 0.3},
        covers="a scale of its own, g absent",
    )  # fmt: skip


def kv_prefill_strict() -> Iterator[Line]:
    yield prefill("strict_64", K96_V192, "strict_keys", (64,), covers="one chunk")
    yield prefill("strict_ragged", K64_V128, "strict_keys", (200, 65, 1), covers="several chunks and their edges")
    yield prefill("strict_wide_keys", K128_V64, "strict_keys", (130, 16), covers="keys wider than values")


def kv_prefill_performance() -> Iterator[Line]:
    for label, preset in (("30x30", OLMO), ("15x15", OLMO_TP2)):
        yield prefill(f"{label}_1x2048", preset, "typical", (2048,))
        yield prefill(f"{label}_1x8192", preset, "typical", (8192,))
        yield prefill(f"{label}_ragged_16", preset, "typical", RAGGED_16)


def kv_decode_smoke() -> Iterator[Line]:
    yield decode("batch_8", K96_V192, "typical", 8, scalars=NEGATIVE, covers="a batch as OLMo Hybrid has it")
    yield decode("one_switch", K96_V192, "typical", 8, covers="the switch absent: a write strength below 1")
    yield decode("beta_two", K128_V64, "beta_two", 5, scalars=NEGATIVE, covers="a write strength of 2")
    yield decode("resets", K64_V128, "hard_reset", 8, scalars=NEGATIVE, covers="alpha = 0 in some heads")
    yield decode("narrow", K24_V40, "long_memory", 5, covers="sizes that no power of two divides, alpha = 1")
    yield decode(
        "no_l2norm", K128_V64, "typical", 6, scalars={"use_qk_l2norm": False, **NEGATIVE}, covers="keys as they are"
    )
    yield decode("scale_zero", GVA_K96_V192, "typical", 4, scalars={"scale": 0.0}, covers="scale 0.0 is no absent one")
    yield decode("tiny_keys", K96_V192, "tiny_keys", 8, covers="the epsilon of the norm stands inside of the root")
    yield decode("one_row", K64_V128, "slow_decay", 1, scalars=NEGATIVE, covers="batch 1")


def kv_decode_conformance() -> Iterator[Line]:
    for regime in REGIMES:
        preset = IN_TURN[turn(regime)]
        yield decode(f"regime_{regime}", preset, regime, 5, scalars=switch(regime), covers=f"the regime {regime}")
    for batch in (1, 2, 3, 17, 64, 65):
        yield decode(f"batch_{batch}", K24_V40, "typical", batch, scalars=NEGATIVE, covers=f"a batch of {batch}")
    yield decode("batch_257", K24_V40, "typical", 257, covers="more rows than any block of them")
    yield decode("same_size", GROUPS_128, "typical", 4, scalars=NEGATIVE, covers="keys and values of one size")
    yield decode("same_size_gva", SMALL_128, "typical", 5, covers="one size of 128, the switch absent")
    yield decode("same_size_120", D120, "slow_decay", 3, scalars=NEGATIVE, covers="one size of 120")
    yield decode("widest_keys", K256_V48, "typical", 3, scalars=NEGATIVE, covers="keys of 256, values below one block")
    yield decode("widest_values", K40_V256, "typical", 3, covers="values of 256, keys below one block")
    yield decode("k64_v120", K64_V120, "hard_reset", 4, scalars=NEGATIVE, covers="values of 120")
    yield decode("k120_v60", K120_V60, "typical", 5, covers="keys of 120, values of 60")
    yield decode("olmo_hybrid_heads", OLMO, "typical", 3, scalars=NEGATIVE, covers="30 and 30 heads of a real model")
    yield decode("olmo_hybrid_tp2", OLMO_TP2, "beta_two", 2, scalars=NEGATIVE, covers="15 and 15 heads")
    for i, (name, scale) in enumerate((("negative", -1.5), ("one", 1.0), ("tiny", 1e-4), ("huge", 1e3), ("some", 0.3))):
        yield decode(
            f"scale_{name}", (K64_V128, K128_V64)[i % 2], "typical", 3, scalars={"scale": scale, **SWITCHED[i % 3]},
            covers=f"a scale of {scale:g}",
        )  # fmt: skip
    yield decode(
        "switches_as_their_defaults", K24_V40, "typical", 3,
        scalars={"use_qk_l2norm": True, "allow_neg_eigval": False}, covers="both switches given as their defaults",
    )  # fmt: skip
    yield decode(
        "no_l2norm_beta_two", K96_V192, "beta_two", 4, scalars={"use_qk_l2norm": False, **NEGATIVE},
        covers="keys as they are under a write strength of 2",
    )  # fmt: skip
    yield decode(
        "no_l2norm_tiny_keys", K24_V40, "tiny_keys", 5, scalars={"use_qk_l2norm": False},
        covers="small keys that nobody normalises",
    )  # fmt: skip
    yield decode(
        "scale_zero_no_l2norm", K64_V128, "typical", 3, scalars={"scale": 0.0, "use_qk_l2norm": False, **NEGATIVE},
        covers="all three scalars at once",
    )  # fmt: skip


def kv_decode_performance() -> Iterator[Line]:
    for batch in (1, 4, 16, 64, 256):
        yield decode(f"30x30_batch_{batch}", OLMO, "typical", batch, scalars=NEGATIVE)
    yield decode("15x15_batch_64", OLMO_TP2, "typical", 64, scalars=NEGATIVE)


KV_PREFILL = {
    "smoke": kv_prefill_smoke, "conformance": kv_prefill_conformance, "strict": kv_prefill_strict,
    "performance": kv_prefill_performance,
}  # fmt: skip
KV_DECODE = {
    "smoke": kv_decode_smoke, "conformance": kv_decode_conformance, "performance": kv_decode_performance,
}  # fmt: skip
