"""Matrix products of float32 in float32, whatever a process has allowed."""

import threading
from collections.abc import Callable
from typing import Any

import torch

EXACT = ("none", "ieee")
BACKENDS = ("cuda", "mkldnn")

# What torch.backends.cuda.matmul.fp32_precision calls, which takes eight times as long.
_get, _set = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter


class Precise:
    """A context in which no product of float32 is shortened: whichever of PyTorch's two interfaces allows it.

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
            if not self._inside:
                self._change()
            self._inside += 1  # not before: whoever fails to enter does not leave

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside:
                return
            if self._legacy != "highest":
                torch.set_float32_matmul_precision(self._legacy)
            for backend, found in zip(BACKENDS, self._found, strict=True):
                if _get(backend, "matmul") != found:
                    _set(backend, "matmul", found)

    def _change(self) -> None:
        self._found = [_get(backend, "matmul") for backend in BACKENDS]
        for backend, found in zip(BACKENDS, self._found, strict=True):
            if found not in EXACT:
                _set(backend, "matmul", "ieee")
        self._legacy = torch.get_float32_matmul_precision()  # which raises where the two interfaces differ
        if self._legacy != "highest":
            torch.set_float32_matmul_precision("highest")


PRECISE = Precise()


def precise(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The function with exact products of float32: autocast is off inside it, too."""

    def computed(*args: Any) -> Any:
        with PRECISE, torch._C._DisableAutocast():
            return plain(*args)

    return computed
