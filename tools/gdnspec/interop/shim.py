"""A module between an entry that is called by keyword and one that is called by place, and back."""

import re

from gdnspec.model.definition import Definition
from gdnspec.model.solution import Entry

SHIM = "gdnspec_entry.py"
HEAD = re.compile(r"^# gdnspec: (\{.*\})$", re.MULTILINE)


def shim(entry: Entry, definition: Definition) -> str:
    """`run` takes inputs, then outputs where there are places for them, and calls the entry as gdnspec does."""
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
        '"""Inputs, and outputs where they have places, by their order: what gdnspec passes by name."""\n\n'
        f"# gdnspec: {said}\n{imports}\n\ndef run({', '.join(names)}):\n    return _entry({by_name})\n"
    )


def entry_of(text: str) -> Entry | None:
    """What a shim of gdnspec's stands before."""
    match = HEAD.search(text)
    return Entry.model_validate_json(match[1]) if match else None
