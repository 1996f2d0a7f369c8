"""Build hook: packs definitions/, reference/, solutions/, peers/ and the solutions of tests/ into wheels.

An editable install reads them from the checkout, so it gets nothing: a copy there would go stale.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("definitions", "reference", "solutions", "peers", "tests/known_bad", "tests/honest")


class PackData(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return
        for name in FOLDERS:
            for file in sorted((Path(self.root) / name).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    build_data["force_include"][str(file)] = f"gdnspec/data/{file.relative_to(self.root)}"
