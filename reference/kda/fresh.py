"""Workloads that nobody has seen: drawn anew for every check, their lengths and gates published nowhere."""

from typing import Any

import numpy as np
from gdnspec.family import FLOATS, Published, Stream, Workload, sizes, slots

NAMES = {"cpu": ("fresh_typical", "fresh_regime"), "cuda": ("fresh_typical", "fresh_regime", "fresh_large")}
# Where ordinary arithmetic keeps its margin whatever the seed.
REGIMES = ("typical", "mild_decay", "fast_decay", "deep_sums", "mixed_channels", "lower_bound", "large_initial_state")
SMALL, LARGE = ("synthetic-gva-1x2-d128", "synthetic-gva-2x4-d128"), ("kimi-linear-48b-a3b-tp1", "glm-5.3-flash-tp4")
# Many rows or short sequences: each number of digits as likely as any other.
WIDE = {"cpu": ("heads-1x1x1-d64", "heads-1x1x2-d32"), "cuda": ("heads-1x1x1-d128", "heads-1x1x2-d128")}
MOST = {"cpu": 900, "cuda": 4200}  # rows of decode
POOL = {"cpu": 1 << 24, "cuda": 1 << 28}  # bytes of a pool, at most, where slots are drawn in plenty
MOST_SEQUENCES = {"cpu": 300, "cuda": 1100}
MOST_DRAFTS, INTERVAL = 16, "checkpoint_interval"  # draft tokens; the scalar: tokens from one checkpoint to the next
SHORT_WITH_CHECKPOINTS = 140  # tokens, just past two intervals
# The emulators of gradients hold a number for each pair of tokens and key channel.
LEAST_HEADS, SHORT_BACKWARD, FEWER_SEQUENCES = (SMALL[0], SMALL[0]), 48, 160
LEAST = 4  # tokens of a sequence whose gradients are judged: of one, rounding may leave nothing of a gate's
SHORT, FEW_ROWS, FEW_SEQUENCES = 70, 12, 8  # tokens, just past a chunk; rows of decode; sequences


class Lines:
    """The fresh lines of one definition."""

    def __init__(self, published: Published) -> None:
        self.definition, self.heads = published.definition, published.heads

    def names(self, device: str) -> tuple[str, ...]:
        return NAMES[device]

    def draw(self, name: str, seed: int, device: str) -> Workload:
        stream = Stream(seed, f"{self.definition.name}/{name}")
        large = name == "fresh_large"
        wide, kind = name == "fresh_regime" and _between(0, 1, stream) == 1, "cuda" if large else "cpu"
        backward = self.definition.stage == "backward"
        known = WIDE[kind] if wide else LARGE if large else LEAST_HEADS if backward else SMALL
        regime = REGIMES[_between(0, len(REGIMES) - 1, stream)] if name == "fresh_regime" else "typical"
        line: dict[str, Any] = {
            "name": name, "suite": "fresh", "regime": regime, "seed": int(stream.raw(1)[0] >> np.uint64(2)),
            "preset": known[_between(0, 1, stream)], "device": "cuda" if large else "any",
            "scalars": self._scalars(stream),
        }  # fmt: skip
        if self.definition.conventions.packing != "ragged":
            count = _between(20, 200, stream) if large else _between(1, FEW_ROWS, stream)
            count = _log_between(MOST[kind], stream) if wide else count
            tokens = 1
            if any(axis.name == "draft_tokens" for axis in self.definition.axes):
                tokens = _between(1, MOST_DRAFTS if wide else 6, stream)
                count = -(-count // tokens)
            most = self._most_slots(line["preset"], kind, wide)
            axes, integers = slots(self.definition, count, tokens, stream, most)
            axes |= sizes(self.definition, [tokens] * count, {})
            return Workload.model_validate({**line, "axes": axes, "integers": integers})
        least = LEAST if backward else 1
        if wide:  # the last is not empty
            most = FEWER_SEQUENCES if backward and kind == "cpu" else MOST_SEQUENCES[kind]
            several = [_between(0, 3, stream) for _ in range(_log_between(most, stream))]
            lengths = [length and max(length, least) for length in (*several, _between(1, 5, stream))]
            return self._ragged(line, lengths, stream)
        short = SHORT_BACKWARD if backward else SHORT_WITH_CHECKPOINTS if INTERVAL in line["scalars"] else SHORT
        most = 1000 if large else short
        return self._ragged(line, [_between(least, most, stream) for _ in range(_between(2, 4, stream))], stream)

    def narrower(self, line: Workload) -> Workload | None:
        """With the last quarter of its sequences."""
        lengths = line.sequence_lengths or []
        if len(lengths) < FEW_SEQUENCES:
            return None
        named = line.model_dump(include={"name", "suite", "regime", "seed", "preset", "device", "scalars"})
        stream = Stream(line.seed or 0, f"{self.definition.name}/{len(lengths)}")
        return self._ragged(named, lengths[-(len(lengths) // 4) :], stream)

    def _ragged(self, line: dict[str, Any], lengths: list[int], stream: Stream) -> Workload:
        more, integers = slots(self.definition, len(lengths), 1, stream)
        axes = sizes(self.definition, lengths, line["scalars"]) | more
        return Workload.model_validate({**line, "axes": axes, "sequence_lengths": lengths, "integers": integers})

    def _most_slots(self, preset: str, kind: str, wide: bool) -> int:
        """Slots of a pool of `POOL` bytes, where they are drawn in plenty."""
        heads = self.heads(preset)
        return POOL[kind] // (4 * heads["num_v_heads"] * heads["head_size"] ** 2) if wide else 0

    def _scalars(self, stream: Stream) -> dict[str, bool | int | float]:
        """The norm either way; a scale of either sign or none; a lower bound or none."""
        values: dict[str, bool | int | float] = {}
        for tensor in self.definition.inputs:
            if tensor.is_switch:
                values[tensor.name] = bool(_between(0, 1, stream))
            elif tensor.is_scalar and tensor.name == INTERVAL:
                values[tensor.name] = 64 * _between(1, 2, stream)
            elif tensor.is_scalar and tensor.dtype in FLOATS and _between(0, 1, stream):
                size = float(np.float32(stream.between(0.05, 1.0, 1)[0]))
                if tensor.name == "lower_bound":
                    values[tensor.name] = -8.0 * size if _between(0, 5, stream) else 0.0  # none, as where it is absent
                else:
                    # 0.0 seldom: of an output of zeros nothing else can be seen.
                    odd = {0: 0.0, 1: 1.0, 2: -size, 3: -size}.get(_between(0, 11, stream), size)
                    values[tensor.name] = odd if tensor.name == "scale" else abs(odd)  # an eps is never negative
        return values


def _log_between(most: int, stream: Stream) -> int:
    """1 to `most`, both included."""
    return min(most, int(np.exp(stream.between(0.0, np.log(most + 1.0), 1)[0])))


def _between(low: int, high: int, stream: Stream) -> int:
    """`low` to `high`, both included."""
    return low + int(stream.raw(1)[0] % np.uint64(high - low + 1))
