"""Rows past 65,535 pairs of a sequence and a head: many narrow heads, so that 129 rows are a few megabytes."""

from collections.abc import Callable, Iterator

from .checkpoints import kept
from .convolution import convolution, shifted
from .decode import decode
from .edges import edged, windowed
from .heads import MANY_HEADS, ONE_NARROW
from .layer import layer, layer_rows
from .line import Line
from .pool import pool
from .slots import in_place
from .verify import verify

MANY = 129
FEW_TOKENS = (1, 2, 1, 0, 3, 1) * 21 + (2, 1, 2)
PAIRS = "66,048 pairs of a sequence and a head: past what one axis of a grid takes"
ROWS_65540 = "65,540 rows: past what one axis of a grid takes"


def many_prefill(line: Callable[..., Line]) -> Iterator[Line]:
    # Where a token forgets all before it, an output is u (k . q), which in eight channels may be next to nothing.
    yield line("pairs_66048", MANY_HEADS, "slow_decay", FEW_TOKENS, covers=PAIRS)


def many_checkpoints() -> Iterator[Line]:
    # No sequence reaches an interval: one of 64 tokens would pad all others to a whole chunk of 512 heads.
    yield kept("pairs_66048", MANY_HEADS, "slow_decay", 64, FEW_TOKENS, covers=PAIRS)


def many_decode() -> Iterator[Line]:
    yield decode("pairs_66048", MANY_HEADS, "typical", MANY, covers=PAIRS)
    yield decode("rows_65540", ONE_NARROW, "typical", 65540, covers=ROWS_65540)


def many_pool() -> Iterator[Line]:
    rows = in_place("pairs_66048", MANY, MANY + 3)
    yield pool("pairs_66048", MANY_HEADS, "typical", MANY + 3, rows, covers=PAIRS)


def many_verify() -> Iterator[Line]:
    accepted = [n % 3 for n in range(MANY)]
    yield verify("pairs_66048", MANY_HEADS, "typical", 2, accepted, covers=PAIRS)


def many_convolution() -> Iterator[Line]:
    flags = "".join("+-"[n % 2] for n in range(MANY))
    covers = "129 sequences of 8,192 channels: past what one axis of a grid takes"
    yield convolution("pairs_1056768", MANY_HEADS, FEW_TOKENS, flags, covers=covers)


def many_edges() -> Iterator[Line]:
    yield edged("pairs_66048", MANY_HEADS, "slow_decay", 64, FEW_TOKENS, (62, 0, 63), covers=PAIRS)


def many_windows() -> Iterator[Line]:
    flags = "".join("+-"[n % 2] for n in range(MANY))
    covers = "129 sequences of 8,192 channels: past what one axis of a grid takes"
    yield windowed("pairs_1056768", MANY_HEADS, 64, FEW_TOKENS, flags, (62, 0, 63), covers=covers)


def many_convolution_decode() -> Iterator[Line]:
    covers = "129 rows of 8,192 channels: past what one axis of a grid takes"
    yield shifted("pairs_1056768", MANY_HEADS, MANY, MANY + 3, covers=covers)


def many_layer() -> Iterator[Line]:
    # The projections' rounding must stay small in each of a million rows of two states: beside large ones it does, as
    # long as something of them is left.
    lengths = (1, 2, 1, 0, 2, 1) * 21 + (2, 1, 2)
    yield layer("pairs_66048", MANY_HEADS, lengths, "+" * MANY, regime="large_initial_state", covers=PAIRS)


def many_layer_decode() -> Iterator[Line]:
    yield layer_rows("pairs_66048", MANY_HEADS, MANY, regime="large_initial_state", covers=PAIRS)
