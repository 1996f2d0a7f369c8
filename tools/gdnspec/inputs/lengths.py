"""Sequence lengths and batch sizes from a SPEC: a list, uniform:LO:HI or lognormal:MEDIAN:SIGMA."""

import math
from dataclasses import dataclass

import numpy as np

from gdnspec.inputs.random import Stream
from gdnspec.model.errors import SpecError

LONGEST = 1 << 24
FORMS = "a list such as 1,63,1000, or uniform:LO:HI, or lognormal:MEDIAN:SIGMA"


@dataclass(frozen=True)
class Spec:
    """A parsed SPEC. `fixed`: the values, if it is a list."""

    text: str
    fixed: tuple[int, ...] | None = None
    kind: str = ""
    parameters: tuple[float, float] = (0.0, 0.0)

    def draw(self, stream: Stream, count: int) -> list[int]:
        """`count` lengths."""
        if self.fixed is not None:
            return [self.fixed[i % len(self.fixed)] for i in range(count)]
        a, b = self.parameters
        if self.kind == "uniform":
            span = int(b) - int(a) + 1
            return [int(a) + int(x % np.uint64(span)) for x in stream.raw(count)]
        values = np.exp(math.log(a) + b * stream.normal(count))
        return [int(min(max(round(float(x)), 1), LONGEST)) for x in values]


def parse(text: str, option: str) -> Spec:
    """Parses a SPEC. Raises `SpecError`, which names the option, if the text has none of the three forms."""
    try:
        if not text.isascii() or "_" in text:
            raise ValueError
        kind, *rest = text.split(":")
        if kind in ("uniform", "lognormal"):
            a, b = (float(x) for x in rest)
            whole = kind == "lognormal" or (a == int(a) and b == int(b))
            if not (whole and 0 <= a <= LONGEST and b >= 0 and (kind == "lognormal" or a <= b <= LONGEST)):
                raise ValueError
            if kind == "lognormal" and (a < 1 or b > 10):
                raise ValueError
            return Spec(text, kind=kind, parameters=(a, b))
        fixed = tuple(int(x) for x in text.split(","))
        if any(x < 0 or x > LONGEST for x in fixed):
            raise ValueError
        return Spec(text, fixed=fixed)
    except (ValueError, OverflowError):
        raise SpecError(f"{option} {text!r} is not {FORMS}, each at most {LONGEST}") from None
