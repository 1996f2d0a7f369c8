"""Statistics of weighted workloads: lengths, counts, and what limits the time of a kernel on them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log2

import numpy as np

from gdnspec.catalog.definitions import Found, preset_of
from gdnspec.model import roles
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope
from gdnspec.model.trace import Ceilings
from gdnspec.model.workload import Workload
from gdnspec.numerics.floor import work
from gdnspec.traffic.calls import Shape, states_left_out
from gdnspec.traffic.kinds import CHUNK, KINDS, Kind, parts

QUANTILES = (0.1, 0.5, 0.9)
MULTIPROCESSORS = {"nvidia-a100": 108, "nvidia-h100": 132, "nvidia-h200": 132, "nvidia-b200": 148}


@dataclass(frozen=True)
class Distribution:
    """The distribution of weighted values. `bins`: weights in [2^i, 2^(i+1)) by the lower end; 0 has its own bin."""

    name: str
    least: float
    quantiles: tuple[float, ...]  # at QUANTILES
    most: float
    mean: float
    bins: dict[float, float]

    @classmethod
    def of(cls, name: str, values: Sequence[float], weights: Sequence[float]) -> "Distribution":
        order = np.argsort(values, kind="stable")
        x, w = np.array(values, dtype=np.float64)[order], np.array(weights, dtype=np.float64)[order]
        upto = np.cumsum(w)
        quantiles = tuple(float(x[int(np.searchsorted(upto, q * upto[-1]))]) for q in QUANTILES)
        bins: dict[float, float] = {}
        for value, weight in zip(x.tolist(), w.tolist(), strict=True):
            low = 2.0 ** int(np.floor(log2(value))) if value > 0 else 0.0
            bins[low] = bins.get(low, 0.0) + weight
        return cls(name, float(x[0]), quantiles, float(x[-1]), float(x @ w / upto[-1]), bins)


@dataclass(frozen=True)
class Share:
    """The shares of the calls and of the time that one kind of work limits."""

    kind: Kind
    calls: float
    time: float


@dataclass(frozen=True)
class Summary:
    """Statistics of one definition's workloads. `bound`: seconds of all calls at the bound. `expected`: the same with
    chains and launches."""

    workloads: int
    calls: int
    distributions: list[Distribution]
    bound: float
    expected: float
    shares: list[Share]


def shape_of(found: Found, line: Workload) -> Shape:
    """Tokens, sequences and longest sequence of a workload."""
    definition = found.definition
    carried = not set(states_left_out(definition)) & set(line.omit)
    if line.sequence_lengths is not None:
        return Shape.of(line.sequence_lengths, carried)
    # The line has no lengths if its tensors are recorded, or if it has rows, which all have the same length.
    tokens, sequences = roles.tokens(definition, line.axes), roles.batch(definition, line.axes)
    return Shape(tokens, sequences, -(-tokens // max(1, sequences)), carried)


def carries_a_state(definition: Definition) -> bool:
    """Whether a state passes from chunk to chunk, so that a long sequence is a chain. Convolutions, norms and other
    stages process all tokens at once."""
    conventions = definition.conventions
    return conventions.state_layout != "none" and conventions.state_update != "none"


def _ragged(definition: Definition) -> bool:
    return definition.conventions.packing == "ragged"


def side_by_side(definition: Definition) -> str:
    """What a kernel can compute in parallel, as the label of a row in the table."""
    if definition.stage == "convolution":
        return "(token, channel) pairs a multiprocessor"
    if carries_a_state(definition):
        return "(sequence, head) pairs a multiprocessor"
    if _ragged(definition):
        return "(chunk, head) pairs a multiprocessor"
    return "(row, head) pairs a multiprocessor"


def _side_by_side(definition: Definition, scope: Scope, shape: Shape, chunks: int) -> int:
    if definition.stage == "convolution":
        return shape.tokens * definition.shape(definition.outputs[0], scope)[-1]
    heads = roles.heads(definition, scope)
    if carries_a_state(definition) or not _ragged(definition):
        return shape.sequences * heads
    return chunks * heads


def summarise(found: Found, lines: Iterable[Workload], ceilings: Ceilings, multiprocessors: int) -> Summary:
    """The statistics of all lines. Each counts as often as its weight says, or once without a weight."""
    definition = found.definition
    rows = "sequences a call" if definition.conventions.state_update != "none" or _ragged(definition) else "rows a call"
    names = ["tokens a call", rows, "chunks a call", side_by_side(definition)]
    values: list[list[float]] = [[] for _ in names]
    weights: list[float] = []
    lengths: dict[int, float] = {}
    by_kind: dict[Kind, list[float]] = {kind: [0.0, 0.0] for kind in KINDS}
    count = 0
    bound = expected = 0.0
    for line in lines:
        count += 1
        weight, shape = line.weight or 1, shape_of(found, line)
        scope = line.scope(definition, preset_of(found, line))
        each = line.sequence_lengths if line.sequence_lengths is not None else [shape.longest] * shape.sequences
        chunks = sum(-(-length // CHUNK) for length in each)
        pairs = _side_by_side(definition, scope, shape, chunks)
        row = (shape.tokens, shape.sequences, chunks, pairs / multiprocessors)
        for column, value in zip(values, row, strict=True):
            column.append(value)
        weights.append(weight)
        for length in each:
            lengths[length] = lengths.get(length, 0.0) + weight
        taken = parts(work(found, line), shape, ceilings)
        if not carries_a_state(definition):
            taken = taken._replace(chain=0.0)
        time = max(taken) * weight
        bound += max(taken.memory, taken.compute) * weight
        expected += time
        by_kind[taken.kind][0] += weight
        by_kind[taken.kind][1] += time
    distributions = [Distribution.of(*column) for column in zip(names, values, [weights] * len(names), strict=True)]
    if _ragged(definition):
        distributions.insert(0, Distribution.of("tokens a sequence", list(lengths), list(lengths.values())))
    else:  # rows have no chunks, and all have the same number of tokens
        distributions = [distributions[1], distributions[3]]
    calls = int(sum(weights))
    shares = [Share(kind, some / calls, time / expected) for kind, (some, time) in by_kind.items()]
    return Summary(count, calls, distributions, bound, expected, shares)
