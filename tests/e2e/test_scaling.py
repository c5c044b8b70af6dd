"""`replicas` of a group edited while the job trains: workers come and go, nothing begins anew, the job ends well."""

from __future__ import annotations

import json

from support.cluster import Document, Job, Namespace, slow_digits


def scalable() -> Document:
    """Two workers in one group, and the shares that they begin with: the rule about their sum is for new jobs."""
    resources = {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"cpu": 1, "memory": "1Gi"}}
    group = {"name": "a", "replicas": 2, "batch": {"initial": 30, "min": 5}, "resources": resources}
    return slow_digits(45, workers=[group])


def scale(namespace: Namespace, replicas: int) -> None:
    patch = [{"op": "replace", "path": "/spec/workers/0/replicas", "value": replicas}]
    namespace.kubectl("patch", "htj", "digits", "--type=json", "-p", json.dumps(patch))


def trains_with(namespace: Namespace, replicas: int, seconds: float = 120) -> Job:
    """The job, once so many workers are in it and so many pods are there."""

    def holds(job: Job) -> bool:
        rows = job.status.get("workers", [])
        training = [row for row in rows if row["phase"] == "Training" and row.get("share")]
        return len(rows) == len(training) == replicas and len(workers(namespace, job)) == replicas

    return namespace.wait_for_job("digits", f"trains with {replicas} workers", seconds, holds)


def workers(namespace: Namespace, job: Job) -> dict[str, str]:
    pods = namespace.objects("pods", f"heterotrain.io/job-uid={job.uid},heterotrain.io/role=worker")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


def test_two_workers_become_four_and_then_one(namespace: Namespace) -> None:
    namespace.apply(scalable())
    job = trains_with(namespace, 2)
    first = workers(namespace, job)

    scale(namespace, 4)
    job = trains_with(namespace, 4)
    grown = workers(namespace, job)
    assert first.items() < grown.items()
    assert sum(row["share"] for row in job.status["workers"]) == 60

    scale(namespace, 1)
    job = trains_with(namespace, 1)
    assert workers(namespace, job).items() == {item for item in first.items() if "-a-0-" in item[0]}
    assert job.status["workers"][0]["share"] == 60

    job = namespace.wait_until_over("digits", 420)
    assert job.condition("Succeeded")[:2] == ("True", "EpochsCompleted"), namespace.diagnosis()
    assert job.round == job.status["progress"]["rounds"]
    assert job.condition("Recovering")[1] == "NothingLost"
    assert job.status["groups"] == [{"name": "a", "replicas": 1}]
    answers = [(answer["accepted"], answer["message"]) for answer in job.status["requests"]]
    assert answers == [(True, "group a shall have 4 workers"), (True, "group a shall have 1 worker")]
