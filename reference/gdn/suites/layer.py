"""Rows of the whole layer, over sequences and of one token."""

from collections.abc import Iterator
from typing import Any

from .decode import decode
from .heads import D120, GROUPS, GROUPS_128, GROUPS_OF_3, K64_V120, QWEN3_NEXT, QWEN_TP4, SMALL, SMALL_128
from .line import Line
from .prefill import prefill
from .slots import somewhere


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


LAYER = {"smoke": layer_smoke, "conformance": layer_conformance, "performance": layer_performance}
LAYER_DECODE = {
    "smoke": layer_decode_smoke, "conformance": layer_decode_conformance, "performance": layer_decode_performance,
}  # fmt: skip
