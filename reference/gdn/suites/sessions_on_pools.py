"""Sessions on the pool: what engines call on slots, flags and a buffer of steps, instead of on gathered states."""

from collections.abc import Iterator
from typing import Any

from .session_steps import (
    FOUR,
    WIDE,
    admit,
    decode,
    draft,
    evict,
    finish,
    fork,
    line,
    move,
    pooled,
    restore,
    resume,
    settle,
    take,
)

POOL = {"pooled": True}
FIRST, SECOND = [-1, 0, 0, 1], [-1, -1, 1]  # parents: a token with two children; two beginnings


def on_pools() -> Iterator[dict[str, Any]]:
    """All of them."""
    yield from _prefills()
    yield from _checkpoints()
    yield from _drafts()
    yield from _trees()
    yield from _convolution()
    yield from _trees_with_windows()
    yield from _narrow()


def _prefills() -> Iterator[dict[str, Any]]:
    """A flag says whether a slot holds a state."""
    yield line(
        "pool_flags", "a reused slot, a new one and one that goes on, in one call", 5,
        admit(a=1, b=3), pooled(a=9, b=6), finish("a"), admit(c=1, d=0), pooled(c=5, b=4, d=1), decode("b", "c", "d"),
        finish("b", "c", "d"), suite="smoke", regime="long_memory", **POOL,
    )  # fmt: skip
    yield line(
        "pool_padded", "sequences and tokens that are nobody's, in a batch as large as the one before", 4,
        admit(a=0, b=2), pooled(a=4, b=7), pooled("b", None, None, b=3, behind=6), pooled(None, "a", a=5, behind=2),
        decode("a", None, "b"), finish("a", "b"), suite="smoke", regime="slow_decay", **POOL,
    )  # fmt: skip
    yield line(
        "pool_piece_without_tokens", "an empty sequence leaves its slot as it is, whatever its flag says", 4,
        admit(a=2, b=1), pooled(a=12), pooled(a=0, b=5), pooled(b=0, a=3), decode("a", "b"), finish("a", "b"),
        regime="long_memory", preset=WIDE, **POOL,
    )  # fmt: skip
    yield line(
        "pool_in_pieces", "pieces of 64, 5 and 63 tokens, each from the slot", 4,
        admit(a=2), pooled(a=64), admit(b=0), pooled(b=17, a=5), pooled(None, a=63, behind=1), decode("a", "b"),
        finish("a", "b"), regime="slow_decay", **POOL,
    )  # fmt: skip
    yield line(
        "pool_computed_again", "a preempted request computes all its tokens again, in a slot that another has left", 4,
        admit(a=2, b=1), pooled(a=13, b=9), decode("a", "b"), evict("a"), finish("b"), resume("a", 1, recompute=True),
        move("a", 3), decode("a"), finish("a"), regime="slow_decay", **POOL,
    )  # fmt: skip


def _checkpoints() -> Iterator[dict[str, Any]]:
    """Edges are counted from the beginning of a request."""
    more = POOL | {"interval": 64}
    yield line(
        "edge_in_a_piece", "a call that starts 60 tokens into a block meets its edge after 4", 6,
        admit(a=1), pooled(a=60), pooled(a=(9, [(64, "edge", 4)])), admit(b=2), restore("b", "edge"), pooled(b=5),
        decode("a", "b"), finish("a", "b"), suite="smoke", regime="slow_decay", **more,
    )  # fmt: skip
    yield line(
        "edges_of_rows", "two rows that start at other places, and three edges in one call", 9,
        admit(a=1, b=3), pooled(a=5, b=64), pooled(a=(130, [(64, "first", 0), (128, "second", 6)]),
        b=(65, [(128, "other", 5)])), admit(c=2, d=7), restore("c", "second"), restore("d", "other"),
        pooled(c=7, d=1), decode("a", "b", "c", "d"), finish("a", "b", "c", "d"), regime="slow_decay", **more,
    )  # fmt: skip
    yield line(
        "convolution_edge", "both states of one edge, three tokens into a call", 6,
        admit(a=1), pooled(a=61), pooled(a=(6, [(64, "edge", 4)])), admit(b=2), restore("b", "edge"), pooled(b=2),
        decode("a", "b"), finish("a", "b"), suite="smoke", convolution=True, **more,
    )  # fmt: skip
    yield line(
        "convolution_edge_short", "an edge after the first token of a call, whose window is in the slot", 6,
        admit(a=1), pooled(a=63), pooled(a=(3, [(64, "edge", 4)])), admit(b=2), restore("b", "edge"), pooled(b=1),
        decode("b", "a"), finish("a", "b"), convolution=True, preset=FOUR, **more,
    )  # fmt: skip


