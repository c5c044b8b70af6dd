"""Information rules as manifests: each rule over several fields is broken by a case, and texts say what to do."""

from __future__ import annotations

from typing import Any

import pytest

from heterotrain_api.info_checks import COLLECTION_RULES, PROCESSING_RULES
from heterotrain_api.info_collection import CollectionRule
from heterotrain_api.info_rules import ProcessingRule
from heterotrain_api.validation import InvalidManifestError, parse_rule


def make_manifest(kind: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "heterotrain.io/v1alpha1", "kind": kind, "metadata": {"name": "rule"}, "spec": spec}


def process(*chain: dict[str, Any], **spec: Any) -> dict[str, Any]:
    spec = {"inputs": {"x": {"metric": "x"}}, "output": {"metric": "y"}, **spec}
    steps = list(chain) or [{"operator": "ewma", "alpha": 0.3}]
    return make_manifest("ProcessingRule", chain=steps, **{k: v for k, v in spec.items() if v is not None})


def collect(*metrics: dict[str, Any], **spec: Any) -> dict[str, Any]:
    spec = {"source": {"endpoint": {"url": "http://a/"}}, "entity": [{"name": "node/{n}"}], **spec}
    return make_manifest(
        "CollectionRule", metrics=list(metrics) or [{"name": "m"}], **{k: v for k, v in spec.items() if v is not None}
    )


PROMETHEUS = {"prometheus": {"url": "http://a:9090"}}
STEP = "spec.chain[0]"

BROKEN: list[tuple[str, dict[str, Any], str, str]] = [
    ("ewma without alpha", process({"operator": "ewma"}), f"{STEP}.alpha", "given with operator ewma, and only"),
    ("alpha elsewhere", process({"operator": "rate", "alpha": 0.1}), f"{STEP}.alpha", "and only with it"),
    ("ewma_t without half_life", process({"operator": "ewma_t"}), f"{STEP}.half_life", "operator ewma_t"),
    ("quantile without q", process({"operator": "quantile"}), f"{STEP}.q", "operator quantile"),
    ("threshold without hi", process({"operator": "threshold", "lo": 1}), f"{STEP}.hi", "operator threshold"),
    ("threshold without lo", process({"operator": "threshold", "hi": 1}), f"{STEP}.lo", "operator threshold"),
    ("lo above hi", process({"operator": "threshold", "hi": 1, "lo": 2}), f"{STEP}.lo", "at most hi"),
    ("cusum without ref", process({"operator": "cusum", "h": 1}), f"{STEP}.ref", "operator cusum"),
    ("cusum without h", process({"operator": "cusum", "ref": 1}), f"{STEP}.h", "operator cusum"),
    ("expr without expression", process({"operator": "expr"}), f"{STEP}.expression", "operator expr"),
    ("hold elsewhere", process({"operator": "rate", "hold": 2}), f"{STEP}.hold", "unless operator is threshold"),
    ("drift elsewhere", process({"operator": "rate", "drift": 2}), f"{STEP}.drift", "unless operator is cusum"),
    ("reset elsewhere", process({"operator": "rate", "reset": True}), f"{STEP}.reset", "unless operator is cusum"),
    ("bytes elsewhere", process({"operator": "rate", "bytes": "x"}), f"{STEP}.bytes", "unless operator is alpha_beta"),
    ("seconds elsewhere", process({"operator": "rate", "seconds": "x"}), f"{STEP}.seconds", "operator is alpha_beta"),
    ("no output", process(output=None), "spec", "exactly one of output and outputs"),
    ("output and outputs", process(outputs={"value": {"metric": "z"}}), "spec", "exactly one of output and outputs"),
    ("period without trigger", process(period=5), "spec.period", "trigger: period, and only with it"),
    ("trigger without period", process(trigger="period"), "spec.period", "trigger: period, and only with it"),
    (
        "inputs of others only",
        process(inputs={"x": {"metric": "x", "of": "a/b"}}),
        "spec.inputs",
        "an input without of",
    ),
    (
        "many without aggregate",
        process(inputs={"x": {"metric": "x"}, "n": {"metric": "x", "of": "node/*"}}),
        "spec.inputs",
        "must have aggregate",
    ),
    (
        "aggregate without of",
        process(inputs={"x": {"metric": "x", "aggregate": "sum"}}),
        "spec.inputs",
        "never without of",
    ),
    ("two sources", collect(source={**PROMETHEUS, "local": {"reader": "psutil"}}), "spec.source", "exactly one of"),
    ("no source", collect(source={}), "spec.source", "exactly one of prometheus, endpoint"),
    ("a timeout above the interval", collect(interval=2, timeout=3), "spec.timeout", "at most interval"),
    ("prometheus without a query", collect(source=PROMETHEUS), "spec.metrics", "a query each with source prometheus"),
    ("a query without prometheus", collect({"name": "m", "query": "m"}), "spec.metrics", "none with another source"),
    ("nobody that it is about", collect(entity=None), "spec.entity", "must say which entity"),
    (
        "range without step",
        collect({"name": "m", "query": "m", "range": 9}, source=PROMETHEUS),
        "spec.metrics[0].range",
        "step",
    ),
    (
        "timeQuery without query",
        collect({"name": "m", "timeQuery": "m"}),
        "spec.metrics[0].timeQuery",
        "unless there is a query",
    ),
    ("valueLabel of a gauge", collect({"name": "m", "valueLabel": "a"}), "spec.metrics[0].valueLabel", "state or text"),
    ("min above max", collect({"name": "m", "min": 2, "max": 1}), "spec.metrics[0].min", "at most max"),
    ("an unknown field", process(widnow=5), "spec.widnow", "did you mean window?"),
    (
        "a parameter of another name",
        process({"operator": "ewma", "alhpa": 0.3}),
        f"{STEP}.alhpa",
        "did you mean alpha?",
    ),
    ("an operator that is none", process({"operator": "ewna"}), f"{STEP}.operator", "ewma"),
    ("two metrics of one name", collect({"name": "m"}, {"name": "m"}), "spec.metrics[1].name", "must be unique"),
    (
        "credentials that lead away",
        collect(source={"endpoint": {"url": "http://a/", "credentials": "../x"}}),
        "spec.source.endpoint.credentials",
        "must match",
    ),
    (
        "a URL with a password",
        collect(source={"endpoint": {"url": "http://u:p@a/"}}),
        "spec.source.endpoint.url",
        "must match",
    ),
    (
        "a file's URL",
        collect(source={"endpoint": {"url": "file:///etc/passwd"}}),
        "spec.source.endpoint.url",
        "must match",
    ),
    ("an alpha of 0", process({"operator": "ewma", "alpha": 0}), f"{STEP}.alpha", "must be between 1e-09 and 1"),
]


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
