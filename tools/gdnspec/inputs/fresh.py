"""Workloads that nobody has seen: drawn anew for every check, their lengths and gates published nowhere.

Everything in a workload file can be recognised: by its shapes, and by gates that lie on a grid, as a model's never do.
A solution that is honest there alone is met here by shapes and gates from the seed of the check.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from gdnspec.catalog.definitions import Found, presets
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.random import Stream
from gdnspec.inputs.slots import slots
from gdnspec.model import chunks
from gdnspec.model.checkpoints import COUNT, INTERVAL, MULTIPLE, starts
from gdnspec.model.dtypes import FLOATS
from gdnspec.model.workload import Workload

NAMES = {"cpu": ("fresh_typical", "fresh_regime"), "cuda": ("fresh_typical", "fresh_regime", "fresh_large")}
SIZES = ((128, 128), (96, 192))  # of keys and of values, in models
# Where ordinary arithmetic keeps its margin whatever the seed, and gates say something.
REGIMES = ("typical", "slow_decay", "fast_decay", "large_steps", "large_initial_state", "one_large_state")

DRAFTS = "draft_tokens"  # the axis
FEW_HEADS = 4  # an interpreter needs milliseconds for each token of each
SHORT, SHORT_WITH_CHECKPOINTS = 70, 120  # tokens, just past a chunk; and often past two

T = TypeVar("T")


def fresh(found: Found, seed: int, device: str) -> list[Workload]:
    """The lines of this seed, without budgets: those follow from their inputs. The same seed gives the same lines."""
    rows = workloads(found)
    return [_line(found, rows, name, Stream(seed, f"{found.definition.name}/{name}")) for name in NAMES[device]]


def _line(found: Found, rows: list[Workload], name: str, stream: Stream) -> Workload:
    large = name == "fresh_large"
    regime = _one_of(REGIMES, stream) if name == "fresh_regime" else "typical"
    line: dict[str, Any] = {
        "name": name, "suite": "fresh", "regime": regime, "seed": int(stream.raw(1)[0] >> np.uint64(2)),
        "preset": _one_of(sorted(_presets(rows, large)), stream), "device": "cuda" if large else "any",
        "scalars": _scalars(found, stream),
    }  # fmt: skip
    if found.definition.conventions.packing != "ragged":
        count = _between(20, 200, stream) if large else _between(1, 24, stream)
        drafts = {axis.name: _between(1, 6, stream) for axis in found.definition.var_axes() if axis.name == DRAFTS}
        tokens = drafts.get(DRAFTS, 1)
        if tokens > 1:
            count = -(-count // tokens)
        axes, integers = slots(found.definition, count, tokens, stream)
        return Workload.model_validate({**line, "axes": {"batch_size": count, **drafts, **axes}, "integers": integers})
    interval = line["scalars"].get(INTERVAL)
    lengths = list(_lengths(name, stream, SHORT if interval is None else SHORT_WITH_CHECKPOINTS))
    axes = {"total_seq_len": sum(lengths), "num_seqs": len(lengths)}
    if interval is not None:
        axes[COUNT] = starts(lengths, int(interval))[-1]
    if chunks.counts_chunks(found.definition):
        axes[chunks.COUNT] = chunks.starts(lengths)[-1]
    more, integers = slots(found.definition, len(lengths), 1, stream)
    return Workload.model_validate({**line, "axes": axes | more, "sequence_lengths": lengths, "integers": integers})


def _lengths(name: str, stream: Stream, short: int) -> Iterator[int]:
    """Two to four short sequences; one over several chunks, beside a short one; or what fills a part of a GPU."""
    if name == "fresh_typical":
        yield from (_between(1, short, stream) for _ in range(_between(2, 4, stream)))
    elif name == "fresh_regime":
        yield from (_between(129, 400, stream), _between(0, 70, stream))  # 4 heads: within what is interpreted
    else:
        yield from (_between(1, 1000, stream) for _ in range(_between(3, 7, stream)))


def _presets(rows: list[Workload], large: bool) -> set[str]:
    """Head configurations of the definition's own rows that every kernel for a model serves: heads as large as those
    of models, as many query as key heads. Few heads, or those of models."""
    names = {row.preset for row in rows if (row.suite == "performance") == large}
    heads = {name: presets()[name].axes for name in names}
    return {
        name
        for name, axes in heads.items()
        if tuple(axes.get(size, axes.get("head_size")) for size in ("key_head_dim", "value_head_dim")) in SIZES
        and axes["num_q_heads"] == axes["num_k_heads"]
        and (large or axes["num_v_heads"] <= FEW_HEADS)
    }


def _scalars(found: Found, stream: Stream) -> dict[str, bool | int | float]:
    """A switch either way, a scale in [0.05, 1] or none, and an interval of checkpoints that short sequences reach."""
    values: dict[str, bool | int | float] = {}
    for tensor in found.definition.inputs:
        if tensor.is_scalar and tensor.dtype == "bool":
            values[tensor.name] = bool(_between(0, 1, stream))
        elif tensor.is_scalar and tensor.name == INTERVAL:
            values[tensor.name] = MULTIPLE * _between(1, 3, stream)
        elif tensor.is_scalar and tensor.dtype in FLOATS and tensor.optional and _between(0, 1, stream):
            values[tensor.name] = float(np.float32(stream.between(0.05, 1.0, 1)[0]))
    return values


def _one_of(choices: Sequence[T], stream: Stream) -> T:
    return choices[_between(0, len(choices) - 1, stream)]


def _between(low: int, high: int, stream: Stream) -> int:
    """`low` to `high`, both included."""
    return low + int(stream.raw(1)[0] % np.uint64(high - low + 1))
