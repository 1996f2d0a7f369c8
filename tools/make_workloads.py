"""Writes definitions/*/*/workloads.jsonl: the suites that gdnspec ships.

    python tools/make_workloads.py            writes the files, with the sha256 of every workload's inputs
    python tools/make_workloads.py --fast     leaves the hashes of workloads for a GPU as they are
    python tools/make_workloads.py --table    writes what the suites cover into definitions/gdn/README.md

Beside the rows below, every definition has rows that follow from its inputs and axes alone: tools/covering/.

Frozen budgets stay where a line's inputs have not changed.
"""

import argparse
import json
import random
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from covering import table
from covering.rows import covering
from gdnspec import paths
from gdnspec.catalog.definitions import Found, definitions, preset_of
from gdnspec.inputs.materialise import materialise
from gdnspec.model.definition import Definition
from gdnspec.model.workload import Workload

Line = dict[str, Any]
FROZEN = ("budget", "emulators")  # kept where the inputs are the same

# The least heads that can tell each thing apart; names of real models where size matters.
SMALL, SMALL_128 = "synthetic-gva-1x2-d64", "synthetic-gva-1x2-d128"
GROUPS, GROUPS_128, GROUPS_OF_3 = "synthetic-gva-2x4-d64", "synthetic-gva-2x4-d128", "synthetic-gva-2x6-d128"
GQA, GQA_128 = "synthetic-gqa-4x2-d64", "synthetic-gqa-4x2-d128"
MHA_64, GROUPS_OF_4, D256 = "synthetic-mha-2x2-d64", "synthetic-gva-1x4-d128", "synthetic-gva-1x2-d256"
D120, GVA_D120 = "synthetic-mha-2x2-d120", "synthetic-gva-1x2-d120"
QWEN3_NEXT, QWEN_TP4 = "qwen3-next-80b-a3b-tp1", "qwen3-next-80b-a3b-tp4"
QWEN_397B, QWEN_397B_TP4 = "qwen3.5-397b-a17b-tp1", "qwen3.5-397b-a17b-tp4"

REGIMES = (
    "typical", "long_memory", "slow_decay", "fast_decay", "hard_reset", "repeated_keys", "near_parallel_keys",
    "beta_zero", "beta_one", "beta_two", "large_initial_state", "decayed_large_state", "tiny_keys", "one_large_state",
    "reset_large_state", "large_steps",
)  # fmt: skip
ONE_TOKEN_REGIMES = tuple(r for r in REGIMES if r not in ("repeated_keys", "near_parallel_keys", "beta_two"))
LENGTHS = {
    0: "no tokens at all, one sequence", 1: "one token", 63: "one token less than a chunk", 64: "a whole chunk",
    65: "one token more than a chunk", 127: "one token less than two chunks", 1000: "many chunks and a ragged one",
}  # fmt: skip
# (tokens, what is bad) of the files that tools/search_adversarial.py writes.
ADVERSARIAL = (
    (64, "the output, chunks of 64"), (100, "the state, chunks of 128"),
    (64, "a row of the state under three directions of keys, chunks of 64"),
    (40, "one token's output under two directions of keys, chunks of 16"),
)  # fmt: skip
RAGGED_16 = (37, 1300, 64, 513, 2048, 1, 700, 129, 3000, 255, 64, 90, 1111, 5, 800, 2000)


def prefill(name: str, preset: str, regime: str, lengths: tuple[int, ...], **more: Any) -> Line:
    axes = {"total_seq_len": sum(lengths), "num_seqs": len(lengths)}
    return {"name": name, "preset": preset, "axes": axes, "sequence_lengths": list(lengths), "regime": regime, **more}


def decode(name: str, preset: str, regime: str, batch: int, **more: Any) -> Line:
    return {"name": name, "preset": preset, "axes": {"batch_size": batch}, "regime": regime, **more}


# --- prefill ----------------------------------------------------------------------------------------------------


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
        "one_large_state_many",
        SMALL,
        "one_large_state",
        (64, 33, 65, 1, 100),
        covers="one large state among small ones, odd lengths",
    )
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
    for number, (tokens, covers) in enumerate(ADVERSARIAL, 1):
        yield {
            "name": f"adversarial_{number}", "preset": SMALL, "axes": {"total_seq_len": tokens, "num_seqs": 1},
            "tensors": f"tensors/adversarial_{number}.safetensors", "omit": ["initial_state"],
            "covers": f"inputs that an optimiser found bad for T in bfloat16: {covers}",
        }  # fmt: skip


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


# --- prefill with checkpoints -----------------------------------------------------------------------------------


