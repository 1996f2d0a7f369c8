"""Parse the text of an embedded reference, and find its function. Nothing is run."""

import ast
from dataclasses import dataclass

from gdnspec.interop.foreign import Definition


class NotPython(ValueError):
    """The text is not Python, or has no function."""


@dataclass(frozen=True)
class Text:
    """A parsed reference. `whole`: its source without comments. `entry`: the function that is called."""

    tree: ast.Module
    whole: str
    entry: str


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
