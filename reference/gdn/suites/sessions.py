"""The sessions that the family ships. `tools/make_sessions.py` writes them, with hashes and budgets.

Each is small: a few requests of some dozens of tokens. Lengths stand where public reports have them: 64 n + 5, and
cache hits that end 4 to 10 tokens past a block. Those on the pool are in suites/sessions_on_pools.py.
"""

from collections.abc import Iterator
from typing import Any

from .session_steps import (
    FOUR,
    MHA,
    SIX,
    WIDE,
    admit,
    commit,
    decode,
    drop,
    evict,
    finish,
    fork,
    line,
    move,
    prefill,
    restore,
    resume,
    roll_back,
    take,
    verify,
)
from .sessions_on_pools import on_pools


def lines() -> Iterator[dict[str, Any]]:
    """All sessions, in the order of the file: smoke first."""
    made = [
        *_prompts(),
        *_checkpoints(),
        *_slots(),
        *_drafts(),
        *_convolution(),
        *_narrow(),
        *_mixed(),
        *_wide(),
        *on_pools(),
    ]
    yield from sorted(made, key=lambda one: one["suite"] != "smoke")


def _prompts() -> Iterator[dict[str, Any]]:
    """Prefill in pieces, then decode."""
    yield line(
        "prompt_then_decode", "prompts of three lengths in one call, then rows in another order", 6,
        admit(a=4, b=1, c=2), prefill(a=65, b=1, c=31), decode("a", "b", "c"), decode("c", "a"), decode("b", "c", "a"),
        finish("a", "b", "c"), suite="smoke",
    )  # fmt: skip
    yield line(
        "prompt_in_pieces", "pieces of 64, 5, 63 and 1 tokens beside another request that begins and decodes", 4,
        admit(a=2), prefill(a=64), admit(b=0), prefill(a=5, b=17), decode("b"), prefill(a=63), decode("b"),
        prefill(a=1, b=3), decode("a", "b"), finish("a", "b"), suite="smoke", regime="slow_decay",
    )  # fmt: skip
    yield line(
        "lengths_64n_plus_5", "prompts of 5, 69 and 133 tokens", 5,
        admit(a=3, b=0, c=1), prefill(a=69, b=133, c=5), decode("a", "b", "c"), finish("a", "b", "c"),
        suite="smoke", regime="long_memory",
    )  # fmt: skip
    yield line(
        "lengths_64n_plus_5_carried", "the same lengths from a state, in a second call", 5,
        admit(a=3, b=0, c=1), prefill(a=3, b=64, c=11), prefill(a=69, b=5, c=133), decode("a", "b", "c"),
        finish("a", "b", "c"), regime="slow_decay",
    )  # fmt: skip
    yield line(
        "piece_without_tokens", "a row without tokens keeps its state; one that is new begins with zeros", 5,
        admit(a=3, b=0), prefill(a=12, b=0), prefill(a=0, b=9), decode("a", "b"), finish("a", "b"),
    )  # fmt: skip
    yield line(
        "fresh_beside_carried", "a call in which some rows begin and others go on", 6,
        admit(a=0), prefill(a=40), admit(b=5, c=2), prefill(a=8, b=40, c=1), decode("c", "b", "a"),
        finish("a", "b", "c"), suite="smoke", preset=WIDE,
    )  # fmt: skip
    yield line(
        "decode_alone", "a request that has never been prefilled decodes from zeros", 4,
        admit(a=1, b=3), decode("a"), decode("b", "a"), decode("a", "b"), finish("a", "b"), suite="smoke",
        regime="long_memory",
    )  # fmt: skip
    yield line(
        "many_short_pieces", "one token at a time through a prefill", 3,
        admit(a=1), *[prefill(a=1) for _ in range(6)], decode("a"), finish("a"), regime="beta_one",
    )  # fmt: skip
    yield line(
        "resets_between_pieces", "gates that are exactly zero at edges of chunks", 4,
        admit(a=2, b=1), prefill(a=64, b=63), prefill(a=64, b=66), decode("a", "b"), finish("a", "b"),
        regime="hard_reset", preset=WIDE,
    )  # fmt: skip


