"""Random numbers from a counter-based generator, keyed by (seed, name).

Philox is specified bit by bit, and NumPy promises a stable raw stream. All further steps are integer arithmetic or
single IEEE operations, which every machine rounds alike. No bit depends on a library's `randn`, `exp` or order of sums.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

NORMAL_STD = float(np.sqrt(4 * (65536.0**2 - 1) / 12))  # standard deviation of the sum of four uniform 16-bit integers
GRID = float(1 << 20)


class Stream:
    """The random numbers of one input of one workload."""

    def __init__(self, seed: int, name: str) -> None:
        word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        self._bits = np.random.Philox(key=np.array([seed, word], dtype=np.uint64))

    def raw(self, count: int) -> NDArray[np.uint64]:
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)

    def normal_integers(self, count: int) -> NDArray[np.int64]:
        """Sums of four uniform 16-bit integers, centred: near-normal, standard deviation `NORMAL_STD`."""
        x = self.raw(count)
        mask = np.uint64(0xFFFF)
        total = x & mask
        for shift in (16, 32, 48):
            total += (x >> np.uint64(shift)) & mask
        return total.view(np.int64) - 2 * 65535

    def normal(self, *shape: int) -> NDArray[np.float64]:
        """Near-normal values, mean 0, standard deviation 1."""
        return (self.normal_integers(int(np.prod(shape, dtype=np.int64))) / NORMAL_STD).reshape(shape)

    def uniform(self, *shape: int) -> NDArray[np.float64]:
        """Uniform in (0, 1], on a grid of 2^-53."""
        count = int(np.prod(shape, dtype=np.int64))
        return ((self.raw(count) >> np.uint64(11)).astype(np.float64) + 1.0).reshape(shape) * 2.0**-53

    def between(self, low: float, high: float, *shape: int) -> NDArray[np.float64]:
        return low + (high - low) * self.uniform(*shape)


def on_grid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rounds to multiples of 2^-20, so that the last bit of a library's exp has no effect. Infinities stay.

    A positive value stays positive: an alpha of 1e-7 is not a reset, and kernels that take its logarithm see a
    difference.
    """
    return np.where((x > 0) & (x * GRID < 1), 1.0, np.round(x * GRID)) / GRID


def off_grid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rounds to float32, and moves a value that rounding put on that grid by one bit."""
    single = x.astype(np.float32)
    by_chance = (single == on_grid(single.astype(np.float64))) & (x != on_grid(x))
    return np.where(by_chance, np.nextafter(single, np.float32(0)), single).astype(np.float64)


def on_fine_grid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rounds to 16 significant bits: like `on_grid`, for gates far below 2^-20."""
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.where(np.isfinite(x), np.ldexp(np.round(mantissa * 65536.0) / 65536.0, exponent), x))
