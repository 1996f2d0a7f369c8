"""What the rows of all stages share: their form, regimes and lengths."""

from collections.abc import Callable, Iterator
from typing import Any

Line = dict[str, Any]  # of a workload file, without what is measured
Rows = Callable[[], Iterator[Line]]  # of one suite
REGIMES = (
    "typical", "long_memory", "slow_decay", "fast_decay", "hard_reset", "repeated_keys", "near_parallel_keys",
    "beta_zero", "beta_one", "beta_two", "large_initial_state", "decayed_large_state", "tiny_keys", "one_large_state",
    "reset_large_state", "large_steps",
)  # fmt: skip
ONE_TOKEN_REGIMES = tuple(r for r in REGIMES if r not in ("repeated_keys", "near_parallel_keys", "beta_two"))
LENGTHS = {
    0: "no tokens at all, one sequence", 1: "one token", 63: "one token less than a chunk", 64: "a whole chunk",
    65: "one token more than a chunk", 127: "one token less than two chunks", 1000: "many chunks and a ragged one",
}  # fmt: skip
RAGGED_16 = (37, 1300, 64, 513, 2048, 1, 700, 129, 3000, 255, 64, 90, 1111, 5, 800, 2000)
