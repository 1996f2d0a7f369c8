"""Tells the parent once where a graph's calls leave their outputs, so that it can read them without this process.

A copy by this process would run after the clock has stopped, in a process that the solution shares.
"""

from typing import Any

import torch

from gdnspec.sandbox.child.opened import Opened, Refused, form_of
from gdnspec.sandbox.wire.arena import Arena, CudaArena, allocation, ipc_handle


def export(arena: Arena, ring: list[Opened], returned: list[list[torch.Tensor]]) -> dict[str, Any] | None:
    """A message with the allocations that contain the outputs of every call, and the place of each output. None if an
    allocation cannot be shared. Raises `Refused` if a tensor has another form than its output."""
    assert isinstance(arena, CudaArena)
    bases: dict[int, int] = {}  # address of an allocation -> its number
    shared: list[dict[str, Any]] = []
    places = []
    try:
        for opened, tensors in zip(ring, returned, strict=False):
            row: list[Any] = []
            for (name, target), tensor in zip(opened.outputs.items(), tensors, strict=True):
                if tensor.shape != target.shape or tensor.dtype != target.dtype or not tensor.is_cuda:
                    raise Refused("shape", f"{name} has another form in a captured call than before: {form_of(tensor)}")
                if not tensor.numel():
                    row.append(None)
                    continue
                pointer = tensor.data_ptr()
                inside = pointer - arena.pointer
                if 0 <= inside < arena.nbytes:  # it is in the parent's own memory
                    row.append([-1, inside, list(tensor.stride())])
                    continue
                base, nbytes = allocation(pointer)
                if base not in bases:
                    bases[base] = len(shared)
                    shared.append({"handle": ipc_handle(base), "nbytes": nbytes})
                row.append([bases[base], pointer - base, list(tensor.stride())])
            places.append(row)
    except RuntimeError:
        return None  # no other process can open this kind of memory
    return {"allocations": shared, "places": places}


def returning(opened: Opened) -> bool:
    """Whether the entry returns its outputs."""
    return bool(opened.entry["call"] == "return")