def kept(name: str, preset: str, regime: str, interval: int, lengths: tuple[int, ...], **more: Any) -> Line:
    """A prefill with the state after every `interval` tokens."""
    scalars = {"checkpoint_interval": interval, **more.pop("scalars", {})}
    line = prefill(name, preset, regime, lengths, scalars=scalars, **more)
    line["axes"] |= {"num_checkpoints": sum(length // interval for length in lengths)}
    return line


def checkpoints_smoke() -> Iterator[Line]:
    yield kept("ragged", SMALL_128, "typical", 64, (1, 65, 63, 130), covers="none, one and two checkpoints a sequence")
    yield kept(
        "edges", SMALL, "typical", 64, (63, 64, 65, 127, 128, 129),
        covers="lengths below, at and past one interval and two",
    )  # fmt: skip
    yield kept("empty_sequences", GROUPS, "typical", 64, (0, 64, 0, 70, 0), covers="no tokens first, between and last")
    yield kept("no_checkpoint", SMALL, "typical", 128, (100, 0, 127), covers="no sequence reaches an interval")
    yield kept("two_chunks", SMALL_128, "typical", 128, (260, 128), covers="an interval of several chunks")
    yield kept("resets", SMALL, "hard_reset", 64, (200,), covers="alpha = 0 at tokens and at checkpoints")
    yield kept("gqa", GQA, "typical", 64, (65, 80), covers="more query heads than key heads")
    yield kept(
        "only_required", SMALL, "typical", 64, (130, 64), omit=["g", "beta", "initial_state"],
        covers="every optional input left out",
    )  # fmt: skip


def checkpoints_conformance() -> Iterator[Line]:
    for regime in REGIMES:
        yield kept(f"regime_{regime}", GROUPS_128, regime, 64, (65, 1, 130, 64), covers=f"the regime {regime}")
    for length in (0, 1, 63, 64, 65, 127, 128, 129, 1000):
        yield kept(
            f"length_{length}", SMALL_128, "typical", 64, (length,), covers=f"a sequence of {length}, interval 64"
        )  # fmt: skip
    mixed = (127, 1, 0, 300, 63, 64, 65, 1000, 128, 129, 512, 0)
    for interval in (64, 128, 192, 256, 512):
        yield kept(
            f"interval_{interval}", SMALL, "typical", interval, mixed,
            covers=f"an interval of {interval}, lengths around every edge",
        )  # fmt: skip
    yield kept("interval_1024", SMALL, "typical", 1024, mixed, covers="an interval past every length")
    yield kept(
        "interval_320_resets", SMALL_128, "hard_reset", 320, (640, 319, 961),
        covers="an interval that chunks of 128 do not divide, resets",
    )  # fmt: skip
    yield kept("all_empty", SMALL, "typical", 64, (0, 0, 0), covers="empty sequences alone")
    yield kept("empty_first", SMALL_128, "typical", 64, (0, 64, 70), covers="an empty sequence first")
    yield kept("empty_last", SMALL_128, "typical", 64, (64, 130, 0), covers="an empty sequence last")
    yield kept(
        "empty_without_state", SMALL, "typical", 64, (0, 65, 0), omit=["initial_state"],
        covers="empty sequences that end in zeros",
    )  # fmt: skip
    yield kept("sequences_70", SMALL, "typical", 64, (3, 66) * 35, covers="more sequences than a block of them")
    yield kept("many", SMALL_128, "slow_decay", 64, (2048, 64), covers="32 checkpoints of one sequence")
    yield kept(
        "ragged_16", SMALL_128, "typical", 256, RAGGED_16, covers="a serving batch: 16 sequences of 1 to 3,000 tokens"
    )
    yield kept(
        "drift_long_memory", SMALL_128, "long_memory", 512, (16384,),
        covers="drift over 16,384 tokens that forget nothing",
    )  # fmt: skip
    yield kept("resets_long", GROUPS, "hard_reset", 128, (1000, 449), covers="resets over many chunks")
    yield kept("same_key_192", SMALL_128, "repeated_keys", 64, (192,), covers="one key over three intervals")
    yield kept(
        "one_large_state_many", SMALL, "one_large_state", 64, (64, 133, 65, 1, 100),
        covers="one large state among small ones, odd lengths",
    )  # fmt: skip
    yield kept(
        "faded", SMALL, "fast_decay", 64, (64, 128, 192), covers="states that owe nothing to those before, in sequence"
    )
    yield kept(
        "nothing_written", SMALL_128, "beta_zero", 64, (64, 200),
        covers="states that only decay: exact, but for a type that is too narrow",
    )  # fmt: skip
    yield kept("gqa_resets", GQA, "hard_reset", 64, (129, 0, 70), covers="GQA with resets and an empty sequence")
    yield kept("groups_of_three", GROUPS_OF_3, "typical", 64, (65, 130), covers="three value heads a key head")
    yield kept("head_size_120_mha", D120, "repeated_keys", 64, (129, 64), covers="head size 120, repeated keys")
    yield kept("head_size_120_gva", GVA_D120, "hard_reset", 64, (65, 127, 0), covers="head size 120, GVA, resets")
    yield kept("qwen3_next_heads", QWEN3_NEXT, "typical", 64, (130, 0, 1, 70), covers="16 and 32 heads, a ragged batch")
    yield kept("qwen3.5_397b_heads", QWEN_397B, "typical", 64, (65,), covers="16 and 64 heads")
    for name in ("g", "beta", "initial_state"):
        yield kept(f"no_{name}", SMALL_128, "typical", 64, (65, 128), omit=[name], covers=f"{name} absent")
    yield kept(
        "scale_zero", SMALL, "typical", 64, (70,), scalars={"scale": 0.0}, covers="scale 0.0: states as they would be"
    )
    yield kept(
        "scale_negative", SMALL, "typical", 64, (130,), scalars={"scale": -1.5}, covers="a negative scale, no state's"
    )


def checkpoints_strict() -> Iterator[Line]:
    yield kept("strict_128", SMALL_128, "strict_keys", 64, (128,), covers="two intervals of a chunk")
    yield kept("strict_ragged", SMALL_128, "strict_keys", 128, (300, 65, 129), covers="chunks and intervals apart")


def checkpoints_performance() -> Iterator[Line]:
    yield kept("4x16_1x8192_every_512", QWEN_397B_TP4, "typical", 512, (8192,))
    yield kept("16x32_4x2048_every_64", QWEN3_NEXT, "typical", 64, (2048,) * 4)
    yield kept("16x32_ragged_16_every_256", QWEN3_NEXT, "typical", 256, RAGGED_16)
    yield kept("16x64_1x2048_every_256", QWEN_397B, "typical", 256, (2048,))


# --- decode -----------------------------------------------------------------------------------------------------


def decode_smoke() -> Iterator[Line]:
    """About 500 (sequence, head) pairs."""
    yield decode("batch_8", GROUPS_128, "typical", 8, covers="a batch as models have it")
    yield decode("resets", SMALL_128, "hard_reset", 16, covers="alpha = 0 in some heads")
    yield decode("qwen3_next_tp4", QWEN_TP4, "typical", 4, covers="4 and 8 heads of a real model")
    yield decode("no_l2norm", GROUPS, "typical", 8, scalars={"use_qk_l2norm": False}, covers="keys as they are")
    yield decode("scale_zero", SMALL, "typical", 4, scalars={"scale": 0.0}, covers="scale 0.0 is no absent scale")
    yield decode("head_size_120", GVA_D120, "typical", 8, covers="a head size that no power of two divides")
    yield decode("tiny_keys", GROUPS_128, "tiny_keys", 8, covers="the epsilon of the norm stands inside of the root")
    yield decode("long_memory", GROUPS_128, "long_memory", 16, covers="alpha = 1 exactly")
    yield decode("one_row", SMALL, "slow_decay", 1, covers="batch 1")
    yield {
        "name": "qwen3_next_model", "preset": GROUPS, "axes": {"batch_size": 4},
        "tensors": "tensors/qwen3_next.safetensors", "covers": "what a real model feeds its layers",
    }  # fmt: skip


def decode_conformance() -> Iterator[Line]:
    for regime in ONE_TOKEN_REGIMES:
        yield decode(f"regime_{regime}", GROUPS_128, regime, 7, covers=f"the regime {regime}")
    for batch in (1, 2, 3, 17, 64, 65):
        yield decode(f"batch_{batch}", SMALL_128, "typical", batch, covers=f"a batch of {batch}")
    yield decode("batch_257", SMALL, "typical", 257, covers="more rows than any block of them")
    yield decode("head_size_64", GROUPS, "hard_reset", 5, covers="head size 64 with resets")
    yield decode("head_size_120_mha", D120, "typical", 5, covers="head size 120, as many keys as values")
    yield decode("head_size_120_gva", GVA_D120, "slow_decay", 9, covers="head size 120, GVA")
    yield decode("groups_of_three", GROUPS_OF_3, "typical", 5, covers="three value heads a key head")
    yield decode("qwen3_next_heads", QWEN3_NEXT, "typical", 6, covers="16 and 32 heads")
    yield decode("qwen3.5_397b_heads", QWEN_397B, "typical", 3, covers="16 and 64 heads")
    yield decode("qwen3.5_27b_tp2", "qwen3.5-27b-tp2", "typical", 3, covers="8 and 24 heads")
    yield decode("scale_given", SMALL, "typical", 5, scalars={"scale": 0.3}, covers="a scale of its own")
    yield decode("scale_negative", SMALL, "typical", 3, scalars={"scale": -1.5}, covers="a negative scale")
    yield decode(
        "l2norm_explicit",
        SMALL,
        "typical",
        3,
        scalars={"use_qk_l2norm": True},
        covers="the switch given as its default",
    )
    yield decode(
        "no_l2norm_128",
        GROUPS_128,
        "slow_decay",
        5,
        scalars={"use_qk_l2norm": False},
        covers="keys as they are, head size 128",
    )
    yield decode(
        "no_l2norm_tiny_keys",
        SMALL_128,
        "tiny_keys",
        5,
        scalars={"use_qk_l2norm": False},
        covers="small keys that nobody normalises",
    )
    yield decode(
        "scale_zero_no_l2norm",
        SMALL,
        "typical",
        3,
        scalars={"scale": 0.0, "use_qk_l2norm": False},
        covers="both switches at once",
    )


def decode_performance() -> Iterator[Line]:
    for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        yield decode(f"16x32_batch_{batch}", QWEN3_NEXT, "typical", batch)
    for label, preset, batch in (("4x8", QWEN_TP4, 64), ("4x8", QWEN_TP4, 512), ("16x64", QWEN_397B, 64)):
        yield decode(f"{label}_batch_{batch}", preset, "typical", batch)


# What decode's own suites show of the recurrence need not be shown again of another type or another packing of it.
OF_A_VARIANT = {
    "smoke": ("batch_8", "resets", "no_l2norm", "head_size_120", "long_memory", "one_row"),
    "conformance": (
        *(f"regime_{regime}" for regime in ONE_TOKEN_REGIMES), "batch_3", "batch_65", "head_size_64",
        "head_size_120_gva", "groups_of_three", "qwen3_next_heads", "scale_zero_no_l2norm", "no_l2norm_tiny_keys",
    ),
}  # fmt: skip


def variant(suite: str, rows: Callable[[], Iterator[Line]]) -> Callable[[], Iterator[Line]]:
    return lambda: (row for row in rows() if row["name"] in OF_A_VARIANT[suite])


# --- decode from a pool -----------------------------------------------------------------------------------------

Row = tuple[int, int]  # the slot that it reads, the slot that it writes
SKIPPED = (-1, -1)


def pool(name: str, preset: str, regime: str, num_slots: int, rows: list[Row], **more: Any) -> Line:
    return {
        "name": name, "preset": preset, "axes": {"batch_size": len(rows), "num_slots": num_slots}, "regime": regime,
        "integers": {"read_slots": [r for r, _ in rows], "write_slots": [w for _, w in rows]}, **more,
    }  # fmt: skip


def somewhere(name: str, count: int, num_slots: int) -> list[int]:
    """`count` slots, the same for each name."""
    return random.Random(zlib.crc32(name.encode())).sample(range(num_slots), count)


def in_place(name: str, batch: int, num_slots: int) -> list[Row]:
    return [(slot, slot) for slot in somewhere(name, batch, num_slots)]


def moved(name: str, batch: int, num_slots: int) -> list[Row]:
    slots = somewhere(name, 2 * batch, num_slots)
    return list(zip(slots[:batch], slots[batch:], strict=True))


def shared(name: str, batch: int, num_slots: int) -> list[Row]:
    """All rows start from one slot, as sequences with a prefix in common do."""
    first, *others = somewhere(name, batch + 1, num_slots)
    return [(first, slot) for slot in others]


def pool_smoke() -> Iterator[Line]:
    yield pool("in_place", GROUPS_128, "typical", 12, in_place("in_place", 6, 12), covers="every state where it was")
    yield pool("moved", SMALL_128, "typical", 20, moved("moved", 7, 20), covers="states written to other slots")
    yield pool("shared", SMALL, "typical", 9, shared("shared", 5, 9), covers="one slot read by all rows")
    one, two, three = in_place("skips", 3, 8)
    skips = [SKIPPED, one, two, SKIPPED, three, SKIPPED]
    yield pool("skips", SMALL_128, "typical", 8, skips, covers="rows skipped first, between and last")
    rows = in_place("strided", 4, 7)
    yield pool("strided", SMALL_128, "typical", 7, rows, gaps={"pool": 192}, covers="a gap between slots")
    yield pool("resets", SMALL_128, "hard_reset", 9, in_place("resets", 8, 9), covers="alpha = 0 in some heads")
    yield pool("one_slot", SMALL, "slow_decay", 1, [(0, 0)], covers="a pool of one slot")


def pool_conformance() -> Iterator[Line]:
    for i, regime in enumerate(ONE_TOKEN_REGIMES):
        rows = (in_place, moved, shared)[i % 3](regime, 7, 17)
        yield pool(f"regime_{regime}", GROUPS_128, regime, 17, rows, covers=f"the regime {regime}")
    rows = in_place("many", 65, 300)
    yield pool("batch_65", SMALL, "typical", 300, rows, covers="more rows than a block of them, slots out of order")
    yield pool("full", SMALL_128, "typical", 24, in_place("full", 24, 24), covers="every slot of the pool in use")
    yield pool(
        "backwards", SMALL, "typical", 16, [(i, i) for i in range(15, -1, -1)], covers="slots from last to first"
    )
    halves = [(0, 4), (1, 5), (2, 6), (3, 7)]
    yield pool("halves", GROUPS, "typical", 8, halves, covers="the first half read, the second written")
    yield pool("all_skipped", SMALL, "typical", 4, [SKIPPED] * 3, covers="no row to do")
    skips = [row if i % 2 else SKIPPED for i, row in enumerate(shared("every_other", 12, 30))]
    yield pool("every_other_skipped", SMALL_128, "hard_reset", 30, skips, covers="skipped rows between others, resets")
    yield pool(
        "strided_moved", GROUPS, "typical", 11, moved("strided", 5, 11), gaps={"pool": 64},
        covers="a gap between slots, states written to others",
    )  # fmt: skip
    yield pool(
        "strided_wide", SMALL_128, "slow_decay", 5, in_place("wide", 4, 5), gaps={"pool": 1 << 15},
        covers="a gap as long as a slot",
    )  # fmt: skip
    yield pool("head_size_64", GROUPS, "hard_reset", 9, in_place("64", 5, 9), covers="head size 64 with resets")
    yield pool("head_size_120_gva", GVA_D120, "slow_decay", 9, moved("120", 4, 9), covers="head size 120, GVA")
    yield pool("groups_of_three", GROUPS_OF_3, "typical", 7, in_place("6", 5, 7), covers="three value heads a key head")
    yield pool("qwen3_next_heads", QWEN3_NEXT, "typical", 6, in_place("32", 4, 6), covers="16 and 32 heads")
    yield pool(
        "scale_zero_no_l2norm", SMALL, "typical", 5, in_place("scale", 3, 5),
        scalars={"scale": 0.0, "use_qk_l2norm": False}, covers="both switches at once",
    )  # fmt: skip
    far = [(slot, slot) for slot in (4199, 0, 4100, 4095, 4096, 2048)]
    yield pool(
        "past_2_31", QWEN3_NEXT, "typical", 4200, far, device="cuda", covers="a pool of more than 2^31 elements",
    )  # fmt: skip


def pool_performance() -> Iterator[Line]:
    # Thousands of slots, gigabytes to draw, where nothing else shows that they cost nothing.
    for batch, num_slots in ((1, 512), (16, 512), (64, 4096), (256, 512)):
        rows = in_place(f"16x32 {batch}", batch, num_slots)
        yield pool(f"16x32_batch_{batch}", QWEN3_NEXT, "typical", num_slots, rows)


# --- verify -----------------------------------------------------------------------------------------------------


def verify(
    name: str, preset: str, regime: str, tokens: int, accepted: list[int], skipped: tuple[int, ...] = (), **more: Any
) -> Line:
    """`accepted` of each row; every row has slots of its own, anywhere in a pool with a few to spare."""
    batch = len(accepted)
    num_slots = batch * (tokens + 1) + 3
    slots = somewhere(f"verify {name}", batch * (tokens + 1), num_slots)
    initial, state = slots[:batch], slots[batch:]
    for n in skipped:
        initial[n], state[n * tokens : (n + 1) * tokens] = -1, [-1] * tokens
    return {
        "name": name, "preset": preset, "regime": regime,
        "axes": {"batch_size": batch, "draft_tokens": tokens, "num_slots": num_slots},
        "integers": {"initial_slots": initial, "state_slots": state, "accepted": accepted}, **more,
    }  # fmt: skip


def verify_smoke() -> Iterator[Line]:
    yield verify("four_tokens", GROUPS_128, "typical", 4, [0, 4, 2], covers="none, all and some accepted before")
    yield verify("one_token", SMALL_128, "typical", 1, [1, 0, 1], covers="one draft token: decode from a pool")
    yield verify("sixteen_tokens", SMALL, "typical", 16, [16], covers="the most draft tokens")
    yield verify("skips", SMALL_128, "typical", 3, [0, 0, 3, 1], skipped=(0, 2), covers="skipped rows among others")
    yield verify("resets", SMALL, "hard_reset", 4, [1, 0, 3], covers="alpha = 0 at some tokens")
    yield verify("strided", SMALL_128, "slow_decay", 2, [2, 1], gaps={"pool": 128}, covers="a gap between slots")


def verify_conformance() -> Iterator[Line]:
    for regime in ONE_TOKEN_REGIMES:
        yield verify(f"regime_{regime}", GROUPS_128, regime, 3, [0, 1, 2, 3], covers=f"the regime {regime}")
    for tokens in (1, 2, 5, 8, 16):
        accepted = [n % (tokens + 1) for n in range(4)]
        yield verify(f"tokens_{tokens}", SMALL, "typical", tokens, accepted, covers=f"{tokens} draft tokens")
    yield verify("every_count", SMALL_128, "typical", 7, list(range(8)), covers="every count of accepted tokens")
    yield verify("none_accepted", GROUPS, "typical", 4, [0] * 6, covers="no token accepted in any row")
    yield verify("all_accepted", GROUPS, "slow_decay", 4, [4] * 6, covers="all tokens accepted in every row")
    yield verify("all_skipped", SMALL, "typical", 2, [0, 0], skipped=(0, 1), covers="no row to do")
    yield verify("head_size_120_gva", GVA_D120, "hard_reset", 3, [2, 0], covers="head size 120, GVA, resets")
    yield verify("groups_of_three", GROUPS_OF_3, "typical", 2, [1, 0, 2], covers="three value heads a key head")
    yield verify("qwen3_next_heads", QWEN3_NEXT, "typical", 2, [2, 0], covers="16 and 32 heads")
    yield verify(
        "scale_given_no_l2norm", SMALL, "typical", 3, [0, 2], scalars={"scale": 0.3, "use_qk_l2norm": False},
        covers="a scale of its own, keys as they are",
    )  # fmt: skip


def verify_performance() -> Iterator[Line]:
    for batch in (1, 16, 64):
        accepted = [n % 5 for n in range(batch)]
        yield verify(f"16x32_4_tokens_batch_{batch}", QWEN3_NEXT, "typical", 4, accepted)


# --- convolution ------------------------------------------------------------------------------------------------


def convolution(
    name: str, preset: str, lengths: tuple[int, ...], flags: str, skipped: tuple[int, ...] = (), **more: Any
) -> Line:
    """`flags`: + for a sequence that goes on from its slot, - for one that starts from zeros. Slots anywhere."""
    assert len(flags) == len(lengths)
    num_slots = len(lengths) + 3
    slots = somewhere(f"convolution {name}", len(lengths), num_slots)
    chosen = [-1 if n in skipped else slot for n, slot in enumerate(slots)]
    line = prefill(name, preset, more.pop("regime", "typical"), lengths, **more)
    line["axes"]["num_slots"] = num_slots
    return {**line, "integers": {"slots": chosen, "has_initial_state": [int(flag == "+") for flag in flags]}}


def convolution_smoke() -> Iterator[Line]:
    yield convolution(
        "ragged", SMALL, (1, 70, 2, 129), "+-+-", covers="sequences around the kernel's width and a block"
    )
    yield convolution("shorter", GROUPS, (1, 1, 2, 2, 3, 3), "+-+-+-", covers="sequences shorter than the kernel")
    yield convolution("empty", SMALL, (0, 5, 0, 0), "+-+-", covers="empty sequences, whose states stay")
    yield convolution("width_2", D120, (1, 40, 65), "++-", covers="a kernel of two tokens")
    yield convolution("width_3", GVA_D120, (2, 1, 66), "+-+", covers="a kernel of three tokens", omit=["bias"])
    yield convolution(
        "skips", GROUPS, (9, 3, 30), "+++", skipped=(0,), gaps={"conv_states": 64},
        covers="a sequence without a slot; slots that stand apart",
    )  # fmt: skip


def convolution_conformance() -> Iterator[Line]:
    yield convolution("no_tokens", SMALL, (0,), "+", covers="no tokens at all")
    yield convolution("all_skipped", SMALL, (4, 9), "+-", skipped=(0, 1), covers="no sequence to do")
    yield convolution("no_bias", GROUPS_128, (65, 4), "+-", omit=["bias"], covers="the bias absent: zeros")
    yield convolution("widest", QWEN3_NEXT, (5, 1, 2), "+-+", covers="8192 channels of a real model")
    yield convolution(
        "large_states", GROUPS_OF_3, (33, 64, 1), "+++", regime="large_initial_state",
        covers="states that outweigh what follows",
    )  # fmt: skip
    yield convolution("many", SMALL, (3, 1, 2, 5) * 18, "+-+-" * 18, covers="more sequences than a block of them")
    yield convolution("long", SMALL_128, (700, 1, 290), "+-+", covers="many blocks of tokens")


def convolution_performance() -> Iterator[Line]:
    for name, lengths in (("1x2048", (2048,)), ("4x2048", (2048,) * 4), ("1x8192", (8192,))):
        yield convolution(f"16x32_{name}", QWEN3_NEXT, lengths, "-" * len(lengths), omit=["bias"])


def shifted(name: str, preset: str, batch: int, num_slots: int, skipped: tuple[int, ...] = (), **more: Any) -> Line:
    """One token of each row of a batch, on slots anywhere."""
    slots = somewhere(f"convolution {name}", batch, num_slots)
    line = decode(name, preset, more.pop("regime", "typical"), batch, **more)
    line["axes"]["num_slots"] = num_slots
    return {**line, "integers": {"slots": [-1 if n in skipped else slot for n, slot in enumerate(slots)]}}


def convolution_decode_smoke() -> Iterator[Line]:
    yield shifted("batch_8", GROUPS_128, 8, 11, covers="a batch as models have it")
    yield shifted("width_2", D120, 5, 6, covers="a state of one input")
    yield shifted("width_3", GVA_D120, 5, 9, omit=["bias"], covers="a state of two inputs, no bias")
    yield shifted("skips", SMALL_128, 6, 8, skipped=(0, 3, 5), covers="rows skipped first, between and last")
    yield shifted("strided", SMALL, 4, 7, gaps={"conv_states": 192}, covers="a gap between slots")


def convolution_decode_conformance() -> Iterator[Line]:
    yield shifted("one_row", SMALL, 1, 1, covers="batch 1, a pool of one slot")
    yield shifted("batch_65", SMALL, 65, 300, covers="more rows than a block of them")
    yield shifted("all_skipped", SMALL, 3, 4, skipped=(0, 1, 2), covers="no row to do")
    yield shifted("large_states", GROUPS_OF_3, 5, 6, regime="large_initial_state", covers="states that outweigh x")
    yield shifted("no_bias", GROUPS_128, 3, 5, omit=["bias"], covers="the bias absent: zeros")
    yield shifted("widest", QWEN3_NEXT, 4, 5, covers="8192 channels of a real model")


def convolution_decode_performance() -> Iterator[Line]:
    for batch in (1, 16, 64, 256):
        yield shifted(f"16x32_batch_{batch}", QWEN3_NEXT, batch, 512, omit=["bias"])


# --- norm -------------------------------------------------------------------------------------------------------


def norm_smoke() -> Iterator[Line]:
    yield decode("rows", GROUPS_128, "typical", 9, covers="rows as models have them")
    yield decode("tiny", SMALL, "tiny_keys", 7, covers="elements near 1e-4: eps stands inside the root")
    yield decode("large_gate", SMALL_128, "large_steps", 8, covers="gates whose exponential overflows")
    yield decode("head_size_120", GVA_D120, "typical", 5, covers="a head size that no power of two divides")
    yield decode("eps_given", SMALL, "tiny_keys", 3, scalars={"eps": 1e-4}, covers="an eps of its own")


def norm_conformance() -> Iterator[Line]:
    yield decode("no_rows", SMALL, "typical", 0, covers="no tokens at all")
    yield decode("one_row", SMALL, "typical", 1, covers="one token")
    yield decode("rows_257", SMALL, "typical", 257, covers="more rows than any block of them")
    yield decode("groups_of_three", GROUPS_OF_3, "typical", 11, covers="six heads")
    yield decode("eps_large", SMALL_128, "typical", 4, scalars={"eps": 0.5}, covers="an eps that rivals the mean")
    yield decode("eps_zero", SMALL_128, "tiny_keys", 4, scalars={"eps": 0.0}, covers="eps 0.0 is no absent eps")
    yield decode("qwen3_next_heads", QWEN3_NEXT, "typical", 12, covers="32 heads")


def norm_performance() -> Iterator[Line]:
    for rows in (16, 2048, 8192):
        yield decode(f"32_heads_{rows}_tokens", QWEN3_NEXT, "typical", rows)


# --- stages of the chunkwise form -------------------------------------------------------------------------------

K64_V120, K120_V60 = "synthetic-gva-2x4-k64-v120", "synthetic-gva-1x2-k120-v60"


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


def stages(counted: bool, of_state: bool = False, scaled: bool = False) -> dict[str, Callable[[], Iterator[Line]]]:
    return {
        "smoke": lambda: stage_smoke(counted), "conformance": lambda: stage_conformance(counted, of_state, scaled),
        "performance": lambda: stage_performance(counted),
    }  # fmt: skip


# --- straight from the convolution ------------------------------------------------------------------------------


def from_conv(
    name: str, preset: str, regime: str, lengths: tuple[int, ...], skipped: tuple[int, ...] = (), **more: Any
) -> Line:
    """Sequences on slots anywhere."""
    line = prefill(name, preset, regime, lengths, **more)
    line["axes"]["num_slots"] = len(lengths) + 2
    slots = somewhere(f"from convolution {name}", len(lengths), len(lengths) + 2)
    return {**line, "integers": {"slots": [-1 if n in skipped else slot for n, slot in enumerate(slots)]}}


def from_conv_smoke() -> Iterator[Line]:
    yield from_conv("ragged", GROUPS_128, "typical", (1, 65, 8), covers="sequences around one chunk")
    yield from_conv("empty", SMALL, "typical", (0, 64, 0, 20), covers="empty sequences, whose states stay")
    yield from_conv("resets", SMALL, "hard_reset", (130,), covers="alpha = 0 at tokens and at edges of chunks")
    yield from_conv("k64_v120", K64_V120, "slow_decay", (50,), covers="heads of values wider than those of keys")
    yield from_conv("k120_v60", K120_V60, "typical", (20, 65), covers="heads of keys wider, no powers of two")
    yield from_conv(
        "skips", SMALL, "typical", (9, 3, 30), skipped=(1,), gaps={"recurrent_state": 64},
        covers="a sequence without a slot; slots that stand apart",
    )  # fmt: skip
    yield from_conv("tiny_keys", SMALL_128, "tiny_keys", (40,), covers="the epsilon of the norm stands inside the root")


def from_conv_conformance(one_key: str = "same_key") -> Iterator[Line]:
    for regime in ("long_memory", "near_parallel_keys", "beta_zero", "beta_two", "one_large_state"):
        yield from_conv(f"regime_{regime}", GROUPS, regime, (65, 1, 64), covers=f"the regime {regime}")
    yield from_conv("regime_fast_decay", SMALL_128, "fast_decay", (20, 1, 9), covers="the regime fast_decay")
    yield from_conv(one_key, SMALL, "repeated_keys", (96,), covers="a triangular system far from the identity")
    yield from_conv("no_tokens", SMALL, "typical", (0, 0), covers="no token at all")
    yield from_conv("all_skipped", SMALL, "typical", (3, 2), skipped=(0, 1), covers="no sequence to do")
    yield from_conv("long", SMALL_128, "slow_decay", (640, 129), covers="many chunks")
    yield from_conv("groups_of_three", GROUPS_OF_3, "typical", (70,), covers="three value heads a key head")
    yield from_conv("qwen3_next_heads", QWEN3_NEXT, "typical", (20, 41), covers="16 and 32 heads")


def from_conv_performance() -> Iterator[Line]:
    yield from_conv("16x32_1x2048", QWEN3_NEXT, "typical", (2048,))


# --- everything between the projections and the rule ------------------------------------------------------------


def conv_gates_smoke() -> Iterator[Line]:
    yield convolution(
        "ragged", SMALL, (1, 70, 2, 129), "+-+-", covers="sequences around the kernel's width and a tile of tokens"
    )
    yield convolution("shorter", GROUPS, (1, 1, 2, 2, 3, 3), "+-+-+-", covers="sequences shorter than the kernel")
    yield convolution("empty", SMALL_128, (0, 5, 0, 0), "+-+-", covers="empty sequences, whose states stay")
    yield convolution("width_2", D120, (1, 40, 65), "++-", covers="a kernel of two tokens, as many keys as values")
    yield convolution("width_3", GROUPS_OF_3, (2, 1, 66), "+-+", covers="a kernel of three tokens", omit=["conv_bias"])
    yield convolution(
        "skips", GROUPS, (9, 3, 0, 30), "++-+", skipped=(0,), gaps={"conv_states": 64},
        covers="a sequence without a slot, whose tokens leave a state alone; slots that stand apart",
    )  # fmt: skip
    yield convolution(
        "tiny", SMALL_128, (40,), "-", regime="tiny_keys", omit=["conv_bias"],
        covers="vectors as short as the norm's epsilon, which stands inside the root",
    )  # fmt: skip
    yield convolution(
        "large_steps", GROUPS, (30, 11), "-+", regime="large_steps", covers="gates whose exponentials overflow"
    )


def conv_gates_conformance() -> Iterator[Line]:
    yield convolution("no_tokens", SMALL, (0,), "+", covers="no tokens at all")
    yield convolution("all_skipped", SMALL, (4, 9), "+-", skipped=(0, 1), covers="no sequence to do")
    yield convolution("no_bias", GROUPS_128, (65, 4), "+-", omit=["conv_bias"], covers="the bias absent: zeros")
    yield convolution(
        "tile_edges", SMALL_128, (7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65), "+-" * 6,
        covers="lengths around every tile that a kernel may take",
    )  # fmt: skip
    yield convolution("one_by_one", GROUPS_128, (1,) * 40, "+--+" * 10, covers="a tile of forty sequences")
    yield convolution(
        "skips_between",
        SMALL_128,
        (3, 40, 0, 2, 33),
        "+++-+",
        skipped=(1, 3),
        covers="tiles of which a part is skipped",
    )
    yield convolution("resets", GROUPS_128, (65, 30), "-+", regime="hard_reset", covers="alpha = 0 at tokens")
    yield convolution("beta_zero", SMALL, (20, 9), "-+", regime="beta_zero", covers="nothing is written")
    yield convolution("fast_decay", SMALL_128, (33,), "+", regime="fast_decay", covers="alpha near 0")
    yield convolution("slow_decay", SMALL_128, (33,), "+", regime="slow_decay", covers="alpha near 1")
    yield convolution(
        "large_states", GROUPS_OF_3, (33, 64, 1), "+++", regime="large_initial_state",
        covers="states that outweigh what follows",
    )  # fmt: skip
    yield convolution("widest", QWEN3_NEXT, (5, 1, 2), "+-+", covers="16 and 32 heads: 8192 channels of a real model")
    yield convolution("most_values", QWEN_397B, (9, 2), "-+", omit=["conv_bias"], covers="16 and 64 heads")
    yield convolution("many", SMALL, (3, 1, 2, 5) * 18, "+-+-" * 18, covers="more sequences than a block of them")
    yield convolution("long", SMALL_128, (700, 1, 290), "+-+", covers="many tiles of tokens")


def conv_gates_strict() -> Iterator[Line]:
    yield convolution(
        "strict_overflow", SMALL_128, (9, 1, 70), "+++", regime="reset_large_state",
        covers="inputs of 1e9, whose exponentials overflow in SiLU and in softplus",
    )  # fmt: skip
    yield convolution(
        "strict_tiny", GROUPS_OF_3, (50, 3), "--", regime="tiny_keys", omit=["conv_bias"],
        covers="vectors far shorter than the norm's epsilon",
    )  # fmt: skip


def conv_gates_performance() -> Iterator[Line]:
    lengths = {
        "1x2048": (2048,), "1x8192": (8192,), "4x2048": (2048,) * 4, "ragged_16": RAGGED_16, "1x32768": (32768,),
    }  # fmt: skip
    for label, preset in (("4x8", QWEN_TP4), ("16x32", QWEN3_NEXT)):
        for name, each in lengths.items():
            yield convolution(f"{label}_{name}", preset, each, "-" * len(each), omit=["conv_bias"])


# --- the whole layer --------------------------------------------------------------------------------------------


def on_both(name: str, count: int, skipped: tuple[int, ...]) -> Line:
    """Slots anywhere in both pools, another one in each."""
    chosen = {}
    for pool in ("conv", "state"):
        slots = somewhere(f"{pool} {name}", count, count + 2)
        chosen[f"{pool}_slots"] = [-1 if n in skipped else slot for n, slot in enumerate(slots)]
    return chosen


def layer(
    name: str, preset: str, lengths: tuple[int, ...], flags: str, skipped: tuple[int, ...] = (), **more: Any
) -> Line:
    """`flags`: + for a sequence that goes on from its slots, - for one that starts from zeros."""
    line = prefill(name, preset, more.pop("regime", "typical"), lengths, **more)
    line["axes"]["num_slots"] = len(lengths) + 2
    held = [int(flag == "+") for flag in flags]
    return {**line, "integers": {**on_both(name, len(lengths), skipped), "has_initial_state": held}}


def layer_smoke() -> Iterator[Line]:
    yield layer("ragged", GROUPS, (1, 65, 8), "+-+", covers="sequences around one chunk")
    yield layer("empty", SMALL, (0, 40, 0), "-++", covers="empty sequences, whose states stay")
    yield layer("shorter", GROUPS_OF_3, (1, 2, 1), "+-+", covers="sequences shorter than the kernel, three heads a key")
    yield layer("k64_v120", K64_V120, (30, 2), "+-", covers="heads of values wider than those of keys")
    gaps = {"conv_states": 64, "recurrent_states": 128}
    yield layer("skips", SMALL, (9, 3, 20), "+-+", skipped=(1,), gaps=gaps, covers="no slot; slots that stand apart")


def layer_conformance() -> Iterator[Line]:
    yield layer("no_tokens", SMALL, (0,), "-", covers="no token at all")
    yield layer("all_skipped", SMALL, (3, 2), "+-", skipped=(0, 1), covers="no sequence to do")
    yield layer("width_2", D120, (20, 1), "+-", covers="a kernel of two tokens, as many keys as values")
    yield layer("large_states", GROUPS_128, (33, 20), "++", regime="large_initial_state", covers="large states")
    yield layer("long", SMALL_128, (400,), "-", covers="many chunks")


def layer_performance() -> Iterator[Line]:
    yield layer("qwen3_next_tp4_1x2048", QWEN_TP4, (2048,), "-")


def layer_rows(name: str, preset: str, batch: int, skipped: tuple[int, ...] = (), **more: Any) -> Line:
    line = decode(name, preset, more.pop("regime", "typical"), batch, **more)
    line["axes"]["num_slots"] = batch + 2
    return {**line, "integers": on_both(name, batch, skipped)}


def layer_decode_smoke() -> Iterator[Line]:
    yield layer_rows("batch_8", GROUPS_128, 8, covers="a batch as models have it")
    yield layer_rows("width_2", D120, 5, covers="a state of one input, as many keys as values")
    yield layer_rows("k64_v120", K64_V120, 5, covers="heads of values wider than those of keys")
    gaps = {"conv_states": 64, "recurrent_states": 128}
    yield layer_rows("skips", SMALL, 6, skipped=(0, 3), gaps=gaps, covers="rows without slots; slots that stand apart")


def layer_decode_conformance() -> Iterator[Line]:
    yield layer_rows("one_row", SMALL_128, 1, covers="batch 1")
    yield layer_rows("batch_33", SMALL, 33, covers="more rows than a tile of them")
    yield layer_rows("groups_of_three", GROUPS_OF_3, 4, covers="three value heads a key head, a kernel of three tokens")
    yield layer_rows("large_states", GROUPS, 5, regime="large_initial_state", covers="large states")
    yield layer_rows("all_skipped", SMALL, 3, skipped=(0, 1, 2), covers="no row to do")


def layer_decode_performance() -> Iterator[Line]:
    for batch in (1, 16, 64):
        yield layer_rows(f"qwen3_next_batch_{batch}", QWEN3_NEXT, batch)


# --- the layer without its projections ----------------------------------------------------------------------------


def core_decode_smoke() -> Iterator[Line]:
    yield layer_rows("batch_8", GROUPS_128, 8, omit=["conv_bias"], covers="a batch as models have it")
    yield layer_rows("biased", SMALL, 5, covers="a bias of the convolution")
    yield layer_rows("width_2", MHA_64, 5, covers="a state of one input, as many keys as values")
    yield layer_rows("groups_of_three", GROUPS_OF_3, 3, covers="three value heads a key head, a kernel of three tokens")
    yield layer_rows("k64_v120", K64_V120, 5, omit=["conv_bias"], covers="heads of values wider than those of keys")
    yield layer_rows("resets", SMALL_128, 7, regime="hard_reset", covers="alpha = 0 in some heads")
    gaps = {"conv_states": 64, "recurrent_states": 192}
    yield layer_rows(
        "skips", SMALL_128, 6, skipped=(0, 3, 5), gaps=gaps,
        covers="rows skipped first, between and last; slots that stand apart",
    )  # fmt: skip


def core_decode_conformance() -> Iterator[Line]:
    for regime in ("long_memory", "fast_decay", "beta_zero", "beta_one", "large_initial_state", "one_large_state"):
        yield layer_rows(f"regime_{regime}", GROUPS, regime=regime, batch=5, covers=f"the regime {regime}")
    yield layer_rows("tiny_keys", GROUPS_128, 5, regime="tiny_keys", omit=["conv_bias"],
                     covers="the epsilon of the L2 norm stands inside of the root")  # fmt: skip
    yield layer_rows("large_steps", GROUPS_128, 6, regime="large_steps", covers="gates whose exponential overflows")
    yield layer_rows("reset_large_state", SMALL, 4, regime="reset_large_state", covers="resets of states of 1e9")
    yield layer_rows("one_row", SMALL_128, 1, covers="batch 1")
    yield layer_rows("batch_65", SMALL, 65, omit=["conv_bias"], covers="more rows than a block of them")
    yield layer_rows("all_skipped", SMALL, 3, skipped=(0, 1, 2), covers="no row to do")
    yield layer_rows("groups_of_four", GROUPS_OF_4, 5, omit=["conv_bias"], covers="four value heads a key head")
    yield layer_rows("head_size_256", D256, 4, omit=["conv_bias"], covers="head size 256")
    yield layer_rows("head_size_256_resets", D256, 3, regime="hard_reset", covers="head size 256, resets, a bias")
    yield layer_rows("head_size_120", D120, 5, covers="a head size that no power of two divides, a kernel of two")
    yield layer_rows("k120_v60", K120_V60, 4, regime="slow_decay", covers="heads of keys wider, no powers of two")
    yield layer_rows(
        "strided_wide", GROUPS_OF_3, 4, gaps={"conv_states": 1 << 12, "recurrent_states": 1 << 15},
        covers="gaps as long as slots",
    )  # fmt: skip
    yield layer_rows("qwen3_next_heads", QWEN3_NEXT, 4, omit=["conv_bias"], covers="16 and 32 heads")
    yield layer_rows("qwen3.5_397b_heads", QWEN_397B, 2, omit=["conv_bias"], covers="16 and 64 heads")


def core_decode_performance() -> Iterator[Line]:
    for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        yield layer_rows(f"16x32_batch_{batch}", QWEN3_NEXT, batch, omit=["conv_bias"])
    for label, preset, batch in (("4x8", QWEN_TP4, 64), ("16x64", QWEN_397B, 1), ("16x64", QWEN_397B, 64)):
        yield layer_rows(f"{label}_batch_{batch}", preset, batch, omit=["conv_bias"])


# --- past 65,535 pairs, past 2^31 elements ------------------------------------------------------------------------

# Many narrow heads: 129 rows of them are 66,048 pairs, and a few megabytes.
MANY_HEADS, ONE_NARROW = "synthetic-gva-256x512-d8", "synthetic-mha-1x1-d8"
MANY = 129
FEW_TOKENS = (1, 2, 1, 0, 3, 1) * 21 + (2, 1, 2)
PAIRS = "66,048 pairs of a sequence and a head: past what one axis of a grid takes"
ROWS_65540 = "65,540 rows: past what one axis of a grid takes"


def many_prefill(line: Callable[..., Line]) -> Iterator[Line]:
    # Where a token forgets all before it, an output is u (k . q), which in eight channels may be next to nothing.
    yield line("pairs_66048", MANY_HEADS, "slow_decay", FEW_TOKENS, covers=PAIRS)


def many_checkpoints() -> Iterator[Line]:
    # No sequence reaches an interval: one of 64 tokens would pad all others to a whole chunk of 512 heads.
    yield kept("pairs_66048", MANY_HEADS, "slow_decay", 64, FEW_TOKENS, covers=PAIRS)


def many_decode() -> Iterator[Line]:
    yield decode("pairs_66048", MANY_HEADS, "typical", MANY, covers=PAIRS)
    yield decode("rows_65540", ONE_NARROW, "typical", 65540, covers=ROWS_65540)


def many_pool() -> Iterator[Line]:
    rows = in_place("pairs_66048", MANY, MANY + 3)
    yield pool("pairs_66048", MANY_HEADS, "typical", MANY + 3, rows, covers=PAIRS)


def many_verify() -> Iterator[Line]:
    accepted = [n % 3 for n in range(MANY)]
    yield verify("pairs_66048", MANY_HEADS, "typical", 2, accepted, covers=PAIRS)


def many_convolution() -> Iterator[Line]:
    flags = "".join("+-"[n % 2] for n in range(MANY))
    covers = "129 sequences of 8,192 channels: past what one axis of a grid takes"
    yield convolution("pairs_1056768", MANY_HEADS, FEW_TOKENS, flags, covers=covers)


def many_convolution_decode() -> Iterator[Line]:
    covers = "129 rows of 8,192 channels: past what one axis of a grid takes"
    yield shifted("pairs_1056768", MANY_HEADS, MANY, MANY + 3, covers=covers)


def many_layer() -> Iterator[Line]:
    # The projections' rounding must stay small in each of a million rows of two states: beside large ones it does, as
    # long as something of them is left.
    lengths = (1, 2, 1, 0, 2, 1) * 21 + (2, 1, 2)
    yield layer("pairs_66048", MANY_HEADS, lengths, "+" * MANY, regime="large_initial_state", covers=PAIRS)


def many_layer_decode() -> Iterator[Line]:
    yield layer_rows("pairs_66048", MANY_HEADS, MANY, regime="large_initial_state", covers=PAIRS)


# What passes 2^31 elements is drawn on the device, and a sample of it is judged: the first and the last are in it.
LONG_ROWS = (2017,) * 130  # 262,210 tokens: past 2^31 elements of 64 heads of 128, or of 8,192 channels
SHORT_ROWS = (1, 2, 0, 1, 3) * 820  # 4,100 sequences: past 2^31 elements of their 32 states
ON_DEVICE = {"device": "cuda", "drawn": "device"}


def far(sequences: int = 12, heads: int | None = 3) -> Line:
    return {**ON_DEVICE, "judged": {"sequences": sequences} | ({} if heads is None else {"heads": heads})}


def far_prefill() -> Iterator[Line]:
    yield prefill(
        "past_2_31_values",
        QWEN_397B,
        "typical",
        LONG_ROWS,
        **far(4, 2),
        covers="more than 2^31 elements of v and output",
    )
    yield prefill(
        "past_2_31_states", QWEN3_NEXT, "typical", SHORT_ROWS, **far(), covers="more than 2^31 elements of states"
    )


def far_checkpoints() -> Iterator[Line]:
    yield kept(
        "past_2_31_checkpoints", QWEN3_NEXT, "typical", 64, (4160,) * 64, **far(4, 2),
        covers="more than 2^31 elements of checkpoints",
    )  # fmt: skip


def far_decode() -> Iterator[Line]:
    yield decode("past_2_31", QWEN3_NEXT, "typical", 4100, **far(), covers="more than 2^31 elements of states")
    yield decode(
        "past_2_31_rows", SMALL_128, "typical", 65540, **far(),
        covers="the same with few heads: 65,540 rows, past what one axis of a grid takes",
    )  # fmt: skip


def far_pool() -> Iterator[Line]:
    rows = in_place("past_2_31_rows", 4100, 4200)
    yield pool(
        "past_2_31_rows", QWEN3_NEXT, "typical", 4200, rows, **far(),
        covers="131,200 pairs in a pool of more than 2^31 elements",
    )  # fmt: skip


def far_verify() -> Iterator[Line]:
    accepted = [n % 2 for n in range(2100)]
    yield verify(
        "past_2_31", QWEN3_NEXT, "typical", 1, accepted, **far(),
        covers="67,200 pairs in a pool of more than 2^31 elements",
    )  # fmt: skip


def far_convolution(omit: str) -> Iterator[Line]:
    yield convolution(
        "past_2_31", QWEN3_NEXT, LONG_ROWS, "-+" * 65, omit=[omit], **far(4, None),
        covers="more than 2^31 elements of x and output",
    )  # fmt: skip


def far_states_of_convolution() -> Iterator[Line]:
    slots = {"slots": [87399, 0, 87381, 43690, 87380]}  # 2^31 lies within slot 87,381
    line = convolution("past_2_31_states", QWEN3_NEXT, (3, 1, 5, 2, 4), "+++-+", **far(8, None))
    line["axes"]["num_slots"] = 87400
    yield {**line, "integers": line["integers"] | slots, "covers": "a pool of more than 2^31 elements"}


def far_states_of_convolution_decode() -> Iterator[Line]:
    line = shifted("past_2_31_states", QWEN3_NEXT, 5, 87400, **far(8, None))
    yield {
        **line,
        "integers": {"slots": [87399, 0, 87381, 43690, 87380]},
        "covers": "a pool of more than 2^31 elements",
    }


def far_norm() -> Iterator[Line]:
    yield decode(
        "past_2_31", QWEN3_NEXT, "typical", 524400, **far(64), covers="more than 2^31 elements of x, z and output"
    )


def far_wy() -> Iterator[Line]:
    yield stage(
        "past_2_31", QWEN_397B, "typical", LONG_ROWS, False, **far(4, 2), covers="more than 2^31 elements of v, u and w"
    )


def far_stage() -> Iterator[Line]:
    yield stage(
        "past_2_31_states", QWEN3_NEXT, "typical", (4160,) * 64, True, **far(4, 2),
        covers="more than 2^31 elements of the states of 4,160 chunks",
    )  # fmt: skip


def far_from_conv() -> Iterator[Line]:
    yield from_conv(
        "past_2_31_rows", QWEN3_NEXT, "typical", LONG_ROWS, **far(4, 2), covers="more than 2^31 elements of qkv"
    )
    line = from_conv("past_2_31_states", QWEN3_NEXT, "typical", (3, 70, 1, 2, 65), **far(8))
    line["axes"]["num_slots"] = 4200
    slots = {"slots": [4199, 0, 4095, 4096, 2048]}
    yield {**line, "integers": slots, "covers": "a pool of more than 2^31 elements"}


def on_far_slots(line: Line) -> Line:
    """Slots on both sides of 2^31 elements, in pools of more."""
    line["axes"]["num_slots"] = 4200
    chosen = {"conv_slots": [4199, 0, 4095, 4096, 2048], "state_slots": [0, 4199, 4096, 4095, 4100]}
    return {**line, "integers": line["integers"] | chosen, "covers": "a pool of more than 2^31 elements of states"}


def far_layer() -> Iterator[Line]:
    """Long sequences that have states: what one token leaves has rows so small that no budget fits them."""
    line = on_far_slots(layer("past_2_31_states", QWEN3_NEXT, (65, 70), "++", **far(8, None)))
    yield {**line, "integers": line["integers"] | {"conv_slots": [0, 4199], "state_slots": [4199, 4096]}}


def far_layer_decode() -> Iterator[Line]:
    yield on_far_slots(layer_rows("past_2_31_states", QWEN3_NEXT, 5, **far(8, None)))


def far_core_decode() -> Iterator[Line]:
    line = layer_rows("past_2_31_rows", QWEN3_NEXT, 2100, omit=["conv_bias"], **far())
    line["axes"]["num_slots"] = 4200
    chosen = {f"{pool}_slots": somewhere(f"{pool} past_2_31_rows", 2100, 4200) for pool in ("conv", "state")}
    yield {**line, "integers": chosen, "covers": "67,200 pairs in a pool of more than 2^31 elements of states"}


def beside(name: str, *more: Callable[[], Iterator[Line]]) -> None:
    """Rows of a definition's conformance suite beyond those that it has above."""
    rows = (SUITES[name]["conformance"], *more)
    SUITES[name] = SUITES[name] | {"conformance": lambda: chain.from_iterable(each() for each in rows)}


# --- two head sizes, write gates up to 2 ----------------------------------------------------------------------------

OLMO, OLMO_TP2 = "olmo-hybrid-7b-tp1", "olmo-hybrid-7b-tp2"
K96_V192, GVA_K96_V192 = "synthetic-mha-2x2-k96-v192", "synthetic-gva-1x2-k96-v192"
K64_V128, K128_V64 = "synthetic-gva-1x2-k64-v128", "synthetic-gva-2x4-k128-v64"
K24_V40, K256_V48, K40_V256 = "synthetic-gva-2x6-k24-v40", "synthetic-gva-1x2-k256-v48", "synthetic-gva-1x2-k40-v256"
GQA_K64_V96 = "synthetic-gqa-4x2-k64-v96"
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


def kv_pool_smoke() -> Iterator[Line]:
    rows = in_place("in_place", 6, 9)
    yield pool("in_place", K96_V192, "typical", 9, rows, scalars=NEGATIVE, covers="every state where it was")
    yield pool("moved", K64_V128, "typical", 14, moved("moved", 6, 14), covers="states written to other slots")
    rows = shared("shared", 5, 9)
    yield pool("shared", K24_V40, "typical", 9, rows, scalars=NEGATIVE, covers="one slot read by all rows")
    one, two, three = in_place("skips", 3, 8)
    skips = [SKIPPED, one, two, SKIPPED, three, SKIPPED]
    yield pool("skips", K128_V64, "typical", 8, skips, covers="rows skipped first, between and last")
    yield pool(
        "strided", GVA_K96_V192, "typical", 7, in_place("strided", 4, 7), gaps={"pool": 192}, scalars=NEGATIVE,
        covers="a gap between slots",
    )  # fmt: skip
    yield pool("beta_two", K96_V192, "beta_two", 5, in_place("two", 4, 5), scalars=NEGATIVE, covers="beta = 2")
    yield pool("one_slot", K128_V64, "slow_decay", 1, [(0, 0)], covers="a pool of one slot")


def kv_pool_conformance() -> Iterator[Line]:
    for regime in REGIMES:
        rows = (in_place, moved, shared)[turn(regime)](regime, 5, 12)
        yield pool(
            f"regime_{regime}", IN_TURN[turn(regime) - 1], regime, 12, rows, scalars=switch(regime),
            covers=f"the regime {regime}",
        )  # fmt: skip
    rows = in_place("many", 65, 200)
    yield pool("batch_65", K24_V40, "typical", 200, rows, covers="more rows than a block of them, slots out of order")
    rows = in_place("full", 12, 12)
    yield pool("full", K64_V128, "typical", 12, rows, scalars=NEGATIVE, covers="every slot of the pool in use")
    halves = [(0, 4), (1, 5), (2, 6), (3, 7)]
    yield pool("halves", K128_V64, "typical", 8, halves, scalars=NEGATIVE, covers="first half read, second written")
    yield pool("all_skipped", K96_V192, "typical", 4, [SKIPPED] * 3, scalars=NEGATIVE, covers="no row to do")
    skips = [row if i % 2 else SKIPPED for i, row in enumerate(shared("every_other", 8, 20))]
    yield pool("every_other_skipped", K96_V192, "hard_reset", 20, skips, covers="skipped rows between others, resets")
    yield pool(
        "strided_wide", K128_V64, "slow_decay", 5, moved("wide", 2, 5), gaps={"pool": 1 << 15}, scalars=NEGATIVE,
        covers="a gap as long as a slot, states written to others",
    )  # fmt: skip
    rows = in_place("same", 3, 5)
    yield pool("same_size", GROUPS_128, "typical", 5, rows, scalars=NEGATIVE, covers="keys and values of one size")
    yield pool("same_size_gva", SMALL_128, "typical", 5, rows, covers="one size of 128, the switch absent")
    yield pool("widest_keys", K256_V48, "typical", 4, moved("k", 2, 4), covers="keys of 256")
    yield pool("widest_values", K40_V256, "typical", 4, moved("v", 2, 4), scalars=NEGATIVE, covers="values of 256")
    rows = in_place("30", 2, 3)
    yield pool("olmo_hybrid_heads", OLMO, "typical", 3, rows, scalars=NEGATIVE, covers="30 heads of a real model")
    for i, (name, scale) in enumerate((("zero", 0.0), ("negative", -1.5), ("one", 1.0), ("some", 0.3))):
        yield pool(
            f"scale_{name}", (K24_V40, K64_V128)[i % 2], "typical", 5, in_place(name, 3, 5),
            scalars={"scale": scale, **SWITCHED[i % 3]}, covers=f"a scale of {scale:g}",
        )  # fmt: skip
    yield pool(
        "no_l2norm", K128_V64, "beta_two", 5, in_place("norm", 3, 5), scalars={"use_qk_l2norm": False, **NEGATIVE},
        covers="keys as they are under a write strength of 2",
    )  # fmt: skip


def kv_pool_performance() -> Iterator[Line]:
    for batch in (1, 16, 64):
        rows = in_place(f"30x30 {batch}", batch, 128)
        yield pool(f"30x30_batch_{batch}", OLMO, "typical", 128, rows, scalars=NEGATIVE)
    rows = in_place("15x15 64", 64, 128)
    yield pool("15x15_batch_64", OLMO_TP2, "typical", 128, rows, scalars=NEGATIVE)


def kv_verify_smoke() -> Iterator[Line]:
    yield verify(
        "four_tokens", K96_V192, "typical", 4, [0, 4, 2], scalars=NEGATIVE, covers="none, all and some accepted before"
    )
    yield verify("one_token", K128_V64, "typical", 1, [1, 0, 1], covers="one draft token: decode from a pool")
    yield verify("sixteen_tokens", K64_V128, "typical", 16, [16], scalars=NEGATIVE, covers="the most draft tokens")
    yield verify("skips", K24_V40, "typical", 3, [0, 0, 3, 1], skipped=(0, 2), covers="skipped rows among others")
    yield verify("same_key", K96_V192, "repeated_keys", 4, [1, 0], scalars=NEGATIVE, covers="one key, beta past 1")
    yield verify(
        "strided", GVA_K96_V192, "slow_decay", 2, [2, 1], gaps={"pool": 128}, scalars=NEGATIVE,
        covers="a gap between slots",
    )  # fmt: skip


def kv_verify_conformance() -> Iterator[Line]:
    for regime in REGIMES:
        yield verify(
            f"regime_{regime}", IN_TURN[turn(regime)], regime, 3, [0, 1, 3], scalars=switch(regime),
            covers=f"the regime {regime}",
        )  # fmt: skip
    for i, tokens in enumerate((1, 2, 5, 8, 16)):
        accepted = [n % (tokens + 1) for n in range(3)]
        yield verify(
            f"tokens_{tokens}", K24_V40, "typical", tokens, accepted, scalars=SWITCHED[i % 3],
            covers=f"{tokens} draft tokens",
        )  # fmt: skip
    yield verify(
        "every_count", K64_V128, "typical", 5, list(range(6)), scalars=NEGATIVE, covers="every count of accepted tokens"
    )
    yield verify("none_accepted", K128_V64, "typical", 4, [0] * 4, covers="no token accepted in any row")
    yield verify(
        "all_accepted", K128_V64, "slow_decay", 4, [4] * 4, scalars=NEGATIVE, covers="all of them in every row"
    )
    yield verify("rows_33", K24_V40, "typical", 2, [n % 3 for n in range(33)], covers="more rows than a block of them")
    yield verify("all_skipped", K96_V192, "typical", 2, [0, 0], skipped=(0, 1), scalars=NEGATIVE, covers="no row to do")
    yield verify("same_size", GROUPS_128, "beta_two", 2, [1, 0], scalars=NEGATIVE, covers="keys and values of one size")
    yield verify("same_size_gva", SMALL_128, "typical", 2, [1, 0], covers="one size of 128, the switch absent")
    yield verify("widest_keys", K256_V48, "typical", 2, [1, 0], scalars=NEGATIVE, covers="keys of 256")
    yield verify("widest_values", K40_V256, "typical", 2, [2], covers="values of 256")
    yield verify("olmo_hybrid_heads", OLMO, "typical", 2, [1], scalars=NEGATIVE, covers="30 heads of a real model")
    for i, (name, scale) in enumerate((("zero", 0.0), ("negative", -1.5), ("one", 1.0), ("some", 0.3))):
        yield verify(
            f"scale_{name}", (K64_V128, K24_V40)[i % 2], "typical", 2, [0, 2],
            scalars={"scale": scale, **SWITCHED[i % 3]}, covers=f"a scale of {scale:g}",
        )  # fmt: skip
    yield verify(
        "no_l2norm", K96_V192, "near_parallel_keys", 4, [0, 2], scalars={"use_qk_l2norm": False, **NEGATIVE},
        covers="keys as they are, nearly alike, under write strengths past 1",
    )  # fmt: skip


def kv_verify_performance() -> Iterator[Line]:
    for label, preset, batch in (("30x30", OLMO, 1), ("30x30", OLMO, 16), ("15x15", OLMO_TP2, 64)):
        accepted = [n % 5 for n in range(batch)]
        yield verify(f"{label}_4_tokens_batch_{batch}", preset, "typical", 4, accepted, scalars=NEGATIVE)


AS_OLMO: Line = {"scalars": {"eps": 1e-5}}  # what OLMo Hybrid adds in its norm


def neg_layer_smoke() -> Iterator[Line]:
    yield layer("ragged", K96_V192, (1, 65, 8), "+-+", **AS_OLMO, covers="sequences around one chunk")
    yield layer("empty", K64_V128, (0, 40, 0), "-++", covers="empty sequences, whose states stay; eps absent")
    yield layer("shorter", K24_V40, (1, 2, 1), "+-+", **AS_OLMO, covers="sequences shorter than the kernel")
    gaps = {"conv_states": 64, "recurrent_states": 128}
    yield layer(
        "skips", GVA_K96_V192, (9, 3, 20), "+-+", skipped=(1,), gaps=gaps, scalars={"eps": 0.0},
        covers="no slot; slots that stand apart; an eps of 0, under which a skipped row divides by nothing",
    )  # fmt: skip


def neg_layer_conformance() -> Iterator[Line]:
    yield layer("no_tokens", K96_V192, (0,), "-", **AS_OLMO, covers="no token at all")
    yield layer("all_skipped", K24_V40, (3, 2), "+-", skipped=(0, 1), **AS_OLMO, covers="no sequence to do")
    yield layer("wide_keys", K128_V64, (20, 1), "+-", **AS_OLMO, covers="keys wider than values, a kernel of two")
    yield layer("same_size", SMALL_128, (33, 20), "++", **AS_OLMO, covers="keys and values of one size")
    yield layer("same_size_groups", GROUPS_128, (20,), "-", covers="one size, two groups; eps absent")
    yield layer("eps_large", K24_V40, (20, 3), "+-", scalars={"eps": 0.5}, covers="an eps that rivals the mean")
    yield layer(
        "large_states", K96_V192, (33, 20), "++", regime="large_initial_state", **AS_OLMO, covers="large states"
    )
    yield layer("long", K64_V128, (300,), "-", **AS_OLMO, covers="many chunks")
    yield layer(
        "many", K64_V128, (3, 1, 2, 5) * 9, "+" * 36, regime="large_initial_state", **AS_OLMO,
        covers="more sequences than a block of them",
    )  # fmt: skip


def neg_layer_performance() -> Iterator[Line]:
    for label, preset in (("30x30", OLMO), ("15x15", OLMO_TP2)):
        yield layer(f"olmo_hybrid_{label}_1x2048", preset, (2048,), "-", **AS_OLMO)


def neg_layer_decode_smoke() -> Iterator[Line]:
    yield layer_rows("batch_8", K96_V192, 8, **AS_OLMO, covers="a batch as OLMo Hybrid has it")
    yield layer_rows("wide_keys", K128_V64, 5, **AS_OLMO, covers="keys wider than values, a state of one input")
    yield layer_rows("narrow", K24_V40, 5, covers="sizes that no power of two divides; eps absent")
    gaps = {"conv_states": 64, "recurrent_states": 128}
    yield layer_rows(
        "skips", GVA_K96_V192, 6, skipped=(0, 3), gaps=gaps, scalars={"eps": 0.0},
        covers="rows without slots; slots that stand apart; an eps of 0, under which a skipped row divides by nothing",
    )  # fmt: skip


def neg_layer_decode_conformance() -> Iterator[Line]:
    yield layer_rows("one_row", K64_V128, 1, **AS_OLMO, covers="batch 1")
    yield layer_rows("batch_33", K24_V40, 33, **AS_OLMO, covers="more rows than a tile of them")
    yield layer_rows("same_size", SMALL_128, 4, **AS_OLMO, covers="keys and values of one size")
    yield layer_rows("same_size_groups", GROUPS_128, 3, covers="one size, two groups; eps absent")
    yield layer_rows("eps_large", K96_V192, 3, scalars={"eps": 0.5}, covers="an eps that rivals the mean")
    yield layer_rows("large_states", K64_V128, 5, regime="large_initial_state", **AS_OLMO, covers="large states")
    yield layer_rows("all_skipped", K96_V192, 3, skipped=(0, 1, 2), **AS_OLMO, covers="no row to do")


def neg_layer_decode_performance() -> Iterator[Line]:
    for label, preset, batch in (("30x30", OLMO, 1), ("30x30", OLMO, 64), ("15x15", OLMO_TP2, 64)):
        yield layer_rows(f"olmo_hybrid_{label}_batch_{batch}", preset, batch, **AS_OLMO)


TWO_SIZES = {
    "gdn_prefill_k_last_kv_dims": {
        "smoke": kv_prefill_smoke, "conformance": kv_prefill_conformance, "strict": kv_prefill_strict,
        "performance": kv_prefill_performance,
    },
    "gdn_decode_k_last_kv_dims": {
        "smoke": kv_decode_smoke, "conformance": kv_decode_conformance, "performance": kv_decode_performance,
    },
    "gdn_decode_pool_k_last_kv_dims": {
        "smoke": kv_pool_smoke, "conformance": kv_pool_conformance, "performance": kv_pool_performance,
    },
    "gdn_verify_k_last_kv_dims": {
        "smoke": kv_verify_smoke, "conformance": kv_verify_conformance, "performance": kv_verify_performance,
    },
    "gdn_layer_prefill_neg_eigval": {
        "smoke": neg_layer_smoke, "conformance": neg_layer_conformance, "performance": neg_layer_performance,
    },
    "gdn_layer_decode_neg_eigval": {
        "smoke": neg_layer_decode_smoke, "conformance": neg_layer_decode_conformance,
        "performance": neg_layer_decode_performance,
    },
}  # fmt: skip


PREFILL = {
    "smoke": prefill_smoke, "conformance": prefill_conformance, "strict": prefill_strict,
    "performance": prefill_performance,
}  # fmt: skip
CHECKPOINTS = {
    "smoke": checkpoints_smoke, "conformance": checkpoints_conformance, "strict": checkpoints_strict,
    "performance": checkpoints_performance,
}  # fmt: skip
DECODE = {"smoke": decode_smoke, "conformance": decode_conformance, "performance": decode_performance}
VARIANT = {
    "smoke": variant("smoke", decode_smoke), "conformance": variant("conformance", decode_conformance),
    "performance": decode_performance,
}  # fmt: skip
POOL = {"smoke": pool_smoke, "conformance": pool_conformance, "performance": pool_performance}
VERIFY = {"smoke": verify_smoke, "conformance": verify_conformance, "performance": verify_performance}
CONVOLUTION = {
    "smoke": convolution_smoke, "conformance": convolution_conformance, "performance": convolution_performance,
}  # fmt: skip
CONVOLUTION_DECODE = {
    "smoke": convolution_decode_smoke, "conformance": convolution_decode_conformance,
    "performance": convolution_decode_performance,
}  # fmt: skip
CONV_GATES = {
    "smoke": conv_gates_smoke, "conformance": conv_gates_conformance, "strict": conv_gates_strict,
    "performance": conv_gates_performance,
}  # fmt: skip
NORM = {"smoke": norm_smoke, "conformance": norm_conformance, "performance": norm_performance}
FROM_CONV = {"smoke": from_conv_smoke, "conformance": from_conv_conformance, "performance": from_conv_performance}
# A seed comes from the name, and on that of same_key an emulator errs so much in float32 that freezing is refused.
FROM_CONV_F32 = FROM_CONV | {"conformance": partial(from_conv_conformance, "one_key")}
LAYER = {"smoke": layer_smoke, "conformance": layer_conformance, "performance": layer_performance}
LAYER_DECODE = {
    "smoke": layer_decode_smoke, "conformance": layer_decode_conformance, "performance": layer_decode_performance,
}  # fmt: skip
CORE_DECODE = {
    "smoke": core_decode_smoke, "conformance": core_decode_conformance, "performance": core_decode_performance,
}  # fmt: skip
SUITES = {
    "gdn_prefill_k_last": PREFILL, "gdn_prefill_k_first": PREFILL,
    "gdn_prefill_checkpoints": CHECKPOINTS,
    "gdn_decode_k_last": DECODE, "gdn_decode_k_first": DECODE,
    "gdn_decode_k_last_bf16_state": VARIANT, "gdn_decode_k_first_bf16_state": VARIANT,
    "gdn_decode_packed_k_last": VARIANT,
    "gdn_decode_pool_k_last": POOL, "gdn_decode_pool_k_last_bf16_state": POOL,
    "gdn_verify_k_last": VERIFY,
    "gdn_conv1d_prefill": CONVOLUTION, "gdn_conv1d_decode": CONVOLUTION_DECODE,
    "gdn_conv_gates_prefill": CONV_GATES,
    "gdn_gated_rms_norm": NORM,
    "gdn_layer_prefill": LAYER, "gdn_layer_decode": LAYER_DECODE,
    "gdn_core_decode": CORE_DECODE,
    "gdn_prefill_from_conv": FROM_CONV, "gdn_prefill_from_conv_bf16_state": FROM_CONV,
    "gdn_prefill_from_conv_f32_qkv": FROM_CONV_F32, "gdn_prefill_from_conv_f32_qkv_bf16_state": FROM_CONV_F32,
    "gdn_chunk_wy": stages(False) | {"strict": wy_strict}, "gdn_chunk_state": stages(True, of_state=True),
    "gdn_chunk_output": stages(True, scaled=True),
    **TWO_SIZES,
}  # fmt: skip

KINDS = dict(SUITES)  # what a definition's rows are made like; more are added below
STATES = ("", "_bf16_state")
for each in ("gdn_prefill_k_last", "gdn_prefill_k_first"):
    beside(each, partial(many_prefill, prefill), far_prefill)
for each in ("k_last", "k_first", "k_last_bf16_state", "k_first_bf16_state", "packed_k_last"):
    beside(f"gdn_decode_{each}", many_decode, far_decode)
for each in STATES:
    beside(f"gdn_decode_pool_k_last{each}", many_pool, far_pool)
    for rows_of in ("", "_f32_qkv"):
        beside(f"gdn_prefill_from_conv{rows_of}{each}", partial(many_prefill, from_conv), far_from_conv)
beside("gdn_prefill_checkpoints", many_checkpoints, far_checkpoints)
beside("gdn_verify_k_last", many_verify, far_verify)
beside("gdn_conv1d_prefill", many_convolution, partial(far_convolution, "bias"), far_states_of_convolution)
beside("gdn_conv1d_decode", many_convolution_decode, far_states_of_convolution_decode)
beside("gdn_conv_gates_prefill", many_convolution, partial(far_convolution, "conv_bias"), far_states_of_convolution)
beside("gdn_gated_rms_norm", many_decode, far_norm)
beside("gdn_layer_prefill", many_layer, far_layer)
beside("gdn_layer_decode", many_layer_decode, far_layer_decode)
beside("gdn_core_decode", many_layer_decode, far_core_decode)
beside("gdn_chunk_wy", far_wy)
beside("gdn_prefill_k_last_kv_dims", partial(many_prefill, prefill), far_prefill)
beside("gdn_decode_k_last_kv_dims", many_decode, far_decode)
beside("gdn_decode_pool_k_last_kv_dims", many_pool, far_pool)
beside("gdn_verify_k_last_kv_dims", many_verify, far_verify)
# Of 66,048 pairs, each written with up to twice its error, one is always rounded too far for a budget.
beside("gdn_layer_prefill_neg_eigval", far_layer)
beside("gdn_layer_decode_neg_eigval", many_layer_decode, far_layer_decode)
for each in ("gdn_chunk_state", "gdn_chunk_output"):
    beside(each, far_stage)


# --- strides ----------------------------------------------------------------------------------------------------


def gaps(definition: Definition, multiple: int) -> dict[str, int]:
    """For each input that a caller may slice out of something wider, another gap, a multiple of so many elements."""
    strided = [tensor.name for tensor in definition.inputs if tensor.strides is not None]
    return {name: multiple * (i + 1) for i, name in enumerate(strided)}


def strided(definition: Definition) -> dict[str, Callable[[], Iterator[Line]]]:
    """Two rows of every definition that takes strides: gaps as projections of a model leave them, and odd ones."""
    if not gaps(definition, 1):
        return {}

    def rows(name: str, multiple: int, small: bool, covers: str) -> Iterator[Line]:
        preset = (K64_V128 if small else K128_V64) if definition.name in TWO_SIZES else SMALL if small else GROUPS_128
        lengths = (1, 63, 65) if small else (65, 1, 130, 64)  # published already: see careful_with_published_lengths
        flags, skipped, batch = "+-+-"[: len(lengths)], (1,), 3 if small else 6
        # A definition of two head sizes has the rows of the one that it is made like.
        like = definition.name.removesuffix("_kv_dims").removesuffix("_neg_eigval")
        match KINDS[like]:
            case suites if suites is PREFILL:
                line = prefill(name, preset, "typical", lengths)
            case suites if suites is CHECKPOINTS:
                line = kept(name, preset, "typical", 64, lengths)
            case suites if suites is POOL:
                slots = moved(name, batch, 2 * batch)
                line = pool(name, preset, "typical", 2 * batch + 2, [slots[0], SKIPPED, *slots[2:]])
            case suites if suites is VERIFY:
                accepted = [n % 4 for n in range(batch)]
                line = verify(name, preset, "typical", 3, accepted, skipped=skipped)
            case suites if suites is CONVOLUTION or suites is CONV_GATES:
                line = convolution(name, preset, lengths, flags, skipped=skipped)
            case suites if suites is CONVOLUTION_DECODE:
                line = shifted(name, preset, batch, batch + 2, skipped=skipped)
            case suites if suites is FROM_CONV or suites is FROM_CONV_F32:
                line = from_conv(name, preset, "typical", lengths, skipped=skipped)
            case suites if suites is LAYER:
                line = layer(name, preset, (20, 3, 9), "+-+", skipped=skipped)
            case suites if suites is LAYER_DECODE or suites is CORE_DECODE:
                line = layer_rows(name, preset, batch, skipped=skipped)
            case _:
                line = decode(name, preset, "typical", batch)
        yield {**line, "gaps": gaps(definition, multiple), "covers": covers}

    return {
        "smoke": partial(rows, "strided_inputs", 16, True, "inputs that are slices of something wider"),
        "conformance": partial(rows, "strided_inputs_odd", 5, False, "slices, their rows on no boundary"),
    }


def lines(found: Found) -> Iterator[Workload]:
    """Every workload of a definition. A seed comes from the row's name: a new row changes no other."""
    name = found.definition.name
    by_hand = [{"suite": suite, **row} for suite, rows in KINDS[name].items() for row in rows()]
    suites = [(suite, list(rows())) for suite, rows in (*SUITES[name].items(), *strided(found.definition).items())]
    for suite, rows in (*suites, ("conformance", covering(found, by_hand))):
        for row in rows:
            if "tensors" in row and not (found.folder / row["tensors"]).is_file():
                print(f"{found.definition.name} {row['name']} left out: no {row['tensors']} (tools/)")
                continue
            drawn = {} if {"tensors", "seed"} & row.keys() else {"seed": zlib.crc32(f"{suite}/{row['name']}".encode())}
            device = {"device": "cuda"} if suite == "performance" else {}
            # The order of the keys is the order in the file.
            yield Workload.model_validate({"name": row.pop("name"), "suite": suite, **row, **drawn, **device})


def write(found: Found, fast: bool) -> None:
    file = found.workloads_file
    known: dict[str, Line] = {}
    if file.is_file():
        known = {row["name"]: row for row in map(json.loads, file.read_text().splitlines())}
    text = []
    for workload in lines(found):
        workload.check(found.definition, preset_of(found, workload))
        row = workload.model_dump(mode="json", exclude_defaults=True)
        before = known.get(workload.name, {})
        kept = ("sha256", "covers", *FROZEN)
        same = {k: v for k, v in before.items() if k not in kept} == {k: v for k, v in row.items() if k != "covers"}
        if workload.drawn is not None:
            same = False  # neither a hash nor a budget: both depend on the device
        elif fast and same and workload.device == "cuda":
            row["sha256"] = before["sha256"]
        else:
            row["sha256"] = materialise(found, workload).sha256
        if same and before.get("sha256") == row["sha256"]:
            row |= {key: before[key] for key in FROZEN if key in before}
        text.append(json.dumps(row) + "\n")
        print(found.definition.name, workload.name, row.get("sha256", "drawn on the device")[:12], flush=True)
    file.write_text("".join(text), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="do not draw again what is for a GPU")
    parser.add_argument("--table", action="store_true", help="only write the tables of definitions/gdn/README.md")
    parser.add_argument("definition", nargs="*", help="none: all")
    options = parser.parse_args()
    if options.table:
        table.write(paths.definitions_dir() / "gdn" / "README.md")
        return
    for name, found in definitions().items():
        if not options.definition or name in options.definition:
            write(found, options.fast)
    print(f"written below {Path(paths.definitions_dir()).name}/")


if __name__ == "__main__":
    main()
