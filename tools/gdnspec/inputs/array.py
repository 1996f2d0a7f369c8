"""An array whose element type NumPy may lack: bfloat16 is stored as the uint16 of its bits."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gdnspec.model.dtypes import SIZES

# The NumPy type that holds the bits.
CARRIER: dict[str, type[np.generic]] = {
    "bfloat16": np.uint16,
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
    "int32": np.int32,
    "int64": np.int64,
    "bool": np.bool_,
}


@dataclass(frozen=True, eq=False)
class Array:
    """`data` is C-contiguous and has the carrier type of `dtype`."""

    dtype: str
    data: NDArray[np.generic]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def nbytes(self) -> int:
        return int(self.data.size) * SIZES[self.dtype]

    def values(self) -> NDArray[np.generic]:
        """The numbers: float32 for bfloat16, the data itself otherwise."""
        if self.dtype == "bfloat16":
            return (self.data.astype(np.uint32) << 16).view(np.float32)
        return self.data


def to_bfloat16(x: NDArray[np.floating], toward_zero: bool = False) -> NDArray[np.uint16]:
    """Converts finite values to the bits of bfloat16: rounds to nearest, ties to even, or toward zero."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    if not toward_zero:
        bits = bits + (0x7FFF + ((bits >> 16) & 1))
    return (bits >> 16).astype(np.uint16)


def encode(x: NDArray[np.floating], dtype: str) -> NDArray[np.generic]:
    """Converts float64 values to the carrier type of `dtype`."""
    return to_bfloat16(x) if dtype == "bfloat16" else x.astype(CARRIER[dtype])
