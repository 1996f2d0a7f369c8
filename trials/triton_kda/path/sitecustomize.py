"""First on PYTHONPATH: hides what breaks FLA's import, and lets the judge's children share Triton's cache."""

import os
import sys

HIDDEN = ("tilelang", "flash_qla", "fla.layers", "fla.models")


class Hide:
    def find_spec(self, name, path=None, target=None):
        if name in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r} (hidden)", name=name)
        return None


sys.meta_path.insert(0, Hide())
if shared := os.environ.get("TRITON_SHARED"):
    os.environ["TRITON_CACHE_DIR"] = shared
