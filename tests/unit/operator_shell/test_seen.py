"""From the API's JSON to what a pass sees."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from heterotrain_api.contract import Role
from heterotrain_operator.job.names import owner_reference
from heterotrain_operator.job.observed import ContainerEnd, ContainerSeen, PodSeen
from heterotrain_operator.job.seen import NotAPodOfAJobError, is_ours, job_of, newest_warning, pod_seen

UID = "6d0f3c1e-0000-4000-8000-000000000001"
CREATED = datetime(2026, 1, 1, 12, tzinfo=UTC)


def pod(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    labels = {"role": "worker", "group": "cpu", "index": "1", "attempt": "2"}
    return {
        "metadata": {
            "name": "fashion-cpu-1-2",
            "namespace": "default",
            "uid": "pod-uid",
            "creationTimestamp": "2026-01-01T12:00:00Z",
            "labels": {f"heterotrain.io/{key}": value for key, value in labels.items()},
            "ownerReferences": [owner_reference("fashion", UID)],
        },
        "spec": spec,
        "status": status or {},
    }


def seen(**fields: Any) -> PodSeen:
    base: dict[str, Any] = {
        "name": "fashion-cpu-1-2",
        "uid": "pod-uid",
        "role": Role.WORKER,
        "group": "cpu",
        "index": 1,
        "attempt": 2,
        "phase": "Pending",
        "node": "",
        "ip": "",
        "ready": False,
        "deleting": False,
        "created_at": CREATED,
    }
    return PodSeen(**(base | fields))


def container(state: dict[str, Any], name: str = "trainer") -> dict[str, Any]:
    return {"name": name, "state": state}


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


KILLED = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T12:05:00Z"}
GOOD = {"exitCode": 0, "reason": "Completed"}
GOOD_END = ContainerEnd(0, "Completed", "", None)
VANISHED = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "The container could not be located"}
CASES = [
    pytest.param(pod({"phase": "Pending"}), seen(), id="just created"),
    pytest.param(pod(), seen(phase="Unknown"), id="not looked at by anybody yet"),
    pytest.param(
        pod({"phase": "Pending", "conditions": [condition("PodScheduled", "False", "Unschedulable", "0/3 nodes fit")]}),
        seen(unschedulable="0/3 nodes fit"),
        id="no node fits",
    ),
    pytest.param(
        pod({"phase": "Pending", "conditions": [condition("PodScheduled", "False", "SchedulingGated", "gated")]}),
        seen(),
        id="held back by a scheduling gate, which is no complaint",
    ),
    pytest.param(
        pod(
            {
                "phase": "Pending",
                "containerStatuses": [container({"waiting": {"reason": "ErrImagePull", "message": "not found"}})],
            },
            nodeName="one",
        ),
        seen(node="one", containers=(ContainerSeen("trainer", "waiting", "ErrImagePull", "not found"),)),
        id="its image cannot be pulled",
    ),
    pytest.param(
        pod(
            {
                "phase": "Running",
                "podIP": "10.0.0.7",
                "conditions": [condition("Ready", "True")],
                "initContainerStatuses": [container({"terminated": {"exitCode": 0, "reason": "Completed"}}, "init")],
                "containerStatuses": [container({"running": {}}), container({}, "coordinator")],
            },
            nodeName="one",
        ),
        seen(
            phase="Running",
            node="one",
            ip="10.0.0.7",
            ready=True,
            containers=(
                ContainerSeen("init", "terminated", end=ContainerEnd(0, "Completed", "", None)),
                ContainerSeen("trainer", "running"),
                ContainerSeen("coordinator", "unknown"),
            ),
        ),
        id="runs",
    ),
    pytest.param(
        pod({"phase": "Failed", "containerStatuses": [container({"terminated": KILLED})]}),
        seen(
            phase="Failed",
            containers=(
                ContainerSeen(
                    "trainer",
                    "terminated",
                    end=ContainerEnd(137, "OOMKilled", "", datetime(2026, 1, 1, 12, 5, tzinfo=UTC)),
                ),
            ),
        ),
        id="ran out of memory: no disruption",
    ),
    pytest.param(
        pod(
            {"phase": "Failed", "containerStatuses": [container({"terminated": KILLED}), container({}, "beside")]},
            containers=[
                {"name": "trainer", "resources": {"limits": {"memory": "512Mi", "cpu": 1}}},
                {"name": "beside", "resources": {"limits": {"cpu": 1}}},
            ],
        ),
        seen(
            phase="Failed",
            containers=(
                ContainerSeen(
                    "trainer",
                    "terminated",
                    end=ContainerEnd(137, "OOMKilled", "", datetime(2026, 1, 1, 12, 5, tzinfo=UTC)),
                    memory_limit="512Mi",
                ),
                ContainerSeen("beside", "unknown"),
            ),
        ),
        id="ran out of memory at its limit",
    ),
    pytest.param(
        pod({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}),
        seen(phase="Failed", disrupted="Evicted", message="The node was low on resource: memory."),
        id="evicted before a container ran",
    ),
    pytest.param(
        pod(
            {
                "phase": "Failed",
                "reason": "Terminated",
                "conditions": [condition("DisruptionTarget", "True", "PreemptionByScheduler")],
                "containerStatuses": [container({"terminated": KILLED})],
            }
        ),
        seen(
            phase="Failed",
            disrupted="PreemptionByScheduler",
            containers=(
                ContainerSeen(
                    "trainer",
                    "terminated",
                    end=ContainerEnd(137, "OOMKilled", "", datetime(2026, 1, 1, 12, 5, tzinfo=UTC)),
                ),
            ),
        ),
        id="preempted: its exit code does not matter",
    ),
    pytest.param(
        pod(
            {"phase": "Failed", "reason": "Evicted", "initContainerStatuses": [container({"terminated": GOOD}, "init")]}
        ),
        seen(phase="Failed", disrupted="Evicted", containers=(ContainerSeen("init", "terminated", end=GOOD_END),)),
        id="evicted between its init container and the trainer",
    ),
    pytest.param(
        pod({"phase": "Failed"}),
        seen(phase="Failed", disrupted="Failed"),
        id="failed, and nobody says why: not its processes",
    ),
    pytest.param(
        pod(
            {
                "phase": "Failed",
                "containerStatuses": [
                    container({"terminated": VANISHED}),
                    container({"terminated": GOOD}, "coordinator"),
                ],
            }
        ),
        seen(
            phase="Failed",
            disrupted="ContainerStatusUnknown",
            message="The container could not be located",
            containers=(
                ContainerSeen(
                    "trainer", "terminated", end=ContainerEnd(137, "ContainerStatusUnknown", VANISHED["message"], None)
                ),
                ContainerSeen("coordinator", "terminated", end=GOOD_END),
            ),
        ),
        id="the kubelet lost its container",
    ),
    pytest.param(
        pod(
            {
                "phase": "Failed",
                "containerStatuses": [container({"terminated": {"exitCode": 255, "reason": "Unknown"}})],
            }
        ),
        seen(
            phase="Failed",
            disrupted="Unknown",
            containers=(ContainerSeen("trainer", "terminated", end=ContainerEnd(255, "Unknown", "", None)),),
        ),
        id="its node was started anew",
    ),
    pytest.param(
        pod(
            {
                "phase": "Failed",
                "containerStatuses": [
                    container({"terminated": {"exitCode": 1, "reason": "Error", "message": "no column"}}),
                    container({"terminated": VANISHED}, "beside"),
                ],
            }
        ),
        seen(
            phase="Failed",
            message="The container could not be located",
            containers=(
                ContainerSeen("trainer", "terminated", end=ContainerEnd(1, "Error", "no column", None)),
                ContainerSeen(
                    "beside", "terminated", end=ContainerEnd(137, "ContainerStatusUnknown", VANISHED["message"], None)
                ),
            ),
        ),
        id="its trainer failed by itself, another container was lost: no disruption",
    ),
]


@pytest.mark.parametrize(("document", "want"), CASES)
def test_pods(document: dict[str, Any], want: PodSeen) -> None:
    assert pod_seen(document) == want


def test_a_pod_that_is_being_deleted() -> None:
    document = pod({"phase": "Running"})
    document["metadata"] |= {"deletionTimestamp": "2026-01-01T12:30:00Z", "deletionGracePeriodSeconds": 15}
    assert pod_seen(document) == seen(
        phase="Running",
        deleting=True,
        asked_at=datetime(2026, 1, 1, 12, 29, 45, tzinfo=UTC),
        ends_by=datetime(2026, 1, 1, 12, 30, tzinfo=UTC),
    )


@pytest.mark.parametrize("label", ["role", "group", "index", "attempt"])
def test_a_pod_whose_labels_were_changed_cannot_be_read(label: str) -> None:
    document = pod()
    del document["metadata"]["labels"][f"heterotrain.io/{label}"]
    with pytest.raises(NotAPodOfAJobError, match=f"pod fashion-cpu-1-2 .*{label}"):
        pod_seen(document)


def told(kind: str, reason: str, at: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "reason": reason, "message": "words", "lastTimestamp": at, **more}


@pytest.mark.parametrize(
    ("events", "want"),
    [
        pytest.param([], "", id="nothing was said"),
        pytest.param(
            [
                told("Normal", "Scheduled", "2026-01-01T12:00:00Z"),
                told("Warning", "FailedMount", "2026-01-01T12:00:09Z"),
            ],
            "FailedMount: words",
            id="the newest is a complaint",
        ),
        pytest.param(
            [
                told("Warning", "FailedMount", "2026-01-01T12:00:01Z"),
                told("Normal", "Pulling", "2026-01-01T12:00:09Z"),
            ],
            "",
            id="it has passed",
        ),
        pytest.param(
            [
                told("Normal", "Scheduled", None, eventTime="2026-01-01T12:00:00.251Z"),
                told("Warning", "FailedMount", None, eventTime="2026-01-01T12:00:01.5Z"),
            ],
            "FailedMount: words",
            id="events of the newer kind",
        ),
    ],
)
def test_the_newest_warning(events: list[dict[str, Any]], want: str) -> None:
    assert newest_warning(events) == want


def test_an_object_is_ours_only_if_just_this_job_controls_it() -> None:
    reference = owner_reference("fashion", UID)
    assert is_ours({"ownerReferences": [reference]}, UID)
    assert not is_ours({"ownerReferences": [reference]}, "another job of the same name")
    assert not is_ours({"ownerReferences": [reference | {"controller": False}]}, UID)
    assert not is_ours({}, UID)


def test_a_pod_tells_whose_it_is() -> None:
    assert job_of(pod()["metadata"]) == "fashion"
    assert job_of({"ownerReferences": [owner_reference("fashion", UID) | {"apiVersion": "batch/v1"}]}) is None
    assert job_of({"ownerReferences": [owner_reference("fashion", UID) | {"kind": "Job"}]}) is None
    assert job_of({}) is None
