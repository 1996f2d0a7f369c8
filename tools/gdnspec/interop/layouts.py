"""Which layout the states of a definition of FlashInfer-Bench have, as far as its tags, its name or its words say: the
shapes of both layouts are the same where keys and values have one size."""

import re

from gdnspec.interop.foreign import Definition

LAYOUTS = ("k_last", "k_first")
SAID = re.compile(r"(?<![a-z0-9])([kv])[-_ ]?(first|last)(?![a-z0-9])", re.IGNORECASE)


def said(theirs: Definition) -> dict[str, set[str]]:
    """Where a layout is named, and which: {"its name": {"k_last"}, ..}. Last of values is first of keys."""
    tags = [tag for tag in theirs.tags if "layout" in tag]
    states = [spec.description for spec in (*theirs.inputs.values(), *theirs.outputs.values()) if spec.description]
    places = {
        "its name": [theirs.name],
        "its tags": tags,
        "its description": [theirs.description or "", *states],
    }
    found = {
        place: {_layout(*pair) for text in texts for pair in SAID.findall(text)} for place, texts in places.items()
    }
    return {place: layouts for place, layouts in found.items() if layouts}


def _layout(of: str, place: str) -> str:
    return "k_last" if f"{of}_{place}".lower() in ("k_last", "v_first") else "k_first"
