"""The layout of states in a definition of FlashInfer-Bench, from its tags, name and description. Shapes do not show it:
both layouts have the same shape if keys and values have the same size."""

import re

from gdnspec.interop.foreign import Definition

LAYOUTS = ("k_last", "k_first")
SAID = re.compile(r"(?<![a-z0-9])([kv])[-_ ]?(first|last)(?![a-z0-9])", re.IGNORECASE)


def said(theirs: Definition) -> dict[str, set[str]]:
    """The places that name a layout, with the layouts: {"its name": {"k_last"}, ..}. v_last means k_first."""
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
