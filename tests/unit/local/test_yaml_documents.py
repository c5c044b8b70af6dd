"""YAML that people write: what is read, and in which words the rest is refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.yaml_documents import (
    MAX_DEPTH,
    YamlError,
    load_documents,
    load_value,
)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


READ: list[tuple[str, str, list[Any]]] = [
    ("nothing", "", []),
    ("documents, of which empty ones do not count", "a: 1\n---\n---\nb: [2]\n", [{"a": 1}, {"b": [2]}]),
    (
        "an alias and a merged object",
        "a: &x {b: 1}\nc: {<<: *x, d: *x}\n",
        [{"a": {"b": 1}, "c": {"b": 1, "d": {"b": 1}}}],
    ),
    ("a key that is there twice, but in two objects", "a: {b: 1}\nc: {b: 1}\n", [{"a": {"b": 1}, "c": {"b": 1}}]),
    ("as deep as may be", "[" * MAX_DEPTH + "]" * MAX_DEPTH, [nested(MAX_DEPTH)]),
]


@pytest.mark.parametrize(("text", "want"), [case[1:] for case in READ], ids=[case[0] for case in READ])
def test_what_is_read(text: str, want: list[Any]) -> None:
    assert load_documents(text) == want


LAUGHS = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
REFUSED: list[tuple[str, str, str]] = [
    ("a list that is not closed", "a: [1", "line 1, column 6: expected ',' or ']', but got '<stream end>'"),
    (
        "a key that is there twice",
        "a: 1\nb: 2\na: 3\n",
        "line 3, column 1: a is there twice in one object: leave one out",
    ),
    ("a list in itself", "a: &a [*a]\n", "line 1, column 8: *a stands inside what it names, which has no end so"),
    (
        "an object in itself",
        "&a {b: {c: *a}}\n",
        "line 1, column 12: *a stands inside what it names, which has no end so",
    ),
    ("lists without end", "[" * 20_000, f"line 1, column {MAX_DEPTH + 1}: is nested deeper than {MAX_DEPTH} levels"),
    (
        "a few lines that stand for more values than any memory holds",
        LAUGHS,
        "line 6, column 15: comes to more than 200,000 values, with all that aliases stand for",
    ),
    (
        "a day that is none",
        "a: 2001-99-99\n",
        "line 1, column 4: 2001-99-99 cannot be read (month must be in 1..12); put it in quotes if it is a text",
    ),
    (
        "a tag that does not fit",
        "a: !!bool maybe\n",
        "line 1, column 4: maybe cannot be read ('maybe'); put it in quotes",
    ),
    ("a number of nothing", "a: !!int ''\n", "line 1, column 4:  cannot be read (string index out of range)"),
    ("a list as key", "? [a]\n: b\n", "line 1, column 3: found unhashable key"),
    (
        "an object of Python",
        "a: !!python/object:os.system {}\n",
        "line 1, column 4: could not determine a constructor for the tag",
    ),
    ("a character that is no text", "a: \0\n", "unacceptable character #x0000"),
]


@pytest.mark.parametrize(("text", "want"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_is_refused_is_told_with_its_place(text: str, want: str) -> None:
    with pytest.raises(YamlError) as caught:
        load_documents(text)
    assert str(caught.value).startswith(want)
    assert "\n" not in str(caught.value)


@given(st.text("ab1-:.,?&*!|>%@`#'\"{}[] \n\t\0é<~", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(YamlError):
        assert None not in load_documents(text)


def test_one_value() -> None:
    assert (load_value("[1, 2]"), load_value(" "), load_value("'7'")) == ([1, 2], None, "7")
    with pytest.raises(YamlError, match="more than one document"):
        load_value("a\n---\nb")
