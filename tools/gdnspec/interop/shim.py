"""A module that lets a solution be called by position: it passes the arguments on by keyword."""

import re

from gdnspec.model.definition import Definition
from gdnspec.model.solution import Entry

SHIM = "gdnspec_entry.py"
HEAD = re.compile(r"^# gdnspec: (\{.*\})$", re.MULTILINE)


def shim(entry: Entry, definition: Definition) -> str:
    """The module's text. Its `run` takes inputs, then outputs if `call` is `out`, and calls the entry by keyword."""
    inputs = [tensor.name for tensor in definition.inputs]
    outputs = [tensor.name for tensor in definition.outputs] if entry.call == "out" else []
    names = [*inputs, *outputs]
    by_name = ", ".join(f"{name}={name}" for name in names)
    files = {entry.file: [f"{entry.function} as _entry"]}
    if entry.prepare is not None:
        file, function = entry.prepare.split("::")
        files.setdefault(file, []).append(f"{function} as _prepare")
        by_name += f", prepared=_prepare({', '.join(f'{name}={name}' for name in inputs)})"
    imports = "".join(
        f"from .{file.removesuffix('.py').replace('/', '.')} import {', '.join(functions)}\n"
        for file, functions in files.items()
    )
    said = entry.model_dump_json()
    return (
        '"""Takes inputs, and outputs if there are places for them, by position; gdnspec passes them by name."""\n\n'
        f"# gdnspec: {said}\n{imports}\n\ndef run({', '.join(names)}):\n    return _entry({by_name})\n"
    )


def entry_of(text: str) -> Entry | None:
    """The entry that a shim of gdnspec calls; None if the text is not such a shim."""
    match = HEAD.search(text)
    return Entry.model_validate_json(match[1]) if match else None