def _drafts() -> Iterator[dict[str, Any]]:
    """Outputs first, and a commit with the accepted count later."""
    yield line(
        "settled_later", "rows with their own number of drafts, none among them; another decodes before they settle", 7,
        admit(a=0, b=1, c=5), pooled(a=5, b=8, c=2), draft(3, ("a", 4, 3), ("b", 2, 1)), decode("c"),
        settle(b=1, a=2), draft(3, ("b", 3, 2), ("a", 6, 0)), settle(a=0, b=2), decode("a", "b", "c"),
        finish("a", "b", "c"), suite="smoke", regime="slow_decay", **POOL,
    )  # fmt: skip
    yield line(
        "settles_nothing", "no draft counts, and the next draft starts from the same state", 6,
        admit(a=3), pooled(a=7), draft(2, ("a", 1, 2)), settle(a=0), draft(2, None, ("a", 5, 2)),
        settle(None, "a", a=2), decode("a"), finish("a"), suite="smoke", regime="long_memory", **POOL,
    )  # fmt: skip
    yield line(
        "finished_before_it_settles", "a request ends with drafts, and another takes its place and slot", 5,
        admit(a=2, b=0), pooled(a=7, b=4), draft(4, ("a", 3, 4), ("b", 1, 2)), finish("a"), admit(c=2), pooled(c=3),
        settle(b=1), draft(4, ("c", 3, 2), ("b", 1, 4)), settle(c=2, b=4), decode("c", "b"), finish("b", "c"),
        regime="long_memory", preset=WIDE, **POOL,
    )  # fmt: skip
    yield line(
        "drafts_without_a_prompt", "a request without a token drafts, in a slot that another has left", 4,
        admit(a=1), pooled(a=9), finish("a"), admit(b=1), draft(3, ("b", 0, 3)), settle(b=2), fork("b", "c", 2),
        draft(3, ("c", 3, 1), ("b", 1, 3)), settle(b=1, c=1), decode("b", "c"), finish("b", "c"), regime="beta_one",
        **POOL,
    )  # fmt: skip


