"""Compares the codes of quantised states, by how many codes apart they are."""

import torch
from torch import Tensor

from gdnspec.model.elements import Tensor as TensorModel

# Codes of e4m3 are counted: eight in each power of two from 2^-6, and eight below it. Whole numbers lie one apart as
# they are.
LEAST_EXPONENT, MANTISSA = -6, 3


def coded(output: TensorModel) -> str | None:
    """The type of an output's codes; None if it holds numbers."""
    return output.dtype if output.is_code else None


def of_codes(got: Tensor, expected: Tensor, owner: Tensor, sequences: int, dtype: str) -> dict[str, Tensor]:
    """`steps` and `moved` for every (row, head). `got` and `expected` are values of codes, [rows, heads, elements];
    `owner` [rows] is the sequence of each row; `dtype` the type of the codes."""
    apart = (place(got, dtype) - place(expected, dtype)).abs()
    apart = torch.nan_to_num(apart, nan=torch.inf, posinf=torch.inf)
    rows = torch.stack([(apart > 0).double().mean(-1), torch.ones_like(apart[..., 0])])  # [2, rows, heads]
    moved, count = rows.new_zeros(2, sequences, rows.shape[2]).index_add_(1, owner, rows)
    return {"steps": apart.amax(-1), "moved": (moved / count.clamp(min=1))[owner]}


def place(codes: Tensor, dtype: str) -> Tensor:
    """The number of each code, counted from zero, in float64. Both zeros have number 0. NaN stays NaN."""
    if dtype == "int8":
        return codes
    exponent = torch.frexp(codes)[1].clamp(min=LEAST_EXPONENT + 1) - 1  # of the power of two below
    steps = codes.abs() * torch.exp2((MANTISSA - exponent).double())
    counted: Tensor = codes.sign() * (steps + (exponent - LEAST_EXPONENT) * 2**MANTISSA)
    return counted
