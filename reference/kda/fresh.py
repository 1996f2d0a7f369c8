"""Workloads that nobody has seen: drawn anew for every check, their lengths and gates published nowhere."""

from typing import Any

import numpy as np
from gdnspec.family import FLOATS, Published, Stream, Workload, sizes

NAMES = {"cpu": ("fresh_typical", "fresh_regime"), "cuda": ("fresh_typical", "fresh_regime", "fresh_large")}
# Where ordinary arithmetic keeps its margin whatever the seed.
REGIMES = ("typical", "mild_decay", "fast_decay", "deep_sums", "mixed_channels", "lower_bound", "large_initial_state")
SMALL, LARGE = ("synthetic-gva-1x2-d64", "synthetic-gva-1x2-d128"), ("kimi-linear-48b-a3b-tp1", "glm-5.3-flash-tp4")
SHORT, MOST_ROWS = 70, 12  # tokens, just past a chunk; rows of decode


class Lines:
    """The fresh lines of one definition."""

    def __init__(self, published: Published) -> None:
        self.definition = published.definition

    def names(self, device: str) -> tuple[str, ...]:
        return NAMES[device]

    def draw(self, name: str, seed: int, device: str) -> Workload:
        stream = Stream(seed, f"{self.definition.name}/{name}")
        large = name == "fresh_large"
        known = LARGE if large else SMALL
        regime = REGIMES[_between(0, len(REGIMES) - 1, stream)] if name == "fresh_regime" else "typical"
        line: dict[str, Any] = {
            "name": name, "suite": "fresh", "regime": regime, "seed": int(stream.raw(1)[0] >> np.uint64(2)),
            "preset": known[_between(0, 1, stream)], "device": "cuda" if large else "any",
            "scalars": self._scalars(stream),
        }  # fmt: skip
        if self.definition.conventions.packing != "ragged":
            count = _between(20, 200, stream) if large else _between(1, MOST_ROWS, stream)
            return Workload.model_validate({**line, "axes": sizes(self.definition, [1] * count, {})})
        most = 1000 if large else SHORT
        lengths = [_between(1, most, stream) for _ in range(_between(2, 4, stream))]
        axes = sizes(self.definition, lengths, line["scalars"])
        return Workload.model_validate({**line, "axes": axes, "sequence_lengths": lengths})

    def narrower(self, line: Workload) -> Workload | None:
        return None

    def _scalars(self, stream: Stream) -> dict[str, bool | int | float]:
        """The norm either way; a scale of either sign or none; a lower bound or none."""
        values: dict[str, bool | int | float] = {}
        for tensor in self.definition.inputs:
            if tensor.is_switch:
                values[tensor.name] = bool(_between(0, 1, stream))
            elif tensor.is_scalar and tensor.dtype in FLOATS and _between(0, 1, stream):
                size = float(np.float32(stream.between(0.05, 1.0, 1)[0]))
                if tensor.name == "lower_bound":
                    values[tensor.name] = -8.0 * size
                else:
                    values[tensor.name] = -size if _between(0, 3, stream) == 0 else size
        return values


def _between(low: int, high: int, stream: Stream) -> int:
    """`low` to `high`, both included."""
    return low + int(stream.raw(1)[0] % np.uint64(high - low + 1))
