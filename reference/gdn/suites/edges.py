"""Rows with checkpoints at absolute edges: of prefill, and of the convolution before it."""

from collections.abc import Iterator
from typing import Any

from .convolution import convolution
from .heads import D120, GQA, GROUPS, GROUPS_128, GROUPS_OF_3, GVA_D120, QWEN3_NEXT, SMALL, SMALL_128
from .line import REGIMES, Line
from .prefill import prefill

ANYWHERE = (70, 0, 127, 64, 1)  # what requests have seen before a call


def _with_edges(line: Line, interval: int, starts: tuple[int, ...]) -> Line:
    """`starts` of the sequences in turn."""
    lengths = line["sequence_lengths"]
    positions = [starts[n % len(starts)] for n in range(len(lengths))]
    axes = {**line["axes"], "num_checkpoints": sum(-(-length // interval) for length in lengths)}
    scalars = {"checkpoint_interval": interval, **line.get("scalars", {})}
    integers = {**line.get("integers", {}), "start_positions": positions}
    return {**line, "axes": axes, "scalars": scalars, "integers": integers}


def edged(
    name: str, preset: str, regime: str, interval: int, lengths: tuple[int, ...], starts: tuple[int, ...], **more: Any
) -> Line:
    """A prefill that goes on from `starts` tokens of each request."""
    return _with_edges(prefill(name, preset, regime, lengths, **more), interval, starts)


def edges_smoke() -> Iterator[Line]:
    yield edged("ragged", SMALL_128, "typical", 64, (1, 65, 63, 130), (63, 40, 65, 10), covers="starts between edges")
    yield edged(
        "before_an_edge", SMALL, "typical", 64, (1, 1, 2, 63, 64), (63, 62, 62, 1, 1),
        covers="calls that end one token before an edge, on it, and past it",
    )  # fmt: skip
    yield edged("on_an_edge", SMALL, "typical", 64, (63, 64, 65), (0, 64, 128), covers="calls that start on an edge")
    yield edged("empty_sequences", GROUPS, "typical", 64, (0, 64, 0, 70, 0), (64, 3, 63, 60, 5), covers="no tokens")
    yield edged("a_row_too_many", SMALL, "typical", 128, (100, 129, 128), (0, 1, 64), covers="rows that no edge has")
    yield edged("resets", SMALL, "hard_reset", 64, (150,), (37,), covers="alpha = 0 at tokens and at edges")
    yield edged("gqa", GQA, "typical", 64, (65, 80), (8, 100), covers="more query heads than key heads")
    yield edged(
        "only_required", SMALL, "typical", 64, (70, 64), (0, 9), omit=["g", "beta", "initial_state"],
        covers="every optional input left out",
    )  # fmt: skip


def edges_conformance() -> Iterator[Line]:
    for regime in REGIMES:
        yield edged(f"regime_{regime}", GROUPS, regime, 64, (65, 1, 70, 64), (30, 63, 0, 5), covers=f"regime {regime}")
    for past in range(4, 11):
        yield edged(
            f"past_an_edge_{past}", SMALL, "typical", 64, (5 + past, 70), (64 + past, past),
            covers=f"a cache hit that ends {past} tokens past a block: reports name 4 to 10",
        )  # fmt: skip
    every = tuple(range(0, 64, 9))
    yield edged("every_start", SMALL, "typical", 64, (64,) * len(every), every, covers="starts all over a block")
    for interval in (64, 128, 192, 512):
        yield edged(
            f"interval_{interval}", SMALL, "typical", interval, (127, 1, 0, 300, 65, 512), ANYWHERE,
            covers=f"an interval of {interval}, starts anywhere",
        )  # fmt: skip
    yield edged(
        "far_starts", SMALL, "typical", 192, (200, 65), ((1 << 30) - 251, 131071),
        covers="positions past what float32 counts",
    )  # fmt: skip
    yield edged("interval_1024", SMALL, "typical", 1024, (300, 65), (800, 1023), covers="an edge now and then")
    yield edged("all_empty", SMALL, "typical", 64, (0, 0), (64, 3), covers="empty sequences alone")
    yield edged("sequences_70", SMALL, "typical", 64, (3, 20) * 35, (60, 50, 63), covers="more sequences than a block")
    yield edged("many", SMALL_128, "slow_decay", 64, (1000,), (31,), covers="16 edges of one sequence")
    yield edged("same_key", SMALL_128, "repeated_keys", 64, (140,), (20,), covers="one key over edges")
    yield edged("head_size_120_mha", D120, "typical", 64, (70, 64), (10, 64), covers="head size 120")
    yield edged("head_size_120_gva", GVA_D120, "hard_reset", 64, (65, 0, 7), (1, 2, 60), covers="head size 120, GVA")
    yield edged(
        "groups_of_three", GROUPS_OF_3, "typical", 64, (65, 40), (33, 30), covers="three value heads a key head"
    )
    yield edged("qwen3_next_heads", QWEN3_NEXT, "typical", 64, (70, 1), (50, 63), covers="16 and 32 heads")
    for name in ("g", "beta", "initial_state"):
        yield edged(f"no_{name}", SMALL, "typical", 64, (65, 30), (20, 40), omit=[name], covers=f"{name} absent")
    yield edged(
        "scale_zero", SMALL, "typical", 64, (70,), (8,), scalars={"scale": 0.0}, covers="scale 0.0: states as ever"
    )


def edges_strict() -> Iterator[Line]:
    yield edged("strict_128", SMALL_128, "strict_keys", 64, (128,), (0,), covers="two blocks")
    yield edged("strict_ragged", SMALL_128, "strict_keys", 64, (129, 65), (32, 63), covers="edges apart from chunks")


def edges_performance() -> Iterator[Line]:
    yield edged("16x32_4x512_every_256", QWEN3_NEXT, "typical", 256, (512,) * 4, (100,))


def windowed(
    name: str, preset: str, interval: int, lengths: tuple[int, ...], flags: str, starts: tuple[int, ...], **more: Any
) -> Line:
    """A convolution that goes on from `starts` tokens of each request."""
    return _with_edges(convolution(name, preset, lengths, flags, **more), interval, starts)


def windows_smoke() -> Iterator[Line]:
    yield windowed("ragged", SMALL, 64, (1, 70, 2, 129), "+-+-", (63, 40, 62, 3), covers="starts between edges")
    yield windowed(
        "within_a_window", GROUPS, 64, (1, 2, 3, 4, 5, 2), "++++++", (63, 62, 61, 63, 62, 63),
        covers="edges so near the start that a window holds a part of the old state",
    )  # fmt: skip
    yield windowed(
        "within_a_new_window", GROUPS, 64, (3, 5), "--", (63, 62), covers="the same from zeros, whatever the slot holds"
    )
    yield windowed("empty", SMALL, 64, (0, 65, 0), "+-+", (64, 3, 1), covers="empty sequences, which have no edge")
    yield windowed("width_2", D120, 64, (1, 70), "++", (63, 60), covers="a window of one input")
    yield windowed("width_3", GVA_D120, 128, (2, 140), "+-", (127, 1), omit=["bias"], covers="a window of two inputs")
    yield windowed(
        "skips", GROUPS, 64, (9, 65, 30), "+++", (60, 10, 50), skipped=(0,), gaps={"conv_states": 64},
        covers="a sequence without a slot, whose rows are zero; slots that stand apart",
    )  # fmt: skip


def windows_conformance() -> Iterator[Line]:
    for past in range(4, 11):
        yield windowed(
            f"past_an_edge_{past}", SMALL, 64, (5 + past, 70), "++", (64 + past, past),
            covers=f"a cache hit that ends {past} tokens past a block: reports name 4 to 10",
        )  # fmt: skip
    yield windowed("no_tokens", SMALL, 64, (0,), "+", (3,), covers="no tokens at all")
    yield windowed("all_skipped", SMALL, 64, (4, 70), "+-", (62, 0), skipped=(0, 1), covers="no sequence to do")
    yield windowed("on_an_edge", SMALL, 64, (64, 65, 1), "+++", (0, 64, 128), covers="calls that start on an edge")
    yield windowed("rows_too_many", SMALL, 128, (100, 129), "++", (0, 1), covers="rows that no edge has")
    yield windowed(
        "far_starts", SMALL, 192, (200, 65), "++", ((1 << 30) - 251, 131071), covers="positions past float32"
    )
    yield windowed("interval_512", SMALL, 512, (600, 65), "+-", (500, 511), covers="an edge now and then")
    yield windowed("no_bias", GROUPS_128, 64, (65, 4), "+-", (1, 62), omit=["bias"], covers="the bias absent: zeros")
    yield windowed("widest", QWEN3_NEXT, 64, (5, 1, 2), "+-+", (60, 63, 62), covers="8192 channels of a real model")
    yield windowed(
        "large_states", GROUPS_OF_3, 64, (33, 64, 1), "+++", (62, 63, 63), regime="large_initial_state",
        covers="states that outweigh what follows",
    )  # fmt: skip
    yield windowed("many", SMALL, 64, (3, 1, 2, 5) * 18, "+-+-" * 18, (61, 63), covers="more sequences than a block")
    yield windowed("long", SMALL_128, 64, (700, 1, 290), "+-+", (5, 63, 30), covers="many blocks of tokens")


def windows_performance() -> Iterator[Line]:
    yield windowed("16x32_1x2048", QWEN3_NEXT, 256, (2048,), "+", (100,), omit=["bias"])


EDGES = {
    "smoke": edges_smoke, "conformance": edges_conformance, "strict": edges_strict, "performance": edges_performance,
}  # fmt: skip
WINDOWS = {"smoke": windows_smoke, "conformance": windows_conformance, "performance": windows_performance}