def _checkpoints() -> Iterator[dict[str, Any]]:
    """A prefix cache."""
    hits = {f"h{n}": n for n in range(4, 11)}
    yield line(
        "hit_4_to_10_past_a_block", "seven requests hit one block, and end 4 to 10 tokens past it", 14,
        admit(a=11), prefill(a=(70, [(64, "block", 3)])), admit(**{name: i + 4 for i, name in enumerate(hits)}),
        [restore(name, "block") for name in hits], prefill(**hits), decode(*hits), finish("a", *hits),
        suite="smoke", regime="slow_decay", interval=64,
    )  # fmt: skip
    yield line(
        "hit_the_second_block", "two blocks kept in one call, each restored by another request", 8,
        admit(a=0), prefill(a=(133, [(64, "first", 3), (128, "second", 1)])), admit(b=5, c=6), restore("b", "second"),
        restore("c", "first"), prefill(b=7, c=66), decode("c", "a", "b"), finish("a", "b", "c"),
        suite="smoke", regime="long_memory", interval=64,
    )  # fmt: skip
    yield line(
        "hit_decodes_at_once", "a hit whose next step is a decode", 6,
        admit(a=1), prefill(a=(65, [(64, "block", 4)])), admit(b=2), restore("b", "block"), decode("b"),
        decode("b", "a"), finish("a", "b"), interval=64,
    )  # fmt: skip
    yield line(
        "taken_at_any_token", "a checkpoint by copy after 37 tokens, while its request goes on", 6,
        admit(a=1), prefill(a=37), take("a", "here", 5), prefill(a=20), admit(b=3), restore("b", "here"),
        prefill(b=20), decode("a", "b"), finish("a", "b"), suite="smoke", regime="slow_decay",
    )  # fmt: skip
    yield line(
        "taken_after_a_decode", "a checkpoint behind the answer, for the next turn of a conversation", 6,
        admit(a=1), prefill(a=9), decode("a"), decode("a"), take("a", "turn", 4), finish("a"), admit(b=1),
        restore("b", "turn"), prefill(b=13), decode("b"), finish("b"), regime="long_memory",
    )  # fmt: skip
    yield line(
        "kept_between_edges", "a call that starts 5 tokens into a block keeps the state after 69", 6,
        admit(a=1, b=3), prefill(a=5, b=64), prefill(a=(70, [(69, "off", 0)]), b=(64, [(128, "on", 5)])), admit(c=2),
        restore("c", "off"), prefill(c=6), decode("a", "c"), finish("c"), admit(d=2), restore("d", "on"),
        decode("b", "d"), finish("a", "b", "d"), interval=64,
    )  # fmt: skip
    yield line(
        "kept_from_the_second_block", "a call that starts at an edge keeps the state at the next, and goes on", 5,
        admit(a=1), prefill(a=64), prefill(a=(129, [(128, "block", 3)])), admit(b=2), restore("b", "block"),
        decode("b", "a"), finish("a", "b"), regime="slow_decay", interval=64,
    )  # fmt: skip
    yield line(
        "kept_at_the_end", "a checkpoint after the last token of a piece is its final state", 5,
        admit(a=1), prefill(a=(64, [(64, "end", 3)])), admit(b=2), restore("b", "end"), decode("a", "b"),
        finish("a", "b"), suite="smoke", interval=64, preset=WIDE,
    )  # fmt: skip
    yield line(
        "dropped_and_taken_again", "a dropped checkpoint's slot holds another one", 6,
        admit(a=1, b=2), prefill(a=20, b=33), take("a", "one", 4), drop("one"), take("b", "one", 4), admit(c=0),
        restore("c", "one"), decode("c", "a"), finish("a", "b", "c"), regime="slow_decay",
    )  # fmt: skip
    yield line(
        "chain_of_hits", "a hit that goes on to the next block, which a third request hits", 8,
        admit(a=1), prefill(a=(64, [(64, "first", 5)])), finish("a"), admit(b=1), restore("b", "first"),
        prefill(b=(64, [(128, "second", 6)])), admit(c=2), restore("c", "second"), prefill(c=4), decode("c", "b"),
        finish("b", "c"), regime="long_memory", interval=64,
    )  # fmt: skip
    yield line(
        "blocks_of_128", "a block of 128 tokens, and two rows that keep in one call", 8,
        admit(a=1, b=2), prefill(a=(129, [(128, "of_a", 5)]), b=(128, [(128, "of_b", 0)])), admit(c=3, d=4),
        restore("c", "of_b"), restore("d", "of_a"), prefill(d=5, c=5), decode("a", "b", "c", "d"),
        finish("a", "b", "c", "d"), interval=128, preset=WIDE,
    )  # fmt: skip


