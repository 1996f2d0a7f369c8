"""Audit Python by its syntax tree. Names are traced through imports, so `from os import system as f` is found."""

import ast
import io
import tokenize

from gdnspec.submission.finding import Finding
from gdnspec.submission.python_names import (
    BUILTINS,
    BY_ATTRIBUTE,
    DYNAMIC,
    ENVIRONMENT,
    FILE_METHODS,
    FILES,
    HOOKS,
    INNER,
    KIND_OF,
    LOOKING_AROUND,
    NOTED,
    NOTED_FILE_METHODS,
    ORDINARY,
    PATCHES,
    UNMISTAKABLE,
    UNUSUAL,
    Known,
    known,
    reached,
)  # fmt: skip

# Functions that can reach an attribute whose name the audit does not see.
BY_TEXT = ("getattr", "setattr", "delattr", "hasattr", "vars", "type", "dir")
HANDED_ON = ("getattr", "setattr", "delattr", "vars")  # as a value, any code can call these with any name
# How many of the arguments are names; None: all.
GETTERS: dict[str | None, int | None] = {"operator.attrgetter": None, "operator.methodcaller": 1}
MOST_OF_A_LITERAL = 4000  # characters; a longer literal may be hidden code


def audit_python(name: str, data: bytes, local: frozenset[str]) -> list[Finding]:
    """Findings in one file. `local`: the modules beside it and the packages that the manifest requires."""
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        tree = ast.parse(data, filename=name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [Finding(name, getattr(error, "lineno", None) or 1, "hidden text", f"not Python: {error}"[:200], True)]
    found = []
    if encoding not in ("utf-8", "utf-8-sig", "ascii"):
        found.append(
            Finding(
                name,
                1,
                "hidden text",
                f"declares the encoding {encoding}, so it looks different from what it does",
                True,
            )
        )
    reader = _Reader(name, local)
    try:
        reader.visit(tree)
    except RecursionError:
        found.append(Finding(name, 1, "hidden text", "nested too deeply for the audit", True))
    return found + reader.found


class _Reader(ast.NodeVisitor):
    """Reads one file. `meaning`: for a name, the dotted path from a module that it stands for."""

    def __init__(self, file: str, local: frozenset[str]) -> None:
        self.file, self.local = file, local
        self.found: list[Finding] = []
        self.meaning: dict[str, str] = {}
        self._called: set[int] = set()  # nodes of names that are called directly, by identity

    def add(self, node: ast.AST, kind: str, what: str, severe: bool = True) -> None:
        self.found.append(Finding(self.file, getattr(node, "lineno", 1), kind, what, severe))

    # --- imports ------------------------------------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name.split(".")[0]
            self.meaning[alias.asname or top] = alias.name if alias.asname else top
            self._imported(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level:
            self._from_beside(node)
            return
        for alias in node.names:
            if alias.name == "*" and module.split(".")[0] not in self.local:
                self.add(node, HOOKS, f"from {module} import *: the audit cannot see what it imports")
            self.meaning[alias.asname or alias.name] = f"{module}.{alias.name}"
            self._imported(node, f"{module}.{alias.name}")

    def _from_beside(self, node: ast.ImportFrom) -> None:
        """An import from a file beside this one. That file is audited too, but it may pass on what it imports."""
        for alias in node.names:
            if alias.name not in self.local:
                self.meaning[alias.asname or alias.name] = f".{alias.name}"
                self._named(node, f".{alias.name}")

    def _imported(self, node: ast.AST, name: str) -> None:
        top = name.split(".")[0]
        if self._named(node, name) or top in ORDINARY or top in self.local:
            return
        if top in KIND_OF:
            if top not in BY_ATTRIBUTE:
                self.add(node, KIND_OF[top], f"import {name}", top not in NOTED)
            elif top in NOTED:
                self.add(node, KIND_OF[top], f"import {name}", False)
        else:
            self.add(node, LOOKING_AROUND, f"import {name}: not a module that kernels usually need", False)

    # --- names --------------------------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in BUILTINS and node.id not in self.meaning:
            if isinstance(node.ctx, ast.Load):
                self.add(node, BUILTINS[node.id], node.id, node.id not in UNUSUAL)
        elif node.id in HANDED_ON and node.id not in self.meaning and id(node) not in self._called:
            self.add(node, LOOKING_AROUND, f"{node.id}, passed on as a value")
        elif node.id in self.meaning and isinstance(node.ctx, ast.Load):
            meant = self.meaning[node.id]
            if meant in KIND_OF and meant not in NOTED:
                self.add(node, KIND_OF[meant], f"{meant}, passed on as a value")
            self._named(node, meant)

    def visit_Assign(self, node: ast.Assign) -> None:
        meant = self._dotted(node.value)
        for target in node.targets:
            if meant is not None and isinstance(target, ast.Name):
                self.meaning[target.id] = meant
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        dotted = self._dotted(node)
        if not isinstance(node.ctx, ast.Load):
            owner = self._dotted(node.value)
            if owner is not None:
                self.add(node, PATCHES, f"sets {owner}.{node.attr}")
        if dotted is None:
            self._attribute(node, node.attr)
            self.visit(node.value)
        elif (found := self._named(node, dotted)) is None or not found.severe:
            for name in dotted.split(".")[1:]:
                self._attribute(node, name)

    def _attribute(self, node: ast.AST, name: str) -> None:
        if name in INNER:
            self.add(node, LOOKING_AROUND, f".{name}")
        elif name.lstrip("_") in UNMISTAKABLE:
            self.add(node, KIND_OF[name.lstrip("_")], f".{name}: a module, reached through another one")
        elif name in FILE_METHODS or name in NOTED_FILE_METHODS:
            self.add(node, FILES, f".{name}", name in FILE_METHODS)
        elif name == "__dict__":
            self.add(node, PATCHES, ".__dict__", False)

    def _named(self, node: ast.AST, dotted: str) -> Known | None:
        """Adds a finding for a dotted name that is known."""
        parts = dotted.split(".")
        found = reached(parts) or known(parts)
        if found is not None:
            self.add(node, found.kind, dotted, found.severe)
        return found

    def _dotted(self, node: ast.AST) -> str | None:
        """The dotted name that a node stands for, such as `torch.hub.load`; None if it does not come from a module."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.meaning:
            return None
        return ".".join([self.meaning[node.id], *reversed(parts)])

    # --- uses of names ------------------------------------------------------------------------------------------

    def visit_Subscript(self, node: ast.Subscript) -> None:
        owner = self._dotted(node.value)
        if not isinstance(node.ctx, ast.Load) and owner is not None:
            kind = ENVIRONMENT if owner == "os.environ" else PATCHES
            self.add(node, kind, f"sets {owner}[..]")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        if called in BY_TEXT and called not in self.meaning:
            self._called.add(id(node.func))
            self._by_text(node, called)
        if (getter := self._dotted(node.func)) in GETTERS:
            for argument in node.args[: GETTERS[getter]]:
                self._asked_for(node, argument)
        self._of_environment(node)
        self.generic_visit(node)

    def _by_text(self, node: ast.Call, called: str) -> None:
        """Calls that reach an attribute by text, such as getattr(x, "na" + "me")."""
        if called in ("setattr", "delattr"):
            self.add(node, PATCHES, f"{called} of {ast.unparse(node.args[0])[:60] if node.args else ''}")
        elif called == "getattr":
            self._asked_for(node, node.args[1] if len(node.args) > 1 else None)
        elif called in ("vars", "dir") or (called == "type" and len(node.args) == 3):
            self.add(node, LOOKING_AROUND, f"{called}(..)", False)

    def _asked_for(self, node: ast.Call, name: ast.expr | None) -> None:
        """An attribute that is named by text, which may contain dots."""
        text = name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None
        if text is None:
            self.add(node, LOOKING_AROUND, "getattr with a name that is computed at run time")
            return
        if text in INNER or text.startswith("__") or text in BUILTINS:
            self.add(node, LOOKING_AROUND, f"getattr of {text}")
            return
        owner = self._dotted(node.args[0])
        if owner is None or self._named(node, f"{owner}.{text}") is None:
            for part in text.split("."):
                self._attribute(node, part)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        for name in node.kwd_attrs:
            self._attribute(node, name)
        self.generic_visit(node)

    def _of_environment(self, node: ast.Call) -> None:
        dotted = self._dotted(node.func)
        if (
            dotted
            and dotted.startswith("os.environ.")
            and dotted.rpartition(".")[2] in ("update", "setdefault", "pop", "clear")
        ):
            self.add(node, ENVIRONMENT, f"changed by {dotted}")

    def visit_Constant(self, node: ast.Constant) -> None:
        size = len(node.value) if isinstance(node.value, str | bytes) else 0
        if size > MOST_OF_A_LITERAL:
            self.add(node, DYNAMIC, f"a literal of {size} characters", False)
