"""How many rows an answer takes with speculation. A draft token is accepted only if all before it in its row are."""

import numpy as np
from numpy.typing import NDArray

from gdnspec.inputs.random import Stream

BITS = 53  # of a uniform number


class Speculation:
    """Speculation with `drafts` draft tokens per row. Each is accepted with probability `acceptance`, if those before
    it were. The outcome depends only on the seed and on the request's place in the log, not on other requests."""

    def __init__(self, drafts: int, acceptance: float, seed: int) -> None:
        self.drafts, self.seed = drafts, seed
        chances, chance = [], 1.0
        for _ in range(drafts):
            chance *= acceptance  # unlike a power, a product is rounded the same way on every machine
            chances.append(int(chance * (1 << BITS)))
        self._chances = np.array(chances, dtype=np.uint64)

    def steps(self, request: int, tokens: int) -> int:
        """The rows for `tokens` tokens. Each row gives its accepted draft tokens and one more token."""
        if tokens <= 0:
            return 0
        if not self.drafts:
            return tokens
        return int(np.searchsorted(np.cumsum(self._yielded(request, tokens)), tokens)) + 1

    def yields(self, request: int, tokens: int) -> list[int]:
        """How many tokens each of these rows gives."""
        count = self.steps(request, tokens)
        return [1] * count if not self.drafts else self._yielded(request, tokens)[:count].tolist() if count else []

    def _yielded(self, request: int, tokens: int) -> NDArray[np.int64]:
        uniform = Stream(self.seed, f"request {request}").raw(tokens) >> np.uint64(64 - BITS)
        return np.asarray(1 + (uniform[:, None] < self._chances).sum(axis=1))
