"""A small safe evaluator for the expressions in definitions and manifests.

Grammar: a subset of Python's expressions. Names, numbers, strings, True, False; + - * / // %; comparisons and `in`;
`and`, `or`, `not`; `a if c else b`; indexing of integer inputs; the functions below. Python never executes the text:
each node of the syntax tree becomes a function of the bound values. Integer inputs are vectors; one with two dimensions
is flattened row by row. Arithmetic and comparisons work element by element. A vector has no truth value: write
`all(...)`.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import repeat
from typing import Any

MAX_LENGTH = 500
MAX_INTEGER = 1 << 80  # large enough for the bytes and operations of any workload
MOST_KEPT = 1024  # cached values per expression
_INTEGERS, _PLAIN = frozenset({int}), frozenset({int, float, bool, str})

Vector = tuple[Any, ...]
Scope = Mapping[str, Any]
Function = Callable[[Scope], Any]


class ExpressionError(ValueError):
    """An expression that cannot be parsed, uses a name that is not bound, or fails on its values."""


def _all(x: Any) -> bool:
    return all(x) if isinstance(x, tuple) else bool(x)


def _extreme(choose: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        values = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
        if not values:
            raise ExpressionError(f"{choose.__name__} needs at least one value")
        return choose(values)

    return function


def _sqrt(x: Any) -> float:
    if isinstance(x, tuple) or x < 0:
        raise ExpressionError("sqrt takes a number >= 0")
    return math.sqrt(x)


def _vector(name: str, x: Any) -> Vector:
    if not isinstance(x, tuple):
        raise ExpressionError(f"{name} takes an integer input")
    return x


def _unique_slots(slots: Any) -> bool:
    named = [slot for slot in _vector("unique_slots", slots) if slot != -1]
    return len(set(named)) == len(named)


def _each_row(name: str, of_a_row: Any, flat: Any) -> int:
    """How many elements of the flat second vector belong to each element (row) of the first."""
    first, all_rows = _vector(name, of_a_row), _vector(name, flat)
    if not first or len(all_rows) % len(first):
        message = f"{name} takes a vector with one element per row, and one with the same number in every row"
        raise ExpressionError(message)
    return len(all_rows) // len(first)


# Loops over vectors use `map` for speed: workloads have thousands of rows.


def _apart(read: Any, written: Any) -> bool:
    """No row reads a slot that another row writes."""
    each, rows = _each_row("apart", read, written), range(len(read))
    writer = dict(zip(written, rows if each == 1 else [n for n in rows for _ in range(each)], strict=True))
    writer.pop(-1, None)
    return all(map(operator.eq, map(writer.get, read, rows), rows))


def _together(first: Any, others: Any) -> bool:
    """In each row, either all slots are -1 or none is."""
    each = _each_row("skipped_whole", first, others)
    skipped = [x == -1 for x in first]
    return all([x == -1 for x in others[k::each]] == skipped for k in range(each))


def _earlier(x: Any, width: Any) -> bool:
    """In each row of `width` values, each is -1 or the index of a place before its own."""
    if type(width) is not int or width < 1:
        raise ExpressionError("earlier takes a vector and the number of values in a row")
    return all(-1 <= value < place % width for place, value in enumerate(_vector("earlier", x)))


def _differences(x: Any) -> Vector:
    """Each element minus the one before it: the result has one element fewer."""
    return tuple(map(operator.sub, _vector("differences", x)[1:], x))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": _extreme(min),
    "max": _extreme(max),
    "len": lambda x: len(_vector("len", x)),
    "sqrt": _sqrt,
    "nondecreasing": lambda x: all(map(operator.le, _vector("nondecreasing", x), x[1:])),
    "differences": _differences,
    "earlier": _earlier,
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


def _nothing(scope: Scope) -> tuple[Any, ...]:
    return ()


@lru_cache(maxsize=4096)
def parse(text: str) -> "Expression":
    """The parsed text, cached: every workload of a definition evaluates the same expressions. Raises
    `ExpressionError`."""
    return Expression(text)


SINGLE = re.compile(r"(?<![=<>!])=(?!=)")  # as in `head_size = 64`


class Expression:
    """A parsed expression. `names`: what a scope must bind. Use `parse`, which caches them."""

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > MAX_LENGTH:
            raise ExpressionError(f"the expression has over {MAX_LENGTH} characters")
        try:
            self._tree = ast.parse(text, mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            hint = ": == compares, = does not" if SINGLE.search(text) else ""
            raise ExpressionError(f"cannot read the expression {shortened(text)}{hint}") from None
        named, called = set(), set()
        for node in ast.walk(self._tree):
            self._check(node)
            if isinstance(node, ast.Name):
                named.add(node.id)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                called.add(node.func.id)
        self.names = frozenset(named - called)
        # The names are passed twice: for a single name, itemgetter would return the value itself, not a tuple.
        self._pick = operator.itemgetter(*self.names, *self.names) if self.names else _nothing
        self._kept: dict[Any, Any] = {}

    def _check(self, node: ast.AST) -> None:
        if not isinstance(node, _ALLOWED):
            raise ExpressionError(f"{type(node).__name__} is not allowed in {shortened(self.text)}")
        if isinstance(node, ast.Constant) and not isinstance(node.value, bool | int | float | str):
            raise ExpressionError(f"the constant {node.value!r} is not allowed in {shortened(self.text)}")
        if isinstance(node, ast.Call):
            known = isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
            if not known or node.keywords:
                raise ExpressionError(f"{shortened(self.text)}: the functions are {', '.join(FUNCTIONS)}")

    def evaluate(self, scope: Scope) -> Any:
        """The value under `scope`, whose sequences become vectors. Raises `ExpressionError`."""
        try:
            key = self._pick(scope)
        except KeyError:
            return self._walk(scope)  # a name that is not bound may be in a branch that is not evaluated
        # Many workloads evaluate an expression for the same few integers. Only these are cached: True == 1 as a key.
        if not _INTEGERS.issuperset(map(type, key)):
            return self._walk(scope)
        if key in self._kept:
            return self._kept[key]
        value = self._walk(scope)
        if len(self._kept) < MOST_KEPT:
            self._kept[key] = value
        return value

    def holds(self, scope: Scope) -> bool:
        """The truth of a condition. Raises `ExpressionError`."""
        return self._true(self.evaluate(scope))

    def _walk(self, scope: Scope) -> Any:
        try:
            return self._function(scope)
        except ExpressionError:
            raise
        except (ArithmeticError, TypeError, ValueError, IndexError, RecursionError) as error:
            raise ExpressionError(f"{shortened(self.text)}: {error}") from None

    @cached_property
    def _function(self) -> Function:
        return self._made(self._tree.body)

    def _made(self, node: ast.expr) -> Function:
        """The function that evaluates one node of the tree under a scope."""
        match node:
            case ast.Constant():
                value = node.value
                return lambda scope: value
            case ast.Name():
                return self._name(node.id)
            case ast.Tuple():
                return self._tuple([self._made(item) for item in node.elts])
            case ast.BinOp():
                return self._binary(_BINARY[type(node.op)], self._made(node.left), self._made(node.right))
            case ast.UnaryOp():
                return self._unary(type(node.op), self._made(node.operand))
            case ast.BoolOp():
                return self._either(isinstance(node.op, ast.Or), [self._made(item) for item in node.values])
            case ast.Compare():
                return _comparison(node.ops, [self._made(item) for item in (node.left, *node.comparators)])
            case ast.IfExp():
                test, body, otherwise = (self._made(item) for item in (node.test, node.body, node.orelse))
                return lambda scope: body(scope) if self._true(test(scope)) else otherwise(scope)
            case ast.Call():
                assert isinstance(node.func, ast.Name)
                return _call(FUNCTIONS[node.func.id], [self._made(item) for item in node.args])
            case ast.Subscript():
                vector, index = self._made(node.value), self._made(node.slice)
                return lambda scope: _vector("indexing", vector(scope))[index(scope)]
        raise ExpressionError(f"{type(node).__name__} is not allowed in {shortened(self.text)}")

    def _true(self, value: Any) -> bool:
        if isinstance(value, tuple):
            raise ExpressionError(f"{shortened(self.text)}: a vector has no truth value; write all(...)")
        return bool(value)

    def _name(self, name: str) -> Function:
        def named(scope: Scope) -> Any:
            if name not in scope:
                raise ExpressionError(f"{shortened(self.text)} uses {name!r}, which has no value")
            value = scope[name]
            if type(value) in _PLAIN:
                return value
            return tuple(value) if type(value) is list or isinstance(value, Sequence) else value

        return named

    def _tuple(self, parts: list[Function]) -> Function:
        def together(scope: Scope) -> Any:
            items = tuple([part(scope) for part in parts])
            if any(isinstance(item, tuple) for item in items):
                raise ExpressionError(f"{shortened(self.text)}: a vector cannot contain a vector")
            return items

        return together

    def _binary(self, operation: Callable[[Any, Any], Any], left: Function, right: Function) -> Function:
        return lambda scope: self._bounded(_each(operation, self._number(left(scope)), self._number(right(scope))))

    def _unary(self, operator_: type[ast.unaryop], operand: Function) -> Function:
        if operator_ is ast.Not:
            return lambda scope: not self._true(operand(scope))
        if operator_ is ast.USub:
            return lambda scope: _each(operator.mul, operand(scope), -1)
        return operand

    def _either(self, ends: bool, parts: list[Function]) -> Function:
        """`or` stops at the first true part, `and` at the first false one."""

        def decided(scope: Scope) -> bool:
            for part in parts:
                if self._true(part(scope)) is ends:
                    return ends
            return not ends

        return decided

    def _number(self, value: Any) -> Any:
        """An operand of arithmetic: a number or a vector of numbers. Python would accept a string in `*` and `%`."""
        if str in map(type, value) if isinstance(value, tuple) else isinstance(value, str):
            raise ExpressionError(f"{shortened(self.text)}: arithmetic takes numbers, not a string")
        return value

    def _bounded(self, value: Any) -> Any:
        items = value if isinstance(value, tuple) else (value,)
        large = any(map(operator.gt, map(abs, items), repeat(MAX_INTEGER)))
        if large and any(isinstance(item, int) and abs(item) > MAX_INTEGER for item in items):
            raise ExpressionError(f"{shortened(self.text)}: the value is out of range")
        return value


def _comparison(operators: list[ast.cmpop], parts: list[Function]) -> Function:
    kinds = [type(one) for one in operators]
    if len(kinds) == 1:
        (kind,), (left, right) = kinds, parts
        return lambda scope: _compared(kind, left(scope), right(scope))

    def chained(scope: Scope) -> bool:
        values = [part(scope) for part in parts]
        return all(map(_all, list(map(_compared, kinds, values, values[1:]))))

    return chained


def _call(function: Callable[..., Any], arguments: list[Function]) -> Function:
    if len(arguments) == 1:
        (argument,) = arguments
        return lambda scope: function(argument(scope))
    return lambda scope: function(*[argument(scope) for argument in arguments])


def shortened(text: str) -> str:
    """The text as messages quote it."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _compared(op: type[ast.cmpop], left: Any, right: Any) -> Any:
    whole = op is ast.In or op is ast.NotIn or isinstance(left, str)
    return _COMPARE[op](left, right) if whole else _each(_COMPARE[op], left, right)


def _each(function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Applies `function` element by element; a number is combined with every element of a vector."""
    if type(left) is int and type(right) is int:
        return function(left, right)
    if isinstance(left, str) != isinstance(right, str):
        raise ExpressionError(f"a string and a number cannot be combined: {left!r}, {right!r}")
    if not isinstance(left, tuple) and not isinstance(right, tuple):
        return function(left, right)
    lefts = left if isinstance(left, tuple) else (left,) * len(right)
    rights = right if isinstance(right, tuple) else (right,) * len(lefts)
    if len(lefts) != len(rights):
        raise ExpressionError(f"vectors of {len(lefts)} and {len(rights)} elements cannot be combined")
    return tuple(map(function, lefts, rights))
