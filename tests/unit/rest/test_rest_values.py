"""The pure parts of the REST API: JSON, cursors, bodies of rules, the description of itself."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_core.info.values import Entity, Event, Sample
from heterotrain_operator.info.events import EventLog
from heterotrain_operator.info.rule_state import RuleKind
from heterotrain_operator.rest.app import make_routes
from heterotrain_operator.rest.cursors import event_cursor, page_cursor, page_key, sequence_after
from heterotrain_operator.rest.description import openapi_document, schema_document
from heterotrain_operator.rest.encoding import MalformedError, decode, encode, event_document, sample_document, value_of
from heterotrain_operator.rest.errors import STATUSES, Code, RestError
from heterotrain_operator.rest.rule_bodies import GivenRule, given_rule

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=10,
)


@given(DOCUMENTS)
def test_json_comes_back_as_it_went(document: Any) -> None:
    assert decode(encode(document)) == document


@given(st.binary(max_size=60))
def test_any_body_is_json_or_malformed(body: bytes) -> None:
    try:
        document = decode(body)
    except MalformedError:
        return
    assert decode(encode(document)) == document


@pytest.mark.parametrize(
    ("value", "want"), [(1.5, 1.5), (math.inf, "+Inf"), (-math.inf, "-Inf"), ("HOT", "HOT"), (0.0, 0.0)]
)
def test_values_both_ways(value: float | str, want: float | str) -> None:
    document = sample_document(Sample(Entity("node/a"), "x", 1.0, value))
    assert document == {"entity": "node/a", "metric": "x", "time": 1.0, "value": want}
    assert value_of(json.loads(encode(document))["value"]) == value


def make_event(time: float, previous: float | None = None) -> Event:
    return Event("r", Entity("node/a"), "x", time, math.inf, previous, "m")


def test_events_have_no_infinite_numbers() -> None:
    document = event_document(make_event(1.0, -math.inf))
    assert (document["value"], document["previous"]) == ("+Inf", "-Inf")
    assert event_document(make_event(1.0))["previous"] is None


KEYS = st.tuples(TEXTS, TEXTS, st.floats(allow_nan=False, allow_infinity=False))


@given(KEYS, st.dictionaries(TEXTS, TEXTS, max_size=3))
def test_a_page_cursor_has_its_key(key: tuple[str, str, float], query: dict[str, str]) -> None:
    cursor = page_cursor(query, key)
    assert page_key({**query, "limit": 5, "cursor": cursor}, cursor, (str, str, float)) == key
    with pytest.raises(RestError, match="cursor"):
        page_key({**query, "more": 1}, cursor, (str, str, float))
    with pytest.raises(RestError, match="cursor"):
        page_key(query, cursor, (str, str))


@given(TEXTS)
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    for read in (lambda: page_key({}, text, (str,)), lambda: sequence_after(EventLog(), text)):
        try:
            read()
        except RestError as error:
            code = error.code
        else:
            code = Code.INVALID
        assert code in (Code.INVALID, Code.CURSOR_GONE)


def test_cursors_of_events_know_their_log() -> None:
    log = EventLog(capacity=3)
    told = [log.append(make_event(float(time))) for time in range(5)]
    cursors = [event_cursor(numbered) for numbered in told]
    assert all(re.fullmatch(r"[0-9a-zA-Z.-]+", cursor) for cursor in cursors), "they go into URLs as they are"
    assert sequence_after(log, cursors[3].replace("p", "p+")) == 4
    assert sequence_after(log, "0") == 2
    assert [sequence_after(log, cursor) for cursor in cursors[1:]] == [2, 3, 4, 5]
    with pytest.raises(RestError) as lost:
        sequence_after(log, cursors[0])
    assert lost.value.code is Code.CURSOR_GONE
    other = EventLog()
    for time in range(5):
        other.append(make_event(time + 100.0))
    for cursor in (cursors[2], "9-0x1p+3"):
        with pytest.raises(RestError) as foreign:
            sequence_after(other, cursor)
        assert foreign.value.code is Code.CURSOR_GONE
    assert sequence_after(EventLog(), "0") == 0


SPEC = {"inputs": {}}


@pytest.mark.parametrize(
    ("document", "want"),
    [
        pytest.param(SPEC, GivenRule(SPEC, None), id="a spec alone"),
        pytest.param(None, GivenRule(None, None), id="no object is for the check of specs to refuse"),
        pytest.param({"spec": SPEC}, GivenRule(SPEC, None), id="a spec by its name"),
        pytest.param({"spec": SPEC, "generation": 3, "kind": "ProcessingRule", "name": "r", "status": {}},
                     GivenRule(SPEC, 3), id="as GET gives it"),
        pytest.param({"apiVersion": "heterotrain.io/v1alpha1", "metadata": {"name": "r", "generation": 4, "uid": "u"},
                      "spec": SPEC}, GivenRule(SPEC, 4), id="a manifest"),
        pytest.param({"generation": 3, "metadata": {"generation": 4}, "spec": SPEC}, "generation",
                     id="two generations"),
        pytest.param({"generation": 0, "spec": SPEC}, "generation", id="generation 0"),
        pytest.param({"generation": True, "spec": SPEC}, "generation", id="a truth for a generation"),
        pytest.param({"generation": {}, "spec": SPEC}, "generation", id="an object for a generation"),
        pytest.param({"metadata": {"generation": [1]}, "spec": SPEC}, "metadata.generation",
                     id="a list for a generation"),
        pytest.param({"metadata": [], "spec": SPEC}, "metadata", id="metadata that is a list"),
        pytest.param({"metadata": {"name": "s"}, "spec": SPEC}, "metadata.name", id="another name"),
        pytest.param({"kind": "CollectionRule", "spec": SPEC}, "kind", id="another kind"),
        pytest.param({"apiVersion": "v1", "spec": SPEC}, "apiVersion", id="another version"),
        pytest.param({"sepc": 1, "spec": SPEC}, "sepc", id="another field"),
    ],
)  # fmt: skip
def test_rules_of_bodies(document: object, want: GivenRule | str) -> None:
    if isinstance(want, GivenRule):
        assert given_rule(RuleKind.PROCESS, "r", document) == want
        return
    with pytest.raises(RestError) as refused:
        given_rule(RuleKind.PROCESS, "r", document)
    assert [fault.field for fault in refused.value.fields] == [want]


def test_each_code_has_a_status_and_each_operation_says_its_errors() -> None:
    assert STATUSES.keys() == set(Code)
    document = openapi_document(make_routes())
    error = {"$ref": "#/components/schemas/Error"}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (method, path)
            if not path.startswith("/v1"):
                continue
            answers = operation["responses"]
            assert {"401", "403", "422", "429", "500", "503"} <= answers.keys()
            assert ("413" in answers) == ("requestBody" in operation)
            for status, answer in answers.items():
                schema = answer.get("content", {}).get("application/json", {}).get("schema")
                assert int(status) < 400 or schema == error, (method, path, status)
            assert operation["security"] == [{"token": []}]


def test_the_schemas_stand_alone() -> None:
    text = json.dumps(openapi_document(make_routes()))
    assert "x-kubernetes" not in text
    assert "#/$defs" not in text
    document = json.loads(text)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= document["components"]["schemas"].keys()
    json.dumps(schema_document(), allow_nan=False)
