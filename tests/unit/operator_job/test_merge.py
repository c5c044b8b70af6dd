"""Merging of pod parts: by field, by key, and never into what was given."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.job.merge import merge, without_nulls

CASES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("fields of both", {"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
    ("the second wins", {"a": 1}, {"a": 2}, {"a": 2}),
    ("objects go field by field", {"o": {"a": 1, "b": 1}}, {"o": {"b": 2}}, {"o": {"a": 1, "b": 2}}),
    ("plain lists are one value", {"args": ["a", "b"]}, {"args": ["c"]}, {"args": ["c"]}),
    (
        "containers go by name",
        {"containers": [{"name": "a", "x": 1}, {"name": "b"}]},
        {"containers": [{"name": "c"}, {"name": "a", "y": 2}]},
        {"containers": [{"name": "a", "x": 1, "y": 2}, {"name": "b"}, {"name": "c"}]},
    ),
    (
        "a variable is replaced whole: value and valueFrom exclude each other",
        {"env": [{"name": "A", "value": "1"}]},
        {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]},
        {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]},
    ),
    (
        "mounts go by path",
        {"volumeMounts": [{"name": "ours", "mountPath": "/tmp", "readOnly": True}]},
        {"volumeMounts": [{"name": "theirs", "mountPath": "/tmp"}]},
        {"volumeMounts": [{"name": "theirs", "mountPath": "/tmp"}]},
    ),
]


@pytest.mark.parametrize(("base", "over", "want"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_merge(base: dict[str, Any], over: dict[str, Any], want: dict[str, Any]) -> None:
    assert merge(base, over) == want


VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)


@given(OBJECTS, OBJECTS)
def test_merging_changes_nothing_that_was_given_and_is_stable(base: dict[str, Any], over: dict[str, Any]) -> None:
    before = copy.deepcopy((base, over))
    once = merge(base, over)
    assert (base, over) == before
    assert merge(once, over) == once, "the same again changes nothing"
    assert merge(once, {}) == once


def test_nulls_are_not_there_at_any_depth() -> None:
    assert without_nulls({"a": None, "b": [{"c": None, "d": 0}, None], "e": {"f": ""}}) == {
        "b": [{"d": 0}],
        "e": {"f": ""},
    }
