"""The tools know no family: no Python below tools/ names its operator, a definition, a tensor, an axis or a part.

The names are collected from the definitions that are shipped. Comments and docstrings may give examples.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
from conftest import ROOT
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.families import families

# Words that the tools use in a meaning of their own, whatever a family calls its tensors.
ORDINARY = {
    "accepted": "a submission, or guessed tokens",
    "bias": "a figure that budgets limit: errors that all lean one way",
    "drafts": "a role of axes",
    "checkpoints": "states that a session keeps under a name",
    "do": "what a step of a session does",
    "heads": "a role of axes",
    "parents": "folders above a file; the side of the sandbox that starts the other",
    "output": "what a call returns; the option -o",
    "pool": "a convention of definitions: how states are updated",
    "scale": "of an axis of a chart, of a unit",
    "slots": "a role of axes; GPUs of the server",
    "state": "where a job, a trace or a random stream stands",
    "states": "a convention of definitions says how they lie: state_layout",
    "weight": "how many calls a workload stands for",
    "x": "a value; a place in a chart",
    "y": "a place in a chart",
}
# Files in which names of a family mean something else, with the reason.
EXCEPTIONS = {
    "gdnspec/build/loader.py": ({"a"}, "the ending that CUDA gives to architectures"),
    "gdnspec/cli/commands/compare.py": ({"a", "b"}, "the two sides, as the command's JSON has them"),
    "gdnspec/inputs/raw.py": ({"q"}, "a format of memoryview"),
    "gdnspec/report/pairing.py": ({"a", "b"}, "the two sides, as the command's JSON has them"),
    "gdnspec/report/shapes.py": ({"a"}, "the article before the name of a device"),
}
WORD = re.compile(r"\w+")
OPENING = ("open", "fdopen")


@cache
def family_names() -> frozenset[str]:
    """What the definitions of all shipped families call things."""
    names: set[str] = set()
    for found in definitions().values():
        definition = found.definition
        named = [*definition.inputs, *definition.outputs, *definition.axes]
        parts = [part for one in named for part in getattr(one, "parts", None) or []]
        names |= {found.family.name, definition.name} | {one.name for one in (*named, *parts)}
    return frozenset(names)


@cache
def operators() -> frozenset[str]:
    """What the files of the families say first of themselves, in small letters: gated delta net."""
    return frozenset(family.about.description.partition(":")[0].lower() for family in families().values())


def named(text: str) -> Iterator[tuple[int, str]]:
    """Every name of a family in the text of a module, with its line: a string or a keyword that is one, of any length;
    longer ones as a word of a string, as an identifier, and where the fixed parts of a string fit: f"num_{x}_heads"."""
    tree, names = ast.parse(text), family_names() - ORDINARY.keys()
    pieces = {id(piece) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for piece in node.values}
    passed_over = {id(other) for node in ast.walk(tree) for other in _no_text(node)}
    for node in ast.walk(tree):
        found: list[str] = []
        if id(node) in passed_over:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = [word for word in WORD.findall(node.value) if len(word) > 2]
            found += [node.value] if len(node.value) <= 2 and id(node) not in pieces else []
            found += [name for name in operators() if name in node.value.lower()]
        elif isinstance(node, ast.JoinedStr):
            found = _built(node, names)
        elif isinstance(node, ast.keyword):
            found = [node.arg or ""]
        else:
            found = [name for name in _identifiers(node) if len(name) > 2]
        yield from ((getattr(node, "lineno", 0), name) for name in found if name in names | operators())


def _no_text(node: ast.AST) -> Iterator[ast.AST]:
    """A docstring, the format in f"{x:g}", the mode in open(path, "w")."""
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
        yield body[0].value
    if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
        yield from ast.walk(node.format_spec)
    if isinstance(node, ast.Call) and (getattr(node.func, "attr", "") or getattr(node.func, "id", "")) in OPENING:
        values = (*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "mode"))
        yield from (value for value in values if isinstance(value, ast.Constant))


def _built(node: ast.JoinedStr, names: frozenset[str]) -> list[str]:
    fixed = [str(piece.value) if isinstance(piece, ast.Constant) else None for piece in node.values]
    if len(re.sub(r"\W|_", "", "".join(text or "" for text in fixed))) < 4:
        return []  # it fits anything
    pattern = re.compile("".join(r"\w+" if text is None else re.escape(text) for text in fixed))
    return sorted(name for name in names if pattern.fullmatch(name))


def _identifiers(node: ast.AST) -> list[str]:
    if isinstance(node, ast.alias):
        return [node.asname or node.name]
    return [str(name) for key in ("id", "attr", "arg", "name") if isinstance(name := getattr(node, key, None), str)]


def modules() -> Iterator[tuple[str, str]]:
    """Each module below tools/: its path there, and its text."""
    tools = ROOT / "tools"
    for file in sorted(tools.rglob("*.py")):
        yield str(file.relative_to(tools)), file.read_text()


def test_the_tools_name_nothing_of_a_family() -> None:
    left = {file: set(names) for file, (names, _) in EXCEPTIONS.items()}
    found = []
    for file, text in modules():
        for line, name in named(text):
            if name in EXCEPTIONS.get(file, ((), ""))[0]:
                left[file].discard(name)
            else:
                found.append(f"tools/{file}:{line}: {name}")
    assert found == []
    assert not any(left.values()), "an exception that nothing needs"
    assert len(EXCEPTIONS) <= 5
    assert family_names() >= ORDINARY.keys(), "a word that no family uses"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('heads = scope["num_v_heads"]', "num_v_heads"),
        ('if tensor.name == "q": pass', "q"),
        ('wanted = {"q", "cu_seqlens"}', "cu_seqlens"),
        ("kernel(v=values)", "v"),
        ("def drawn(cu_seqlens): pass", "cu_seqlens"),
        ("sizes.head_size", "head_size"),
        ("final_state = None", "final_state"),
        ('text = f"as in gdn_prefill_k_last, {sizes}"', "gdn_prefill_k_last"),
        ('folder = root / "gdn"', "gdn"),
        ('each = [axes[f"num_{side}_heads"] for side in sides]', "num_q_heads"),
        ('expression = "batch_size * tokens"', "batch_size"),
        ('help = "what it calls a Gated Delta Net with"', "gated delta net"),
    ],
)
def test_a_name_is_found(line: str, name: str) -> None:
    """In whatever way it is written, and at the end of a module of the tools."""
    _, text = next(module for module in modules() if module[0] == "gdnspec/check/plan.py")
    assert name in [name for _, name in named(f"{text}\n\n{line}\n")]
    assert name not in [name for _, name in named(text)]


@pytest.mark.parametrize(
    "line",
    [
        '"""As in gdn_prefill_k_last: q and k."""',
        "# scope[num_v_heads]",
        'said = f"{figure:g}"',
        'file = path.open("w")',
        "q = [k for k in known]",
        'text = "a call, b is another"',
    ],
)
def test_what_is_no_name_is_passed_over(line: str) -> None:
    assert list(named(line)) == []
