"""Record workloads from a running program. The package can be called: `gdnspec.capture("gdn_decode_k_last")`."""

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A module that can be called, because `gdnspec.capture` is both a package and a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls `gdnspec.capture.session.capture`, which documents the arguments."""
        from gdnspec.capture.session import capture

        return capture(*args, **kwargs)


sys.modules[__name__].__class__ = _Package
