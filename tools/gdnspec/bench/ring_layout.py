"""The layout of a ring: a set of buffers for each call, at equal distances, and pools, which all calls share."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from gdnspec.check.call import Content
from gdnspec.model.definition import Definition
from gdnspec.model.dtypes import SIZES
from gdnspec.model.roles import padding
from gdnspec.numerics.pools import integers, named_slots
from gdnspec.sandbox.wire.arena import TORCH, Slot, lay_out, zones

INT32 = 1 << 31
CODES = 1 << 33  # elements of one byte: 2 GiB would be too few calls for a window that can be timed


def most_calls(definition: Definition, content: Content) -> int | None:
    """The number of calls for which pools have slots before one exceeds 2^31 elements, which would need larger offsets
    than the workload does; 2^33 if an element has one byte. None if the workload exceeds it itself, or has no pool."""
    found = []
    for name, named in named_slots(definition, integers(content.tensors)).items():
        pool = content.tensors[name]
        most = CODES if pool.element_size() == 1 else INT32
        if named and pool.numel() <= most:
            found.append(most // (len(named) * pool[0].numel()))
    return min(found, default=None)


class Layout:
    """The layout for `count` calls. A pool has separate slots for each call, or as many as the workload says if that is
    more: a pool of thousands of slots per call would not fit.

    `slots`: the places of the first call's buffers and of the pools. `shared`: the pools. `named`: for each pool, the
    slots that one call names. `stride`: bytes from a buffer to that of the next call.
    """

    def __init__(self, definition: Definition, gaps: Mapping[str, int], content: Content, count: int) -> None:
        self.count = count
        self.named = named_slots(definition, integers(content.tensors))
        tensors = {name: (definition.input(name).dtype, tuple(x.shape)) for name, x in content.tensors.items()}
        tensors |= {t.name: (t.dtype, definition.shape(t, content.scope)) for t in definition.outputs}
        pools = [
            (
                name,
                tensors[name][0],
                (max(tensors[name][1][0], count * len(named) + 1 + padding(definition)), *tensors[name][1][1:]),
            )
            for name, named in self.named.items()
        ]
        shared, start = lay_out(pools, gaps) if pools else ([], 0)
        each = [(name, *form) for name, form in tensors.items() if name not in self.named]
        own, self.stride = lay_out(each, gaps, definition.leading)
        self.shared = frozenset(slot.name for slot in shared)
        self.slots = {slot.name: slot for slot in (*shared, *(slot.moved(start) for slot in own))}
        self._start = start  # a multiple of the alignment, like the stride
        self._zones = zones(own, self.stride)
        self._shared_zones = zones(shared, start) if pools else []

    @property
    def nbytes(self) -> int:
        return self._start + self.stride * self.count

    @property
    def touched(self) -> int:
        """The bytes that one call touches."""
        return self.stride + sum(
            len(self.named[name]) * self.slots[name].nbytes // self.slots[name].shape[0] for name in self.shared
        )

    def views(self, block: Tensor) -> dict[str, Tensor]:
        """Each tensor in all buffers, [count, *shape]; pools unchanged."""
        return {
            name: slot.view(block) if name in self.shared else self._stacked(block, slot)
            for name, slot in self.slots.items()
        }

    def guards(self, block: Tensor) -> Iterator[Tensor]:
        """The bytes that no call may write to."""
        rows = block[self._start : self.nbytes].view(self.count, self.stride)
        yield from (rows[:, zone] for _, zone in self._zones)
        yield from (block[zone] for _, zone in self._shared_zones)
        yield from (self.slots[name].gaps(block) for name in self.shared)
        for name, slot in self.slots.items():
            if slot.gap and name not in self.shared:
                first = slot.gaps(block)
                yield block[: self.nbytes].as_strided(
                    (self.count, *first.shape), (self.stride, *first.stride()), first.storage_offset()
                )

    def _stacked(self, block: Tensor, slot: Slot) -> Tensor:
        size = SIZES[slot.dtype]
        flat = block[: self.nbytes].view(TORCH[slot.dtype])
        return flat.as_strided((self.count, *slot.shape), (self.stride // size, *slot.strides), slot.offset // size)
