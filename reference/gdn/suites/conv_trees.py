"""Rows of the convolution over a tree of draft tokens: the trees of verify, and windows of every width."""

from collections.abc import Iterator
from typing import Any

from .heads import D120, GROUPS, GROUPS_128, GROUPS_OF_3, GVA_D120, MANY_HEADS, QWEN3_NEXT, SMALL, SMALL_128
from .line import Line
from .many import MANY
from .trees import BUSHY, CHAIN, COMB, FLAT, PAIRS, tree


def conv_tree(name: str, preset: str, parents: list[tuple[int, ...]], *given: Any, **more: Any) -> Line:
    """As `tree`, in the regime `typical` if none is given."""
    return tree(f"convolution {name}", preset, more.pop("regime", "typical"), parents, *given, **more) | {"name": name}


def conv_tree_smoke() -> Iterator[Line]:
    yield conv_tree("mixed", GROUPS, [PAIRS, CHAIN, FLAT], covers="two branches, a chain, and tokens side by side")
    yield conv_tree("bushy", SMALL, [BUSHY, COMB], covers="tokens of one depth that follow different ones")
    yield conv_tree("one_token", SMALL_128, [(-1,), (-1,)], [1, 0], covers="one draft token, or none")
    yield conv_tree("width_2", D120, [PAIRS, COMB], covers="a window of one input")
    yield conv_tree("width_3", GVA_D120, [COMB], omit=["bias"], covers="a window of two, no bias")
    yield conv_tree("skips", SMALL, [PAIRS, PAIRS, CHAIN], skipped=(0, 2), covers="skipped rows that have trees")
    gaps = {"conv_states": 96, "step_windows": 160}
    yield conv_tree("strided", SMALL, [PAIRS, CHAIN], gaps=gaps, covers="a gap between slots of both pools")


def conv_tree_conformance() -> Iterator[Line]:
    wide = (-1, *[0] * 7, 1, 1, 2, 3, 5, 7, 8, 8)
    yield conv_tree("counts", SMALL, [BUSHY, BUSHY, COMB], [7, 0, 5], covers="rows with fewer tokens than the tree")
    yield conv_tree("sixteen", SMALL, [wide, tuple(range(-1, 15))], covers="a tree of sixteen, and a chain")
    yield conv_tree("all_follow_first", SMALL, [(-1, 0, 0, 0, 0, 0)], covers="many tokens that follow one")
    yield conv_tree("late_root", SMALL, [(-1, 0, 1, -1, 3, -1)], covers="tokens that follow none after a branch")
    yield conv_tree("back_to_first", SMALL, [(-1, 0, 1, 2, 0, 4)], covers="a branch that leaves the first again")
    yield conv_tree("shared", SMALL, [PAIRS, CHAIN, FLAT], shared=True, covers="rows that start from one slot")
    yield conv_tree("none", SMALL, [PAIRS, CHAIN], [0, 0], covers="no draft in any row: nothing to do")
    yield conv_tree("batch_65", SMALL, [(-1, -1)] * 65, covers="more rows than a block of them")
    yield conv_tree(
        "large_states", GROUPS_OF_3, [PAIRS, CHAIN], regime="large_initial_state", covers="windows that outweigh x"
    )
    yield conv_tree("no_bias", GROUPS_128, [COMB], omit=["bias"], covers="the bias absent: zeros")
    yield conv_tree("widest", QWEN3_NEXT, [PAIRS, FLAT], covers="8192 channels of a real model")
    yield conv_tree(
        "pairs_1056768", MANY_HEADS, [(-1,)] * MANY,
        covers="129 rows of 8,192 channels: past what one axis of a grid takes",
    )  # fmt: skip


def conv_tree_performance() -> Iterator[Line]:
    for batch in (1, 16):
        yield conv_tree(f"16x32_7_tokens_batch_{batch}", QWEN3_NEXT, [BUSHY] * batch, omit=["bias"])


CONV_TREE = {"smoke": conv_tree_smoke, "conformance": conv_tree_conformance, "performance": conv_tree_performance}
