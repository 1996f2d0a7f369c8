"""Writes junk where a call must not read: NaN and infinities, which survive a multiplication by zero."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from gdnspec.check.content import Content
from gdnspec.model.definition import Definition
from gdnspec.model.unread import unread
from gdnspec.numerics.pools import integers
from gdnspec.numerics.torch_arrays import movable

# The elements get these values in turn; 0.0 stands for the original value. Without it, a row would be all NaN and
# infinity: arithmetic on NaN gives NaN, so a write to a slot that nobody names would not show.
JUNK = (torch.nan, torch.inf, -torch.inf, 0.0)
AT_A_TIME = 256  # slots per step: a pool may have gigabytes


def with_junk(definition: Definition, content: Content, kept: Mapping[str, Iterable[int]] | None = None) -> Content:
    """The same call with junk in everything that it must not read, which does not change its answer. The given tensors
    are not modified. `kept`: for each name, indices along the first dimension that get no junk."""
    tensors = dict(content.tensors)
    for name, indices in unread(definition, content.scope, integers(content.tensors)).items():
        if name in tensors:
            spared = set((kept or {}).get(name, ()))
            tensors[name] = _junked(tensors[name], [i for i in indices if i not in spared])
    return replace(content, tensors=tensors)


def _junked(x: Tensor, rows: list[int]) -> Tensor:
    """A copy with junk at these indices along the first dimension."""
    if not rows:
        return x
    result = x.clone()
    pattern = torch.tensor(JUNK, device=x.device).repeat(x[0].numel() // len(JUNK) + 1)[: x[0].numel()]
    if not x.is_floating_point():  # codes: neither NaN nor infinity, but their scales have both
        pattern = pattern.nan_to_num(nan=127, posinf=-127, neginf=-128)
    junk, index = pattern.to(x.dtype).view(x.shape[1:]), torch.tensor(rows, device=x.device)
    for start in range(0, len(rows), AT_A_TIME):
        some = index[start : start + AT_A_TIME]
        kept = torch.where(pattern.view(x.shape[1:]) == 0, movable(x)[some], movable(junk))
        movable(result)[some] = kept
    return result
