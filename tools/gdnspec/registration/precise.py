"""Matrix products of float32 in float32, whatever a process has allowed."""

import threading
from collections.abc import Callable
from typing import Any

import torch

EXACT = ("none", "ieee")


class Precise:
    """A context in which no product of float32 is shortened: by neither of PyTorch's two interfaces, nor by autocast.

    Both interfaces are of the process. So the first thread that enters changes them, and the last one that leaves puts
    back what it found. Where nothing is shortened, nothing is changed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._found: list[str] = []
        self._legacy = "highest"

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside > 1:
                return
            self._found = [each.fp32_precision for each in _backends()]
            for each, found in zip(_backends(), self._found, strict=True):
                if found not in EXACT:
                    each.fp32_precision = "ieee"
            self._legacy = torch.get_float32_matmul_precision()  # which raises where the two interfaces differ
            if self._legacy != "highest":
                torch.set_float32_matmul_precision("highest")

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside:
                return
            if self._legacy != "highest":
                torch.set_float32_matmul_precision(self._legacy)
            for each, found in zip(_backends(), self._found, strict=True):
                if each.fp32_precision != found:
                    each.fp32_precision = found


def _backends() -> tuple[Any, Any]:
    return torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


PRECISE = Precise()


def precise(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The function with exact products of float32."""

    def computed(*args: Any) -> Any:
        with PRECISE, torch._C._DisableAutocast():
            return plain(*args)

    return computed


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose outputs are no views, as those of PyTorch's operators: whoever has them may write to them.

    Inside it nothing has a gradient.
    """

    def computed(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowADInplaceOrView():
            return function(*args)

    return computed
