"""Rows of prefill."""

from collections.abc import Iterator
from typing import Any

from .heads import (
    D120,
    GQA,
    GQA_128,
    GROUPS,
    GROUPS_128,
    GROUPS_OF_3,
    GVA_D120,
    QWEN3_NEXT,
    QWEN_397B,
    QWEN_397B_TP4,
    SMALL,
    SMALL_128,
)
from .line import LENGTHS, RAGGED_16, REGIMES, Line

# (tokens, what is bad) of the files that scripts/search_adversarial.py writes.
ADVERSARIAL = (
    (64, "the output, chunks of 64"), (100, "the state, chunks of 128"),
    (64, "a row of the state under three directions of keys, chunks of 64"),
    (40, "one token's output under two directions of keys, chunks of 16"),
)  # fmt: skip


# Sixteen sequences, one of them empty: kernels that hand the next pair to whoever is free take these in another form.
SEVERAL_CHUNKS = (217, 192, 230, 328, 213, 308, 272, 252, 306, 328, 205, 293, 294, 306, 0, 385)


def prefill(name: str, preset: str, regime: str, lengths: tuple[int, ...], **more: Any) -> Line:
    axes = {"total_seq_len": sum(lengths), "num_seqs": len(lengths)}
    return {"name": name, "preset": preset, "axes": axes, "sequence_lengths": list(lengths), "regime": regime, **more}


def prefill_smoke() -> Iterator[Line]:
    """About 2,000 tokens times heads: what an interpreted kernel does in seconds."""
    yield prefill("ragged", SMALL_128, "typical", (1, 63, 65), covers="sequences of 1, 63 and 65 tokens together")
    yield prefill("empty_sequences", GROUPS, "typical", (0, 17, 0, 20, 0), covers="no tokens first, between and last")
    yield prefill("resets", SMALL, "hard_reset", (130,), covers="alpha = 0 at tokens and at edges of chunks")
    yield prefill("same_key", SMALL_128, "repeated_keys", (96,), covers="a triangular system far from the identity")
    yield prefill("gqa", GQA, "typical", (33, 31), covers="more query heads than key heads")
    yield prefill("head_size_120", D120, "slow_decay", (40,), covers="a head size that no power of two divides")
    yield prefill(
        "only_required",
        SMALL,
        "typical",
        (50,),
        omit=["g", "beta", "initial_state"],
        covers="every optional input left out",
    )
    yield {
        "name": "qwen3_next_model", "preset": GROUPS, "axes": {"total_seq_len": 143, "num_seqs": 3},
        "tensors": "tensors/qwen3_next.safetensors", "covers": "what a real model feeds its layers",
    }  # fmt: skip


def prefill_conformance() -> Iterator[Line]:
    for regime in REGIMES:
        yield prefill(f"regime_{regime}", GROUPS_128, regime, (65, 1, 130, 64), covers=f"the regime {regime}")
    for length, covers in LENGTHS.items():
        yield prefill(f"length_{length}", SMALL, "typical", (length,), covers=covers)
    yield prefill("empty_first", SMALL_128, "typical", (0, 64, 70), covers="an empty sequence first")
    yield prefill("empty_middle", SMALL_128, "typical", (64, 0, 0, 70), covers="two empty sequences between others")
    yield prefill("empty_last", SMALL_128, "typical", (64, 70, 0), covers="an empty sequence last")
    yield prefill(
        "empty_without_state",
        SMALL,
        "typical",
        (0, 5, 0),
        omit=["initial_state"],
        covers="empty sequences that end in zeros",
    )
    yield prefill("all_empty", SMALL, "typical", (0, 0, 0), covers="empty sequences alone")
    yield prefill("single_tokens", GROUPS, "hard_reset", (1,) * 24, covers="many sequences of one token")
    yield prefill(
        "mixed_lengths",
        SMALL,
        "typical",
        (127, 1, 0, 300, 63, 64, 65, 2, 128),
        covers="lengths around every edge of a chunk in one batch",
    )
    yield prefill("sequences_70", SMALL, "typical", (3,) * 70, covers="more sequences than a block of them")
    yield prefill(
        "ragged_16", SMALL_128, "typical", RAGGED_16, covers="a serving batch: 16 sequences of 1 to 3,000 tokens"
    )
    yield prefill(
        "drift_long_memory", SMALL_128, "long_memory", (16384,), covers="drift over 16,384 tokens that forget nothing"
    )
    yield prefill(
        "drift_slow_decay",
        SMALL,
        "slow_decay",
        (20000, 100),
        covers="drift over 20,000 tokens, a short sequence beside them",
    )
    yield prefill(
        "drift_typical", SMALL_128, "typical", (16385,), covers="drift over 16,385 tokens as models have them"
    )
    yield prefill("resets_long", GROUPS, "hard_reset", (1000, 449), covers="resets over many chunks")
    yield prefill("same_key_128", SMALL_128, "repeated_keys", (128,), covers="one key over two chunks")
    yield prefill("near_parallel_128", SMALL_128, "near_parallel_keys", (128,), covers="nearly one key over two chunks")
    yield prefill(
        "decayed_state_short",
        SMALL_128,
        "decayed_large_state",
        (20, 64, 200),
        covers="a large state that decays by e^-11 within one chunk",
    )
    yield prefill(
        "replaced_state",
        SMALL_128,
        "replaced_large_state",
        (600,),
        covers="a large state that keys replace: few heads, so kernels may hand it on between parts",
    )
    yield prefill(
        "one_large_state_many",
        SMALL,
        "one_large_state",
        (64, 33, 65, 1, 100),
        covers="one large state among small ones, odd lengths",
    )
    yield from of_heads()
    yield from of_absent_inputs()
    for number, (tokens, covers) in enumerate(ADVERSARIAL, 1):
        yield {
            "name": f"adversarial_{number}", "preset": SMALL, "axes": {"total_seq_len": tokens, "num_seqs": 1},
            "tensors": f"tensors/adversarial_{number}.safetensors", "omit": ["initial_state"],
            "covers": f"inputs that an optimiser found bad for T in bfloat16: {covers}",
        }  # fmt: skip


