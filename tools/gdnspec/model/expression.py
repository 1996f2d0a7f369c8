"""A small safe evaluator for the expressions in definitions and manifests.

Grammar: a subset of Python's expressions. Names, numbers, strings, True, False; + - * / // %; comparisons and `in`;
`and`, `or`, `not`; `a if c else b`; indexing of integer inputs; the functions below. Nothing is executed: each node of
the syntax tree becomes a function of the values that are bound. Integer inputs are vectors, row by row where they have
two dimensions; arithmetic and comparisons work on them element by element, and a vector has no truth value of its own
(say `all(...)`).
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import repeat
from typing import Any

MAX_LENGTH = 500
MAX_INTEGER = 1 << 80  # bytes and operations of any workload fit; a runaway product does not
MOST_KEPT = 1024  # values of one expression, by the integers that it was evaluated for
_INTEGERS, _PLAIN = frozenset({int}), frozenset({int, float, bool, str})

Vector = tuple[Any, ...]
Scope = Mapping[str, Any]
Function = Callable[[Scope], Any]


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


def _each_row(name: str, of_a_row: Any, flat: Any) -> int:
    """How many elements of one vector, row by row, go with each element of another."""
    first, all_rows = _vector(name, of_a_row), _vector(name, flat)
    if not first or len(all_rows) % len(first):
        raise ExpressionError(f"{name} takes vectors of one and of several elements a row")
    return len(all_rows) // len(first)


# What goes over a vector goes by `map`: workloads have thousands of rows.


def _apart(read: Any, written: Any) -> bool:
    """No row reads a slot that another row writes."""
    each, rows = _each_row("apart", read, written), range(len(read))
    writer = dict(zip(written, rows if each == 1 else [n for n in rows for _ in range(each)], strict=True))
    writer.pop(-1, None)
    return all(map(operator.eq, map(writer.get, read, rows), rows))


def _together(first: Any, others: Any) -> bool:
    """A row is named by all of its slots or by none, -1."""
    each = _each_row("skipped_whole", first, others)
    skipped = [x == -1 for x in first]
    return all([x == -1 for x in others[k::each]] == skipped for k in range(each))


def _differences(x: Any) -> Vector:
    """Each element less the one before it: one fewer than there are."""
    return tuple(map(operator.sub, _vector("differences", x)[1:], x))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": _extreme(min),
    "max": _extreme(max),
    "len": lambda x: len(_vector("len", x)),
    "sqrt": _sqrt,
    "nondecreasing": lambda x: all(map(operator.le, _vector("nondecreasing", x), x[1:])),
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


def _nothing(scope: Scope) -> tuple[Any, ...]:
    return ()


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
        # Of one name alone it would give the value, and no tuple of it.
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
        """The value under `scope`; sequences in it become vectors. Raises `ExpressionError`."""
        try:
            key = self._pick(scope)
        except KeyError:
            return self._walk(scope)  # what is not bound may not be asked for
        # Most are asked for the same few integers by many workloads. True is 1 as a key, and is another value.
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
        """The function of a scope that a part of the tree is."""
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
            raise ExpressionError(f"{shortened(self.text)}: a vector has no truth value, say all(...)")
        return bool(value)

    def _name(self, name: str) -> Function:
        def named(scope: Scope) -> Any:
            if name not in scope:
                raise ExpressionError(f"{shortened(self.text)} names {name!r}, which is not bound")
            value = scope[name]
            if type(value) in _PLAIN:
                return value
            return tuple(value) if type(value) is list or isinstance(value, Sequence) else value

        return named

    def _tuple(self, parts: list[Function]) -> Function:
        def together(scope: Scope) -> Any:
            items = tuple([part(scope) for part in parts])
            if any(isinstance(item, tuple) for item in items):
                raise ExpressionError(f"{shortened(self.text)}: a vector within a vector")
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
        """`or` ends at the first truth, `and` at the first falsehood."""

        def decided(scope: Scope) -> bool:
            for part in parts:
                if self._true(part(scope)) is ends:
                    return ends
            return not ends

        return decided

    def _number(self, value: Any) -> Any:
        """An operand of arithmetic: a number, or a vector of numbers. Python would repeat or format a string."""
        if str in map(type, value) if isinstance(value, tuple) else isinstance(value, str):
            raise ExpressionError(f"{shortened(self.text)}: arithmetic with a string")
        return value

    def _bounded(self, value: Any) -> Any:
        items = value if isinstance(value, tuple) else (value,)
        large = any(map(operator.gt, map(abs, items), repeat(MAX_INTEGER)))
        if large and any(isinstance(item, int) and abs(item) > MAX_INTEGER for item in items):
            raise ExpressionError(f"{shortened(self.text)}: a value out of range")
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
    """The text as a message quotes it."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _compared(op: type[ast.cmpop], left: Any, right: Any) -> Any:
    whole = op is ast.In or op is ast.NotIn or isinstance(left, str)
    return _COMPARE[op](left, right) if whole else _each(_COMPARE[op], left, right)


def _each(function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """`function` element by element: a number goes with every element of a vector."""
    if type(left) is int and type(right) is int:
        return function(left, right)
    if isinstance(left, str) != isinstance(right, str):
        raise ExpressionError(f"a string and a number do not go together: {left!r}, {right!r}")
    if not isinstance(left, tuple) and not isinstance(right, tuple):
        return function(left, right)
    lefts = left if isinstance(left, tuple) else (left,) * len(right)
    rights = right if isinstance(right, tuple) else (right,) * len(lefts)
    if len(lefts) != len(rights):
        raise ExpressionError(f"vectors of {len(lefts)} and {len(rights)} elements")
    return tuple(map(function, lefts, rights))
