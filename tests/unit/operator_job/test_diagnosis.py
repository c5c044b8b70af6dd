"""Why pods do not run: reason and words of the status for everything that a kubelet, scheduler or API server says."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import pytest

from builders_operator import NOW, ago, in_, make_job, make_pod, make_status, pods, training_status, viewed
from heterotrain_api.conditions import MAX_MESSAGE, Reason
from heterotrain_operator.job.diagnosis import WAITING, look_again_at, readiness, refusal
from heterotrain_operator.job.observed import PodSeen
from heterotrain_operator.job.slots import is_stuck


class Case(NamedTuple):
    text: str
    observed: dict[str, Any]
    want_reason: Reason
    want_message: str


def waits(reason: str, message: str = "", name: str = "cpu-1") -> Any:
    return make_pod(name, phase="Pending", waiting=(reason, message))


def stuck(warning: str) -> Any:
    return make_pod("cpu-1", phase="Pending", waiting=("ContainerCreating", ""), warning=warning)


ONE, TWO = (f"{count} of 3 pods are ready; " for count in (1, 2))
CASES = [
    Case("all ready", {"pods": pods()}, Reason.ALL_PODS_READY, "all 3 pods are ready"),
    Case(
        "a worker that has finished is as good as ready",
        {"pods": pods(make_pod("cpu-1", phase="Succeeded"))},
        Reason.ALL_PODS_READY,
        "all 3 pods are ready",
    ),
    Case(
        "nothing yet",
        {},
        Reason.PODS_PENDING,
        "0 of 3 pods are ready; the pod of ps-0 does not exist yet; 2 more pods likewise",
    ),
    Case(
        "not scheduled yet",
        {"pods": pods(make_pod("cpu-1", phase="Pending", node=""))},
        Reason.PODS_PENDING,
        "2 of 3 pods are ready; pod fashion-cpu-1-1: not scheduled yet",
    ),
    Case(
        "being started",
        {"pods": pods(waits("ContainerCreating"))},
        Reason.PODS_PENDING,
        TWO + "pod fashion-cpu-1-1: being started on node node-1 (its images pulled, its volumes mounted)",
    ),
    Case(
        "runs, not ready",
        {"pods": pods(make_pod("ps-0", ready=False))},
        Reason.PODS_PENDING,
        "2 of 3 pods are ready; pod fashion-ps-0-1: runs on node node-1 (trainer, coordinator), not ready yet",
    ),
    Case(
        "a bad image of one worker only",
        {
            "pods": pods(
                waits("ErrImagePull", 'rpc error: "x:1": not found'), make_pod("cpu-0", phase="Pending", node="")
            )
        },
        Reason.IMAGE_PULL_FAILED,
        '1 of 3 pods are ready; pod fashion-cpu-1-1, container trainer: ErrImagePull: rpc error: "x:1": not found',
    ),
    Case(
        "a bad image of all workers",
        {"pods": pods(waits("ImagePullBackOff", "Back-off", "cpu-0"), waits("ImagePullBackOff", "Back-off"))},
        Reason.IMAGE_PULL_FAILED,
        ONE + "pod fashion-cpu-0-1, container trainer: ImagePullBackOff: Back-off; 1 more pod likewise",
    ),
    Case(
        "a missing ConfigMap",
        {"pods": pods(waits("CreateContainerConfigError", 'configmap "c" not found'))},
        Reason.CONTAINER_CONFIG_FAILED,
        TWO + 'pod fashion-cpu-1-1, container trainer: CreateContainerConfigError: configmap "c" not found',
    ),
    Case(
        "no node fits",
        {
            "pods": pods(
                make_pod(
                    "cpu-1",
                    phase="Pending",
                    node="",
                    unschedulable="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
                )
            )
        },
        Reason.UNSCHEDULABLE,
        "2 of 3 pods are ready; pod fashion-cpu-1-1: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    ),
    Case(
        "a claim that does not exist",
        {
            "pods": pods(
                make_pod("ps-0", phase="Pending", node="", unschedulable='persistentvolumeclaim "fashion" not found')
            )
        },
        Reason.VOLUME_PENDING,
        '2 of 3 pods are ready; pod fashion-ps-0-1: persistentvolumeclaim "fashion" not found',
    ),
    Case(
        "a claim that never binds",
        {
            "pods": pods(
                make_pod(
                    "ps-0", phase="Pending", node="", unschedulable="pod has unbound immediate PersistentVolumeClaims"
                )
            )
        },
        Reason.VOLUME_PENDING,
        "2 of 3 pods are ready; pod fashion-ps-0-1: pod has unbound immediate PersistentVolumeClaims",
    ),
    Case(
        "a volume of the template whose ConfigMap is missing",
        {"pods": pods(stuck('FailedMount: MountVolume.SetUp failed for volume "data" : configmap "data" not found'))},
        Reason.CONTAINER_CONFIG_FAILED,
        TWO + "pod fashion-cpu-1-1 on node node-1: FailedMount: MountVolume.SetUp failed for volume "
        '"data" : configmap "data" not found',
    ),
    Case(
        "a volume that its server does not give",
        {"pods": pods(stuck('FailedMount: MountVolume.SetUp failed for volume "data" : mount failed: timed out'))},
        Reason.VOLUME_PENDING,
        TWO + "pod fashion-cpu-1-1 on node node-1: FailedMount: MountVolume.SetUp failed for volume "
        '"data" : mount failed: timed out',
    ),
    Case(
        "a node whose network is broken",
        {"pods": pods(stuck("FailedCreatePodSandBox: plugin type bridge failed"))},
        Reason.CONTAINER_CONFIG_FAILED,
        TWO + "pod fashion-cpu-1-1 on node node-1: FailedCreatePodSandBox: plugin type bridge failed",
    ),
    Case(
        "a pod that is being deleted",
        {"pods": pods(make_pod("cpu-1", deleting=True))},
        Reason.POD_DELETED,
        "2 of 3 pods are ready; pod fashion-cpu-1-1 is being deleted",
    ),
    Case(
        "a pod that was evicted",
        {"pods": pods(make_pod("cpu-1", phase="Failed", disrupted="Evicted"))},
        Reason.POD_DELETED,
        "2 of 3 pods are ready; pod fashion-cpu-1-1 was taken away (Evicted)",
    ),
    Case(
        "a pod whose nodes evict one after the other",
        {
            "pods": pods(
                make_pod("cpu-1", phase="Failed", disrupted="Evicted", created=50),
                make_pod("cpu-1", attempt=2, phase="Failed", disrupted="Evicted", created=5),
            )
        },
        Reason.POD_DELETED,
        "2 of 3 pods are ready; pod fashion-cpu-1-2 was taken away (Evicted); the next is made at 2026-03-01T12:00:15Z",
    ),
    Case(
        "a pod that somebody deletes again and again",
        {"pods": pods(without=("cpu-1",)), "made": {"cpu-1": (ago(9), ago(7), ago(5), ago(3))}},
        Reason.POD_DELETED,
        "2 of 3 pods are ready; the pod of cpu-1 was deleted again and again; the next is made at 2026-03-01T12:00:17Z",
    ),
    Case(
        "a pod that is gone during training",
        {"job": make_job(status=training_status()), "pods": pods(without=("cpu-1",))},
        Reason.POD_DELETED,
        "2 of 3 pods are ready; the pod of cpu-1 is gone",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.text for case in CASES])
def test_readiness(case: Case) -> None:
    ready = readiness(viewed(**case.observed))
    assert (ready.reason, ready.message) == (case.want_reason, case.want_message)
    assert ready.ready == (case.want_reason is Reason.ALL_PODS_READY)


@pytest.mark.parametrize("reason", WAITING)
def test_every_reason_that_does_not_pass_by_itself_is_told(reason: str) -> None:
    ready = readiness(viewed(pods=pods(waits(reason, "the words"))))
    assert ready.reason is WAITING[reason]
    assert f"pod fashion-cpu-1-1, container trainer: {reason}: the words" in ready.message


def test_a_long_message_keeps_pod_and_count() -> None:
    ready = readiness(viewed(pods=pods(waits("ErrImagePull", "x" * 5000, "cpu-0"), waits("ErrImagePull", "y"))))
    assert len(ready.message) <= MAX_MESSAGE
    assert ready.message.startswith("1 of 3 pods are ready; pod fashion-cpu-0-1, container trainer: ErrImagePull: xxx")
    assert ready.message.endswith("; 1 more pod likewise")


QUOTA = 'pods "fashion-cpu-1-1" is forbidden: exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2'
SECURITY = 'pods "fashion-cpu-1-1" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
INVALID = 'Pod "fashion-cpu-1-1" is invalid: spec.containers[0].resources.requests: Invalid value: "3"'
REFUSALS: list[tuple[str, dict[str, str], Reason, str]] = [
    ("a quota", {"cpu-1": QUOTA}, Reason.QUOTA_EXCEEDED, f"cpu-1 could not be created: {QUOTA}"),
    ("Pod Security", {"cpu-1": SECURITY}, Reason.CREATE_REFUSED, f"cpu-1 could not be created: {SECURITY}"),
    ("an invalid pod", {"cpu-1": INVALID}, Reason.CREATE_REFUSED, f"cpu-1 could not be created: {INVALID}"),
    (
        "several: what the user must mend comes first",
        {"cpu-0": QUOTA, "cpu-1": INVALID},
        Reason.CREATE_REFUSED,
        f"cpu-1 could not be created: {INVALID}; 1 more likewise",
    ),
]


@pytest.mark.parametrize(("refusals", "reason", "want"), [c[1:] for c in REFUSALS], ids=[c[0] for c in REFUSALS])
def test_refusals_are_told_in_the_api_servers_words(refusals: dict[str, str], reason: Reason, want: str) -> None:
    found = refusal(viewed(make_job(status=make_status()), refusals=refusals))
    assert found is not None
    assert (found.reason, found.text) == (reason, want)


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        pytest.param(make_pod(phase="Pending", waiting=("ContainerCreating", ""), created=14), False, id="not yet"),
        pytest.param(make_pod(phase="Pending", waiting=("ContainerCreating", ""), created=15), True, id="by now"),
        pytest.param(make_pod(phase="Pending", containers=(), created=15), True, id="its node has not said a word"),
        pytest.param(make_pod(phase="Pending", node="", created=90), False, id="no node has it"),
        pytest.param(waits("ErrImagePull"), False, id="its status says why"),
        pytest.param(make_pod(created=90), False, id="it runs"),
        pytest.param(make_pod(phase="Pending", created=90, deleting=True), False, id="it is being deleted"),
    ],
)
def test_when_a_pod_is_stuck(pod: PodSeen, want: bool) -> None:
    assert is_stuck(pod, NOW) is want


def test_a_pod_that_is_being_started_is_looked_at_when_it_is_stuck_and_again() -> None:
    def look(created: float) -> datetime | None:
        return look_again_at(viewed(pods=pods(make_pod(phase="Pending", containers=(), created=created))))

    assert (look(5), look(400)) == (in_(10), in_(15))
    assert look_again_at(viewed(pods=pods())) is None


def test_nothing_was_refused() -> None:
    assert refusal(viewed()) is None
