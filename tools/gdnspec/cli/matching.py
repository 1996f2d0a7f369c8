"""The option -k: which workloads run, by words of their names, as in pytest."""

import ast
import re
from collections.abc import Callable

from gdnspec.model.errors import SpecError

WORD = re.compile(r"\(|\)|[^\s()]+")


def matching(text: str) -> Callable[[str], bool]:
    """A test of a name: `decode and not (empty or large)`. A word holds if the name contains it, in either case.
    Raises `SpecError`."""
    words: list[str] = []
    parts = []
    for part in WORD.findall(text):
        if part in ("and", "or", "not", "(", ")"):
            parts.append(part)
        else:
            parts.append(f"w{len(words)}")
            words.append(part.lower())
    try:
        tree = ast.parse(" ".join(parts), mode="eval").body
        _holds(tree, words, "")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError(f"-k {text!r}: combine words with and, or, not and parentheses") from None
    return lambda name: _holds(tree, words, name.lower())


def _holds(node: ast.expr, words: list[str], name: str) -> bool:
    match node:
        case ast.BoolOp(op=op, values=values):
            found = [_holds(value, words, name) for value in values]  # of all: each must be a word
            return all(found) if isinstance(op, ast.And) else any(found)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _holds(operand, words, name)
        case ast.Name(id=word):
            return words[int(word[1:])] in name
    raise ValueError(node)
