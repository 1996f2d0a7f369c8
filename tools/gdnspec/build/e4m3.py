"""The floats of one byte that definitions call float8_e4m3fn, in NumPy, which has no such type."""

import numpy as np
from numpy.typing import NDArray

NAN = 127


def _values() -> NDArray[np.float32]:
    """The value of each of the 256 bit patterns: a sign, four bits of exponent, three of mantissa; no infinity."""
    bits = np.arange(128)
    exponent, mantissa = bits >> 3, bits & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    size[NAN] = np.nan
    return np.asarray(np.concatenate([size, -size]), dtype=np.float32)


E4M3 = _values()


def to_e4m3(x: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Converts values to the bits of e4m3: rounds to nearest, ties to even. Beyond 448 it saturates; NaN stays NaN."""
    size = np.minimum(np.abs(np.nan_to_num(np.asarray(x, dtype=np.float64))), 448.0)
    exponent = np.where(size == 0, -6, np.maximum(np.frexp(size)[1] - 1, -6))
    steps = np.rint(size * 2.0 ** (3 - exponent)).astype(np.int64)  # of the spacing at this exponent, 0 to 16
    bits = np.where(np.isnan(x), NAN, (exponent + 6) * 8 + steps)
    return np.asarray(np.signbit(x) * 128 + bits, dtype=np.uint8)
