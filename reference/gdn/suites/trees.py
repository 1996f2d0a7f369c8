"""Rows of verify over a tree of draft tokens."""

from collections.abc import Iterator
from typing import Any

from .drafts import drafts
from .heads import GROUPS, GVA_D120, QWEN3_NEXT, SMALL, SMALL_128
from .line import ONE_TOKEN_REGIMES, Line

CHAIN, FLAT = (-1, 0, 1, 2), (-1, -1, -1, -1)
PAIRS = (-1, -1, 0, 1)  # two branches of two tokens, side by side
BUSHY = (-1, 0, 0, 1, 1, 2, 2)  # two tokens follow each
COMB = (-1, 0, 0, 2, 2, 4, 4)  # of two that follow one, the second goes on


def tree(
    name: str, preset: str, regime: str, parents: list[tuple[int, ...]], counts: list[int] | None = None, **more: Any
) -> Line:
    """`parents` of the tokens of each row; all rows as many as the longest, the rest following none."""
    tokens = max(map(len, parents))
    line = drafts(name, preset, regime, tokens, counts or [len(row) for row in parents], **more)
    padded = [parent for row in parents for parent in (*row, *[-1] * (tokens - len(row)))]
    return {**line, "integers": line["integers"] | {"parents": padded}}


def tree_smoke() -> Iterator[Line]:
    yield tree("mixed", SMALL, "typical", [PAIRS, CHAIN, FLAT], covers="two branches, a chain, and tokens side by side")
    yield tree("bushy", SMALL, "slow_decay", [BUSHY, COMB], covers="tokens of one depth that follow different ones")
    yield tree("one_token", SMALL_128, "typical", [(-1,), (-1,)], [1, 0], covers="one draft token, or none")
    yield tree(
        "counts", SMALL, "typical", [BUSHY, BUSHY, COMB], [7, 0, 5], covers="rows with fewer tokens than the tree"
    )
    yield tree("skips", SMALL, "typical", [PAIRS, PAIRS, CHAIN], skipped=(0, 2), covers="skipped rows that have trees")
    yield tree("resets", SMALL, "hard_reset", [COMB], covers="alpha = 0 at some tokens of some branches")
    gaps = {"pool": 128, "step_states": 192}
    yield tree("strided", SMALL, "typical", [PAIRS, CHAIN], gaps=gaps, covers="a gap between slots of both pools")


def tree_conformance() -> Iterator[Line]:
    for regime in ONE_TOKEN_REGIMES:
        yield tree(f"regime_{regime}", GROUPS, regime, [PAIRS, FLAT, (-1, 0, 0, 1)], covers=f"the regime {regime}")
    wide = (-1, *[0] * 7, 1, 1, 2, 3, 5, 7, 8, 8)
    yield tree("sixteen", SMALL, "typical", [wide, tuple(range(-1, 15))], covers="a tree of sixteen, and a chain")
    yield tree("all_follow_first", SMALL, "typical", [(-1, 0, 0, 0, 0, 0)], covers="many tokens that follow one")
    yield tree("late_root", SMALL, "typical", [(-1, 0, 1, -1, 3, -1)], covers="tokens that follow none after a branch")
    yield tree(
        "back_to_first", SMALL, "slow_decay", [(-1, 0, 1, 2, 0, 4)], covers="a branch that leaves the first again"
    )
    yield tree("shared", SMALL, "typical", [PAIRS, CHAIN, FLAT], shared=True, covers="rows that start from one slot")
    yield tree("none", SMALL, "typical", [PAIRS, CHAIN], [0, 0], covers="no draft in any row: nothing to do")
    yield tree("head_size_120_gva", GVA_D120, "hard_reset", [PAIRS, CHAIN], covers="head size 120, GVA, resets")
    yield tree("qwen3_next_heads", QWEN3_NEXT, "typical", [(-1, -1, 0)], covers="16 and 32 heads")
    yield tree(
        "scale_given_no_l2norm", SMALL, "typical", [BUSHY], scalars={"scale": 0.3, "use_qk_l2norm": False},
        covers="a scale of its own, keys as they are",
    )  # fmt: skip


def tree_performance() -> Iterator[Line]:
    for batch in (1, 16):
        yield tree(f"16x32_7_tokens_batch_{batch}", QWEN3_NEXT, "typical", [BUSHY] * batch)


TREE = {"smoke": tree_smoke, "conformance": tree_conformance, "performance": tree_performance}
