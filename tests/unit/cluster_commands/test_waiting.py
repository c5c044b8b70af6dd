"""What a pod waits for, in words."""

from __future__ import annotations

from typing import Any

import pytest

from builders_operator import make_end, make_pod
from heterotrain_operator.cluster.waiting import obstacle, processes, why_no_pod
from heterotrain_operator.job.observed import ContainerSeen, PodSeen
from manifests import make_group, make_manifest


def pod(*containers: ContainerSeen, **fields: Any) -> PodSeen:
    given: dict[str, Any] = {"phase": "Pending", "ready": False, "containers": containers, "node": "n-1", **fields}
    return make_pod("cpu-0", **given)


def waiting(reason: str = "", message: str = "", name: str = "trainer") -> ContainerSeen:
    return ContainerSeen(name, "waiting", reason, message)


INIT = waiting("PodInitializing")
UNPULLED = waiting("ErrImagePull", "no such image", "fetch")
FAILED = ContainerSeen("fetch", "terminated", end=make_end(7))
DONE = ContainerSeen("fetch", "terminated", end=make_end(0))


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        pytest.param(pod(ContainerSeen("trainer", "running")), None, id="it runs"),
        pytest.param(pod(ContainerSeen("trainer", "terminated", end=make_end(1))), None, id="it has ended"),
        pytest.param(
            pod(waiting("ErrImagePull", "not\nfound")),
            "waits to start container trainer: ErrImagePull: not found",
            id="the image cannot be pulled",
        ),
        pytest.param(
            pod(waiting("ContainerCreating")),
            "waits to start container trainer: ContainerCreating",
            id="it is being made",
        ),
        pytest.param(pod(INIT), "waits for its init containers", id="init containers of which nothing is known"),
        pytest.param(
            pod(ContainerSeen("fetch", "running"), INIT),
            "waits for its init containers (fetch runs)",
            id="an init container runs",
        ),
        pytest.param(
            pod(DONE, UNPULLED, INIT, waiting("PodInitializing", name="sidecar")),
            "waits for its init containers (fetch: ErrImagePull: no such image)",
            id="one of them is done, another cannot be pulled",
        ),
        pytest.param(
            pod(FAILED, INIT), "waits for its init containers (fetch failed with exit code 7)", id="one of them failed"
        ),
        pytest.param(pod(waiting()), "is being started on node n-1", id="no reason is given"),
        pytest.param(pod(), "is being started on node n-1", id="no container is known"),
        pytest.param(pod(node=""), "is not scheduled to a node yet", id="the scheduler has not looked at it"),
        pytest.param(
            pod(node="", unschedulable="0/5 nodes are available"),
            "is not scheduled: 0/5 nodes are available",
            id="no node fits",
        ),
        pytest.param(
            pod(phase="Failed", disrupted="Evicted", message="The node was low on memory"),
            "was taken away before its container started (Evicted: The node was low on memory)",
            id="it was evicted",
        ),
    ],
)
def test_what_keeps_a_container_from_its_first_line(seen: PodSeen, want: str | None) -> None:
    assert obstacle(seen, "trainer") == (None if want is None else f"pod {seen.name} {want}")


def test_processes_are_named_from_the_manifest_before_any_pod_is_there() -> None:
    job = make_manifest(workers=[make_group("gpu"), make_group(replicas=2)], parameterServers={"replicas": 2})
    assert processes(job) == ("coordinator", "ps-0", "ps-1", "gpu-0", "cpu-0", "cpu-1")
    assert processes(make_manifest()) == ("coordinator", "ps-0", "cpu-0", "cpu-1")


@pytest.mark.parametrize(
    ("conditions", "want"),
    [
        pytest.param([], "the operator has not looked at the job yet", id="no status"),
        pytest.param(
            [("Accepted", "False", "InvalidSpec", "spec.image: no"), ("PodsReady", "False", "PodsPending", "0 of 3")],
            "InvalidSpec: spec.image: no",
            id="the job is refused",
        ),
        pytest.param(
            [("Accepted", "True", "Valid", ""), ("PodsReady", "False", "PodsPending", "")],
            "PodsPending: no more is known",
            id="the pods are being made",
        ),
        pytest.param(
            [("Accepted", "True", "Valid", ""), ("PodsReady", "Unknown", "NotYetKnown", "")],
            "the operator has not made it yet",
            id="nothing is known to be wrong",
        ),
    ],
)
def test_why_a_pod_does_not_exist(conditions: list[tuple[str, str, str, str]], want: str) -> None:
    keys = ("type", "status", "reason", "message")
    assert why_no_pod({"status": {"conditions": [dict(zip(keys, c, strict=True)) for c in conditions]}}) == want
