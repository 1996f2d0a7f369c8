"""Rows of verify: draft tokens, of which some were accepted."""

from collections.abc import Iterator
from typing import Any

from .heads import GROUPS, GROUPS_128, GROUPS_OF_3, GVA_D120, QWEN3_NEXT, SMALL, SMALL_128
from .line import ONE_TOKEN_REGIMES, Line
from .slots import somewhere


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


VERIFY = {"smoke": verify_smoke, "conformance": verify_conformance, "performance": verify_performance}
