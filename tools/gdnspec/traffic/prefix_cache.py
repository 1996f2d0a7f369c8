"""Which prefixes of prompts an engine still holds the state of: the blocks least recently used go first.

A gated delta net keeps no key and value of each token but one state, so a prefix is found again only where its state
was kept: at the end of a block. A block that was dropped hides those behind it.
"""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """`capacity` states, each at the end of a block of `block` tokens."""

    def __init__(self, capacity: int, block: int) -> None:
        self.capacity, self.block = capacity, block
        self._states: OrderedDict[int, None] = OrderedDict()

    def hit(self, blocks: Sequence[int], prompt: int) -> int:
        """Tokens of a prompt that need not be computed: whole blocks, and never all of the prompt, whose last token's
        output is wanted."""
        found: list[int] = []
        for name in blocks[: (prompt - 1) // self.block]:
            if name not in self._states:
                break
            found.append(name)
        for name in reversed(found):  # the first block is the last to go
            self._states.move_to_end(name)
        return len(found) * self.block

    def keep(self, blocks: Sequence[int], prompt: int) -> None:
        """The states of a prompt that has been computed. The last ones are the first to go."""
        if not self.capacity:
            return
        for name in reversed(blocks[: prompt // self.block]):
            self._states[name] = None
            self._states.move_to_end(name)
        while len(self._states) > self.capacity:
            self._states.popitem(last=False)
