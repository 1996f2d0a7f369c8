"""Expressions whose values must be of a kind: a number, an amount, a size, a truth."""

from typing import Any

from gdnspec.model.expression import MAX_INTEGER, Expression, ExpressionError

Scope = dict[str, Any]


def finite(expression: Expression, scope: Scope) -> int | float:
    """Its value where that is a number. Raises `ExpressionError`."""
    value = expression.evaluate(scope)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ExpressionError(f"{expression.text!r} is {value!r}, not a number")
    if not abs(value) <= MAX_INTEGER:
        raise ExpressionError(f"{expression.text!r} is out of range")
    return value


def amount(expression: Expression, scope: Scope) -> int | float:
    """Its value where that is a number and not negative. Raises `ExpressionError`."""
    value = expression.evaluate(scope)
    if type(value) is int and 0 <= value <= MAX_INTEGER:  # nearly all are, and there are tens of thousands
        return value
    value = finite(expression, scope)
    if value < 0:
        raise ExpressionError(f"{expression.text!r} is {value!r}: negative")
    return value


def whole(expression: Expression, scope: Scope) -> int:
    """Its value where that can be a size: nothing is rounded. Raises `ExpressionError`."""
    value = expression.evaluate(scope)
    if type(value) is int and 0 <= value <= MAX_INTEGER:
        return value
    value = amount(expression, scope)
    if value != int(value):
        raise ExpressionError(f"{expression.text!r} is {value!r}, not a whole number")
    return int(value)


def truth(expression: Expression, scope: Scope) -> bool:
    """Its value where that is True or False. Raises `ExpressionError`."""
    value = expression.evaluate(scope)
    if not isinstance(value, bool):
        raise ExpressionError(f"{expression.text!r} is {value!r}, not True or False")
    return value
