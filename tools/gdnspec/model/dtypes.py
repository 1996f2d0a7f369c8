"""The element types a definition may name."""

from typing import Literal

DType = Literal["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "int8", "int32", "int64", "bool"]

SIZES: dict[str, int] = {
    "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "float8_e4m3fn": 1, "int8": 1,
    "int32": 4, "int64": 8, "bool": 1,
}  # fmt: skip
FLOATS = frozenset({"bfloat16", "float16", "float32", "float64", "float8_e4m3fn"})
INTEGERS = frozenset({"int32", "int64"})  # counts, bounds and slots
# Types of codes: a number is a code times a scale that is kept beside it. The value is the largest code.
CODES: dict[str, float] = {"float8_e4m3fn": 448.0, "int8": 127.0}
