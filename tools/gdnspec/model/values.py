"""Evaluates an expression whose value must be of one kind: a number, an amount, a size or a boolean."""

from typing import Any

from gdnspec.model.expression import MAX_INTEGER, Expression, ExpressionError

Scope = dict[str, Any]


def finite(expression: Expression, scope: Scope) -> int | float:
    """The value, which must be a number. Raises `ExpressionError`."""
    value = expression.evaluate(scope)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ExpressionError(f"{expression.text!r} is {value!r}, not a number")
    if not abs(value) <= MAX_INTEGER:
        raise ExpressionError(f"{expression.text!r} is out of range")
    return value


def amount(expression: Expression, scope: Scope) -> int | float:
    """The value, which must be a number >= 0. Raises `ExpressionError`."""
    value = expression.evaluate(scope)
    if type(value) is int and 0 <= value <= MAX_INTEGER:  # a fast path for nearly all of tens of thousands of values
        return value
    value = finite(expression, scope)
    if value < 0:
        raise ExpressionError(f"{expression.text!r} is {value!r}, which is negative")
    return value


def whole(expression: Expression, scope: Scope) -> int:
    """The value, which must be a whole number >= 0; it is not rounded. Raises `ExpressionError`."""
    value = expression.evaluate(scope)
    if type(value) is int and 0 <= value <= MAX_INTEGER:
        return value
    value = amount(expression, scope)
    if value != int(value):
        raise ExpressionError(f"{expression.text!r} is {value!r}, not a whole number")
    return int(value)


def truth(expression: Expression, scope: Scope) -> bool:
    """The value, which must be True or False. Raises `ExpressionError`."""
    value = expression.evaluate(scope)
    if not isinstance(value, bool):
        raise ExpressionError(f"{expression.text!r} is {value!r}, not True or False")
    return value
