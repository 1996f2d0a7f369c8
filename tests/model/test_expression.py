"""The evaluator of expressions: what it computes, what it refuses, and that nothing else can come out of it."""

from typing import Any

import pytest
from gdnspec.model.expression import FUNCTIONS, Expression, ExpressionError
from helpers_fuzz import soon
from hypothesis import given, settings
from hypothesis import strategies as st

SLOTS = {"unique_slots", "apart", "skipped_whole"}
SCOPE: dict[str, Any] = {
    "n": 6,
    "h": 4,
    "zero": 0,
    "scale": 0.5,
    "flag": True,
    "kind": "cuda",
    "cu": [0, 3, 3, 8],  # a list, as a workload gives it
    "slots": (2, -1, 5),
}


def value(text: str) -> Any:
    return Expression(text).evaluate(SCOPE)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("n + h * 2", 14),
        ("(n + h) * 2", 20),
        ("n - h - 1", 1),
        ("n / h", 1.5),
        ("n // h", 1),
        ("-n // h", -2),
        ("n % h", 2),
        ("-n + 1", -5),
        ("+n", 6),
        ("2 * n % h", 0),
        ("1 / sqrt(h)", 0.5),
        ("True", True),
        ("1e3", 1000.0),
        ("'a'", "a"),
        ("()", ()),
    ],
)
def test_arithmetic_is_that_of_python(text: str, result: Any) -> None:
    got = value(text)
    assert got == result
    assert type(got) is type(result)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("1 < 2 < 3", True),
        ("1 < 3 < 2", False),
        ("3 > 2 > 1 == 1", True),
        ("1 == 1 == 2", False),
        ("n == 6 and h == 4 or zero", True),
        ("zero and 1 or n == 6", True),
        ("zero and (1 or n == 6)", False),
        ("not n == 6", False),
        ("not zero and n == 6", True),
        ("flag", True),
        ("n if zero else h == 4", True),
        ("kind == 'cuda'", True),
        ("kind in ('cuda', 'any')", True),
        ("kind not in ('cpu',)", True),
        ("n in (5, 6)", True),
        ("n != h", True),
        ("n >= 6 and n <= 6", True),
    ],
)
def test_conditions(text: str, result: bool) -> None:
    assert Expression(text).holds(SCOPE) is result
    assert bool(value(text)) is result


def test_a_condition_ends_as_soon_as_it_is_decided() -> None:
    assert value("zero == 0 or n % zero == 0") is True
    assert value("zero != 0 and n % zero == 0") is False
    assert value("n if h else n / zero") == 6


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("cu", (0, 3, 3, 8)),
        ("cu + 1", (1, 4, 4, 9)),
        ("2 * slots", (4, -2, 10)),
        ("slots - slots", (0, 0, 0)),
        ("-slots", (-2, 1, -5)),
        ("slots >= 0", (True, False, True)),
        ("slots == slots", (True, True, True)),
        ("0 <= cu <= 8", True),
        ("0 < cu <= 8", False),
        ("cu[0]", 0),
        ("cu[-1]", 8),
        ("cu[h - 2]", 3),
        ("3 in cu", True),
        ("4 in cu", False),
    ],
)
def test_vectors_go_element_by_element(text: str, result: Any) -> None:
    assert value(text) == result


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("min(n, h)", 4),
        ("max(n, h, 9)", 9),
        ("min(slots)", -1),
        ("max(cu)", 8),
        ("len(cu)", 4),
        ("len(())", 0),
        ("sqrt(16)", 4.0),
        ("nondecreasing(cu)", True),
        ("nondecreasing(slots)", False),
        ("nondecreasing(())", True),
        ("nondecreasing((1,))", True),
        ("differences(cu)", (3, 0, 5)),
        ("differences(cu) // 2", (1, 0, 2)),
        ("differences((7,))", ()),
        ("differences(())", ()),
        ("unique(slots)", True),
        ("unique(cu)", False),
        ("all(slots > -2)", True),
        ("all(slots > -1)", False),
        ("all(flag)", True),
        ("unique_slots((3, -1, -1, 5))", True),
        ("unique_slots((3, -1, 3))", False),
        ("apart((0, 1), (0, 1))", True),  # each row its own
        ("apart((0, 0), (1, 2))", True),
        ("apart((0, 1), (1, 2))", False),
        ("apart((4, 4), (4, 5))", False),
        ("apart((-1, 2), (-1, 3))", True),
        ("earlier((-1, 0, 1, -1, -1, 1), 3)", True),
        ("earlier((-1, 1, 1), 3)", False),  # its own place
        ("earlier((-1, 0, 2), 3)", False),
        ("earlier((-2, 0, 1), 3)", False),
        ("apart((0, 7), (1, 0, 2, 3))", True),  # two slots a row
        ("apart((0, 0), (1, 0, 2, 3))", False),
        ("skipped_whole((-1, 2), (-1, 3))", True),
        ("skipped_whole((-1, 2), (4, 3))", False),
        ("skipped_whole((1, -1), (2, 3, -1, -1))", True),
        ("skipped_whole((1, -1), (2, -1, -1, -1))", False),
    ],
)
def test_functions(text: str, result: Any) -> None:
    assert value(text) == result