def _trees() -> Iterator[dict[str, Any]]:
    """A token may have several children."""
    yield line(
        "tree_settles_a_branch", "the second child of a token counts, then the second beginning", 6,
        admit(a=1, b=0), pooled(a=6, b=3), draft(4, ("a", 2, FIRST), ("b", 5, SECOND)), settle(a=3, b=2),
        draft(4, ("b", 3, FIRST), None, ("a", 0, SECOND)), settle(b=4, a=3), decode("a", "b"), finish("a", "b"),
        suite="smoke", regime="slow_decay", **POOL,
    )  # fmt: skip
    yield line(
        "tree_beside_a_chain", "rows with a chain, with a tree and with no draft in one call", 6,
        admit(a=1, b=0, c=4), pooled(a=6, b=3, c=2), draft(5, ("a", 2, 3), ("b", 5, [-1, 0, -1, 2, 0]), ("c", 1, 0)),
        settle(c=0, b=5, a=2), decode("c", "b", "a"), finish("a", "b", "c"), regime="long_memory", preset=FOUR, **POOL,
    )  # fmt: skip
    yield line(
        "tree_of_sixteen", "the most tokens that a tree may have", 4,
        admit(a=3), pooled(a=5), draft(16, ("a", 1, [max(-1, t // 2 - 1) for t in range(16)])), settle(a=14),
        draft(16, ("a", 1, [-1, *range(14), 3])), settle(a=16), decode("a"), finish("a"), regime="slow_decay",
        preset=WIDE, **POOL,
    )  # fmt: skip


def _convolution() -> Iterator[dict[str, Any]]:
    """The convolution's state holds all tokens of a draft, and a count says where its window is."""
    more = POOL | {"convolution": True}
    yield line(
        "convolution_drafts", "the window moves by what was accepted: into the next draft, a decode and a prefill", 7,
        admit(a=2, b=1), pooled(a=5, b=2), draft(4, ("b", 3, 2), ("a", 0, 4)), settle(a=3, b=1),
        draft(4, ("a", 0, 1), ("b", 3, 4)), settle(b=2, a=1), decode("b", None, "a"), draft(4, ("a", 4, 3)),
        settle(a=2), pooled(a=1, b=3), decode("a", "b"), finish("a", "b"), suite="smoke", regime="slow_decay", **more,
    )  # fmt: skip
    yield line(
        "convolution_drafts_reused", "a slot whose last owner had accepted three drafts", 5,
        admit(a=2), pooled(a=5), draft(3, ("a", 0, 3)), settle(a=3), finish("a"), admit(b=2), pooled(b=4),
        draft(3, ("b", 1, 2)), settle(b=2), decode("b"), finish("b"), suite="smoke", regime="long_memory", **more,
    )  # fmt: skip
    yield line(
        "convolution_drafts_copied", "a window that has moved is copied to forks and checkpoints, and evicted", 8,
        admit(a=2), pooled(None, "a", a=5), draft(3, ("a", 0, 3)), settle(a=3), fork("a", "b", 4), take("a", "kept", 5),
        draft(3, ("b", 1, 2), None, ("a", 2, 0)), settle(b=2, a=0), evict("a"), admit(c=2), restore("c", "kept"),
        resume("a", 6), move("b", 7), draft(3, ("a", 0, 2), ("b", 3, 1), ("c", 1, 3)), settle(a=1, b=1, c=2),
        decode("c", "b", "a"), finish("a", "b", "c"), preset=FOUR, **more,
    )  # fmt: skip


def _trees_with_windows() -> Iterator[dict[str, Any]]:
    """Drafts branch for both states: the window after a token is set aside beside the state, and both are copied."""
    more = POOL | {"convolution": True}
    yield line(
        "tree_windows", "the second child of a token counts, then the second beginning, for both states", 6,
        admit(a=1, b=0), pooled(a=6, b=3), draft(4, ("a", 2, FIRST), ("b", 5, SECOND)), settle(a=3, b=2),
        draft(4, ("b", 3, FIRST), None, ("a", 0, SECOND)), settle(b=4, a=3), decode("a", "b"), decode("b", None, "a"),
        finish("a", "b"), suite="smoke", regime="slow_decay", **more,
    )  # fmt: skip
    yield line(
        "tree_windows_rolled_back", "no draft counts, and both states stay; a slot that another has left", 4,
        admit(a=2), pooled(a=5), draft(3, ("a", 1, SECOND)), settle(a=0), draft(3, None, ("a", 3, [-1, 0, 0])),
        settle(None, "a", a=2), finish("a"), admit(b=2), draft(3, ("b", 1, SECOND)), settle(b=3), decode("b"),
        finish("b"), suite="smoke", regime="long_memory", **more,
    )  # fmt: skip
    yield line(
        "tree_windows_beside_a_chain", "rows with a tree, with a chain and with no draft; a chain alone", 7,
        admit(a=1, b=0, c=4), pooled(a=6, b=3, c=2), draft(5, ("a", 2, 5), ("b", 5, [-1, 0, 0, 2, 3]), ("c", 1, 0)),
        settle(c=0, b=5, a=4), draft(5, ("c", 6, 2), ("a", 5, 1)), decode("b"), settle(c=2, a=0), decode("c", "b", "a"),
        pooled(a=3, b=1), decode("a", "b"), finish("a", "b", "c"), regime="slow_decay", preset=FOUR, **more,
    )  # fmt: skip
    yield line(
        "tree_windows_copied", "both states go to forks, checkpoints and other slots; a request ends with drafts", 8,
        admit(a=1), pooled(a=61), pooled(a=(5, [(64, "edge", 4)])), admit(b=2), restore("b", "edge"),
        draft(4, ("b", 0, FIRST), ("a", 3, [-1, 0, 1, 0])), settle(a=4, b=3), fork("a", "c", 0), take("b", "kept", 6),
        draft(4, ("c", 1, SECOND), ("a", 5, FIRST), None, ("b", 2, 2)), settle(c=3, b=1), finish("a"), evict("b"),
        admit(d=1), restore("d", "kept"), resume("b", 5), move("c", 7), decode("d", "b", "c"),
        draft(4, ("d", 5, FIRST), ("b", 3, SECOND)), settle(d=4, b=1), decode("b", "d"), finish("b", "c", "d"),
        interval=64, **more,
    )  # fmt: skip
    yield line(
        "tree_windows_of_sixteen", "the most tokens that a tree may have, and a deep branch of them", 4,
        admit(a=3), pooled(a=5), draft(16, ("a", 1, [max(-1, t // 2 - 1) for t in range(16)])), settle(a=14),
        draft(16, ("a", 1, [-1, *range(14), 3])), settle(a=16), decode("a"), finish("a"), regime="slow_decay",
        preset=WIDE, **more,
    )  # fmt: skip


def _narrow() -> Iterator[dict[str, Any]]:
    """States in 16 bits."""
    more = POOL | {"states": "bfloat16"}
    yield line(
        "narrow_drafts", "states after drafts are rounded where they are set aside, and move as they are", 5,
        admit(a=1, b=3), pooled(a=12, b=4), draft(3, ("b", 0, 2), ("a", 2, 3)), settle(a=3, b=1), decode("a", "b"),
        pooled(a=6, b=1, behind=1), draft(3, ("a", 4, 1), None), settle(a=1), decode("b", "a"), finish("a", "b"),
        suite="smoke", **more,
    )  # fmt: skip
    yield line(
        "narrow_convolution_drafts", "both kinds of 16-bit states through drafts, an edge and a hit", 6,
        admit(a=1), pooled(a=(65, [(64, "edge", 4)])), admit(b=2), restore("b", "edge"),
        draft(2, ("b", 0, 2), ("a", 5, 1)), settle(a=1, b=2), pooled(b=2), decode("a", "b"), finish("a", "b"),
        interval=64, convolution=True, **more,
    )  # fmt: skip
    yield line(
        "narrow_tree", "states after a tree of drafts are rounded where they are set aside, not along a branch", 6,
        admit(a=1, b=0), pooled(a=6, b=3), draft(4, ("a", 2, FIRST), ("b", 5, SECOND)), settle(a=3, b=2),
        draft(4, ("b", 3, FIRST), None, ("a", 0, SECOND)), settle(b=4, a=3), decode("a", "b"), finish("a", "b"),
        suite="smoke", **more,
    )  # fmt: skip
    yield line(
        "narrow_tree_windows", "both 16-bit states through a tree, a chain and a draft of which none counts", 6,
        admit(a=1, b=0), pooled(a=6, b=3), draft(4, ("a", 2, FIRST), ("b", 5, 3)), settle(a=4, b=2),
        draft(4, ("b", 3, SECOND), ("a", 0, FIRST)), settle(b=3, a=0), decode("a", "b"), pooled(b=2), finish("a", "b"),
        convolution=True, **more,
    )  # fmt: skip
