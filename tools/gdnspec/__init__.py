"""gdnspec: executable specifications of operators, and the judge of kernels for them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdnspec.capture.session import capture as capture

__version__ = "0.1.0"
__all__ = ["__version__", "capture"]


def __getattr__(name: str) -> object:
    # What only reads JSON pays nothing for it.
    if name == "capture":
        import gdnspec.capture

        return gdnspec.capture
    raise AttributeError(f"module 'gdnspec' has no attribute {name!r}")
