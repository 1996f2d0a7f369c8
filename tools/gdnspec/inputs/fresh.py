"""Workloads that nobody has seen: drawn anew for every check, their lengths and gates published nowhere.

Everything in a workload file can be recognised: by its shapes, and by gates that lie on a grid, as a model's never do.
A solution that is honest there alone is met here by shapes and gates from the seed of the check.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from gdnspec.build.reference import judged
from gdnspec.catalog.definitions import Found, preset_of
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.random import Stream
from gdnspec.inputs.slots import slots
from gdnspec.model import chunks
from gdnspec.model.checkpoints import COUNT, INTERVAL, MULTIPLE, starts
from gdnspec.model.dtypes import FLOATS
from gdnspec.model.preset import Preset
from gdnspec.model.workload import Workload

NAMES = {"cpu": ("fresh_typical", "fresh_regime"), "cuda": ("fresh_typical", "fresh_regime", "fresh_large")}
SIZES = ((128, 128), (96, 192))  # of keys and of values, in models
# Where ordinary arithmetic keeps its margin whatever the seed, and gates say something.
REGIMES = (
    "typical", "slow_decay", "fast_decay", "large_steps", "large_initial_state", "one_large_state", "sparse_gates",
    "interleaved_gates", "padded_tails",
)  # fmt: skip

DRAFTS = "draft_tokens"  # the axis
MOST_DRAFTS = 16
# Many rows, sequences or slots: as many as published rows have, each number of digits as likely as any other. Where
# each emulator takes one sequence at a time a check would wait for more; an interpreter stops at 2,000 tokens.
WIDE = {"cpu": ("heads-1x1x1-d64", "heads-1x1x2-d32"), "cuda": ("heads-1x1x1-d128", "heads-1x1x2-d128")}
MOST = {"cpu": 900, "cuda": 4200}
MOST_SEQUENCES = {"cpu": 300, "cuda": 1100}
POOL = {"cpu": 1 << 24, "cuda": 1 << 28}  # bytes of a pool, at most, where slots are drawn in plenty
FEW_SEQUENCES = 8
FEW_HEADS = 4  # an interpreter needs milliseconds for each token of each
SHORT, SHORT_WITH_CHECKPOINTS = 70, 120  # tokens, just past a chunk; and often past two

T = TypeVar("T")


def fresh(found: Found, seed: int, device: str) -> list[Workload]:
    """The lines of this seed, without budgets: those follow from their inputs. The same seed gives the same lines."""
    if not judged(found.family).fresh:
        return []
    rows = workloads(found)
    return [_line(found, rows, name, Stream(seed, f"{found.definition.name}/{name}")) for name in NAMES[device]]


def _line(found: Found, rows: list[Workload], name: str, stream: Stream) -> Workload:
    large = name == "fresh_large"
    wide = name == "fresh_regime" and _between(0, 1, stream) == 1
    regime = _one_of(REGIMES, stream) if name == "fresh_regime" else "typical"
    device = "cuda" if large else "cpu"
    known = WIDE[device] if wide else sorted(_presets(found.family.presets, rows, large))
    line: dict[str, Any] = {
        "name": name, "suite": "fresh", "regime": regime, "seed": int(stream.raw(1)[0] >> np.uint64(2)),
        "preset": _one_of(known, stream), "device": "cuda" if large else "any",
        "scalars": _scalars(found, stream),
    }  # fmt: skip
    heads = preset_of(found, Workload.model_validate({**line, "axes": {}})).axes
    most_slots = POOL[device] // (4 * heads["num_v_heads"] * heads["key_head_dim"] * heads["value_head_dim"])
    if found.definition.conventions.packing != "ragged":
        count = _log_between(MOST[device], stream) if wide else _rows(large, stream)
        drafts = {axis.name: _between(1, 6, stream) for axis in found.definition.var_axes() if axis.name == DRAFTS}
        if wide and drafts:
            drafts[DRAFTS] = _between(1, MOST_DRAFTS, stream)
        tokens = drafts.get(DRAFTS, 1)
        if tokens > 1:
            count = -(-count // tokens)
        axes, integers = slots(found.definition, count, tokens, stream, most_slots if wide else 0)
        return Workload.model_validate({**line, "axes": {"batch_size": count, **drafts, **axes}, "integers": integers})
    short = SHORT if line["scalars"].get(INTERVAL) is None else SHORT_WITH_CHECKPOINTS
    lengths = list(_many(MOST_SEQUENCES[device], stream) if wide else _lengths(name, stream, short))
    return _ragged(found, line, lengths, stream, most_slots if wide else 0)


def _ragged(found: Found, line: dict[str, Any], lengths: list[int], stream: Stream, most_slots: int) -> Workload:
    """The line of a batch of sequences so long."""
    interval = line["scalars"].get(INTERVAL)
    axes = {"total_seq_len": sum(lengths), "num_seqs": len(lengths)}
    if interval is not None:
        axes[COUNT] = starts(lengths, int(interval))[-1]
    if chunks.counts_chunks(found.definition):
        axes[chunks.COUNT] = chunks.starts(lengths)[-1]
    more, integers = slots(found.definition, len(lengths), 1, stream, most_slots)
    return Workload.model_validate({**line, "axes": axes | more, "sequence_lengths": lengths, "integers": integers})


def narrower(found: Found, line: Workload) -> Workload | None:
    """A fresh line with the last quarter of its sequences; None where it has few. The more there are, the likelier is
    one on which honest arithmetic is far off."""
    lengths = line.sequence_lengths or []
    if len(lengths) < FEW_SEQUENCES:
        return None
    named = line.model_dump(include={"name", "suite", "regime", "seed", "preset", "device", "scalars"})
    stream = Stream(line.seed or 0, f"{found.definition.name}/{len(lengths)}")
    return _ragged(found, named, lengths[-(len(lengths) // 4) :], stream, 0)


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


def _presets(known: Mapping[str, Preset], rows: list[Workload], large: bool) -> set[str]:
    """Head configurations of the definition's own rows that every kernel for a model serves: heads as large as those
    of models, as many query as key heads. Few heads, or those of models."""
    names = {row.preset for row in rows if (row.suite == "performance") == large}
    heads = {name: known[name].axes for name in names & known.keys()}
    return {
        name
        for name, axes in heads.items()
        if tuple(axes.get(size, axes.get("head_size")) for size in ("key_head_dim", "value_head_dim")) in SIZES
        and axes["num_q_heads"] == axes["num_k_heads"]
        and (large or axes["num_v_heads"] <= FEW_HEADS)
    }


def _scalars(found: Found, stream: Stream) -> dict[str, bool | int | float]:
    """A switch either way; a scale of either sign, 1.0, 0.0 or none; an interval of checkpoints that short sequences
    reach."""
    values: dict[str, bool | int | float] = {}
    for tensor in found.definition.inputs:
        if tensor.is_scalar and tensor.dtype == "bool":
            values[tensor.name] = bool(_between(0, 1, stream))
        elif tensor.is_scalar and tensor.name == INTERVAL:
            values[tensor.name] = MULTIPLE * _between(1, 3, stream)
        elif tensor.is_scalar and tensor.dtype in FLOATS and tensor.optional and _between(0, 1, stream):
            size = float(np.float32(stream.between(0.05, 1.0, 1)[0]))
            # 0.0 seldom: of an output of zeros nothing else can be seen. An eps is never negative.
            odd = {0: 0.0, 1: 1.0, 2: -size, 3: -size, 4: -1.0}.get(_between(0, 11, stream), size)
            values[tensor.name] = odd if tensor.name == "scale" else abs(odd)
    return values


def _one_of(choices: Sequence[T], stream: Stream) -> T:
    return choices[_between(0, len(choices) - 1, stream)]


def _log_between(most: int, stream: Stream) -> int:
    """1 to `most`, both included, each number of digits as likely as any other."""
    return min(most, int(np.exp(stream.between(0.0, np.log(most + 1.0), 1)[0])))


def _between(low: int, high: int, stream: Stream) -> int:
    """`low` to `high`, both included."""
    return low + int(stream.raw(1)[0] % np.uint64(high - low + 1))
