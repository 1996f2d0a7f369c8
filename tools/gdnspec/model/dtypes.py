"""The element types a definition may name."""

from typing import Literal

DType = Literal["bfloat16", "float16", "float32", "float64", "int32", "int64", "bool"]

SIZES: dict[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8, "bool": 1}
FLOATS = frozenset({"bfloat16", "float16", "float32", "float64"})
INTEGERS = frozenset({"int32", "int64"})
