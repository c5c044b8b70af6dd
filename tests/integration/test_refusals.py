"""What is wrong is refused by the API server itself, in words that name the field and what to write instead."""

from __future__ import annotations

from typing import Any, NamedTuple

import httpx
import pytest

from manifests import batches, make_group, make_manifest
from support.control_plane import Namespace
from support.play import job


class Wrong(NamedTuple):
    text: str
    spec: dict[str, Any]
    want_field: str
    want_remedy: str
    name: str = "fashion"


BOTH_KINDS = {"emptyDir": {}, "persistentVolumeClaim": {"claimName": "x"}}
WRONG = [
    Wrong("a field that does not exist", {"globalBatchsize": 8}, "spec.globalBatchsize", "unknown field"),
    Wrong("no image", {"image": None}, "spec.image", "Required value"),
    Wrong("no command", {"command": []}, "spec.command", "should have at least 1 items"),
    Wrong("no workers", {"workers": []}, "spec.workers", "should have at least 1 items"),
    Wrong("a text for a number", {"globalBatchSize": "8"}, "spec.globalBatchSize", "must be of type integer"),
    Wrong("a batch of nothing", {"globalBatchSize": 0}, "spec.globalBatchSize", "greater than or equal to 1"),
    Wrong(
        "shares that do not sum to the batch",
        {"workers": batches({"initial": 3}, replicas=2)},
        "spec.workers",
        "leave batch.initial out where the rest shall go; the sum of replicas x batch.initial is 6, globalBatchSize is",
    ),
    Wrong(
        "a batch that the workers may not take up",
        {"workers": batches({"max": 3}, replicas=2)},
        "spec.globalBatchSize",
        "lower it, or raise batch.max or replicas; the sum of replicas x batch.max is 6, globalBatchSize is 8",
    ),
    Wrong(
        "a batch too small for the workers",
        {"workers": [make_group(replicas=9)]},
        "spec.globalBatchSize",
        "raise it, or lower batch.min or replicas; the sum of replicas x batch.min is 9, globalBatchSize is 8",
    ),
    Wrong(
        "a batch off the grain",
        {"batchGrain": 5},
        "spec.globalBatchSize",
        "change globalBatchSize, batch.min or batchGrain; the sum of replicas x batch.min is 2, globalBatchSize is 8",
    ),
    Wrong(
        "shares of some groups that leave too little for the others",
        {"workers": batches({"initial": 7}, {"min": 2, "max": 3})},
        "spec.workers",
        "between their batch.min and batch.max; 1 is left for them, they take 2 to 3",
    ),
    Wrong(
        "more pods than one Secret has certificates for",
        {"globalBatchSize": 1000, "workers": [make_group(replicas=256), make_group("old", replicas=144)]},
        "spec.workers",
        "(one Secret holds the certificates of all): lower replicas; they are 401",
    ),
    Wrong("two groups of one name", {"workers": [make_group(), make_group()]}, "spec.workers[1]", "Duplicate value"),
    Wrong(
        "a group name that is no label",
        {"workers": [make_group("A_1")]},
        "spec.workers[0].name",
        "must be small letters, digits and -, with a letter first and no - at the end, not A_1",
    ),
    Wrong(
        "a group called as the parameter servers",
        {"workers": [make_group("ps")]},
        "spec.workers[0].name",
        "the parameter servers have that name; choose another",
    ),
    Wrong(
        "a minimum above the maximum",
        {"workers": batches({"min": 5, "max": 4})},
        "spec.workers[0].batch.min",
        "must be at most max of the same group",
    ),
    Wrong(
        "a mode that does not exist", {"synchronization": {"mode": "Fast"}}, "spec.synchronization.mode", "supported"
    ),
    Wrong(
        "a lease too short",
        {"synchronization": {"leaseSeconds": 1}},
        "spec.synchronization.leaseSeconds",
        "greater than or equal to 2",
    ),
    Wrong(
        "a reserved variable",
        {"env": [{"name": "HETEROTRAIN_NAME", "value": "x"}]},
        "spec.env[0].name",
        "choose another name",
    ),
    Wrong("a name that makes no host name", {}, "metadata.name", "small letters, digits and -", name="my.job"),
    Wrong("a name too long for its pods", {}, "metadata.name", "shorten the job's or the group's name", name="a" * 60),
    Wrong(
        "no parameter servers",
        {"parameterServers": {"replicas": 0}},
        "spec.parameterServers.replicas",
        "greater than or equal to 1",
    ),
    Wrong(
        "a target without a bound",
        {"stop": {"target": {"value": "accuracy"}}},
        "spec.stop.target",
        "exactly one of atLeast and atMost",
    ),
    Wrong(
        "memory that is no amount",
        {"workers": [make_group(resources={"limits": {"memory": "2 GB"}})]},
        "spec.workers[0].resources.limits[memory]",
        "must be a quantity such as 2, 500m or 1.5Gi, not 2 GB",
    ),
    Wrong(
        "a toleration without a key",
        {"workers": [make_group(tolerations=[{"effect": "NoSchedule"}])]},
        "spec.workers[0].tolerations[0].key",
        "unless operator is Exists",
    ),
    Wrong("two kinds of volume", {"output": {"volume": BOTH_KINDS}}, "spec.output.volume", "must have at most 1 item"),
]


@pytest.mark.parametrize("case", WRONG, ids=[case.text for case in WRONG])
def test_a_wrong_manifest(case: Wrong, admin: httpx.Client, namespace: Namespace) -> None:
    answer = admin.post(
        namespace.path("heterotrainjobs"),
        params={"fieldValidation": "Strict"},
        json=make_manifest(case.name, **case.spec),
    )
    assert answer.status_code in {400, 422}, answer.text
    message = answer.json()["message"]
    assert case.want_field in message
    assert case.want_remedy in message
    assert namespace.list("heterotrainjobs") == []


CHANGES: dict[str, tuple[dict[str, Any], str, str]] = {
    "another image": ({"image": "other:1"}, "spec.image", "delete the job and create it again"),
    "another batch": ({"globalBatchSize": 128}, "spec.globalBatchSize", "delete the job and create it again"),
    "more parameter servers": (
        {"parameterServers": {"replicas": 2}},
        "spec.parameterServers.replicas",
        "the parameters are already spread",
    ),
    "other bounds of shares": (
        {"workers": [make_group(replicas=3, batch={"min": 2})]},
        "spec.workers[0].batch",
        "`heterotrain plan set`",
    ),
    "another group": (
        {"workers": [make_group(replicas=3), make_group("gpu")]},
        "spec.workers",
        "groups cannot be added, removed or renamed",
    ),
    "another end": ({"stop": {"rounds": 9}}, "spec.stop", "`heterotrain stop` ends a job"),
}


@pytest.mark.parametrize(("change", "field", "remedy"), CHANGES.values(), ids=CHANGES)
def test_what_cannot_be_changed(
    change: dict[str, Any], field: str, remedy: str, admin: httpx.Client, namespace: Namespace
) -> None:
    made = namespace.create("heterotrainjobs", job())
    answer = admin.patch(
        namespace.path("heterotrainjobs", "fashion"),
        headers={"Content-Type": "application/merge-patch+json"},
        json={"spec": change},
    )
    assert answer.status_code == 422, answer.text
    assert field in answer.json()["message"]
    assert remedy in answer.json()["message"]
    stored = namespace.get("heterotrainjobs", "fashion")
    assert stored is not None
    assert stored["spec"] == made["spec"]
