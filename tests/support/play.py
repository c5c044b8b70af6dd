"""What tests of the operator do over and over: wait, make jobs, play kubelet."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from manifests import make_group, make_manifest
from support.control_plane import Namespace

FIELD_MANAGER = "heterotrain-operator"
T = TypeVar("T")
WAIT_SECONDS = 30.0


def until(what: str, question: Callable[[], T | None], seconds: float = WAIT_SECONDS) -> T:
    """The first answer that is true; fails with the last one after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        answer = question()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}; the last answer was {answer!r}"
        time.sleep(0.05)


def always(what: str, question: Callable[[], bool], seconds: float) -> None:
    """Fails as soon as the answer is no."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert question(), what
        time.sleep(0.1)


def job(name: str = "fashion", *, workers: int = 3, servers: int = 1) -> dict[str, Any]:
    """`t-job` of the faults' experiments: 1 parameter server, 3 workers."""
    return make_manifest(
        name, workers=[make_group(replicas=workers)], parameterServers={"replicas": servers}, globalBatchSize=64
    )


def living_pods(namespace: Namespace, job_uid: str = "") -> list[dict[str, Any]]:
    """Pods that are not being deleted; of one job if its UID is given."""
    pods = namespace.list("pods", f"heterotrain.io/job-uid={job_uid}" if job_uid else "heterotrain.io/job-uid")
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def until_complete(namespace: Namespace, job_uid: str, count: int) -> list[dict[str, Any]]:
    """The job's living pods, once there are so many."""
    return until(f"{count} pods", lambda: pods if len(pods := living_pods(namespace, job_uid)) == count else [])


def places(pods: list[dict[str, Any]]) -> list[str]:
    """Names in the job, sorted: each once if nothing is double."""
    labels = [pod["metadata"]["labels"] for pod in pods]
    return sorted(f"{label['heterotrain.io/group']}-{label['heterotrain.io/index']}" for label in labels)


def owners(objects: list[dict[str, Any]]) -> set[str]:
    """UIDs of the controllers."""
    return {ref["uid"] for o in objects for ref in o["metadata"].get("ownerReferences", []) if ref.get("controller")}


def condition(document: Mapping[str, Any] | None, kind: str) -> dict[str, Any]:
    """A condition of a job; empty if there is none."""
    conditions = (document or {}).get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {})


def end(namespace: Namespace, pod: str, container: str, code: int, message: str = "") -> None:
    """Play kubelet: a container of a pod that runs ends, and leaves a termination message."""
    found = namespace.get("pods", pod)
    assert found is not None
    ended = {
        "exitCode": code,
        "reason": "Completed" if code == 0 else "Error",
        "message": message,
        "startedAt": "2026-01-01T00:00:00Z",
        "finishedAt": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    assert container in {seen["name"] for seen in found["status"]["containerStatuses"]}
    statuses = [
        {**seen, "ready": False, "state": {"terminated": ended}} if seen["name"] == container else seen
        for seen in found["status"]["containerStatuses"]
    ]
    namespace.patch("pods", pod, {"status": {"containerStatuses": statuses}}, "status")


def wait_for(namespace: Namespace, pod: str, reason: str, message: str) -> None:
    """Play kubelet: the container `trainer` of a pod cannot be started for now."""
    state = {"waiting": {"reason": reason, "message": message}}
    status = {"name": "trainer", "ready": False, "restartCount": 0, "image": "test", "imageID": "", "state": state}
    namespace.patch("pods", pod, {"status": {"phase": "Pending", "containerStatuses": [status]}}, "status")


def run(
    namespace: Namespace, pod: str, *, ip: str = "", ready: bool = True, names: Sequence[str] = ("trainer",)
) -> None:
    """Play kubelet: the pod runs, with containers of these names."""
    status: dict[str, Any] = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        "containerStatuses": [
            {
                "name": name,
                "ready": ready,
                "restartCount": 0,
                "image": "test",
                "imageID": "",
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            }
            for name in names
        ],
    }
    if ip:
        status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
    namespace.patch("pods", pod, {"status": status}, "status")


def bind(namespace: Namespace, pod: str, node: str) -> None:
    """Play scheduler: the pod is given to a node."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    answer = namespace.client.post(
        namespace.path("pods", pod, "binding"), json={"metadata": {"name": pod}, "target": target}
    )
    answer.raise_for_status()


def complain(namespace: Namespace, pod: Mapping[str, Any], reason: str, message: str) -> None:
    """Play kubelet: a warning on the pod."""
    meta = pod["metadata"]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    about = {
        "kind": "Pod",
        "apiVersion": "v1",
        "name": meta["name"],
        "namespace": meta["namespace"],
        "uid": meta["uid"],
    }
    event = {"metadata": {"name": f"{meta['name']}.{reason.lower()}"}, "involvedObject": about, "type": "Warning"}
    times = {"firstTimestamp": now, "lastTimestamp": now, "count": 1}
    namespace.create("events", event | times | {"reason": reason, "message": message})
