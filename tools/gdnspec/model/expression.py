"""A small safe evaluator for the expressions in definitions and manifests.

Grammar: a subset of Python's expressions. Names, numbers, strings, True, False; + - * / // %; comparisons and `in`;
`and`, `or`, `not`; `a if c else b`; indexing of integer inputs; the functions below. Nothing is executed: the
syntax tree is walked. Integer inputs are vectors, row by row where they have two dimensions; arithmetic and comparisons
work on them element by element, and a vector has no truth value of its own (say `all(...)`).
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

MAX_LENGTH = 500
MAX_INTEGER = 1 << 80  # bytes and operations of any workload fit; a runaway product does not

Vector = tuple[Any, ...]


class ExpressionError(ValueError):
    """An expression that cannot be parsed, names nothing, or fails on its values."""


def _all(x: Any) -> bool:
    return all(x) if isinstance(x, tuple) else bool(x)


def _extreme(choose: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        values = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
        if not values:
            raise ExpressionError(f"{choose.__name__} of nothing")
        return choose(values)

    return function


def _sqrt(x: Any) -> float:
    if isinstance(x, tuple) or x < 0:
        raise ExpressionError("sqrt takes a number that is not negative")
    return math.sqrt(x)


def _vector(name: str, x: Any) -> Vector:
    if not isinstance(x, tuple):
        raise ExpressionError(f"{name} takes an integer input")
    return x


def _unique_slots(slots: Any) -> bool:
    named = [slot for slot in _vector("unique_slots", slots) if slot != -1]
    return len(set(named)) == len(named)


def _rows(name: str, of_a_row: Any, flat: Any) -> list[tuple[Any, Vector]]:
    """Each element of one vector with its row of another, which holds a whole number of them for each."""
    first, all_rows = _vector(name, of_a_row), _vector(name, flat)
    if not first or len(all_rows) % len(first):
        raise ExpressionError(f"{name} takes vectors of one and of several elements a row")
    each = len(all_rows) // len(first)
    return [(x, all_rows[i * each : (i + 1) * each]) for i, x in enumerate(first)]


def _apart(read: Any, written: Any) -> bool:
    """No row reads a slot that another row writes."""
    rows = _rows("apart", read, written)
    writer = {slot: n for n, (_, slots) in enumerate(rows) for slot in slots if slot != -1}
    return all(slot == -1 or writer.get(slot, n) == n for n, (slot, _) in enumerate(rows))


def _together(first: Any, others: Any) -> bool:
    """A row is named by all of its slots or by none, -1."""
    return all((x == -1) == (y == -1) for x, row in _rows("skipped_whole", first, others) for y in row)


def _differences(x: Any) -> Vector:
    """Each element less the one before it: one fewer than there are."""
    return tuple(b - a for a, b in pairwise(_vector("differences", x)))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": _extreme(min),
    "max": _extreme(max),
    "len": lambda x: len(_vector("len", x)),
    "sqrt": _sqrt,
    "nondecreasing": lambda x: all(a <= b for a, b in zip(x, _vector("nondecreasing", x)[1:], strict=False)),
    "differences": _differences,
    "unique": lambda x: len(set(_vector("unique", x))) == len(x),
    "unique_slots": _unique_slots,
    "apart": _apart,
    "skipped_whole": _together,
    "all": _all,
}

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_ALLOWED = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Name, ast.Constant,
    ast.Subscript, ast.Tuple, ast.Load, ast.And, ast.Or, ast.Not, ast.USub, ast.UAdd, *_BINARY, *_COMPARE,
)  # fmt: skip


@lru_cache(maxsize=4096)
def parse(text: str) -> "Expression":
    """The expression of a text: the same few stand in every workload of a definition."""
    return Expression(text)


class Expression:
    """A parsed expression: `names` it needs, `evaluate(scope)` its value. `parse` remembers them."""

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > MAX_LENGTH:
            raise ExpressionError(f"an expression of over {MAX_LENGTH} characters")
        try:
            self._tree = ast.parse(text, mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ExpressionError(f"cannot read the expression {shortened(text)}") from None
        named, called = set(), set()
        for node in ast.walk(self._tree):
            self._check(node)
            if isinstance(node, ast.Name):
                named.add(node.id)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called.add(node.func.id)
        self.names = frozenset(named - called)  # what a scope must bind

    def _check(self, node: ast.AST) -> None:
        if not isinstance(node, _ALLOWED):
            raise ExpressionError(f"{type(node).__name__} is not allowed in {shortened(self.text)}")
        if isinstance(node, ast.Constant) and not isinstance(node.value, bool | int | float | str):
            raise ExpressionError(f"the constant {node.value!r} is not allowed in {shortened(self.text)}")
        if isinstance(node, ast.Call):
            known = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
            if not known or node.keywords:
                raise ExpressionError(f"{shortened(self.text)}: the functions are {', '.join(FUNCTIONS)}")

    def evaluate(self, scope: Mapping[str, Any]) -> Any:
        """The value under `scope`; sequences in it become vectors. Raises `ExpressionError`."""
        return self._guarded(self._value, scope)

    def holds(self, scope: Mapping[str, Any]) -> bool:
        """The truth of a condition. Raises `ExpressionError`."""
        return bool(self._guarded(self._truth, scope))

    def _guarded(self, walk: Callable[[ast.expr, Mapping[str, Any]], Any], scope: Mapping[str, Any]) -> Any:
        try:
            return walk(self._tree.body, scope)
        except ExpressionError:
            raise
        except (ArithmeticError, TypeError, ValueError, IndexError, RecursionError) as error:
            raise ExpressionError(f"{shortened(self.text)}: {error}") from None

    def _truth(self, node: ast.expr, scope: Mapping[str, Any]) -> bool:
        value = self._value(node, scope)
        if isinstance(value, tuple):
            raise ExpressionError(f"{shortened(self.text)}: a vector has no truth value, say all(...)")
        return bool(value)

    def _value(self, node: ast.expr, scope: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                if node.id not in scope:
                    raise ExpressionError(f"{shortened(self.text)} names {node.id!r}, which is not bound")
                value = scope[node.id]
                return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
            case ast.Tuple():
                items = tuple(self._value(item, scope) for item in node.elts)
                if any(isinstance(item, tuple) for item in items):
                    raise ExpressionError(f"{shortened(self.text)}: a vector within a vector")
                return items
            case ast.BinOp():
                left, right = self._number(node.left, scope), self._number(node.right, scope)
                return self._bounded(_each(_BINARY[type(node.op)], left, right))
            case ast.UnaryOp():
                if isinstance(node.op, ast.Not):
                    return not self._truth(node.operand, scope)
                value = self._value(node.operand, scope)
                return _each(operator.mul, value, -1) if isinstance(node.op, ast.USub) else value
            case ast.BoolOp():
                ends = isinstance(node.op, ast.Or)  # `or` ends at the first truth, `and` at the first falsehood
                return ends if any(self._truth(item, scope) is ends for item in node.values) else not ends
            case ast.Compare():
                return self._compare(node, scope)
            case ast.IfExp():
                return self._value(node.body if self._truth(node.test, scope) else node.orelse, scope)
            case ast.Call():
                assert isinstance(node.func, ast.Name)
                return FUNCTIONS[node.func.id](*(self._value(item, scope) for item in node.args))
            case ast.Subscript():
                return _vector("indexing", self._value(node.value, scope))[self._value(node.slice, scope)]
        raise ExpressionError(f"{type(node).__name__} is not allowed in {shortened(self.text)}")

    def _number(self, node: ast.expr, scope: Mapping[str, Any]) -> Any:
        """An operand of arithmetic: a number, or a vector of numbers. Python would repeat or format a string."""
        value = self._value(node, scope)
        if any(isinstance(item, str) for item in (value if isinstance(value, tuple) else (value,))):
            raise ExpressionError(f"{shortened(self.text)}: arithmetic with a string")
        return value

    def _compare(self, node: ast.Compare, scope: Mapping[str, Any]) -> Any:
        values = [self._value(item, scope) for item in (node.left, *node.comparators)]
        results = []
        for op, left, right in zip(node.ops, values, values[1:], strict=False):
            compare = _COMPARE[type(op)]
            whole = isinstance(op, ast.In | ast.NotIn) or isinstance(left, str)
            results.append(compare(left, right) if whole else _each(compare, left, right))
        if len(results) == 1:
            return results[0]
        return all(_all(result) for result in results)

    def _bounded(self, value: Any) -> Any:
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, int) and abs(item) > MAX_INTEGER:
                raise ExpressionError(f"{shortened(self.text)}: a value out of range")
        return value


def shortened(text: str) -> str:
    """The text as a message quotes it."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _each(function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """`function` element by element: a number goes with every element of a vector."""
    if isinstance(left, str) != isinstance(right, str):
        raise ExpressionError(f"a string and a number do not go together: {left!r}, {right!r}")
    if not isinstance(left, tuple) and not isinstance(right, tuple):
        return function(left, right)
    lefts = left if isinstance(left, tuple) else (left,) * len(right)
    rights = right if isinstance(right, tuple) else (right,) * len(lefts)
    if len(lefts) != len(rights):
        raise ExpressionError(f"vectors of {len(lefts)} and {len(rights)} elements")
    return tuple(function(a, b) for a, b in zip(lefts, rights, strict=True))
