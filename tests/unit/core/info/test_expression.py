"""Expressions: what they give, what they refuse, and that no text can do more than arithmetic."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heterotrain_core.info.expression import MAX_DEPTH, ExpressionError, evaluate, names, parse
from heterotrain_core.info.values import ABSENT, Value

VALUES: dict[str, Value] = {"a": 6.0, "b": 3.0, "zero": 0.0, "state": "HOT", "gone": ABSENT, "big": 1e308}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("a - b - 1", 2),
        ("a / b / 2", 1),
        ("-a + b", -3),
        ("--a", 6),
        ("2.5e-1 * .4", 0.1),
        ("a > b and not a < b", 1),
        ("a < b or a >= 6", 1),
        ("not not a", 1),
        ("not not not a", 0),
        ("a == 6", 1),
        ("a != 6", 0),
        ("state == 'HOT'", 1),
        ('state == "OK"', 0),
        ("state == 1", 0),
        ("if(a > b, a, b)", 6),
        ("if(zero, 1, 'low')", "low"),
        ("min(a, b, 1)", 1),
        ("max(a)", 6),
        ("abs(b - a)", 3),
        ("clamp(a, 0, 1)", 1),
        ("floor(a / 4)", 1),
        ("sqrt(a * a)", 6),
        ("log(exp(2))", 2),
        ("coalesce(gone, unknown, b)", 3),
        ("present(gone)", 0),
        ("present(a)", 1),
        ("if(present(gone), gone, a)", 6),
        ("a / zero", ABSENT),
        ("gone + 1", ABSENT),
        ("gone == gone", ABSENT),
        ("state + 1", ABSENT),
        ("state and 1", ABSENT),
        ("big * 10", ABSENT),
        ("exp(1000)", ABSENT),
        ("sqrt(-1)", ABSENT),
        ("log(0)", ABSENT),
        ("if(gone, 1, 2)", ABSENT),
        ("if(a > b, 1)", 1),
        ("if(a < b, 1)", ABSENT),
        ("coalesce(gone)", ABSENT),
    ],
)
def test_an_expression_gives(text: str, want: Value) -> None:
    assert evaluate(parse(text), VALUES) == (want if isinstance(want, str | None) else pytest.approx(want))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"'the end' \(character 1\) where a value should be"),
        ("1 +", "where a value should be"),
        ("a b", r"'b' \(character 3\) where an operator or the end should be"),
        ("(1", r"where '\)' should be"),
        ("min(1", r"where '\)' or ',' should be"),
        ("a.b", r"'.b' \(character 2\) is not understood"),
        ("a[0]", "is not understood"),
        ("a ** b", "where a value should be"),
        ("x = 1", "is not understood"),
        ("lambda: 1", "is not understood"),
        ("__import__('os')", "unknown function '__import__'"),
        ("and(1, 2)", "where a value should be"),
        ("negative(1)", "unknown function 'negative'"),
        ("if(1)", "if takes 2 to 3 operands, not 1"),
        ("min()", "where a value should be"),
        ("1 < 2 < 3", "where an operator or the end should be"),
        ("1e999", "is too large"),
        ("a" * 1025, "at most 1024 characters"),
        ("+".join("1" * 200), "at most 256 words"),
        ("(" * 60 + "1" + ")" * 60, f"at most {MAX_DEPTH} deep"),
    ],
)
def test_anything_else_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        parse(text)


def test_names_are_those_of_values() -> None:
    assert names(parse("min(a, if(b > 1, c, 'd')) + a")) == {"a", "b", "c"}


@given(st.text(alphabet="ab(),+-*/<>=!'\" .0123456789eifmnaxdort", max_size=60))
@example("((((((((((")
@example("not " * 100 + "1")
@example("-" * 250 + "1")
def test_any_text_is_read_or_refused_and_what_is_read_can_be_evaluated(text: str) -> None:
    try:
        tree = parse(text)
    except ExpressionError:
        return
    result = evaluate(tree, {"a": 1.5, "b": ABSENT})
    assert result is ABSENT or isinstance(result, str) or math.isfinite(result)


numbers = st.floats(-1e6, 1e6).map(lambda x: round(x, 3))
sums = st.recursive(
    numbers.map(lambda x: f"({x!r})") | st.sampled_from(["a", "b"]),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
    max_leaves=8,
)


@given(sums, numbers, numbers)
def test_arithmetic_is_that_of_python(text: str, a: float, b: float) -> None:
    want = eval(text, {"__builtins__": {}}, {"a": a, "b": b})  # the test's own text, of numbers, names and + - *
    assert evaluate(parse(text), {"a": a, "b": b}) == pytest.approx(want, rel=1e-12)
