"""Rows of the layer of two head sizes whose write gates go up to 2."""

from collections.abc import Iterator

from .heads import GROUPS_128, GVA_K96_V192, K24_V40, K64_V128, K96_V192, K128_V64, OLMO, OLMO_TP2, SMALL_128
from .layer import layer, layer_rows
from .line import Line

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


NEG_LAYER = {
    "smoke": neg_layer_smoke, "conformance": neg_layer_conformance, "performance": neg_layer_performance,
}  # fmt: skip
NEG_LAYER_DECODE = {
    "smoke": neg_layer_decode_smoke, "conformance": neg_layer_decode_conformance,
    "performance": neg_layer_decode_performance,
}  # fmt: skip
