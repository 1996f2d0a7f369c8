"""The prefixes of prompts whose states an engine still holds. The least recently used block is dropped first.

The operator keeps one state instead of keys and values of every token. So a prefix can be reused only where its state
was kept, at the end of a block. If a block was dropped, the blocks after it cannot be used.
"""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """A cache of `capacity` states, each at the end of a block of `block` tokens."""

    def __init__(self, capacity: int, block: int) -> None:
        self.capacity, self.block = capacity, block
        self._states: OrderedDict[int, None] = OrderedDict()

    def hit(self, blocks: Sequence[int], prompt: int) -> int:
        """The tokens of a prompt that need not be computed. They are whole blocks, but never the whole prompt: the
        output of its last token is needed."""
        found: list[int] = []
        for name in blocks[: (prompt - 1) // self.block]:
            if name not in self._states:
                break
            found.append(name)
        for name in reversed(found):  # the first block is dropped last
            self._states.move_to_end(name)
        return len(found) * self.block

    def keep(self, blocks: Sequence[int], prompt: int) -> None:
        """Stores the states of a computed prompt. Its last blocks are dropped first."""
        if not self.capacity:
            return
        for name in reversed(blocks[: prompt // self.block]):
            self._states[name] = None
            self._states.move_to_end(name)
        while len(self._states) > self.capacity:
            self._states.popitem(last=False)
