"""One block of memory for all tensors of a call: the parent creates it, and the child maps it.

On a CPU it is an anonymous file (memfd) whose descriptor is sent over the socket, so it has no name and leaves nothing
behind. On a GPU it is an allocation that the child opens through CUDA IPC.
"""

import base64
import ctypes
import fcntl
import mmap
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from gdnspec.model.dtypes import SIZES

ALIGNMENT = 256
GUARD = 64 * 1024  # bytes before and after every tensor, which no call may write to
GUARD_BYTE = 0xFF  # NaN in every float type, so that reads past an end are visible as well
TORCH: dict[str, torch.dtype] = {name: getattr(torch, name) for name in SIZES}


@dataclass(frozen=True)
class Slot:
    """The place of one tensor in the block. `gap`: elements after each index of its first `leading` dimensions, which
    no call may write to. Otherwise the tensor is contiguous."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    gap: int = 0
    leading: int = 1

    @property
    def nbytes(self) -> int:
        """The bytes of the tensor, including gaps."""
        return SIZES[self.dtype] * self._pitch * prod(self.shape[: self.leading])

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index of each dimension to the next."""
        spaced = (*self.shape[: self.leading], self._pitch)
        leading = [prod(spaced[i:]) for i in range(1, len(spaced))]
        return (*leading, *(prod(self.shape[i + 1 :]) for i in range(self.leading, len(self.shape))))

    @property
    def _pitch(self) -> int:
        return prod(self.shape[self.leading :]) + self.gap

    def view(self, block: Tensor) -> Tensor:
        """The tensor in `block`, a uint8 tensor of the whole arena."""
        flat = block[self.offset : self.offset + self.nbytes].view(TORCH[self.dtype])
        if not self.gap:
            return flat.view(self.shape)
        return flat.view(-1, self._pitch)[:, : self._pitch - self.gap].view(self.shape)

    def gaps(self, block: Tensor) -> Tensor:
        """The bytes of its gaps, [indices, bytes of one]."""
        size = SIZES[self.dtype]
        rows = block[self.offset : self.offset + self.nbytes].view(-1, self._pitch * size)
        return rows[:, (self._pitch - self.gap) * size :]

    def moved(self, nbytes: int) -> "Slot":
        return replace(self, offset=self.offset + nbytes)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Slot":
        return Slot(data["name"], data["dtype"], tuple(data["shape"]), data["offset"], data["gap"], data["leading"])


def lay_out(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]],
    gaps: Mapping[str, int] | None = None,
    leading: Mapping[str, int] | None = None,
) -> tuple[list[Slot], int]:
    """Slots for (name, dtype, shape), and their total bytes, with a guard zone before and after each. `gaps`: elements
    after each index of a tensor's first dimension, by name, or of as many dimensions as `leading` says."""
    slots: list[Slot] = []
    end = GUARD
    for name, dtype, shape in tensors:
        slot = Slot(name, dtype, shape, end, (gaps or {}).get(name, 0), (leading or {}).get(name, 1))
        slots.append(slot)
        end += -(-slot.nbytes // ALIGNMENT) * ALIGNMENT + GUARD
    return slots, end


def zones(slots: list[Slot], nbytes: int) -> list[tuple[str, slice]]:
    """The guard zones, each with the name of the tensor before it: all bytes outside slots."""
    result, start, name = [], 0, "the first tensor's start"
    for slot in slots:
        result.append((name, slice(start, slot.offset)))
        start, name = slot.offset + slot.nbytes, slot.name
    return [*result, (name, slice(start, nbytes))]


class HostArena:
    """Memory in an anonymous file. The child needs its `fd`."""

    def __init__(self, nbytes: int, fd: int | None = None) -> None:
        self.nbytes = nbytes
        if fd is None:
            fd = os.memfd_create("gdnspec", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, nbytes)
            # If a child could shrink the file, the parent would crash at its next read.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.fd = fd
        self._map = mmap.mmap(fd, nbytes)
        self.block: Tensor | None = torch.frombuffer(self._map, dtype=torch.uint8)

    @property
    def fds(self) -> list[int]:
        return [self.fd]

    def describe(self) -> dict[str, Any]:
        return {"kind": "host", "nbytes": self.nbytes}

    def close(self) -> None:
        # The map itself is freed with the last tensor that views it.
        self.block = None
        os.close(self.fd)


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _call(function: str, *args: Any) -> None:
    code = getattr(_driver(), function)(*args)
    if code == 2:
        raise MemoryError(f"{function}: the GPU's memory is full")
    if code != 0:
        raise RuntimeError(f"{function} failed with CUDA error {code}")


def ipc_handle(pointer: int) -> str:
    """The handle with which another process can open the allocation that begins at `pointer`. Raises `RuntimeError` if
    this kind of memory cannot be shared."""
    handle = _IpcHandle()
    _call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(pointer))
    return base64.b64encode(bytes(handle)).decode()


def allocation(pointer: int) -> tuple[int, int]:
    """The address and size of the allocation that contains `pointer`."""
    base, nbytes = ctypes.c_uint64(), ctypes.c_size_t()
    _call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(nbytes), ctypes.c_uint64(pointer))
    return base.value, nbytes.value


class _Memory:
    """A device pointer in a form that torch accepts without a copy."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (pointer, False), "version": 3,
        }  # fmt: skip


class CudaArena:
    """Device memory shared through CUDA IPC: allocated here, or opened from another process's handle."""

    def __init__(self, nbytes: int, handle: str | None = None) -> None:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.current_stream().synchronize()  # makes the primary context, which torch uses, current
        self.nbytes = nbytes
        self._opened = handle is not None
        pointer = ctypes.c_uint64()
        if handle is None:
            _call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
        else:
            opened = _IpcHandle.from_buffer_copy(base64.b64decode(handle))
            lazy_peer_access = ctypes.c_uint(1)
            _call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), opened, lazy_peer_access)
        self._pointer = pointer
        if self._opened:  # the size in a message of another process is not trusted
            self.nbytes = nbytes = min(nbytes, allocation(pointer.value)[1])
        self.block: Tensor | None = torch.as_tensor(_Memory(pointer.value, nbytes), device="cuda")

    @property
    def fds(self) -> list[int]:
        return []

    @property
    def pointer(self) -> int:
        """Its address in this process."""
        return self._pointer.value

    def describe(self) -> dict[str, Any]:
        return {"kind": "cuda", "nbytes": self.nbytes, "handle": ipc_handle(self.pointer)}

    def close(self) -> None:
        self.block = None
        torch.cuda.synchronize()
        _call("cuIpcCloseMemHandle" if self._opened else "cuMemFree_v2", self._pointer)


Arena = HostArena | CudaArena


def create(device: str, nbytes: int) -> Arena:
    """Creates an arena, in the parent."""
    return CudaArena(nbytes) if device == "cuda" else HostArena(nbytes)


def attach(description: dict[str, Any], fds: list[int]) -> Arena:
    """Opens the parent's arena, in the child."""
    if description["kind"] == "cuda":
        return CudaArena(description["nbytes"], description["handle"])
    return HostArena(description["nbytes"], fds[0])