def test_every_function_is_tried_above() -> None:
    assert set(FUNCTIONS) == {
        "min",
        "max",
        "len",
        "sqrt",
        "nondecreasing",
        "differences",
        "unique",
        "all",
        "earlier",
        *SLOTS,
    }


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("max(num_q_heads, num_v_heads)", {"num_q_heads", "num_v_heads"}),
        ("cu[-1] == total", {"cu", "total"}),
        ("1 + 2", set()),
        ("a if b else c", {"a", "b", "c"}),
        ("max + 1", {"max"}),
    ],
)
def test_names_are_those_that_must_be_bound(text: str, names: set[str]) -> None:
    assert Expression(text).names == names


@pytest.mark.parametrize(
    "text",
    [
        "", "   ", "1 +", "a b", "(1", "a = 1", "import os", "*cu", "\0", "\ud800",
        "2 ** 3", "1 << 9", "6 & 3", "6 | 3", "~1", "n @ h", "n is h",
        "n.real", "''.join", "cu.append(1)",
        "[1]", "{1}", "{1: 2}", "cu[0:1]", "min(*cu)", "None", "...", "1j", "b'a'",
        "lambda: 1", "(lambda: 1)()", "[x for x in cu]", "(x for x in cu)", "all(x > 0 for x in cu)",
        "(y := 1)", "f'{n}'", "await n", "yield",
        "__import__('os')", "eval('1')", "open('x')", "abs(1)", "min(cu, key=len)", "min(1)(2)", "cu[0](1)", "'a'()",
    ],
)  # fmt: skip
def test_what_is_outside_the_grammar_is_refused_when_read(text: str) -> None:
    with pytest.raises(ExpressionError):
        Expression(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("unknown + 1", "'unknown'"),
        ("len(unknown)", "'unknown'"),
        ("n / zero", "division by zero"),
        ("n % zero", "zero"),
        ("n // 0.0", "zero"),
        ("cu[9]", "range"),
        ("cu[0.5]", "integers"),
        ("n[0]", "an integer input"),
        ("sqrt(-1)", "sqrt takes a number >= 0"),
        ("sqrt(cu)", "sqrt takes a number >= 0"),
        ("len(n)", "an integer input"),
        ("unique(n)", "an integer input"),
        ("nondecreasing(n)", "an integer input"),
        ("min()", "min needs at least one value"),
        ("max(())", "max needs at least one value"),
        ("len()", "argument"),
        ("sqrt(1, 2)", "argument"),
        ("cu + slots", "vectors of 4 and 3"),
        ("kind + 1", "string"),
        ("kind < 1", "string|supported"),
        ("1 in kind", "string"),
        ("cu and flag", "all"),
        ("not cu", "all"),
        ("1 if cu else 2", "all"),
        ("n * 1000000000000000000000000000000", "out of range"),
        ("1" + "0" * 30 + " * n", "out of range"),
    ],
)
def test_what_has_no_value_says_why(text: str, said: str) -> None:
    with pytest.raises(ExpressionError, match=said):
        value(text)


def test_an_expression_that_names_nothing_bound_does_not_fall_back_on_builtins() -> None:
    for name in ("__builtins__", "print", "len", "self", "scope"):
        with pytest.raises(ExpressionError):
            value(name)