def _slots() -> Iterator[dict[str, Any]]:
    """Slots change hands."""
    yield line(
        "slot_reused", "a new request begins in the slot of a finished one", 3,
        admit(a=1), prefill(a=20), decode("a"), finish("a"), admit(b=1), prefill(b=7), decode("b"), finish("b"),
        suite="smoke", regime="long_memory",
    )  # fmt: skip
    yield line(
        "slot_reused_by_a_decode", "the same, and the new request decodes first", 3,
        admit(a=1), prefill(a=20), finish("a"), admit(b=1), decode("b"), decode("b"), finish("b"),
        suite="smoke", regime="long_memory", preset=WIDE,
    )  # fmt: skip
    yield line(
        "slot_zero", "slot 0 holds a request while rows are padded", 4,
        admit(a=0, b=2), prefill(a=12, b=15), decode("b", None, None), decode("a", "b", None, None), decode(None, "a"),
        finish("a", "b"), suite="smoke",
    )  # fmt: skip
    yield line(
        "only_padding", "a captured batch in which no row is left", 3,
        admit(a=0), prefill(a=10), decode(None, None), decode("a", None), finish("a"),
    )  # fmt: skip
    yield line(
        "moved", "requests change their slots, by a copy and while they decode", 7,
        admit(a=0, b=1), prefill(a=12, b=15), move("a", 5), decode("a", "b"), decode("a>0", "b>3"), decode("b", "a"),
        move("b", 1), decode("b"), finish("a", "b"), suite="smoke", regime="slow_decay",
    )  # fmt: skip
    yield line(
        "moved_into_a_freed_slot", "a slot that held a longer request", 5,
        admit(a=0, b=1), prefill(a=32, b=15), finish("a"), move("b", 0), decode("b"), admit(c=1), prefill(c=4),
        decode("c", "b"), finish("b", "c"), regime="long_memory",
    )  # fmt: skip
    yield line(
        "evicted_and_resumed", "a request comes back in another slot, while its old one serves another", 5,
        admit(a=2, b=1), prefill(a=21, b=9), evict("a"), admit(c=2), prefill(c=11), decode("b", "c"), resume("a", 3),
        decode("a", "b", "c"), finish("a", "b", "c"), suite="smoke", regime="slow_decay",
    )  # fmt: skip
    yield line(
        "evicted_and_computed_again", "a preempted request computes all its tokens again", 5,
        admit(a=2, b=1), prefill(a=13, b=9), decode("a", "b"), evict("a"), decode("b"), resume("a", 0, recompute=True),
        decode("a", "b"), finish("a", "b"), suite="smoke", regime="slow_decay",
    )  # fmt: skip
    yield line(
        "finished_while_evicted", "a client leaves while its request has no slot", 4,
        admit(a=2, b=1), prefill(a=13, b=9), evict("a"), finish("a"), admit(c=2), decode("c", "b"), finish("b", "c"),
    )  # fmt: skip
    yield line(
        "evicted_before_the_first_token", "a request without a token loses its slot and gets another", 4,
        admit(a=2), evict("a"), admit(b=2), prefill(b=8), resume("a", 0), prefill(a=5, b=2), decode("a", "b"),
        finish("a", "b"), regime="beta_one",
    )  # fmt: skip
    yield line(
        "evicted_twice", "in and out twice, with tokens between", 4,
        admit(a=2, b=0), prefill(a=13, b=3), evict("a"), resume("a", 3), decode("a", "b"), evict("a"), evict("b"),
        resume("b", 3), resume("a", 0), decode("a", "b"), finish("a", "b"), regime="long_memory",
    )  # fmt: skip


