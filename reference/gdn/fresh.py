"""Workloads that nobody has seen: drawn anew for every check, their lengths and gates published nowhere.

Everything in a workload file can be recognised: by its shapes, and by gates that lie on a grid, as a model's never do.
A solution that is honest there alone is met here by shapes and gates from the seed of the check.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from gdnspec.family import FLOATS, Published, Stream, Workload, sizes, slots

NAMES = {"cpu": ("fresh_typical", "fresh_regime"), "cuda": ("fresh_typical", "fresh_regime", "fresh_large")}
SIZES = ((128, 128), (96, 192))  # of keys and of values, in models
# Where ordinary arithmetic keeps its margin whatever the seed, and gates say something.
REGIMES = (
    "typical", "slow_decay", "fast_decay", "large_steps", "large_initial_state", "one_large_state", "sparse_gates",
    "interleaved_gates", "padded_tails",
)  # fmt: skip

DRAFTS = "draft_tokens"  # the axis
POSITIONS, MASK = "seq_len", "attention_mask"  # of a padded batch: the axis, and which positions are tokens
MOST_ROWS, FEW_POSITIONS, MOST_PAIRS = 12, 480, 900  # of a padded batch: rows, and positions of all rows together
INTERVAL = "checkpoint_interval"  # the scalar: tokens from one checkpoint of a sequence to the next
CHUNK = 64  # tokens
MOST_DRAFTS = 16
# Many rows, sequences or slots: as many as published rows have, each number of digits as likely as any other. Where
# each emulator takes one sequence at a time a check would wait for more; an interpreter stops at 2,000 tokens.
WIDE = {"cpu": ("heads-1x1x1-d64", "heads-1x1x2-d32"), "cuda": ("heads-1x1x1-d128", "heads-1x1x2-d128")}
MOST = {"cpu": 900, "cuda": 4200}
MOST_SEQUENCES = {"cpu": 300, "cuda": 1100}
POOL = {"cpu": 1 << 24, "cuda": 1 << 28}  # bytes of a pool, at most, where slots are drawn in plenty
FEW_SEQUENCES = 8
LEAST = 4  # tokens of a sequence whose gradients are judged
FEW_HEADS = 4  # an interpreter needs milliseconds for each token of each
SHORT, SHORT_WITH_CHECKPOINTS = 70, 120  # tokens, just past a chunk; and often past two

T = TypeVar("T")


class Lines:
    """The fresh lines of one definition."""

    def __init__(self, published: Published) -> None:
        self.definition, self.lines = published.definition, published.lines
        self.presets, self.heads = published.presets, published.heads

    def names(self, device: str) -> tuple[str, ...]:
        return NAMES[device]

    def draw(self, name: str, seed: int, device: str) -> Workload:
        stream = Stream(seed, f"{self.definition.name}/{name}")
        large = name == "fresh_large"
        wide = name == "fresh_regime" and _between(0, 1, stream) == 1
        regime = _one_of(REGIMES, stream) if name == "fresh_regime" else "typical"
        if large and self.definition.stage == "backward" and self.definition.conventions.decay_gate != "none":
            # Among many heads a typical one forgets so much that honest kernels are far apart in its dg.
            regime = "slow_decay"
        kind = "cuda" if large else "cpu"
        known = WIDE[kind] if wide else sorted(self._presets(large))
        line: dict[str, Any] = {
            "name": name, "suite": "fresh", "regime": regime, "seed": int(stream.raw(1)[0] >> np.uint64(2)),
            "preset": _one_of(known, stream), "device": "cuda" if large else "any",
            "scalars": self._scalars(stream),
        }  # fmt: skip
        heads = self.heads(line["preset"])
        most_slots = POOL[kind] // (4 * heads["num_v_heads"] * heads["key_head_dim"] * heads["value_head_dim"])
        if self.definition.conventions.packing != "ragged":
            count = _log_between(MOST[kind], stream) if wide else _rows(large, stream)
            drafts = [_between(1, 6, stream) for axis in self.definition.var_axes() if axis.name == DRAFTS]
            if wide and drafts:
                drafts = [_between(1, MOST_DRAFTS, stream)]
            tokens = drafts[0] if drafts else 1
            if tokens > 1:
                count = -(-count // tokens)
            if any(axis.name == POSITIONS for axis in self.definition.var_axes()):
                return self._padded(line, count, wide, stream)
            axes, integers = slots(self.definition, count, tokens, stream, most_slots if wide else 0)
            axes |= sizes(self.definition, [tokens] * count, {})
            return Workload.model_validate({**line, "axes": axes, "integers": integers})
        short = SHORT if line["scalars"].get(INTERVAL) is None else SHORT_WITH_CHECKPOINTS
        lengths = list(_many(MOST_SEQUENCES[kind], stream) if wide else _lengths(name, stream, short))
        if self.definition.stage == "backward":
            # Of one token a gradient of a gate is one number, of which rounding may leave nothing.
            lengths = [length and max(length, LEAST) for length in lengths]
        return self._ragged(line, lengths, stream, most_slots if wide else 0)

    def narrower(self, line: Workload) -> Workload | None:
        """With the last quarter of its sequences."""
        lengths = line.sequence_lengths or []
        if len(lengths) < FEW_SEQUENCES:
            return None
        named = line.model_dump(include={"name", "suite", "regime", "seed", "preset", "device", "scalars"})
        stream = Stream(line.seed or 0, f"{self.definition.name}/{len(lengths)}")
        return self._ragged(named, lengths[-(len(lengths) // 4) :], stream, 0)

    def _ragged(self, line: dict[str, Any], lengths: list[int], stream: Stream, most_slots: int) -> Workload:
        """The line of a batch of sequences so long."""
        more, integers = slots(self.definition, len(lengths), 1, stream, most_slots)
        axes = sizes(self.definition, lengths, line["scalars"]) | more
        return Workload.model_validate({**line, "axes": axes, "sequence_lengths": lengths, "integers": integers})

    def _padded(self, line: dict[str, Any], rows: int, wide: bool, stream: Stream) -> Workload:
        """Rows of one length, each padded at its beginning, at its end, or anywhere."""
        if line["device"] == "cuda":
            rows, longest = 1 + rows % MOST_ROWS, _between(400, 1000, stream)
        elif wide:
            longest = _between(1, 7, stream)
            rows = max(1, min(rows, MOST_PAIRS // longest))
        else:  # of several chunks where a regime is tried
            least = CHUNK * 2 + 1 if line["name"] == "fresh_regime" else 1
            rows = 1 + rows % (FEW_POSITIONS // least if least > 1 else MOST_ROWS)
            longest = _between(least, FEW_POSITIONS // rows, stream)
        mask: list[int] = []
        for _ in range(rows):
            tokens, kind = _between(0, longest, stream), _between(0, 2, stream)
            if kind == 2:
                mask += [_between(0, 1, stream) for _ in range(longest)]
            else:
                row = [1] * tokens + [0] * (longest - tokens)
                mask += row if kind == 0 else row[::-1]
        axes = {"batch_size": rows, POSITIONS: longest}
        return Workload.model_validate({**line, "axes": axes, "integers": {MASK: mask}})

    def _presets(self, large: bool) -> set[str]:
        """Head configurations of the definition's own rows that every kernel for a model serves: heads as large as
        those of models, as many query as key heads. Few heads, or those of models."""
        names = {row.preset for row in self.lines if (row.suite == "performance") == large}
        heads = {name: self.presets[name] for name in names & self.presets.keys()}
        return {
            name
            for name, axes in heads.items()
            if tuple(axes.get(size, axes.get("head_size")) for size in ("key_head_dim", "value_head_dim")) in SIZES
            and axes["num_q_heads"] == axes["num_k_heads"]
            and (large or axes["num_v_heads"] <= FEW_HEADS)
        }

    def _scalars(self, stream: Stream) -> dict[str, bool | int | float]:
        """A switch either way; a scale of either sign, 1.0, 0.0 or none; an interval of checkpoints that short
        sequences reach."""
        values: dict[str, bool | int | float] = {}
        for tensor in self.definition.inputs:
            if tensor.is_scalar and tensor.dtype == "bool":
                values[tensor.name] = bool(_between(0, 1, stream))
            elif tensor.is_scalar and tensor.name == INTERVAL:
                values[tensor.name] = CHUNK * _between(1, 3, stream)
            elif tensor.is_scalar and tensor.dtype in FLOATS and tensor.optional and _between(0, 1, stream):
                size = float(np.float32(stream.between(0.05, 1.0, 1)[0]))
                # 0.0 seldom: of an output of zeros nothing else can be seen. An eps is never negative.
                odd = {0: 0.0, 1: 1.0, 2: -size, 3: -size, 4: -1.0}.get(_between(0, 11, stream), size)
                values[tensor.name] = odd if tensor.name == "scale" else abs(odd)
        return values


def _rows(large: bool, stream: Stream) -> int:
    return _between(20, 200, stream) if large else _between(1, 24, stream)


def _many(most: int, stream: Stream) -> Iterator[int]:
    """Short sequences, many of them: none, one and some tokens."""
    for _ in range(_log_between(most, stream)):
        yield _one_of((0, 1, 1, 2, 3), stream)
    yield _between(1, 5, stream)  # not all of them are empty


def _lengths(name: str, stream: Stream, short: int) -> Iterator[int]:
    """Two to four short sequences; one over several chunks, beside a short one; or what fills a part of a GPU."""
    if name == "fresh_typical":
        yield from (_between(1, short, stream) for _ in range(_between(2, 4, stream)))
    elif name == "fresh_regime":
        yield from (_between(129, 400, stream), _between(0, 70, stream))  # 4 heads: within what is interpreted
    else:
        yield from (_between(1, 1000, stream) for _ in range(_between(3, 7, stream)))


def _one_of(choices: Sequence[T], stream: Stream) -> T:
    return choices[_between(0, len(choices) - 1, stream)]


def _log_between(most: int, stream: Stream) -> int:
    """1 to `most`, both included, each number of digits as likely as any other."""
    return min(most, int(np.exp(stream.between(0.0, np.log(most + 1.0), 1)[0])))


def _between(low: int, high: int, stream: Stream) -> int:
    """`low` to `high`, both included."""
    return low + int(stream.raw(1)[0] % np.uint64(high - low + 1))
