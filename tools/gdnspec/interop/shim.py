"""The module that FlashInfer-Bench calls for a Python solution: `run` takes the inputs by position."""

import re
from collections.abc import Mapping

from gdnspec.catalog.solutions import Solution
from gdnspec.interop.calling import module
from gdnspec.model.definition import Definition
from gdnspec.model.solution import Entry

SHIM = "gdnspec_entry.py"
HEAD = re.compile(r"^# gdnspec: (\{.*\})$", re.MULTILINE)


def shim(solution: Solution, definition: Definition, axes: Mapping[str, int]) -> str:
    """The module's text. Its `run` returns the outputs."""
    said = solution.manifest.entries[definition.name].model_dump_json()
    return f"{module(solution, [definition], axes)}\n\n# gdnspec: {said}\nrun = {definition.name}\n"


def entry_of(text: str) -> Entry | None:
    """The entry that a shim of gdnspec calls; None if the text is not such a shim."""
    match = HEAD.search(text)
    return Entry.model_validate_json(match[1]) if match else None
