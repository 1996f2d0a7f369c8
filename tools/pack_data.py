"""Build hook: packs definitions, reference, solutions, peers, adapters and the solutions of tests/ into wheels.

Adapters go to the package `gdnspec.integrations`, all else is data. An editable install reads them from the checkout,
so it gets nothing: a copy there would go stale.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Where each folder is in a wheel.
FOLDERS = {
    name: f"gdnspec/data/{name}"
    for name in ("definitions", "reference", "solutions", "peers", "tests/known_bad", "tests/honest")
} | {"integrations": "gdnspec/integrations"}


class PackData(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return
        for name, target in FOLDERS.items():
            folder = Path(self.root) / name
            for file in sorted(folder.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    build_data["force_include"][str(file)] = f"{target}/{file.relative_to(folder)}"
