"""Rules from files and requests, and their states as statuses."""

from __future__ import annotations

from typing import Any

import pytest

from heterotrain_api.validation import InvalidManifestError
from heterotrain_core.info.rules import Emit, Input, Output, ProcessingRule, Step, Trigger
from heterotrain_core.info.values import MetricType
from heterotrain_operator.info.rules import dryrun_rules, load_rules, processing_from_spec, rule_from_document

SPEC: dict[str, Any] = {
    "inputs": {"x": {"metric": "x"}},
    "chain": [{"operator": "ewma", "alpha": 0.3}],
    "output": {"metric": "y"},
}


def test_a_spec_becomes_a_rule_with_everything_that_was_given() -> None:
    spec = {
        "inputs": {
            "x": {"metric": "x", "entity": "node/*", "labels": {"pool": "old"}, "ttl": 10},
            "n": {"metric": "x", "of": "node/*", "aggregate": "median"},
        },
        "window": 60,
        "windowSamples": 10,
        "trigger": "period",
        "period": 5,
        "hold": 3,
        "emit": "both",
        "message": "m",
        "cardinality": 7,
        "chain": [{"operator": "expr", "expression": "x / n"}, {"operator": "threshold", "hi": 2, "lo": 1}],
        "output": {"metric": "y", "type": "state", "unit": "1", "ttl": 30, "entity": "node/{1}", "description": "d"},
    }
    assert processing_from_spec("p", spec) == ProcessingRule(
        name="p",
        inputs={
            "x": Input(metric="x", entity="node/*", labels={"pool": "old"}, ttl=10),
            "n": Input(metric="x", of="node/*", aggregate="median"),
        },
        chain=(Step("expr", {"expression": "x / n"}), Step("threshold", {"hi": 2, "lo": 1})),
        outputs={
            "value": Output(metric="y", type=MetricType.STATE, unit="1", ttl=30, entity="node/{1}", description="d")
        },
        window=60,
        window_samples=10,
        trigger=Trigger.PERIOD,
        period=5,
        hold=3,
        emit=Emit.BOTH,
        message="m",
        cardinality=7,
    )


@pytest.mark.parametrize(
    ("document", "name"),
    [
        pytest.param(SPEC, "rule-1", id="a spec"),
        pytest.param({"name": "mine", **SPEC}, "mine", id="a spec with a name"),
        pytest.param({"metadata": {"name": "mine"}, "spec": SPEC}, "mine", id="a manifest"),
        pytest.param({"name": "mine", "spec": SPEC}, "mine", id="a name and a spec"),
    ],
)
def test_a_dry_run_takes_specs_and_manifests(document: Any, name: str) -> None:
    (rule,) = dryrun_rules([document])
    assert (rule.name, rule.chain) == (name, (Step("ewma", {"alpha": 0.3}),))


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        (7, "rules[1].spec: must be an object"),
        ({**SPEC, "chain": []}, "rules[1].chain: must have between 1 and 16 entries"),
        (
            {**SPEC, "chain": [{"operator": "expr", "expression": "y"}]},
            "rules[1].chain[0].expression: unknown name 'y'",
        ),
        ({**SPEC, "output": {"metric": "y", "entity": "{"}}, "rules[1].output.entity: a brace that opens or closes"),
    ],
)
def test_a_dry_runs_faults_are_named_by_rule_and_field(document: Any, fault: str) -> None:
    with pytest.raises(InvalidManifestError) as raised:
        dryrun_rules([SPEC, document])
    assert fault in str(raised.value)


FILE = """
apiVersion: heterotrain.io/v1alpha1
kind: CollectionRule
metadata: {name: a}
spec:
  source: {local: {reader: psutil}}
  entity: [{name: "node/{node}"}]
  metrics: [{name: load1}]
---
apiVersion: heterotrain.io/v1alpha1
kind: ProcessingRule
metadata: {name: a}
spec:
  inputs: {x: {metric: load1}}
  chain: [{operator: rate}]
  output: {metric: y}
"""


def test_a_file_has_rules_of_both_kinds() -> None:
    assert [(rule.kind, rule.metadata.name) for rule in load_rules(FILE)] == [
        ("CollectionRule", "a"),
        ("ProcessingRule", "a"),
    ]
    assert load_rules("---\n") == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (FILE.replace("rate", "rat"), "document 2: spec.chain[0].operator: must be one of"),
        (FILE.replace("{node}", "{node"), "document 1 (a): spec.entity[0].name: a brace"),
        (FILE + "---" + FILE, "CollectionRule a: is there twice"),
        ("a: [", "is not YAML"),
        ("!!python/object/apply:os.system [ls]", "is not YAML"),
        ("- 1", "document 1: kind: must be CollectionRule or ProcessingRule"),
    ],
)
def test_a_wrong_file_is_refused_by_place(text: str, fault: str) -> None:
    with pytest.raises(InvalidManifestError) as raised:
        load_rules(text)
    assert fault in str(raised.value)


def test_an_object_of_the_api_server_is_a_rule_with_its_generation() -> None:
    document = {
        "apiVersion": "heterotrain.io/v1alpha1",
        "kind": "ProcessingRule",
        "metadata": {
            "name": "p",
            "namespace": "system",
            "generation": 4,
            "uid": "u",
            "managedFields": [{}],
            "newer": 1,
        },
        "spec": SPEC,
        "status": {"ready": "True"},
    }
    rule = rule_from_document(document)
    assert (rule.kind, rule.metadata.name, rule.metadata.generation) == ("ProcessingRule", "p", 4)
    with pytest.raises(InvalidManifestError, match=r"spec\.chain"):
        rule_from_document(document | {"spec": {**SPEC, "chain": [{"operator": "expr", "expression": "z"}]}})
