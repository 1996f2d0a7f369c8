"""Query and key heads that a program repeated before the call, so that each value head has one of its own.

Their values tell: they are the same, bit for bit."""

from collections.abc import Mapping
from math import gcd
from typing import Any

from gdnspec.capture.bound import Seen

Heads = tuple[int, int, int]


class Repeats:
    """How often heads were repeated, by the heads that calls came with. `given`: what the user says, and nothing is
    looked at. Otherwise heads count as repeated where they were on every call so far; calls of zeros tell nothing."""

    def __init__(self, given: int | None) -> None:
        self.given = given
        self._seen: dict[Heads, int] = {}

    def of(self, heads: Heads) -> int:
        return self.given or self._seen.get(heads) or 1

    def look(self, call: Mapping[str, Any], shape: Seen) -> bool:
        """Takes a call into account: whether `of` its heads is another number now. Waits for a GPU, until a call had
        heads of its own."""
        q, k, v = shape.heads
        before = self._seen.get(shape.heads, 0)
        if self.given or before == 1 or not q == k == v > 1:
            return False
        try:
            now = gcd(before, _repeated(call["q"]), _repeated(call["k"]))
        except Exception:  # no values to look at: heads are recorded as they came
            return False
        self._seen[shape.heads] = now
        return (now or 1) != (before or 1)

    def told(self, recorded: set[Heads]) -> list[str]:
        """What was undone of these, a sentence each."""
        return [
            f"query and key heads came repeated {times} times, bit for bit, on every call: {q}x{k}x{v} is recorded as "
            f"{q // times}x{k // times}x{v} (--repeats 1 records heads as they come)"
            for (q, k, v), times in self._seen.items()
            if times > 1 and (q, k, v) in recorded
        ]


def _repeated(x: Any) -> int:
    """How many heads of x [B, T, H, D] in a row are equal everywhere: the largest such number. 0 where all are zero."""
    import torch

    bits = x.detach().view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])
    same = (bits[:, :, 1:] == bits[:, :, :-1]).all(dim=3).all(dim=1).all(dim=0).tolist()
    heads = int(x.shape[2])
    if all(same) and not bool((x[:, :, 0] != 0).any()):
        return 0
    return gcd(heads, *(i + 1 for i, equal in enumerate(same) if not equal))
