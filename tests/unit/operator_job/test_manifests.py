"""Manifests as a whole: what a pod of each role looks like, down to the last field.

``HETEROTRAIN_UPDATE_GOLDEN=1`` writes the files again; the difference is then read by a person.
"""

from __future__ import annotations

import copy
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders_operator import make_job, viewed
from heterotrain_api.contract import Annotation, Container, Role
from heterotrain_api.names import MAX_ATTEMPT, MAX_LABEL, NAME_BUDGET
from heterotrain_api.trainer_config import TrainerConfig
from heterotrain_api.v1alpha1 import MAX_REPLICAS
from heterotrain_operator.job import manifests
from heterotrain_operator.job.names import service_name, slot_pod_name
from heterotrain_operator.job.slots import Slot
from heterotrain_operator.job.view import View

GOLDEN = Path(__file__).parents[2] / "golden"

FULL: dict[str, Any] = {
    "imagePullPolicy": "IfNotPresent",
    "imagePullSecrets": [{"name": "registry"}],
    "args": ["--epochs", "3"],
    "env": [{"name": "DATA", "value": "/data"}],
    "globalBatchSize": 512,
    "parameterServers": {
        "replicas": 2,
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"cpu": 2, "memory": "1Gi"}},
        "template": {"spec": {"priorityClassName": "high", "containers": [{"name": "coordinator", "tty": True}]}},
    },
    "workers": [
        {
            "name": "gpu",
            "device": "CUDA",
            "resources": {"limits": {"cpu": "1500m", "memory": "4Gi"}},
            "batch": {"initial": 384},
            "nodeSelector": {"pool": "new"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "env": [{"name": "DATA", "value": "/fast"}],
            "template": {
                "metadata": {"labels": {"team": "vision"}, "annotations": {"prometheus.io/scrape": "true"}},
                "spec": {
                    "nodeSelector": {"pool": "old", "zone": "a"},
                    "terminationGracePeriodSeconds": 60,
                    "securityContext": {"runAsUser": 1000},
                    "volumes": [{"name": "data", "nfs": {"server": "store", "path": "/data"}}],
                    "initContainers": [{"name": "fetch", "image": "tools:1"}],
                    "containers": [
                        {
                            "name": "trainer",
                            "env": [
                                {"name": "OMP_NUM_THREADS", "value": "3"},
                                {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                            ],
                            "resources": {"requests": {"cpu": "1"}},
                            "volumeMounts": [{"name": "data", "mountPath": "/fast/"}],
                        },
                        {"name": "logs", "image": "tools:1", "securityContext": {"readOnlyRootFilesystem": True}},
                    ],
                },
            },
        },
        {"name": "cpu", "replicas": 2},
    ],
    "output": {"volume": {"persistentVolumeClaim": {"claimName": "fashion"}}},
}


def full_view(**spec: Any) -> View:
    view = viewed(make_job(**FULL | spec))
    assert view.faults == ()
    return view


def pod(view: View, slot: Slot, attempt: int = 1) -> dict[str, Any]:
    assert view.job is not None
    return manifests.pod(view.context, view.job, slot, attempt)


def compare(name: str, manifest: dict[str, Any]) -> None:
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("HETEROTRAIN_UPDATE_GOLDEN"):
        path.write_text(yaml.safe_dump(manifest, sort_keys=False, width=120))
    assert manifest == yaml.safe_load(path.read_text())


@pytest.mark.parametrize(
    ("name", "slot"),
    [
        ("worker", Slot(Role.WORKER, "gpu", 0)),
        ("worker-plain", Slot(Role.WORKER, "cpu", 1)),
        ("ps-0", Slot(Role.PS, "ps", 0)),
        ("ps-1", Slot(Role.PS, "ps", 1)),
    ],
)
def test_pod(name: str, slot: Slot) -> None:
    compare(name, pod(full_view(), slot))


def test_service() -> None:
    compare("service", manifests.service(full_view().context))


def test_the_coordinator_reads_its_configuration_from_the_annotation() -> None:
    config = TrainerConfig.model_validate_json(
        pod(full_view(), Slot(Role.PS, "ps", 0))["metadata"]["annotations"][Annotation.TRAINER_CONFIG]
    )
    assert [(w.name, w.share) for w in config.workers] == [("gpu-0", 384), ("cpu-0", 64), ("cpu-1", 64)]
    assert [(s.control_address, s.tensor_address) for s in config.shards] == [
        ("ps-0.fashion-3f2a77c0.team.svc:7071", "ps-0.fashion-3f2a77c0.team.svc:7072"),
        ("ps-1.fashion-3f2a77c0.team.svc:7071", "ps-1.fashion-3f2a77c0.team.svc:7072"),
    ]
    assert config.output == "/output"


def test_another_attempt_is_the_same_pod_under_another_name() -> None:
    view, slot = full_view(), Slot(Role.WORKER, "cpu", 1)
    first = pod(view, slot)
    before = copy.deepcopy(first)
    assert manifests.with_attempt(first, 12) == pod(view, slot, 12)
    assert first == before, "what is given is not changed"


def container(manifest: dict[str, Any], name: str = Container.TRAINER) -> dict[str, Any]:
    return next(entry for entry in manifest["spec"]["containers"] if entry["name"] == name)


def variables(manifest: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container(manifest)["env"]}


THREADS: list[tuple[str, dict[str, Any], str | None]] = [
    ("no limit: the libraries decide", {}, None),
    ("half a CPU keeps one thread busy", {"limits": {"cpu": "500m"}}, "1"),
    ("part of a CPU is no thread", {"limits": {"cpu": "2900m"}}, "2"),
    ("a whole number", {"limits": {"cpu": 4}}, "4"),
    ("requests are no limit", {"requests": {"cpu": 4}}, None),
]


@pytest.mark.parametrize(("resources", "want"), [case[1:] for case in THREADS], ids=[case[0] for case in THREADS])
def test_threads_follow_the_limit(resources: dict[str, Any], want: str | None) -> None:
    view = viewed(make_job(workers=[{"name": "cpu", "replicas": 2, "resources": resources}]))
    assert variables(pod(view, Slot(Role.WORKER, "cpu", 0))).get("OMP_NUM_THREADS") == want


def in_template(limits: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", "resources": {"limits": limits}}]}}


GPUS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("one whole GPU if nothing is said", {}, {"nvidia.com/gpu": 1}),
    ("what is said holds", {"resources": {"limits": {"nvidia.com/gpu": 2}}}, {"nvidia.com/gpu": 2}),
    ("a slice is enough", {"template": in_template({"nvidia.com/mig-1g.5gb": 1})}, {"nvidia.com/mig-1g.5gb": 1}),
    (
        "other limits stay",
        {"resources": {"limits": {"memory": "1Gi"}}},
        {"memory": "1Gi", "nvidia.com/gpu": 1},
    ),
]


@pytest.mark.parametrize(("fields", "want"), [case[1:] for case in GPUS], ids=[case[0] for case in GPUS])
def test_gpus_of_cuda_workers(fields: dict[str, Any], want: dict[str, Any]) -> None:
    view = viewed(make_job(workers=[{"name": "gpu", "replicas": 2, "device": "CUDA", **fields}]))
    assert container(pod(view, Slot(Role.WORKER, "gpu", 0)))["resources"]["limits"] == want


def test_a_volume_of_the_users_takes_the_place_of_ours() -> None:
    template = {
        "spec": {
            "volumes": [{"name": "big", "emptyDir": {"sizeLimit": "50Gi"}}],
            "containers": [{"name": "trainer", "volumeMounts": [{"name": "big", "mountPath": "/dev/shm/"}]}],
        }
    }
    manifest = pod(
        viewed(make_job(workers=[{"name": "cpu", "replicas": 2, "template": template}])), Slot(Role.WORKER, "cpu", 0)
    )
    mounts = {mount["mountPath"]: mount["name"] for mount in container(manifest)["volumeMounts"]}
    assert mounts["/dev/shm"] == "big"
    assert [volume["name"] for volume in manifest["spec"]["volumes"]] == [
        "heterotrain-certificates",
        "heterotrain-tmp",
        "big",
    ]


def test_the_image_of_parameter_servers_can_be_chosen() -> None:
    template = {"spec": {"containers": [{"name": "trainer", "image": "mine:1"}]}}
    manifest = pod(viewed(make_job(parameterServers={"template": template})), Slot(Role.PS, "ps", 0))
    assert (container(manifest)["image"], container(manifest, "coordinator")["image"]) == (
        "mine:1",
        "heterotrain/trainer:dev",
    )


def test_names_and_label_values_fit_whatever_the_job_is_called() -> None:
    group = "g" * 32
    job = "j" * (NAME_BUDGET - len(group))
    assert len(slot_pod_name(job, Slot(Role.WORKER, group, MAX_REPLICAS - 1), MAX_ATTEMPT)) <= MAX_LABEL
    longest = "j" * (NAME_BUDGET - len("ps"))
    assert len(slot_pod_name(longest, Slot(Role.PS, "ps", 63), MAX_ATTEMPT)) <= MAX_LABEL
    assert len(service_name(longest, "3f2a77c0-1111")) <= MAX_LABEL


def test_every_container_meets_the_restricted_profile_unless_the_user_says_otherwise() -> None:
    view = full_view()
    for slot in view.pods:
        spec = pod(view, slot)["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for entry in (*spec["containers"], *spec.get("initContainers", ())):
            security = entry["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, (slot, entry["name"])
            assert security["capabilities"] == {"drop": ["ALL"]}, (slot, entry["name"])
        for name in (Container.TRAINER, Container.COORDINATOR):
            for entry in spec["containers"]:
                if entry["name"] == name:
                    assert entry["securityContext"]["readOnlyRootFilesystem"] is True


def test_only_ps_0_mounts_the_output_volume_and_no_pod_mounts_keys_of_others() -> None:
    view = full_view()
    claims, keys = [], {}
    for slot in view.pods:
        for volume in pod(view, slot)["spec"]["volumes"]:
            if "persistentVolumeClaim" in volume:
                claims.append(slot.name)
            if "secret" in volume:
                keys[slot.name] = [item["key"] for item in volume["secret"]["items"]]
    assert claims == ["ps-0"]
    assert keys == {slot.name: ["ca.crt", f"{slot.name}.crt", f"{slot.name}.key"] for slot in view.pods}


def test_keys_of_labels_and_annotations_are_such_as_the_api_server_takes() -> None:
    view = full_view()
    keys = [*manifests.service(view.context)["metadata"]["labels"]]
    for slot in view.pods:
        keys += [*pod(view, slot)["metadata"]["labels"], *pod(view, slot)["metadata"]["annotations"]]
    assert [
        key for key in keys if not re.fullmatch(r"([a-z0-9.-]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", key)
    ] == []