def _drafts() -> Iterator[dict[str, Any]]:
    """Speculative decoding."""
    yield line(
        "drafts_accepted_in_part", "verify again and again from the state after the accepted drafts", 10,
        admit(a=0, b=1), prefill(a=11, b=18), verify(3, ("a", [2, 3, 4], 2), ("b", [5, 6, 7], 1)),
        verify(3, ("a", [2, 3, 4], 3), ("b", [5, 6, 7], 2)), verify(3, ("b", [5, 6, 7], 1), ("a", [2, 3, 4], 1)),
        commit("a"), commit("b"), decode("a", "b"), finish("a", "b"), suite="smoke", regime="slow_decay",
    )  # fmt: skip
    yield line(
        "drafts_rolled_back", "fewer drafts count than were accepted", 8,
        admit(a=0), prefill(a=11), verify(4, ("a", [2, 3, 4, 5], 4)), roll_back("a", 2), commit("a"), decode("a"),
        verify(4, ("a", [2, 3, 4, 5], 3)), roll_back("a", 0), verify(4, ("a", [2, 3, 4, 5], 1)), commit("a"),
        decode("a"), finish("a"), suite="smoke", regime="long_memory",
    )  # fmt: skip
    yield line(
        "no_draft_accepted", "the state before the verify stays the one that counts", 8,
        admit(a=0, b=6), prefill(a=11, b=2), verify(2, ("a", [2, 3], 0), ("b", [4, 5], 2)), commit("b"),
        verify(2, ("a", [2, 3], 0), ("b", [4, 5], 0)), verify(2, ("a", [2, 3], 1), ("b", [4, 5], 1)), commit("a"),
        decode("a", "b"), finish("a", "b"), suite="smoke", regime="slow_decay",
    )  # fmt: skip
    yield line(
        "drafts_then_decode", "a decode goes on from the last accepted draft, without a commit", 8,
        admit(a=0, b=7), prefill(a=6, b=5), verify(3, ("a", [2, 3, 4], 2)), decode("b", "a"),
        verify(3, ("a", [4, 2, 3], 0)), decode("a", "b"), finish("a", "b"), preset=WIDE,
    )  # fmt: skip
    yield line(
        "drafts_beside_padding", "padded rows in a verify, while slot 0 holds a request", 8,
        admit(a=0, b=7), prefill(a=6, b=5), verify(2, None, ("b", [2, 3], 1), None), commit("b"), decode("a", "b"),
        verify(2, ("a", [2, 3], 2), None), commit("a"), decode("a", None), finish("a", "b"), suite="smoke",
    )  # fmt: skip
    yield line(
        "drafts_of_a_new_request", "a request without a prompt verifies first", 6,
        admit(a=0), verify(3, ("a", [2, 3, 4], 2)), verify(3, ("a", [2, 3, 4], 1)), commit("a"), finish("a"),
        regime="beta_one",
    )  # fmt: skip
    yield line(
        "drafts_dropped_at_the_end", "a request finishes with drafts, and another takes their slots", 7,
        admit(a=0), prefill(a=9), verify(3, ("a", [2, 3, 4], 2)), finish("a"), admit(b=3), prefill(b=5),
        verify(2, ("b", [0, 2], 2)), commit("b"), decode("b"), finish("b"), regime="long_memory",
    )  # fmt: skip
    yield line(
        "sixteen_drafts", "the most drafts that a row may have", 18,
        admit(a=17), prefill(a=7), verify(16, ("a", list(range(16)), 16)), verify(16, ("a", list(range(16)), 9)),
        roll_back("a", 5), commit("a"), decode("a"), finish("a"), regime="slow_decay", preset=WIDE,
    )  # fmt: skip
    yield line(
        "checkpoint_after_a_roll_back", "what is kept has not seen the drafts that were taken back", 8,
        admit(a=0), prefill(a=11), verify(3, ("a", [2, 3, 4], 3)), roll_back("a", 1), commit("a"), take("a", "kept", 5),
        decode("a"), admit(b=6), restore("b", "kept"), decode("b", "a"), finish("a", "b"), suite="smoke",
        regime="long_memory",
    )  # fmt: skip
    yield line(
        "one_draft_at_a_time", "a verify of one draft beside others' decodes", 6,
        admit(a=0, b=1), prefill(a=4, b=4), *[verify(1, ("a", [3], n % 2)) for n in (0, 1)], decode("b"),
        commit("a"), verify(1, ("b", [4], 1), ("a", [3], 0)), commit("b"), decode("a", "b"), finish("a", "b"),
    )  # fmt: skip


