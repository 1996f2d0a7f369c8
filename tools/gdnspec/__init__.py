"""gdnspec: the executable specification of Gated Delta Net."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdnspec import ops as ops
    from gdnspec.api.function_check import check as check
    from gdnspec.api.kernel import Kernel as Kernel
    from gdnspec.api.kernel import kernel as kernel
    from gdnspec.api.spec import definition as definition
    from gdnspec.api.spec import definitions as definitions
    from gdnspec.api.verdict import CheckFailed as CheckFailed
    from gdnspec.api.verdict import Verdict as Verdict
    from gdnspec.capture.session import capture as capture
    from gdnspec.model.errors import SpecError as SpecError

__version__ = "0.1.0"
__all__ = [
    "CheckFailed", "Kernel", "SpecError", "Verdict", "__version__", "capture", "check", "definition", "definitions",
    "kernel", "ops",
]  # fmt: skip

# Loaded when they are asked for: what only reads JSON pays nothing for them. A package of the same name can be called.
_FACE = {
    "CheckFailed": "gdnspec.api.verdict:CheckFailed",
    "Kernel": "gdnspec.api.kernel:Kernel",
    "SpecError": "gdnspec.model.errors:SpecError",
    "Verdict": "gdnspec.api.verdict:Verdict",
    "capture": "gdnspec.capture",
    "check": "gdnspec.check",
    "definition": "gdnspec.api.spec:definition",
    "definitions": "gdnspec.api.spec:definitions",
    "kernel": "gdnspec.api.kernel:kernel",
    "ops": "gdnspec.ops",
}


if not TYPE_CHECKING:  # or a type checker takes every misspelt name

    def __getattr__(name: str) -> object:
        if name not in _FACE:
            raise AttributeError(f"module 'gdnspec' has no attribute {name!r}")
        module, _, attribute = _FACE[name].partition(":")
        errors = importlib.import_module("gdnspec.model.errors")
        with errors.installed(f"gdnspec.{name}"):
            found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found
