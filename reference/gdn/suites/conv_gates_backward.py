"""Rows of the gradients of everything between the projections and the rule: those of its two halves, together."""

from collections.abc import Iterator

from .backward import REGIONS
from .heads import D120, GROUPS, GROUPS_128, GROUPS_OF_3, GVA_D120, ONE_NARROW, QWEN3_NEXT, SMALL, SMALL_128
from .line import Line
from .prefill import prefill

# Raw gates that are saturated, cotangents of every size, vectors as short as the norm's epsilon.
REGIMES = (
    "slow_decay", "fast_decay", "hard_reset", "beta_zero", "beta_one", "large_steps", "overflowing_rates",
    "large_activations", "single_cotangent", "tiny_cotangents", "huge_cotangents",
)  # fmt: skip
OPTIONAL = {
    "no_bias": (["conv_bias"], "the bias absent: zeros"),
    "from_zeros": (["initial_state"], "no initial state: zeros"),
    "without_dht": (["dht"], "dht absent: zeros"),
    "from_zeros_no_bias": (["conv_bias", "initial_state"], "neither bias nor initial_state"),
    "without_dht_no_bias": (["conv_bias", "dht"], "a state, no bias, no dht"),
    "states_absent": (["initial_state", "dht"], "a bias, and no states"),
}


def conv_gates_backward_smoke() -> Iterator[Line]:
    yield prefill("ragged", SMALL, "typical", (1, 70, 2, 129), covers="sequences around the kernel's width and a block")
    yield prefill("shorter", GROUPS, "typical", (1, 1, 2, 2, 3, 3), covers="sequences shorter than the kernel")
    yield prefill("empty", SMALL, "typical", (0, 5, 0, 0), covers="empty sequences: dh0 is dht")
    yield prefill("width_2", D120, "typical", (1, 40, 65), covers="a kernel of two tokens, as many keys as values")
    yield prefill(
        "width_3", GVA_D120, "typical", (2, 1, 66), omit=["conv_bias"], covers="a kernel of three tokens, no bias"
    )
    yield prefill(
        "only_required", SMALL, "typical", (50, 3), omit=["conv_bias", "initial_state", "dht"],
        covers="every optional input left out",
    )  # fmt: skip
    yield prefill("single", SMALL_128, "typical", (33,), covers="one sequence alone")
    yield prefill(
        "tiny", SMALL_128, "tiny_keys", (40,), omit=["conv_bias", "initial_state"],
        covers="vectors as short as the norm's epsilon, which stands inside the root",
    )  # fmt: skip


def conv_gates_backward_conformance() -> Iterator[Line]:
    yield prefill("no_tokens", SMALL, "typical", (0,), covers="no tokens at all: all sums are 0")
    yield prefill("all_empty", SMALL, "typical", (0, 0, 0), covers="empty sequences alone: all sums are 0")
    yield prefill("widest", QWEN3_NEXT, "typical", (5, 1, 2), covers="16 and 32 heads: 8192 channels of a real model")
    yield prefill("groups_of_three", GROUPS_OF_3, "typical", (65, 4, 30), covers="three value heads a key head")
    yield prefill("large_states", GROUPS_OF_3, "large_initial_state", (33, 64, 1), covers="silu far from 0 at first")
    yield prefill("tiny_inputs", SMALL, "tiny_keys", (33, 2), covers="inputs near 1e-4 behind a state and a bias")
    yield prefill("many", SMALL, "typical", (3, 1, 2, 5) * 18, covers="more sequences than a block of them")
    yield prefill("long", SMALL_128, "typical", (700, 1, 290), covers="many blocks of tokens")
    for name, (omit, covers) in OPTIONAL.items():
        yield prefill(name, GROUPS_128, "typical", (9, 1, 0, 20), omit=omit, covers=covers)
    yield prefill("padded_batch", SMALL, "typical", (33, 33), covers="sequences equally long")
    yield prefill("tokens_1900", ONE_NARROW, "typical", (1900,), covers="sums over 1,900 tokens")
    yield prefill("tokens_65600", ONE_NARROW, "typical", (65_600,), covers="sums over more than 65,535 tokens")
    yield prefill("sequences_2200", ONE_NARROW, "typical", (1, 0, 2) * 734, covers="more than 2,048 sequences")
    yield prefill(
        "regime_blank_tokens", GROUPS, "blank_tokens", (65, 9, 2), omit=["conv_bias"],
        covers="silu and its slope at 0, and queries and keys of zeros, which a norm divides",
    )  # fmt: skip
    for regime in REGIMES:
        yield prefill(f"regime_{regime}", GROUPS, regime, (65, 9, 2, 33), covers=f"the regime {regime}")


def conv_gates_backward_strict() -> Iterator[Line]:
    yield prefill("strict_gates_forget", GROUPS, "forget_regions", REGIONS, covers="each region of the gate")
    yield prefill("strict_gates_write", GROUPS, "write_regions", REGIONS, covers="each region of the gate that writes")


def conv_gates_backward_performance() -> Iterator[Line]:
    for name, lengths in (("1x2048", (2048,)), ("4x2048", (2048,) * 4)):
        yield prefill(f"16x32_{name}", QWEN3_NEXT, "typical", lengths, omit=["conv_bias"])


CONV_GATES_BACKWARD = {
    "smoke": conv_gates_backward_smoke, "conformance": conv_gates_backward_conformance,
    "strict": conv_gates_backward_strict, "performance": conv_gates_backward_performance,
}  # fmt: skip