def _convolution() -> Iterator[dict[str, Any]]:
    """The convolution's state beside the recurrent one."""
    more = {"convolution": True}
    yield line(
        "convolution_in_pieces", "pieces shorter and longer than the convolution's state", 5,
        admit(a=1, b=3), prefill(a=1, b=13), prefill(a=2, b=5), decode("a", "b"), prefill(a=17, b=1), decode("b", "a"),
        finish("a", "b"), suite="smoke", **more,
    )  # fmt: skip
    yield line(
        "convolution_slot_reused", "a flag says that a reused slot holds nothing, though it does", 4,
        admit(a=1), prefill(a=9), decode("a"), finish("a"), admit(b=1), prefill(b=2), decode("b"), finish("b"),
        suite="smoke", regime="long_memory", **more,
    )  # fmt: skip
    yield line(
        "convolution_decode_first", "a reused slot, whose new request decodes first", 4,
        admit(a=1), prefill(a=9), finish("a"), admit(b=1, c=0), decode("b", None), decode("c", "b"), finish("b", "c"),
        preset=SIX, **more,
    )  # fmt: skip
    yield line(
        "convolution_hit", "a block's checkpoint has the convolution's state beside it", 6,
        admit(a=1), prefill(a=(68, [(64, "block", 4)])), admit(b=2), restore("b", "block"), prefill(b=5),
        decode("a", "b"), finish("a", "b"), suite="smoke", interval=64, **more,
    )  # fmt: skip
    yield line(
        "convolution_short_hit", "pieces behind a hit are shorter than the convolution's state", 6,
        admit(a=1), prefill(a=(66, [(64, "block", 4)])), admit(b=2), restore("b", "block"), prefill(b=2), admit(c=3),
        restore("c", "block"), prefill(c=1), decode("b", "c"), prefill(c=2, b=3), finish("a", "b", "c"), interval=64,
        **more,
    )  # fmt: skip
    yield line(
        "convolution_rolled_back", "the convolution's state goes back with the drafts", 8,
        admit(a=0), prefill(a=11), verify(4, ("a", [2, 3, 4, 5], 3)), roll_back("a", 1), commit("a"), decode("a"),
        verify(4, ("a", [2, 3, 4, 5], 0)), decode("a"), finish("a"), suite="smoke", regime="slow_decay", **more,
    )  # fmt: skip
    yield line(
        "convolution_evicted", "both states leave and come back", 5,
        admit(a=2, b=1), prefill(a=21, b=9), evict("a"), admit(c=2), prefill(c=3), resume("a", 3), decode("a", "c"),
        finish("a", "b", "c"), **more,
    )  # fmt: skip
    yield line(
        "convolution_moved_and_forked", "both states are copied", 6,
        admit(a=2), prefill(a=21), fork("a", "b", 4), move("a", 0), decode("a", "b"), decode("b>5", "a"), decode("b"),
        finish("a", "b"), preset=FOUR, **more,
    )  # fmt: skip


def _narrow() -> Iterator[dict[str, Any]]:
    """States in 16 bits."""
    more = {"states": "bfloat16"}
    yield line(
        "narrow_states", "states are rounded when they are stored, after a prefill and after each decode", 5,
        admit(a=1, b=3), prefill(a=30, b=13), *[decode("a", "b") for _ in range(4)], prefill(a=5), decode("b", "a"),
        finish("a", "b"), suite="smoke", **more,
    )  # fmt: skip
    yield line(
        "narrow_slot_reused", "a reused slot of 16-bit states", 3,
        admit(a=1), prefill(a=30), finish("a"), admit(b=1), decode("b", None), decode("b"), finish("b"),
        suite="smoke", regime="long_memory", preset=WIDE, **more,
    )  # fmt: skip
    yield line(
        "narrow_hit", "a checkpoint of 16-bit states", 7,
        admit(a=1), prefill(a=(69, [(64, "block", 4)])), admit(b=2), restore("b", "block"), prefill(b=5),
        decode("a", "b"), evict("b"), resume("b", 6), decode("b"), finish("a", "b"), interval=64, **more,
    )  # fmt: skip
    yield line(
        "narrow_convolution", "16-bit states beside those of the convolution", 6,
        admit(a=1), prefill(a=14), fork("a", "b", 3), decode("b", None, "a"), move("b", 0), decode("b", "a"),
        finish("a", "b"), convolution=True, **more,
    )  # fmt: skip


