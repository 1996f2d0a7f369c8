"""The text of an embedded reference: which function it is, and what its words say. Nothing of it is run."""

import ast
from dataclasses import dataclass

from gdnspec.interop.foreign import Definition

NORMS = ("rsqrt", "norm(", "normalize(")
# Calls that leave a value as it is, but for its type and shape.
SAME = {
    "float",
    "double",
    "to",
    "squeeze",
    "unsqueeze",
    "view",
    "reshape",
    "transpose",
    "clone",
    "contiguous",
    "expand",
}


class NotPython(ValueError):
    """The text is no Python, or has no function that takes the inputs."""


@dataclass(frozen=True)
class Text:
    """`whole` as Python writes it, without comments; `entry` is the function that is called."""

    tree: ast.Module
    whole: str
    entry: str

    @property
    def has_norm(self) -> bool:
        return any(word in self.whole for word in NORMS)

    @property
    def skips_empty(self) -> bool:
        """Sequences without a token are passed over, and states begin as zeros."""
        return "cu_seqlens" in self.whole and "continue" in self.whole and "zeros" in self.whole

    def exponential_of(self, name: str) -> bool:
        """Whether an exponential is taken of this argument, or of what is the same but for type and shape."""
        same = {name}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and _is_same(node.value, same):
                same |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        return any(
            isinstance(node, ast.Call)
            and _called(node) == "exp"
            and any(_is_same(part, same) for part in (*node.args, *_owner(node)))
            for node in ast.walk(self.tree)
        )


def read(theirs: Definition) -> Text:
    """Raises `NotPython`."""
    try:
        tree = ast.parse(theirs.reference)
        whole = ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotPython(str(error)) from None
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    names = [node.name for node in functions]
    wanted = list(theirs.inputs)
    takes = [node.name for node in functions if [arg.arg for arg in node.args.args][: len(wanted)] == wanted]
    entry = "run" if "run" in names else takes[-1] if takes else names[-1] if names else ""
    if not entry:
        raise NotPython("it has no function")
    return Text(tree, whole, entry)


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
