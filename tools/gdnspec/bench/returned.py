"""Opens the memory in which the calls of a captured graph return outputs, so that the child does not copy them."""

from typing import Any

from torch import Tensor

from gdnspec.model.dtypes import SIZES
from gdnspec.model.elements import Tensor as TensorModel
from gdnspec.sandbox.wire.arena import TORCH, CudaArena


class NoSuchMemory(Exception):
    """The child named memory that does not exist."""


class Opened:
    """Allocations of the child, each opened once. Call `close` when the child no longer uses them."""

    def __init__(self) -> None:
        self._arenas: dict[str, CudaArena] = {}

    def returned(
        self, told: dict[str, Any], outputs: list[tuple[TensorModel, tuple[int, ...]]], own: Tensor
    ) -> dict[str, list[Tensor]]:
        """The tensors of each output that has elements, by name and by call. `told`: their places, as the child reports
        them. `outputs`: the expected shapes. `own`: the ring's block, uint8. Raises `NoSuchMemory`."""
        try:
            blocks = [self._block(item["handle"], int(item["nbytes"])) for item in told["allocations"]]
            return {
                model.name: [
                    _view(own if row[i][0] == -1 else blocks[row[i][0]], model, shape, row[i]) for row in told["places"]
                ]
                for i, (model, shape) in enumerate(outputs)
                if 0 not in shape
            }
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise NoSuchMemory(f"the child named memory that cannot be read: {error}") from None

    def close(self) -> None:
        for arena in self._arenas.values():
            arena.close()
        self._arenas.clear()

    def _block(self, handle: str, nbytes: int) -> Tensor:
        if handle not in self._arenas:
            self._arenas[handle] = CudaArena(nbytes, handle)
        block = self._arenas[handle].block
        assert block is not None
        return block


def _view(block: Tensor, model: TensorModel, shape: tuple[int, ...], place: list[Any]) -> Tensor:
    """The tensor with this shape at `place`: (number of its block, byte offset, strides)."""
    _, offset, strides = place
    size = SIZES[model.dtype]
    last = sum((n - 1) * int(stride) for n, stride in zip(shape, strides, strict=True))
    if offset < 0 or offset % size or min(strides, default=0) < 0 or offset + (last + 1) * size > block.numel():
        raise ValueError(f"{model.name} is outside its allocation")
    return block[: block.numel() // size * size].view(TORCH[model.dtype]).as_strided(shape, strides, offset // size)
