"""Rows of the whole layer, over sequences and of one token."""

from collections.abc import Iterator
from typing import Any

from .rows import (
    BOUND,
    D120,
    GROUPS,
    GROUPS_OF_3,
    ODD_SLICES,
    SLICES,
    SMALL,
    SMALL_128,
    Line,
    Rows,
    decode,
    prefill,
    sliced,
    somewhere,
)

SLICED = ("x", "conv_slots", "state_slots")
GAPS = {"conv_states": 64, "recurrent_states": 128}  # between slots


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
    yield layer(
        "ragged", GROUPS, (1, 33, 8), "+-+", covers="gates of Kimi Linear; sequences around chunks of 16 and 32"
    )
    yield layer("bounded", SMALL, (5, 17), "++", scalars=BOUND, covers="gates with a lower bound")
    yield layer("empty", SMALL, (0, 20, 0), "-++", covers="empty sequences, whose states stay")
    yield layer("skips", SMALL, (9, 3, 20), "+-+", skipped=(1,), gaps=GAPS, covers="no slot; slots that stand apart")
    yield layer("strided_inputs", SMALL, (1, 9), "+-", gaps=sliced(16, *SLICED), covers=SLICES)


def layer_conformance() -> Iterator[Line]:
    yield layer("shorter", GROUPS_OF_3, (1, 2, 1), "+-+", covers="sequences shorter than the kernel, three heads a key")
    yield layer("all_skipped", SMALL, (3, 2), "+-", skipped=(0, 1), covers="no sequence to do")
    yield layer("width_2", D120, (20, 1), "+-", covers="a kernel of two tokens, as many keys as values")
    yield layer("large_states", SMALL_128, (33, 20), "++", regime="large_initial_state", covers="large states")
    yield layer(
        "one_large", GROUPS, (9, 3, 5), "+++", regime="one_large_state", covers="one large state among small ones"
    )
    yield layer(
        "channels", SMALL, (40, 9), "+-", regime="mixed_channels", covers="channels that decay unlike one another"
    )
    yield layer("large_steps", SMALL, (40,), "+", regime="large_steps", covers="arguments of softplus past 100")
    none, other = {"eps": 0.0}, {"lower_bound": -1.5, "eps": 0.125}
    yield layer("tiny", SMALL, (17, 5), "+-", regime="tiny_keys", covers="where the epsilon of either norm stands")
    yield layer("tiny_no_eps", SMALL, (12,), "-", regime="tiny_keys", scalars=none, covers="eps 0.0 is not absent")
    yield layer("other_bound", SMALL, (20, 1), "-+", scalars=other, covers="a bound and an epsilon of its own")
    yield layer("several_chunks", SMALL_128, (150,), "-", covers="several chunks")
    gaps = sliced(5, *SLICED)
    yield layer("strided_inputs_odd", SMALL, (5, 9, 1), "+-+", skipped=(1,), gaps=gaps, covers=ODD_SLICES)


def layer_rows(name: str, preset: str, batch: int, skipped: tuple[int, ...] = (), **more: Any) -> Line:
    line = decode(name, preset, more.pop("regime", "typical"), batch, **more)
    line["axes"]["num_slots"] = batch + 2
    return {**line, "integers": on_both(name, batch, skipped)}


def layer_decode_smoke() -> Iterator[Line]:
    yield layer_rows("batch_5", GROUPS, 5, covers="gates of Kimi Linear")
    yield layer_rows("bounded", SMALL_128, 4, scalars=BOUND, covers="gates with a lower bound")
    yield layer_rows("skips", SMALL, 6, skipped=(0, 3), gaps=GAPS, covers="rows without slots; slots that stand apart")
    yield layer_rows("strided_inputs", SMALL, 3, gaps=sliced(16, *SLICED), covers=SLICES)


def layer_decode_conformance() -> Iterator[Line]:
    yield layer_rows("one_row", SMALL_128, 1, covers="batch 1")
    yield layer_rows("batch_33", SMALL, 33, covers="more rows than a tile of them")
    yield layer_rows("groups_of_three", GROUPS_OF_3, 4, covers="three value heads a key head, a kernel of three tokens")
    yield layer_rows("width_2", D120, 5, covers="a state of one input, as many keys as values")
    yield layer_rows("large_states", GROUPS, 5, regime="large_initial_state", covers="large states")
    yield layer_rows("channels", SMALL, 4, regime="mixed_channels", covers="channels that decay unlike others")
    yield layer_rows("large_steps", SMALL, 4, regime="large_steps", covers="arguments of softplus past 100")
    yield layer_rows("tiny", SMALL, 4, regime="tiny_keys", covers="where the epsilon of either norm stands")
    none, other = {"eps": 0.0}, {"lower_bound": -1.5, "eps": 0.125}
    yield layer_rows(
        "tiny_no_eps", SMALL, 4, regime="tiny_keys", skipped=(2,), scalars=none, covers="eps 0.0 is not absent"
    )
    yield layer_rows("other_bound", SMALL, 5, scalars=other, covers="a bound and an epsilon of its own")
    yield layer_rows("strided_inputs_odd", SMALL, 4, skipped=(1,), gaps=sliced(5, *SLICED), covers=ODD_SLICES)
    yield layer_rows("all_skipped", SMALL, 3, skipped=(0, 1, 2), covers="no row to do")


LAYER: dict[str, Rows] = {"smoke": layer_smoke, "conformance": layer_conformance}
LAYER_DECODE: dict[str, Rows] = {"smoke": layer_decode_smoke, "conformance": layer_decode_conformance}
LAYERS = {"kda_layer_prefill": LAYER, "kda_layer_decode": LAYER_DECODE}
