"""What ONNX can say of each definition: a table."""

from gdnspec.build.reference import judged, onnx
from gdnspec.catalog.definitions import Found, definitions
from gdnspec.catalog.families import families

from docs.page import Page, code, table


def pages() -> list[Page]:
    described = [family for family in families().values() if judged(family).onnx is not None]
    text = (
        "# What ONNX can express\n\nONNX has operators for some definitions. A definition that no operator computes is "
        "listed with the reason. [How to use ONNX](../how-to/onnx.md) runs them.\n\n"
    )
    for family in described:
        there = onnx(family)
        text += f"The operators of the family `{family.name}` are in the standard since opset {there.opset}.\n\n"
        mine = [found for found in definitions().values() if found.family == family]
        text += table(["definition", "operator", "around it, or why there is none"], [_row(found) for found in mine])
    return [Page("reference/onnx.md", text)]


def _row(found: Found) -> tuple[str, str, str]:
    words = onnx(found.family).words(found.definition)
    name = found.definition.name
    return (
        f"[`{name}`](definitions/{name}.md)",
        code(words.operator) or "none",
        "; ".join(words.around) or words.lacking,
    )
