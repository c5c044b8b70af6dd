"""What of a job can be changed once it exists."""

from __future__ import annotations

from typing import Any

import pytest

from heterotrain_api.immutability import IMMUTABLE
from heterotrain_api.validation import parse, validate_update
from manifests import make_group, make_manifest


def volume(**kind: Any) -> dict[str, Any]:
    return make_manifest(output={"volume": kind})


def group(**fields: Any) -> dict[str, Any]:
    return make_manifest(workers=[make_group(**{"replicas": 2, **fields})])


FIXED: list[tuple[str, dict[str, Any], dict[str, Any], list[str]]] = [
    ("image", make_manifest(), make_manifest(image="b"), ["spec.image"]),
    ("command", make_manifest(), make_manifest(command=["b"]), ["spec.command"]),
    ("arguments that were not there", make_manifest(), make_manifest(args=["b"]), ["spec.args"]),
    (
        "a variable's value",
        make_manifest(env=[{"name": "A"}]),
        make_manifest(env=[{"name": "A", "value": "b"}]),
        ["spec.env"],
    ),
    ("the batch", make_manifest(), make_manifest(globalBatchSize=9), ["spec.globalBatchSize"]),
    ("the grain", make_manifest(), make_manifest(batchGrain=2), ["spec.batchGrain"]),
    ("the seed", make_manifest(), make_manifest(seed=1), ["spec.seed"]),
    ("the lease", make_manifest(), make_manifest(synchronization={"leaseSeconds": 9}), ["spec.synchronization"]),
    ("a limit", make_manifest(stop={"rounds": 1}), make_manifest(), ["spec.stop"]),
    (
        "parameter servers",
        make_manifest(),
        make_manifest(parameterServers={"replicas": 2}),
        ["spec.parameterServers.replicas"],
    ),
    ("device", group(), group(device="CUDA"), ["spec.workers[0].device"]),
    ("a bound", group(), group(batch={"max": 7}), ["spec.workers[0].batch"]),
    ("a group's variables", group(), group(env=[{"name": "A"}]), ["spec.workers[0].env"]),
    ("a group more", group(), make_manifest(workers=[make_group("new"), make_group(replicas=2)]), ["spec.workers"]),
    ("a group's name", group(), group(name="new"), ["spec.workers"]),
    ("a volume added", make_manifest(), volume(emptyDir={}), ["spec.output"]),
    ("another kind of volume", volume(nfs={}), volume(emptyDir={}), ["spec.output"]),
    (
        "another claim",
        volume(persistentVolumeClaim={"claimName": "a"}),
        volume(persistentVolumeClaim={"claimName": "b"}),
        ["spec.output"],
    ),
]

FREE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("nothing", make_manifest(), make_manifest()),
    ("workers", group(), group(replicas=3)),
    ("an empty list for none", make_manifest(), make_manifest(args=[], env=[])),
    ("a default written out", make_manifest(), make_manifest(seed=0, parameterServers={"replicas": 1})),
    (
        "the order of variables",
        make_manifest(env=[{"name": "A"}, {"name": "B"}]),
        make_manifest(env=[{"name": "B"}, {"name": "A"}]),
    ),
    (
        "the order of groups",
        make_manifest(workers=[make_group("a"), make_group("b", replicas=3)]),
        make_manifest(workers=[make_group("b", replicas=3), make_group("a")]),
    ),
    ("what is inside an opaque volume", volume(emptyDir={"sizeLimit": "1Gi"}), volume(emptyDir={"sizeLimit": "2Gi"})),
    (
        "what later pods use",
        group(),
        group(nodeSelector={"a": "b"}, resources={"limits": {"cpu": 1}}, template={"spec": {}}),
    ),
    (
        "how images are pulled",
        make_manifest(),
        make_manifest(imagePullPolicy="Never", imagePullSecrets=[{"name": "a"}]),
    ),
]


@pytest.mark.parametrize(("old", "new", "fields"), [case[1:] for case in FIXED], ids=[name for name, *_ in FIXED])
def test_what_is_computed_cannot_be_changed(old: dict[str, Any], new: dict[str, Any], fields: list[str]) -> None:
    faults = validate_update(parse(old), parse(new))
    assert [fault.field for fault in faults] == fields
    assert all("once the job exists" in fault.message and "create" in fault.message for fault in faults)


@pytest.mark.parametrize(("old", "new"), [case[1:] for case in FREE], ids=[name for name, *_ in FREE])
def test_the_rest_can_be_edited(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert validate_update(parse(old), parse(new)) == []


def test_every_declaration_is_tried() -> None:
    tried = {field.replace("[0]", "[*]") for *_, fields in FIXED for field in fields}
    assert {f"{fixed.path}.{fixed.field}" for fixed in IMMUTABLE} <= tried
