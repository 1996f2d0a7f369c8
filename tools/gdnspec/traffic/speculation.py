"""How many rows an answer takes where guesses are verified: the first n guesses are accepted together or not at all."""

import numpy as np

from gdnspec.inputs.random import Stream

BITS = 53  # of a uniform number


class Speculation:
    """`drafts` guesses a row; each is right with chance `acceptance` where those before it were. What one request has
    accepted depends on the seed and on its place in the log alone, never on what runs beside it."""

    def __init__(self, drafts: int, acceptance: float, seed: int) -> None:
        self.drafts, self.seed = drafts, seed
        chances, chance = [], 1.0
        for _ in range(drafts):
            chance *= acceptance  # products alone: every machine rounds them alike
            chances.append(int(chance * (1 << BITS)))
        self._chances = np.array(chances, dtype=np.uint64)

    def steps(self, request: int, tokens: int) -> int:
        """Rows until `tokens` tokens are there. Each row yields what it accepts of its guesses, and one more token."""
        if tokens <= 0:
            return 0
        if not self.drafts:
            return tokens
        uniform = Stream(self.seed, f"request {request}").raw(tokens) >> np.uint64(64 - BITS)
        yielded = 1 + (uniform[:, None] < self._chances).sum(axis=1)
        return int(np.searchsorted(np.cumsum(yielded), tokens)) + 1
