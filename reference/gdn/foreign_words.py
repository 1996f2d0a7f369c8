"""What a definition of FlashInfer-Bench may say otherwise than the one here, in words, and how its text shows it."""

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdnspec.family import Meaning, Text

GATES = {"linear": "alpha itself", "log": "a logarithm"}
# Differences that a judge can put aside, each in words that follow "right on 9 of 9 ..".
NO_NORM, SCALE_0, EMPTY = (
    "without the L2 norm", "with a scale of 0.0 as the default scale", "with zeros after an empty sequence"
)  # fmt: skip
WRITTEN, OTHER_GATE = "with its default scale written out", "with g read the other way"
NORMS = ("rsqrt", "norm(", "normalize(")
# Calls that leave a value as it is, but for its type and shape.
SAME = {
    "float", "double", "to", "squeeze", "unsqueeze", "view", "reshape", "transpose", "clone", "contiguous", "expand",
}  # fmt: skip


def compare(found: "Meaning", text: "Text") -> None:
    """Where the text of a reference says what this specification says otherwise."""
    assert found.ours is not None
    conventions = found.ours.definition.conventions
    mine = next((theirs for theirs in found.theirs.inputs if found.renamed.get(theirs, theirs) == "g"), None)
    if mine is not None and conventions.decay_gate in GATES:
        there = "log" if exponential_of(text.tree, mine) else "linear"
        if there != conventions.decay_gate:
            found.gate = there
            here = GATES[conventions.decay_gate]
            name = found.ours.definition.name
            found.differences.append(f"its reference reads {mine} as {GATES[there]}: in {name} it is {here}")
    if conventions.qk_norm != "none" and not any(word in text.whole for word in NORMS):
        found.differences.append("its reference takes no L2 norm of q and k: here it is, by default")
        if conventions.qk_norm == "optional_l2":
            found.aside.append(NO_NORM)
    if "scale == 0" in text.whole:
        found.differences.append("a scale of 0.0 is its default scale: here 0.0 is 0.0")
        found.aside.append(SCALE_0)
    if all(word in text.whole for word in ("cu_seqlens", "continue", "zeros")):  # passed over, and states are zeros
        found.differences.append("an empty sequence ends with zeros in its reference: here with its initial state")
        found.aside.append(EMPTY)
    if "F.softplus" in text.whole and "threshold" not in text.whole:
        found.differences.append("its softplus is linear above 20: here it has no threshold (2e-9 apart at most)")


def exponential_of(tree: ast.Module, name: str) -> bool:
    """Whether an exponential is taken of this argument, or of what is the same but for type and shape."""
    same = {name}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _is_same(node.value, same):
            same |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return any(
        isinstance(node, ast.Call)
        and _called(node) == "exp"
        and any(_is_same(part, same) for part in (*node.args, *_owner(node)))
        for node in ast.walk(tree)
    )


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _owner(node: ast.Call) -> list[ast.expr]:
    """What a method is called of: x in x.exp(). A module is none."""
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    module = isinstance(owner, ast.Name) and owner.id in ("torch", "math", "np", "F")
    return [] if owner is None or module else [owner]


def _is_same(node: ast.expr, names: set[str]) -> bool:
    """Whether an expression is one of these names, through indices and calls that change no value."""
    while True:
        if isinstance(node, ast.Name):
            return node.id in names
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SAME:
            node = node.func.value
        else:
            return False
