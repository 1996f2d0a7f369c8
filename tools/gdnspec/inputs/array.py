"""An array whose element type NumPy may lack: bfloat16 and e4m3 are stored as the unsigned integers of their bits."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gdnspec.build.e4m3 import E4M3, to_e4m3
from gdnspec.model.dtypes import SIZES

# The NumPy type that holds the bits.
CARRIER: dict[str, type[np.generic]] = {
    "bfloat16": np.uint16,
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
    "float8_e4m3fn": np.uint8,
    "int8": np.int8,
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
        """The numbers: float32 for bfloat16 and e4m3, the data itself otherwise."""
        if self.dtype == "bfloat16":
            return (self.data.astype(np.uint32) << 16).view(np.float32)
        if self.dtype == "float8_e4m3fn":
            return np.asarray(E4M3[self.data])
        return self.data


def to_bfloat16(x: NDArray[np.floating], toward_zero: bool = False) -> NDArray[np.uint16]:
    """Converts finite values to the bits of bfloat16: rounds to nearest, ties to even, or toward zero."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    if not toward_zero:
        bits = bits + (0x7FFF + ((bits >> 16) & 1))
    return (bits >> 16).astype(np.uint16)


def encode(x: NDArray[np.floating], dtype: str) -> NDArray[np.generic]:
    """Converts float64 values to the carrier type of `dtype`."""
    match dtype:
        case "bfloat16":
            return to_bfloat16(x)
        case "float8_e4m3fn":
            return to_e4m3(x)
        case "int8":
            return np.asarray(np.clip(np.rint(x), -127, 127), dtype=np.int8)
    return x.astype(CARRIER[dtype])
