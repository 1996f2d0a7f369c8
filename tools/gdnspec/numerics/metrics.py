"""Measures errors per (sequence, head), so that a large sequence cannot hide a small one. The maximum counts.

An output is a set of vectors (a token's output, a row of a state), each of a sequence and a head. Each slot or
checkpoint counts as a sequence. The gradient of a parameter belongs to no sequence: all of it is one group, in which
each head or channel, an index of its first dimension, is a vector. The metrics are

- relative_l2: |got - expected| / |expected| over all vectors of a sequence and head;
- worst_vector: the largest |got - expected| / |expected| of one vector; the denominator is at least a quarter of the
  root mean square of the vectors of that sequence and head. If the output has one number per head, and tokens are
  multiplied as matrices, it is at least four times that: the number is a sum of products that may cancel, and the
  largest of a few thousand such numbers is about so large. So may what one channel gets, where that is fewer than
  eight numbers and no head has a part of its own: the denominator is at least the root mean square there;
- max_over_rms: the largest error of one element divided by the root mean square of that sequence and head;
- bias, for 16-bit outputs: the sum of the errors toward zero, or of the errors upwards if that is larger, divided by
the sum of the expected magnitudes. First the part that chance explains is subtracted: four standard deviations of the
sum of as many roundings to nearest, or of errors with the measured scatter, whichever is larger. Truncation leaves
about a third of the type's spacing, for any number of elements. If tokens are multiplied as matrices of rounded
numbers, one rounding can affect a whole vector (for example that of q k^T at a token); then the judge also subtracts
what one such rounding per vector adds up to by chance. In a sequence of one token this is more than truncation leaves.
From about thirty tokens on, or in the rows of a state, truncation is detected.

The codes of a quantised state are also judged by

- steps: by how many codes an element is off, the largest number;
- moved: the part of the codes of a sequence and head that are off. A kernel that does not round to nearest moves half.

Each scale of such codes is a vector of its own, and its error is relative to itself.

If the expected vector is zero, the output must be zero; otherwise the error is infinite. Magnitudes below the smallest
normal float32 count as zero on both sides, because hardware may flush them. If the expected value is below it but not
zero, output values of less than twice that magnitude also count as zero, so that no error becomes infinite there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gdnspec.model.budget import CODE_METRICS, METRICS
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope
from gdnspec.model.elements import Tensor as TensorModel
from gdnspec.model.roles import axis, bounds, of_all
from gdnspec.numerics.code_steps import of_codes

TINY = 2.0**-126
FLOOR, NUMBERS = 0.25, 4.0  # of vectors; of single numbers that are sums of products
SHORT, FEW = 1.0, 8  # of the gradients of channels, where one gets fewer numbers than this
SPREAD = 4.0  # standard deviations; an error that is uniform within one spacing has 1 / sqrt(12) of it


@dataclass(frozen=True)
class Vectors:
    """An output as vectors [rows, heads, elements], the sequence of each row [rows], and the number of sequences."""

    values: Tensor
    sequence: Tensor
    sequences: int
    floor: float = FLOOR  # of the denominator of `worst_vector`, in root mean squares

    def place(self, row: int) -> tuple[int, int]:
        """(sequence, position in it) of a row. The rows of a sequence are adjacent."""
        sequence = int(self.sequence[row])
        return sequence, row - int((self.sequence < sequence).sum())


def as_vectors(values: Tensor, tensor: TensorModel, definition: Definition, scope: Scope) -> Vectors:
    """Sorts the dimensions of an output by the roles of its axes. An output without heads gets one head."""
    if of_all(definition, tensor):
        rows = values.reshape(len(values), 1, -1)
        owner = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        return Vectors(rows, owner, 1, _floor(definition, tensor, rows.shape[-1]))
    names = [str(size) for size in tensor.shape or []]
    if tensor.parts is not None and len(tensor.parts) == 1:  # heads are side by side in the last dimension
        (shape,) = definition.part_shapes(tensor, scope).values()
        names, values = [*names[:-1], *map(str, tensor.parts[0].shape)], values.reshape(*values.shape[:-1], *shape)
    floor = _floor(definition, tensor, values.shape[-1])
    if tensor.scales is not None:
        names, values, floor = [*names, "1"], values.unsqueeze(-1), 0.0
    if names[-1] in definition.head_axes:  # one number per head: gates
        names, values = [*names, "1"], values.unsqueeze(-1)
        floor = NUMBERS if multiplies_tokens(definition) else FLOOR
    head = next((i for i, name in enumerate(names) if name in definition.head_axes), None)
    if head is None:
        head = len(names) - 1
        names, values = [*names[:-1], "heads", names[-1]], values.unsqueeze(-2)
    middle = [i for i in range(1, len(names) - 1) if i != head]
    x = values.permute(0, *middle, head, len(names) - 1)
    per_first = 1
    for i in middle:
        per_first *= values.shape[i]
    x = x.reshape(values.shape[0] * per_first, values.shape[head], values.shape[-1])
    if definition.conventions.packing == "ragged" and names[0] == axis(definition, "tokens"):
        ends = torch.tensor(scope[bounds(definition) or ""], device=values.device)
        sequences = len(ends) - 1
        x = x[: int(ends[-1]) * per_first]  # rows behind the last sequence belong to none
        owner = torch.repeat_interleave(torch.arange(sequences, device=values.device), ends.diff())
    else:
        sequences = values.shape[0]
        owner = torch.arange(sequences, device=values.device)
    return Vectors(x, owner.repeat_interleave(per_first), sequences, floor)


def _floor(definition: Definition, tensor: TensorModel, elements: int) -> float:
    gradient = definition.stage == "backward" and multiplies_tokens(definition)
    of_channels = not any(size in definition.head_axes for size in tensor.shape or [])
    return SHORT if gradient and of_channels and elements < FEW else FLOOR


def multiplies_tokens(definition: Definition) -> bool:
    """Whether honest kernels multiply the tokens of a sequence as matrices: a rounding may affect a whole vector."""
    if definition.stage == "backward" and definition.conventions.state_layout == "none":
        return False  # gradients of what stands around the rule
    ragged = definition.conventions.packing == "ragged"
    return definition.stage == "prefill" or (ragged and definition.stage != "convolution")


@dataclass(frozen=True)
class Errors:
    """The maximum of each metric, and its (row, head)."""

    maxima: dict[str, float]
    worst: dict[str, tuple[int, int]]


def errors(
    got: Vectors, expected: Vectors, spacing: float | None = None, shared: bool = False, *, codes: str | None = None
) -> Errors:
    """The errors of `got`. Both are in float64, and the expected values are finite; a value of `got` that is not finite
    gives an infinite error. `spacing`: the distance between neighbouring numbers of the output's type, relative to the
    power of two below; without it, the bias is not measured. `shared`: one rounding may affect a whole vector. `codes`:
    the type of the values, if they are codes."""
    rows, heads, size = expected.values.shape
    if rows == 0 or heads == 0 or size == 0:
        more = (*(["bias"] if spacing else []), *(CODE_METRICS if codes else ()))
        return Errors(dict.fromkeys((*METRICS, *more), 0.0), {})
    fields, error_sq = _fields(got, expected)
    if spacing:
        fields["bias"] = _bias(got, expected, spacing, shared)
    if codes:
        fields |= of_codes(got.values, expected.values, expected.sequence, expected.sequences, codes)
    owner = expected.sequence
    worst = {name: divmod(int(field.argmax()), heads) for name, field in fields.items()}
    # The place to report is the worst vector within the worst group.
    row, head = worst["relative_l2"]
    inside = torch.where(owner == owner[row], error_sq[:, head], -1.0)
    worst["relative_l2"] = (int(inside.argmax()), head)
    return Errors({name: float(field.max()) for name, field in fields.items()}, worst)


def vector_errors(got: Vectors, expected: Vectors) -> Tensor:
    """The metric `worst_vector` for every (row, head), [rows, heads]."""
    return _fields(got, expected)[0]["worst_vector"]


def _fields(got: Vectors, expected: Vectors) -> tuple[dict[str, Tensor], Tensor]:
    """Each metric for every (row, head), and the squared errors."""
    owner, sequences = expected.sequence, expected.sequences
    x, e = _counted(got, expected)
    heads, size = e.shape[1:]
    difference = torch.nan_to_num((x - e).abs(), nan=torch.inf, posinf=torch.inf)

    def per_group(row_sums: Tensor) -> Tensor:  # [rows, heads] -> [sequences, heads]
        return row_sums.new_zeros(sequences, heads).index_add_(0, owner, row_sums)

    error_sq, expected_sq = (difference**2).sum(-1), (e**2).sum(-1)  # [rows, heads]
    count = per_group(torch.ones_like(error_sq))
    mean_sq = per_group(expected_sq) / count.clamp(min=1)  # of a vector
    group_error = ratio(per_group(error_sq).sqrt(), per_group(expected_sq).sqrt())

    floor = expected.floor * mean_sq.sqrt()[owner]
    vector_error = ratio(error_sq.sqrt(), torch.maximum(expected_sq.sqrt(), floor))
    must_be_zero = (expected_sq == 0) & (error_sq > 0)
    vector_error = torch.where(must_be_zero, torch.inf, vector_error)
    element_error = ratio(difference.amax(-1), (mean_sq / size).sqrt()[owner])
    fields = {"relative_l2": group_error[owner], "worst_vector": vector_error, "max_over_rms": element_error}
    return fields, error_sq


def _counted(got: Vectors, expected: Vectors) -> tuple[Tensor, Tensor]:
    """Both tensors of values; values that are too small to count are zero."""
    e = expected.values
    at_least = torch.where((e.abs() < TINY) & (e != 0), 2 * TINY, TINY)  # smaller output values count as zero
    return torch.where(got.values.abs() < at_least, 0.0, got.values), torch.where(e.abs() < TINY, 0.0, e)


def _bias(got: Vectors, expected: Vectors, spacing: float, shared: bool) -> Tensor:
    """The bias of the sequence and head of each row, [rows, heads]."""
    owner, (x, e) = expected.sequence, _counted(got, expected)
    difference = torch.nan_to_num(x - e, nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    signed = difference * e.sign()
    sums = [x.sum(-1) for x in (signed, difference, difference**2, e.abs())]
    rows = torch.stack([*sums, sums[-1] ** 2])  # [5, rows, heads]
    per_group = rows.new_zeros(5, expected.sequences, e.shape[1]).index_add_(1, owner, rows)
    toward_zero, upwards, squares, magnitude, of_vectors = per_group
    count = (torch.bincount(owner, minlength=expected.sequences)[:, None] * e.shape[-1]).clamp(min=1)
    rounding = SPREAD * spacing / 12**0.5 * (of_vectors.sqrt() if shared else magnitude / count.sqrt())

    def beyond_chance(total: Tensor) -> Tensor:
        scatter = SPREAD * (squares - total**2 / count).clamp(min=0).sqrt()
        return total.abs() - torch.maximum(rounding, scatter)

    found = ratio(torch.maximum(beyond_chance(toward_zero), beyond_chance(upwards)).clamp(min=0), magnitude)
    return torch.nan_to_num(found, nan=torch.inf, posinf=torch.inf)[owner]


def ratio(error: Tensor, scale: Tensor) -> Tensor:
    """error / scale, with 0 / 0 = 0 and x / 0 infinite."""
    return torch.where(error == 0, 0.0, error / scale)
