"""Reads Python and CUDA sources without running them: which functions exist, and which parameters they take."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import MAX_DEPTH_MESSAGE, read_text


@dataclass(frozen=True)
class Signature:
    """The parameters of a function. `line`: where it is defined."""

    line: int
    names: tuple[str, ...]
    required: frozenset[str]
    open: bool  # it takes **kwargs
    positional_only: frozenset[str] = frozenset()


def python_functions(path: Path) -> dict[str, Signature]:
    """The functions at the top level of a Python file. Raises `SpecError`."""
    return _functions(path, read_text(path))


@cache  # one file may serve many definitions
def _functions(path: Path, text: str) -> dict[str, Signature]:
    try:
        tree = ast.parse(text.removeprefix("\ufeff"), filename=str(path))
    except SyntaxError as error:
        place = "" if error.lineno is None else f"line {error.lineno}"
        raise SpecError([Problem(path, f"not Python: {error.msg}", place)]) from None
    except (RecursionError, MemoryError):  # the parser's stack is exhausted
        raise SpecError([Problem(path, f"not Python: {MAX_DEPTH_MESSAGE}")]) from None
    except ValueError as error:
        raise SpecError([Problem(path, f"not Python: {error}")]) from None
    return {node.name: _signature(node) for node in tree.body if isinstance(node, ast.FunctionDef)}


def _signature(node: ast.FunctionDef) -> Signature:
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    without_default = positional[: len(positional) - len(args.defaults)]
    keyword = [arg for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is None]
    return Signature(
        line=node.lineno,
        names=tuple(arg.arg for arg in (*positional, *args.kwonlyargs)),
        required=frozenset(arg.arg for arg in (*without_default, *keyword)),
        open=args.kwarg is not None,
        positional_only=frozenset(arg.arg for arg in args.posonlyargs),
    )


def cuda_exports(path: Path) -> set[str]:
    """The names that a .cu file exports to tvm-ffi."""
    return set(re.findall(r"TVM_FFI_DLL_EXPORT_TYPED_FUNC\(\s*([A-Za-z_]\w*)\s*,", read_text(path)))
