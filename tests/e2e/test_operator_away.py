"""Training does not depend on the operator: killed and kept away, it finds everything as it left it, and says so."""

from __future__ import annotations

import pytest

from support.cluster import Document, Namespace, Operator, example

pytestmark = pytest.mark.alone


def coordinator_exit_code(pod: Document) -> int | None:
    for container in pod["status"].get("containerStatuses", []):
        if container["name"] == "coordinator" and "terminated" in container["state"]:
            return int(container["state"]["terminated"]["exitCode"])
    return None


def test_a_job_outlives_its_operator(namespace: Namespace, operator: Operator) -> None:
    namespace.apply(example("digits", args=["--epochs", "60"]))
    job = namespace.wait_for_job("digits", "trains", 90, lambda job: job.condition("Training")[0] == "True")
    pods = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in namespace.pods(job)}

    operator.kill()
    seen = namespace.job("digits").round
    namespace.wait_for_job(
        "digits",
        "goes on under a new operator",
        120,
        lambda job: job.round > seen or job.status["state"] == "Succeeded",
    )
    operator.scale(0)
    namespace.wait(
        "the coordinator ends by itself",
        180,
        lambda: coordinator_exit_code(namespace.get("pod", "digits-ps-0-1")) is not None,
    )
    operator.scale(1)
    operator.wait_until_ready()

    job = namespace.wait_until_over("digits", 60)
    assert job.condition("Succeeded")[:2] == ("True", "EpochsCompleted")
    assert job.round == job.status["progress"]["rounds"] == 60 * 1500 // 60
    assert job.status["attempt"] == 1
    after = namespace.pods(job)
    assert {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in after} == pods
    assert {c["restartCount"] for pod in after for c in pod["status"]["containerStatuses"]} == {0}
