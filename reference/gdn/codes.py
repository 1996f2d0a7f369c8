"""Draws of quantised states: the state is drawn, then quantised as quantised.py says. Nothing here needs torch."""

import numpy as np
from gdnspec.family import Floats, Stream, encode
from numpy.typing import NDArray

LARGEST = {"float8_e4m3fn": 448.0, "int8": 127.0}
# Elements of a key that lies on boundaries of rounding: this part of them between two codes, all others on codes.
TIES = 0.25
POWERS = 9  # of two, in which the elements of such a key are drawn: e4m3 has 8 codes in each


def quantised(S: Floats, dtype: str) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
    """Rows of states [.., V, K] -> the carrier of their codes [.., V, K], and their scales [.., V]."""
    scales = (np.abs(S).max(axis=-1) / LARGEST[dtype]).astype(np.float32)
    divisor = np.where(scales == 0, 1, scales).astype(np.float64)
    return encode(S / divisor[..., None], dtype), scales


def row_of_ends(S: Floats) -> Floats:
    """The same signs, but each element of a row [.., K] as large as its largest: all codes stand at the ends."""
    return np.where(np.signbit(S), -1.0, 1.0) * np.abs(S).max(axis=-1, keepdims=True)


def ties(stream: Stream, shape: tuple[int, ...], dtype: str) -> Floats:
    """Keys [.., K] whose elements are codes, or numbers just between two codes, times a power of two. The first is the
    largest code. A state that holds nothing but v k^T, with v a power of two, then has exact ties at rounding."""
    size = shape[-1]
    rows = int(np.prod(shape[:-1]))
    largest, sign = LARGEST[dtype], 1 - 2.0 * (stream.raw(rows * size).reshape(rows, size) % np.uint64(2))
    between = np.where(stream.uniform(rows, size) < TIES, 0.5, 0.0)
    if dtype == "int8":
        x = np.floor(stream.uniform(rows, size) * (largest - 1)) + between
    else:
        digits = 8 + np.floor(stream.uniform(rows, size) * 8) + between  # at most 15.5: between this and the next power
        power = np.floor(stream.uniform(rows, size) * POWERS) - 3.0
        x = np.minimum(digits * 2.0**power, largest)
    x[:, 0] = largest
    norm = 2.0 ** np.ceil(np.log2(largest * np.sqrt(size)))  # a power of two: the keys have a norm below 1
    return np.asarray((sign * x / norm).reshape(shape))


def powers_of_two(stream: Stream, shape: tuple[int, ...]) -> Floats:
    """Values of either sign from 1/4 to 4."""
    raw = stream.raw(int(np.prod(shape)))
    size = 2.0 ** ((raw >> np.uint64(8)) % np.uint64(5)).astype(np.float64) / 4
    return np.asarray((np.where(raw % np.uint64(2), -size, size)).reshape(shape))