def test_a_vector_is_no_condition() -> None:
    with pytest.raises(ExpressionError, match=r"all\(\.\.\.\)"):
        Expression("cu >= 0").holds(SCOPE)


@pytest.mark.parametrize("text", ["n % zero == 0", "cu[9] == 0", "kind < 1", "len() == 0", "(1, 2) < (1, kind)"])
def test_a_condition_without_a_value_is_an_expression_error_from_holds_as_well(text: str) -> None:
    with pytest.raises(ExpressionError):
        Expression(text).holds(SCOPE)


def test_length_is_limited() -> None:
    assert value("1" + "+1" * 249) == 250
    with pytest.raises(ExpressionError, match="500"):
        Expression("1" + "+1" * 250)


@pytest.mark.parametrize(
    ("text", "result"), [("-" * 400 + "n", 6), ("not " * 100 + "n", True), ("(" * 90 + "n" + ")" * 90, 6)]
)
def test_nesting_is_evaluated(text: str, result: Any) -> None:
    assert value(text) == result


@pytest.mark.parametrize("text", ["f(" + "-" * 490 + "1)", "cu if " + "-" * 480 + "cu else 1"])
def test_an_error_in_a_deep_expression_is_an_expression_error(text: str) -> None:
    with pytest.raises(ExpressionError):
        value(text)


@pytest.mark.parametrize("text", ["((1, 1),) * 999999999999999", "('a',) * 999999999999999", "'%999999999999s' % 'a'"])
def test_no_expression_takes_memory_without_bound(text: str) -> None:
    """Numbers so large that the allocation fails at once; with smaller ones it would succeed and fill the memory."""
    with pytest.raises(ExpressionError):
        value(text)


# --- nothing but ExpressionError --------------------------------------------------------------------------------

# No number near 10^9: a repetition that large would fill the memory of the machine that runs this test.
TOKENS = [
    *SCOPE, *FUNCTIONS, "0", "1", "2", "-1", "0.5", "1e999", "9" * 30, "'a'", "'%d'", "True", "None", "unknown",
    "+", "-", "*", "/", "//", "%", "**", "<", "<=", "==", "!=", "in", "not", "and", "or", "if", "else", "is",
    "(", ")", "[", "]", ",", ":", ".", "lambda", "for", "=", ":=", "~", "@", "f''", "b''", "{", "}", "\n", "#",
]  # fmt: skip

# Well-formed expressions, most of them with operands of the wrong kind: they reach deeper than tokens at random.
ATOMS = ["n", "zero", "scale", "kind", "cu", "slots", "flag", "unknown", "2", "0.5", "'a'", "()", "(1,)"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "<", "==", "in", "and", "or"]


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators, functions = st.sampled_from(OPERATORS), st.sampled_from(sorted(FUNCTIONS))
    return st.one_of(
        st.tuples(inner, operators, inner).map(lambda x: f"({x[0]} {x[1]} {x[2]})"),
        st.tuples(functions, inner).map(lambda x: f"{x[0]}({x[1]})"),
        st.tuples(inner, inner).map(lambda x: f"{x[0]}[{x[1]}]"),
        st.tuples(inner, inner).map(lambda x: f"({x[0]}, {x[1]})"),
        st.tuples(st.sampled_from(["not ", "-", "+"]), inner).map(lambda x: f"({x[0]}{x[1]})"),
        st.tuples(inner, inner, inner).map(lambda x: f"({x[0]} if {x[1]} else {x[2]})"),
    )


TREES = st.recursive(st.sampled_from(ATOMS), larger, max_leaves=12)
TEXTS = st.text(max_size=60) | st.lists(st.sampled_from(TOKENS), max_size=14).map(" ".join) | TREES


def outcome(text: str, how: str) -> None:
    """Evaluates or raises `ExpressionError`; anything else is the failure."""
    try:
        with soon(text):
            getattr(Expression(text), how)(SCOPE)
    except ExpressionError as error:
        assert str(error)


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
@settings(max_examples=800, deadline=None)
@given(TEXTS)
def test_any_text_evaluates_or_raises_an_expression_error(text: str) -> None:
    outcome(text, "evaluate")


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
@settings(max_examples=800, deadline=None)
@given(TEXTS)
def test_any_text_holds_or_not_or_raises_an_expression_error(text: str) -> None:
    outcome(text, "holds")
