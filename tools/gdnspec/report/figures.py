"""How the page shows numbers and text from files."""

import math
from collections.abc import Sequence

LONGEST = 2000  # characters of one text; a message in a file may have a megabyte


def seconds(x: float) -> str:
    """A time with about four digits, in µs below a millisecond and in ms above."""
    return f"{_four(x * 1e6)} µs" if x < 1e-3 else f"{_four(x * 1e3)} ms"


def interval(low: float, high: float) -> str:
    """Two times in one unit, which is chosen by the second."""
    scale, unit = (1e6, "µs") if high < 1e-3 else (1e3, "ms")
    return f"{_four(low * scale)}\u2013{_four(high * scale)} {unit}"


def _four(x: float) -> str:
    if x >= 1000:
        return f"{x:,.0f}"
    return f"{x:.1f}" if x >= 100 else f"{x:.2f}"


def percent(x: float) -> str:
    if not math.isfinite(x):
        return "∞"
    if x >= 10:
        return f"{x:.0f}x" if x < 1e4 else f"{x:.1e}x"
    return f"{100 * x:.0f}%" if x >= 0.1 else f"{100 * x:.1f}%"


def ratio(x: float) -> str:
    return f"{x:.0f}x" if x >= 100 else f"{x:.1f}x" if x >= 10 else f"{x:.2f}x"


def significant(x: float | None) -> str:
    """Three digits; `None` means not finite."""
    return "not finite" if x is None else f"{x:.3g}"


def lengths(values: Sequence[int] | None) -> str:
    """Sequence lengths: all of them if they are few, otherwise their number and range."""
    if values is None:
        return ""
    if len(values) > 1 and len(set(values)) == 1:
        return f"{len(values)} x {values[0]}"
    if len(values) <= 24:
        return ", ".join(map(str, values))
    return f"{len(values)} sequences of {min(values)} to {max(values)}"


def plain(text: object) -> str:
    """Text from a file, shortened, with control characters and marks of direction made visible."""
    whole = str(text)
    short = whole if len(whole) <= LONGEST else whole[:LONGEST] + "…"
    if short.isprintable():
        return short
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in short)
