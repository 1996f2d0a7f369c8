"""Workloads recorded from a running program. The package can be called: `gdnspec.capture("gdn_decode_k_last")`."""

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A package and a function of one name, because `gdnspec.capture` is both."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`gdnspec.capture.session.capture`, which has the arguments."""
        from gdnspec.capture.session import capture

        return capture(*args, **kwargs)


sys.modules[__name__].__class__ = _Package