def _mixed() -> Iterator[dict[str, Any]]:
    """Forks, and everything at once."""
    yield line(
        "forked", "two answers to one prompt, in slots of their own", 5,
        admit(a=1), prefill(a=22), fork("a", "b", 3), decode("a", "b"), decode("a"), fork("b", "c", 0),
        decode("c", "b", "a"), finish("a", "b", "c"), suite="smoke", regime="slow_decay",
    )  # fmt: skip
    yield line(
        "source_of_a_fork_finishes", "a fork lives on when its source is gone and its slot is reused", 4,
        admit(a=1), prefill(a=22), fork("a", "b", 3), finish("a"), admit(c=1), prefill(c=9), decode("b", "c"),
        finish("b", "c"), regime="long_memory", preset=MHA,
    )  # fmt: skip
    yield line(
        "drafts_of_forks", "forks verify different drafts of one prompt", 10,
        admit(a=1), prefill(a=12), fork("a", "b", 3), verify(2, ("a", [4, 5], 1), ("b", [6, 7], 2)), commit("b"),
        commit("a"), decode("a", "b"), finish("a", "b"), preset=FOUR,
    )  # fmt: skip
    yield line(
        "a_day_of_a_server", "hits, forks, drafts, evictions, padding and moves over one pool", 16,
        admit(a=0, b=1), prefill(a=(70, [(64, "system", 2)]), b=9), decode("a", "b", None), admit(c=3),
        restore("c", "system"), prefill(c=6, b=5), verify(3, ("a", [4, 5, 6], 2), ("c", [7, 8, 9], 3)),
        roll_back("c", 1), commit("c"), fork("c", "d", 10), verify(3, ("a", [4, 5, 6], 1)), commit("a"), evict("b"),
        decode("c", "a", "d", None), finish("c"), admit(e=3), prefill(e=4), move("d", 12), resume("b", 7),
        decode("e", "d", "b", "a"), drop("system"), take("d", "kept", 2), finish("a", "b", "d"), admit(f=0),
        restore("f", "kept"), decode("f", "e"), finish("e", "f"), regime="slow_decay", interval=64,
    )  # fmt: skip


def _wide() -> Iterator[dict[str, Any]]:
    """Heads of 128, which most kernels are made for. All of these need no more than a prefill and a decode."""
    more: dict[str, Any] = {"preset": WIDE}
    yield line(
        "wide_fork", "two answers to one prompt, and the prompt's own request goes on in another slot", 6,
        admit(a=1), prefill(a=69), fork("a", "b", 3), decode("b", "a"), fork("b", "c", 0), move("a", 5),
        decode("c", "b", "a"), finish("a", "b", "c"), regime="slow_decay", **more,
    )  # fmt: skip
    yield line(
        "wide_moved", "requests change their slots while they decode, into slots that others have left", 6,
        admit(a=0, b=1), prefill(a=64, b=15), decode("a>4", "b>2"), decode("b>0", "a>1"), move("b", 4), prefill(b=66),
        decode("a", "b"), finish("a", "b"), regime="long_memory", preset=SIX,
    )  # fmt: skip
    yield line(
        "wide_evicted", "a request comes back in another slot, and one computes all its tokens again", 5,
        admit(a=2, b=1), prefill(a=65, b=9), evict("a"), admit(c=2), prefill(c=128), decode("b", "c"), resume("a", 3),
        evict("b"), decode("c", "a"), resume("b", 0, recompute=True), decode("a", "b", "c"), finish("a", "b", "c"),
        regime="slow_decay", **more,
    )  # fmt: skip
    yield line(
        "wide_hit_by_copy", "hits end 4 and 10 tokens past a checkpoint, in one call with a new request", 8,
        admit(a=1), prefill(a=64), take("a", "block", 6), prefill(a=6), admit(b=2, c=3, d=4), restore("b", "block"),
        restore("c", "block"), prefill(c=10, d=5, b=4), decode("a", "b", "c", "d"), finish("a", "b", "c", "d"),
        regime="long_memory", preset=SIX,
    )  # fmt: skip
    yield line(
        "wide_lengths_64n_plus_5", "prompts of 5, 69 and 133 tokens, from zeros and states, then beside padding", 6,
        admit(a=3, b=0, c=1), prefill(a=69, b=133, c=5), prefill(c=69, a=5, b=1), decode("c", None, "a", "b"),
        decode("b", "c", None, None), finish("a", "b", "c"), regime="slow_decay", **more,
    )  # fmt: skip
    yield line(
        "wide_narrow_states", "16-bit states are forked, evicted and moved, and a slot is used again", 6,
        admit(a=1, b=3), prefill(a=70, b=13), fork("a", "c", 0), decode("c", "a", "b"), evict("a"), finish("b"),
        admit(d=3), prefill(d=64), resume("a", 5), move("c", 1), decode("d", "c", None, "a"), decode("a", "d"),
        finish("a", "c", "d"), regime="long_memory", states="bfloat16", **more,
    )  # fmt: skip
