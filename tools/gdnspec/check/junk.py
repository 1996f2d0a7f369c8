"""Junk where the contract says that nothing is read: NaN and infinities, which no multiplication by zero removes."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from gdnspec.check.content import Content
from gdnspec.model.definition import Definition
from gdnspec.model.unread import unread
from gdnspec.numerics.pools import integers

# One after the other, element by element. The last is what was there: whatever is done to NaN, it stays NaN, and a
# write to what nobody names would not show.
JUNK = (torch.nan, torch.inf, -torch.inf, 0.0)
AT_A_TIME = 256  # slots: a pool may have gigabytes


def with_junk(definition: Definition, content: Content, kept: Mapping[str, Iterable[int]] | None = None) -> Content:
    """The same call, whose answer is the same, with junk in all that it does not read; the tensors given stay as they
    are. `kept`: indices of the first dimension to leave alone, by name."""
    tensors = dict(content.tensors)
    for name, indices in unread(definition, content.scope, integers(content.tensors)).items():
        if name in tensors:
            spared = set((kept or {}).get(name, ()))
            tensors[name] = _junked(tensors[name], [i for i in indices if i not in spared])
    return replace(content, tensors=tensors)


def _junked(x: Tensor, rows: list[int]) -> Tensor:
    """A copy with junk in these indices of the first dimension."""
    if not rows:
        return x
    result = x.clone()
    pattern = torch.tensor(JUNK, device=x.device).repeat(x[0].numel() // len(JUNK) + 1)[: x[0].numel()]
    junk, index = pattern.to(x.dtype).view(x.shape[1:]), torch.tensor(rows, device=x.device)
    for start in range(0, len(rows), AT_A_TIME):
        some = index[start : start + AT_A_TIME]
        result[some] = torch.where(junk == 0, x[some], junk)
    return result
