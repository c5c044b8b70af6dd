"""What a template may not say, each with the field that is blamed."""

from __future__ import annotations

from typing import Any

import pytest

from builders_operator import make_job, viewed
from heterotrain_api.v1alpha1 import HeteroTrainJob
from heterotrain_operator.job.template import spec_faults


def worker(**spec: Any) -> dict[str, Any]:
    return {"workers": [{"name": "cpu", "replicas": 2, "template": {"spec": spec}}]}


def trainer(**fields: Any) -> dict[str, Any]:
    return worker(containers=[{"name": "trainer", **fields}])


def shard(**fields: Any) -> dict[str, Any]:
    return {"parameterServers": {"template": {"spec": {"containers": [{"name": "trainer", **fields}]}}}}


def metadata(**fields: Any) -> dict[str, Any]:
    return {"workers": [{"name": "cpu", "replicas": 2, "template": {"metadata": fields}}]}


W = "spec.workers[0].template"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("the host's network", worker(hostNetwork=True), f"{W}.spec.hostNetwork"),
    ("containers that start again", worker(restartPolicy="Always"), f"{W}.spec.restartPolicy"),
    ("another host name", worker(hostname="x"), f"{W}.spec.hostname"),
    ("another subdomain", worker(subdomain="x"), f"{W}.spec.subdomain"),
    ("containers that are no list", worker(containers={"name": "x"}), f"{W}.spec.containers"),
    ("a container without a name", worker(containers=[{"image": "x"}]), f"{W}.spec.containers[0].name"),
    (
        "two containers of one name",
        worker(containers=[{"name": "a"}, {"name": "a"}]),
        f"{W}.spec.containers[1].name",
    ),
    ("the coordinator in a worker", worker(containers=[{"name": "coordinator"}]), f"{W}.spec.containers[0].name"),
    (
        "an init container named as ours",
        worker(initContainers=[{"name": "trainer"}]),
        f"{W}.spec.initContainers[0].name",
    ),
    ("another command", trainer(command=["sh"]), f"{W}.spec.containers[0].command"),
    ("another image", trainer(image="x"), f"{W}.spec.containers[0].image"),
    (
        "a variable of ours",
        trainer(env=[{"name": "HETEROTRAIN_NAME", "value": "x"}]),
        f"{W}.spec.containers[0].env[0].name",
    ),
    ("variables that are no list", trainer(env={"A": "b"}), f"{W}.spec.containers[0].env"),
    ("limits that are no object", trainer(resources={"limits": "2"}), f"{W}.spec.containers[0].resources.limits"),
    (
        "another place for the last words",
        trainer(terminationMessagePath="/tmp/x"),
        f"{W}.spec.containers[0].terminationMessagePath",
    ),
    (
        "a mount over our certificates",
        trainer(volumeMounts=[{"name": "x", "mountPath": "/var/run/heterotrain/"}]),
        f"{W}.spec.containers[0].volumeMounts[0].mountPath",
    ),
    (
        "a mount above our certificates",
        trainer(volumeMounts=[{"name": "x", "mountPath": "/var"}]),
        f"{W}.spec.containers[0].volumeMounts[0].mountPath",
    ),
    (
        "a mount of our volume",
        worker(containers=[{"name": "x", "volumeMounts": [{"name": "heterotrain-certificates", "mountPath": "/k"}]}]),
        f"{W}.spec.containers[0].volumeMounts[0].name",
    ),
    ("a volume named as ours", worker(volumes=[{"name": "heterotrain-tmp"}]), f"{W}.spec.volumes[0].name"),
    ("another name of the pod", metadata(name="x"), f"{W}.metadata.name"),
    ("a finalizer", metadata(finalizers=["x/y"]), f"{W}.metadata.finalizers"),
    ("a label of ours", metadata(labels={"heterotrain.io/role": "x"}), f"{W}.metadata.labels.heterotrain.io/role"),
    (
        "a label that names the owner",
        metadata(labels={"app.kubernetes.io/managed-by": "me"}),
        f"{W}.metadata.labels.app.kubernetes.io/managed-by",
    ),
    ("labels that are no strings", metadata(labels={"a": 1}), f"{W}.metadata.labels"),
    ("another program as shard", shard(args=["x"]), "spec.parameterServers.template.spec.containers[0].args"),
]


@pytest.mark.parametrize(("spec", "want"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_refused_with_the_field(spec: dict[str, Any], want: str) -> None:
    faults = spec_faults(HeteroTrainJob.model_validate(make_job(**spec)).spec)
    assert [fault.field for fault in faults] == [want]
    assert faults[0].message


TAKEN: list[tuple[str, dict[str, Any]]] = [
    ("no template", {}),
    ("nulls are not there", worker(hostname=None, containers=None, volumes=[])),
    ("what does no harm", worker(hostNetwork=False, restartPolicy="Never")),
    ("security settings of the user's", worker(securityContext={"runAsUser": 0}, containers=[{"name": "x"}])),
    (
        "an output folder of a worker's sidecar",
        worker(containers=[{"name": "x", "volumeMounts": [{"mountPath": "/output"}]}]),
    ),
    ("another image of the shard", shard(image="mine:1")),
    ("what only Kubernetes can judge", worker(affinity={"nonsense": 1}, priority="no number")),
]


@pytest.mark.parametrize("spec", [case[1] for case in TAKEN], ids=[case[0] for case in TAKEN])
def test_taken(spec: dict[str, Any]) -> None:
    assert viewed(make_job(**spec)).faults == ()
