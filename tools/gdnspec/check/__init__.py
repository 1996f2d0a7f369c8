"""Checks correctness: which workloads run on which solutions, each call, and its verdict.

The package can be called: `gdnspec.check(function, "gdn_decode_k_last")`.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from gdnspec.model.errors import installed


class _Package(ModuleType):
    """A package and a function of one name, because `gdnspec.check` is both."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`gdnspec.api.function_check.check`, which has the arguments."""
        with installed("gdnspec.check"):
            module = importlib.import_module("gdnspec.api.function_check")  # above this package in the layers
        return module.check(*args, **kwargs)


sys.modules[__name__].__class__ = _Package
