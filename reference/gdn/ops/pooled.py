"""States of convolutions that lie in a pool, for gradients whose definitions have a state for each sequence."""

from dataclasses import dataclass

import torch
from torch import Tensor


def of_each(slots: Tensor | None, cu_seqlens: Tensor) -> Tensor:
    """The slot of each sequence."""
    return torch.arange(len(cu_seqlens) - 1, device=cu_seqlens.device) if slots is None else slots


@dataclass(frozen=True)
class Pooled:
    """A call on a pool [slots, C, W - 1], as it was before; `dpool` is the gradient of the pool afterwards. Nothing is
    read on the host."""

    cu_seqlens: Tensor
    pool: Tensor
    slots: Tensor | None
    has_initial_state: Tensor
    dpool: Tensor | None

    @property
    def _live(self) -> Tensor:
        return of_each(self.slots, self.cu_seqlens) >= 0

    @property
    def _carried(self) -> Tensor:
        return self._live & self.has_initial_state

    @property
    def _written(self) -> Tensor:
        return self._live & (self.cu_seqlens.diff() > 0)

    @property
    def _rows(self) -> Tensor:
        return of_each(self.slots, self.cu_seqlens).long().clamp(min=0)

    def owned(self, *tensors: Tensor | None) -> list[Tensor | None]:
        """Rows of tokens, with zeros in those of skipped sequences and of none, whatever they hold. Without slots no
        sequence is skipped, and what no sequence has is left out by the kernels: a copy less."""
        if self.slots is None:
            return list(tensors)
        length = next(len(x) for x in tensors if x is not None)
        # A row behind the last sequence has the number of one more, which is not live.
        owner = torch.searchsorted(self.cu_seqlens[1:], torch.arange(length, device=self.pool.device), right=True)
        live = torch.nn.functional.pad(self._live, (0, 1))[owner]
        return [None if x is None else torch.where(live.view(-1, *[1] * (x.dim() - 1)), x, 0.0) for x in tensors]

    @property
    def initial_state(self) -> Tensor:
        return self._of_each(self.pool, self._carried)

    @property
    def dht(self) -> Tensor | None:
        return None if self.dpool is None else self._of_each(self.dpool, self._written).float()

    def before(self, dh0: Tensor) -> Tensor:
        """The gradient of the pool before the call."""
        pool, rows, dpool = self.pool, self._rows, self.dpool
        over = torch.zeros(len(pool), device=pool.device).index_add_(0, rows, self._written.float()) > 0
        before = torch.zeros_like(pool) if dpool is None else torch.where(over[:, None, None], 0.0, dpool)
        return before.index_add(0, rows, torch.where(self._carried[:, None, None], dh0, 0.0).to(before.dtype))

    def _of_each(self, states: Tensor, which: Tensor) -> Tensor:
        return torch.where(which[:, None, None], states[self._rows], 0.0)
