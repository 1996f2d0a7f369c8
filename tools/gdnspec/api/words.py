"""Arguments of the Python interface that are no tensors: of which type, and in which bounds."""

from gdnspec.model.errors import SpecError

SEED = (1 << 62) - 1  # the largest, and the bounds of a call's seconds: those of `gdnspec check`
SHORTEST, LONGEST = 0.1, 86_400.0


def name_of(what: str, value: object) -> str:
    """A name. Raises `SpecError` if it is none."""
    if not isinstance(value, str):
        raise SpecError(f"{what} is of type {type(value).__name__} instead of str: give a name")
    return value


def flag(what: str, value: object) -> bool:
    """True or False. Raises `SpecError`."""
    if not isinstance(value, bool):
        raise SpecError(f"{what}={value!r}: it is True or False")
    return value


def integer(what: str, value: object, least: int, most: int) -> int:
    """A whole number. Raises `SpecError`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise SpecError(f"{what}={value!r}: it is a whole number from {least} to {most}")
    return value


def seconds(what: str, value: object, least: float, most: float) -> float:
    """A time. Raises `SpecError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise SpecError(f"{what}={value!r}: it is a number of seconds from {least:g} to {most:,.0f}")
    return value
