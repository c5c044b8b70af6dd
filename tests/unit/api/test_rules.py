"""Every rule over several fields is broken by a case; `test_validation` has those that keep it."""

from __future__ import annotations

from typing import Any

import pytest

from heterotrain_api.names import NAME_BUDGET
from heterotrain_api.rules import RULES
from heterotrain_api.validation import validate
from manifests import batches, make_group, make_manifest


def tolerate(**toleration: Any) -> dict[str, Any]:
    return make_manifest(workers=[make_group(tolerations=[toleration])])


def sync(mode: str = "BSP", **settings: Any) -> dict[str, Any]:
    return make_manifest(synchronization={"mode": mode, **settings})


BROKEN: list[tuple[str, dict[str, Any], str, str]] = [
    ("a name with a dot", make_manifest("a.b"), "metadata.name", "small letters"),
    ("a name in capitals", make_manifest("No Good"), "metadata.name", "; it is No Good: for example no-good"),
    ("a name that begins with a digit", make_manifest("1a"), "metadata.name", "small letters"),
    ("a name that ends with -", make_manifest("a-"), "metadata.name", "small letters"),
    ("a name with a letter that is not ASCII", make_manifest("é"), "metadata.name", "small letters"),
    ("a name too long for the group", make_manifest("x" * (NAME_BUDGET - 2)), "metadata.name", "any worker group"),
    (
        "a name too long for ps",
        make_manifest("x" * (NAME_BUDGET - 1), workers=[make_group("a")]),
        "metadata.name",
        "-ps-",
    ),
    ("a reserved variable", make_manifest(env=[{"name": "HETEROTRAIN_NAME"}]), "spec.env[0].name", "HETEROTRAIN_"),
    (
        "a reserved variable of a group",
        make_manifest(workers=[make_group(env=[{"name": "HETEROTRAIN_"}])]),
        "spec.workers[0].env[0].name",
        "HETEROTRAIN_",
    ),
    ("a group called ps", make_manifest(workers=[make_group("ps")]), "spec.workers[0].name", "must not be ps"),
    (
        "more pods than one Secret has certificates for",
        make_manifest(
            globalBatchSize=1000,
            workers=[make_group(replicas=256), make_group("old", replicas=100)],
            parameterServers={"replicas": 45},
        ),
        "spec.workers",
        "(one Secret holds the certificates of all): lower replicas; they are 401",
    ),
    (
        "min above max",
        make_manifest(workers=batches({}, {"min": 5, "max": 4})),
        "spec.workers[1].batch.min",
        "at most max",
    ),
    (
        "initial below min",
        make_manifest(workers=batches({"min": 3, "initial": 2}, {})),
        "spec.workers[0].batch.initial",
        "at least min",
    ),
    (
        "initial above max",
        make_manifest(workers=batches({"max": 3, "initial": 4}, {})),
        "spec.workers[0].batch.initial",
        "at most max",
    ),
    (
        "a limit of going back without checkpoints",
        make_manifest(runPolicy={"backoffLimit": 2}),
        "spec.runPolicy.backoffLimit",
        "without checkpoint",
    ),
    (
        "a toleration without key",
        tolerate(value="a"),
        "spec.workers[0].tolerations[0].key",
        "unless operator is Exists",
    ),
    (
        "Exists with a value",
        tolerate(key="a", operator="Exists", value="b"),
        "spec.workers[0].tolerations[0].value",
        "left out",
    ),
    (
        "seconds without NoExecute",
        tolerate(key="a", tolerationSeconds=3),
        "spec.workers[0].tolerations[0].tolerationSeconds",
        "NoExecute",
    ),
    (
        "minima above the batch",
        make_manifest(workers=batches({"min": 5}, {"min": 4})),
        "spec.globalBatchSize",
        "; the sum of replicas x batch.min is 9, globalBatchSize is 8",
    ),
    (
        "maxima below the batch",
        make_manifest(workers=batches({"max": 5}, {"max": 2})),
        "spec.globalBatchSize",
        "; the sum of replicas x batch.max is 7, globalBatchSize is 8",
    ),
    (
        "maxima that reach the batch only off the grain",
        make_manifest(globalBatchSize=9, batchGrain=4, workers=batches({"min": 1, "max": 8})),
        "spec.globalBatchSize",
        "down to the grain",
    ),
    (
        "a batch off the grain",
        make_manifest(batchGrain=4, workers=batches({}, {})),
        "spec.globalBatchSize",
        "multiple of batchGrain",
    ),
    (
        "a batch off the grain, with the sums",
        make_manifest(globalBatchSize=9, batchGrain=4, workers=batches({"min": 3}, {"min": 4})),
        "spec.globalBatchSize",
        "; the sum of replicas x batch.min is 7, globalBatchSize is 9",
    ),
    (
        "an initial share off the grain",
        make_manifest(globalBatchSize=10, batchGrain=4, workers=batches({"initial": 4}, {})),
        "spec.workers",
        "multiple of batchGrain",
    ),
    (
        "initial shares that do not sum up",
        make_manifest(workers=batches({"initial": 5}, {"initial": 2})),
        "spec.workers",
        "; the sum of replicas x batch.initial is 7, globalBatchSize is 8",
    ),
    (
        "initial shares that leave too little",
        make_manifest(workers=batches({"initial": 7}, {"min": 2})),
        "spec.workers",
        "; 1 is left for them, they take 2 to 8",
    ),
    (
        "initial shares that leave too much",
        make_manifest(workers=batches({"initial": 2}, {"max": 5})),
        "spec.workers",
        "; 6 is left for them, they take 1 to 5",
    ),
    ("a target without bound", make_manifest(stop={"target": {"value": "a"}}), "spec.stop.target", "exactly one"),
    (
        "a target with two bounds",
        make_manifest(stop={"target": {"value": "a", "atLeast": 1, "atMost": 2}}),
        "spec.stop.target",
        "exactly one",
    ),
    ("a bound under BSP", sync(stalenessBound=3), "spec.synchronization.stalenessBound", "unless mode is SSP or Delay"),
    ("no bound under ASP", sync("ASP", stalenessBound="None"), "spec.synchronization.stalenessBound", "SSP or Delay"),
    (
        "a range under DSSP",
        sync("DSSP", adaptive={"min": 1, "max": 2}),
        "spec.synchronization.adaptive",
        "SSP or Delay",
    ),
    (
        "a window under SSP",
        sync("SSP", delayWindowMilliseconds=50),
        "spec.synchronization.delayWindowMilliseconds",
        "unless mode is Delay",
    ),
    ("a discount under BSP", sync(discount="None"), "spec.synchronization.discount", "ASP, SSP, DSSP or Delay"),
    (
        "a normalisation under Backup",
        sync("Backup", normalization="Target"),
        "spec.synchronization.normalization",
        "ASP, SSP, DSSP or Delay",
    ),
    (
        "compensation under BSP",
        sync(delayCompensation=0.1),
        "spec.synchronization.delayCompensation",
        "ASP, SSP, DSSP or Delay",
    ),
    ("the range of DSSP under SSP", sync("SSP", dssp={"lower": 1}), "spec.synchronization.dssp", "mode is DSSP"),
    ("backup workers under BSP", sync(backupWorkers=0), "spec.synchronization.backupWorkers", "mode is Backup"),
    (
        "an exponent without a polynomial",
        sync("ASP", discount="Inverse", discountExponent=0.5),
        "spec.synchronization.discountExponent",
        "Polynomial",
    ),
    (
        "a range upside down",
        sync("SSP", adaptive={"min": 4, "max": 3}),
        "spec.synchronization.adaptive.min",
        "at most max",
    ),
    (
        "a bound out of its range",
        sync("SSP", stalenessBound=9, adaptive={"min": 0, "max": 8}),
        "spec.synchronization.stalenessBound",
        "adaptive.min to adaptive.max",
    ),
    (
        "the default bound out of the range",
        sync("Delay", adaptive={"min": 4, "max": 8}),
        "spec.synchronization.stalenessBound",
        "3 if not given",
    ),
    (
        "no bound and a range",
        sync("Delay", stalenessBound="None", adaptive={"min": 0, "max": 8}),
        "spec.synchronization.stalenessBound",
        "must be a number",
    ),
    (
        "a pod replaced before shares were tried",
        make_manifest(adaptation={"escalation": ["Replace", "Rebalance"]}),
        "spec.adaptation.escalation",
        "must begin with Rebalance",
    ),
    (
        "a step twice",
        make_manifest(adaptation={"escalation": ["Rebalance", "Replace", "Replace"]}),
        "spec.adaptation.escalation",
        "each step once",
    ),
    (
        "a bound to relax without a range",
        make_manifest(adaptation={"escalation": ["Rebalance", "RelaxStaleness"]}),
        "spec.adaptation.escalation",
        "it is the range for it",
    ),
    ("nobody to wait for", sync("Backup", backupWorkers=2), "spec.synchronization", "fewer backupWorkers"),
]


@pytest.mark.parametrize(
    ("document", "field", "words"), [case[1:] for case in BROKEN], ids=[name for name, *_ in BROKEN]
)
def test_rules_over_several_fields(document: dict[str, Any], field: str, words: str) -> None:
    faults = validate(document)
    assert any(fault.field == field and words in fault.message for fault in faults), faults


def test_every_rule_is_broken_by_a_case() -> None:
    told = {fault.message for _, document, _, _ in BROKEN for fault in validate(document)}
    assert [rule.message for rule in RULES if not any(words.startswith(rule.message) for words in told)] == []


def test_figures_have_an_expression_of_the_api_server_for_each_value() -> None:
    told = [rule.figures for rule in RULES if rule.figures is not None]
    assert [len(figures.cel) for figures in told] == [figures.text.count("%") for figures in told]
    assert len(told) >= 7


def test_as_many_pods_as_one_secret_has_certificates_for_are_taken() -> None:
    groups = [make_group(replicas=256), make_group("old", replicas=100)]
    assert validate(make_manifest(globalBatchSize=1000, workers=groups, parameterServers={"replicas": 44})) == []
