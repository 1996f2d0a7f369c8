"""Numbers with units, for text output."""


def shown_time(seconds: float) -> str:
    """Three digits and a unit: `83.4 us`, `1.25 ms`, `2.10 s`."""
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if float(f"{seconds / size:.3g}") < 1000:
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(seconds)} s"


def shown_resolved(seconds: float, resolved: float) -> str:
    """A time; below the clock's resolution, `under` that resolution: `under 0.0125 us`."""
    return shown_time(seconds) if seconds >= resolved else f"under {shown_time(resolved)}"


def _three(value: float) -> str:
    """Three digits, without an exponent: 83.4, 1.20, 0.00123."""
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f}" if value >= 0.995 or value == 0 else f"{value:.3g}"


def shown_ratio(ratio: float, interval: tuple[float, float]) -> tuple[str, str]:
    """A ratio and its interval: `1.234` and `[1.221, 1.247]`."""
    low, high = interval
    return f"{ratio:.3f}", f"[{low:.3f}, {high:.3f}]"


def shown_part(share: float) -> str:
    """A share of a bound, which may be small: `82%`, `0.099%`."""
    return f"{100 * share:.0f}%" if share >= 0.1 else f"{100 * share:.2g}%"


def shown_share(share: float | None) -> str:
    """A share of a bound: `82%`; empty if it is unknown."""
    return "" if share is None else f"{share:.0%}"