def of_heads() -> Iterator[Line]:
    yield prefill("gqa_128", GQA_128, "typical", (65, 64), covers="GQA at head size 128")
    yield prefill("gqa_resets", GQA, "hard_reset", (129, 0, 20), covers="GQA with resets and an empty sequence")
    yield prefill("groups_of_three", GROUPS_OF_3, "typical", (65, 30), covers="three value heads a key head")
    yield prefill("head_size_120_mha", D120, "repeated_keys", (129, 64), covers="head size 120, repeated keys")
    yield prefill("head_size_120_gva", GVA_D120, "hard_reset", (65, 127, 0), covers="head size 120, GVA, resets")
    yield prefill("head_size_64", GROUPS, "typical", (129, 65), covers="head size 64, GVA")
    yield prefill(
        "qwen3_next_heads",
        QWEN3_NEXT,
        "typical",
        (20, 41),
        covers="16 and 32 heads: GVA by the numbers of a real model",
    )
    yield prefill("qwen3_next_heads_ragged", QWEN3_NEXT, "typical", (130, 0, 1, 300), covers="the same, a ragged batch")
    yield prefill("qwen3.5_397b_heads", QWEN_397B, "typical", (31,), covers="16 and 64 heads")
    yield prefill(
        "qwen3.5_397b_heads_ragged", QWEN_397B, "hard_reset", (65, 129), covers="the same, resets in a ragged batch"
    )


def of_absent_inputs() -> Iterator[Line]:
    """Optional inputs left out, and scales."""
    yield prefill("no_gate", SMALL_128, "typical", (65, 64), omit=["g"], covers="g absent: ones")
    yield prefill("no_beta", SMALL_128, "typical", (65, 64), omit=["beta"], covers="beta absent: ones")
    yield prefill(
        "no_initial_state", SMALL_128, "typical", (65, 64), omit=["initial_state"], covers="initial_state absent: zeros"
    )
    yield prefill(
        "only_required_ragged",
        GROUPS,
        "typical",
        (65, 0, 64),
        omit=["g", "beta", "initial_state"],
        covers="every optional input absent, an empty sequence",
    )
    yield prefill("scale_zero", SMALL, "typical", (70,), scalars={"scale": 0.0}, covers="scale 0.0 is no absent scale")
    yield prefill("scale_given", SMALL, "typical", (70, 65), scalars={"scale": 0.3}, covers="a scale of its own")
    yield prefill("scale_negative", SMALL, "typical", (70,), scalars={"scale": -1.5}, covers="a negative scale")


def prefill_strict() -> Iterator[Line]:
    yield prefill("strict_64", SMALL_128, "strict_keys", (64,), covers="one chunk")
    yield prefill(
        "strict_short",
        SMALL_128,
        "strict_keys",
        (16,) * 12,
        covers="16 tokens: what a small chunk gets right by care, not by luck",
    )
    yield prefill("strict_ragged", SMALL_128, "strict_keys", (200, 65, 1), covers="several chunks and their edges")
    yield prefill("strict_512", SMALL_128, "strict_keys", (512,), covers="many chunks")


def prefill_performance() -> Iterator[Line]:
    for label, preset in (("4x16", QWEN_397B_TP4), ("16x32", QWEN3_NEXT), ("16x64", QWEN_397B)):
        yield prefill(f"{label}_1x2048", preset, "typical", (2048,))
        yield prefill(f"{label}_1x8192", preset, "typical", (8192,))
        yield prefill(f"{label}_4x2048", preset, "typical", (2048,) * 4)
        yield prefill(f"{label}_ragged_16", preset, "typical", RAGGED_16)
    for name, regime in (("several_chunks", "typical"), ("several_chunks_reset", "hard_reset")):
        yield prefill(
            f"16x32_{name}", QWEN3_NEXT, regime, SEVERAL_CHUNKS,
            covers="several pairs of a sequence and a head for each multiprocessor, with three to seven chunks",
        )  # fmt: skip


PREFILL = {
    "smoke": prefill_smoke, "conformance": prefill_conformance, "strict": prefill_strict,
    "performance": prefill_performance,
}  # fmt: skip
