"""Information rules as manifests: each rule over several fields is broken by a case, and texts say what to do."""

from __future__ import annotations

from typing import Any

import pytest

from heterotrain_api.info_checks import COLLECTION_RULES, PROCESSING_RULES
from heterotrain_api.info_collection import CollectionRule
from heterotrain_api.info_rules import ProcessingRule
from heterotrain_api.validation import InvalidManifestError, parse_rule
from manifests_info import BROKEN, PROMETHEUS, collect, make_manifest, process


def faults(document: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(InvalidManifestError) as raised:
        parse_rule(document)
    return [(fault.field, fault.message) for fault in raised.value.faults]


@pytest.mark.parametrize(("document", "field", "words"), [pytest.param(*case[1:], id=case[0]) for case in BROKEN])
def test_a_wrong_rule_is_refused_by_field(document: dict[str, Any], field: str, words: str) -> None:
    found = faults(document)
    assert any(where == field and words in message for where, message in found), found


def test_every_rule_over_several_fields_is_broken_by_a_case() -> None:
    messages = {message for _, document, _, _ in BROKEN for _, message in faults(document)}
    assert {rule.message for rule in (*COLLECTION_RULES, *PROCESSING_RULES)} - messages == set()


@pytest.mark.parametrize(
    "document",
    [
        process(),
        process({"operator": "ewma_t", "half_life": 10}, window=30, hold=0),
        process({"operator": "threshold", "hi": 0.8, "lo": 0.6, "hold": 2}, emit="both", trigger="each sample"),
        process({"operator": "cusum", "ref": 1, "drift": 0.05, "h": 0.3, "reset": False}),
        process(
            {"operator": "alpha_beta"}, output=None, outputs={"delta": {"metric": "d"}, "bandwidth": {"metric": "b"}}
        ),
        process(inputs={"x": {"metric": "x"}, "n": {"metric": "x", "of": "node/*", "aggregate": "median"}}),
        process(trigger="period", period=5),
    ],
)
def test_a_processing_rule_is_read_with_defaults(document: dict[str, Any]) -> None:
    rule = parse_rule(document)
    assert isinstance(rule, ProcessingRule)
    assert (rule.spec.window_samples, rule.spec.cardinality) == (256, 1000)
    again = parse_rule({**document, "spec": rule.spec.to_document()})
    assert again.spec == rule.spec


@pytest.mark.parametrize(
    "document",
    [
        collect(
            {"name": "m", "from": "other", "match": {"a": "!b|c"}, "combine": "sum", "scale": 0.01, "min": 0, "max": 1}
        ),
        collect({"name": "m", "query": "m", "timeQuery": "timestamp(m)"}, source=PROMETHEUS),
        collect({"name": "m", "query": "m", "range": 60, "step": 5}, source=PROMETHEUS),
        collect(source={"push": {"entities": ["worker/*/*/*"]}}, entity=None),
        collect(
            {"name": "m", "path": "a.b", "entity": [{"name": "node/{n}"}]},
            source={"kubernetes": {"objects": "pods"}},
            entity=None,
        ),
        collect({"name": "m", "type": "state", "valueLabel": "phase"}, interval=5, timeout=5, onError="absent"),
    ],
)
def test_a_collection_rule_is_read_with_defaults(document: dict[str, Any]) -> None:
    rule = parse_rule(document)
    assert isinstance(rule, CollectionRule)
    assert rule.spec.cardinality == 1000
    again = parse_rule({**document, "spec": rule.spec.to_document()})
    assert again.spec == rule.spec


def test_another_kind_is_refused_with_those_there_are() -> None:
    assert faults(make_manifest("HeteroTrainJob"))[0][1].startswith("must be CollectionRule or ProcessingRule")
    assert faults({**process(), "metadata": {"name": "A_b"}})[0][0] == "metadata.name"
