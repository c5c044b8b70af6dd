"""Rules from files and requests, and their states as statuses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from heterotrain_api.crd import PROCESSING, kind_schema
from heterotrain_api.schema_check import check
from heterotrain_api.validation import InvalidManifestError
from heterotrain_core.info.rules import Emit, Input, Output, ProcessingRule, Step, Trigger
from heterotrain_core.info.values import MetricType
from heterotrain_operator.info.rule_state import RuleKind, RuleState
from heterotrain_operator.info.rules import dryrun_rules, load_rules, processing_from_spec, status_of

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


def test_a_state_is_told_as_a_status_that_the_schema_takes() -> None:
    state = RuleState(RuleKind.COLLECT, "a", generation=3, ready=False, error="x" * 2000)
    state.ran(100.0, 0.25, 40, 98.0)
    state.ran(120.0, 0.25, 40, 118.0)
    status = status_of(state, 125.0)
    document = status.to_document()
    assert list(check(document, kind_schema(PROCESSING)["properties"]["status"], "status")) == []
    assert (status.ready, status.age_seconds, status.samples_per_second, len(status.error)) == ("False", 7, 2.0, 1024)
    assert status.last_run_time == datetime.fromtimestamp(120, UTC)
    assert status_of(RuleState(RuleKind.PROCESS, "b", 1), 0).age_seconds is None
