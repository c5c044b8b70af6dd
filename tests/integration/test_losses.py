"""Pods that a training job loses, on a real API server: made again, counted, told of; or not, and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from heterotrain_api.contract import ExitCode
from manifests import make_group, make_manifest
from support.api_proxy import ApiProxy, Seen
from support.control_plane import Namespace
from support.operator_process import OperatorProcess
from support.play import always, condition, end, job, living_pods, places, run, until, until_complete
from support.trained_job import coordinator_of

Start = Callable[..., OperatorProcess]
PLACES = ["cpu-0", "cpu-1", "cpu-2", "ps-0"]
GOOD = '{"state": "Succeeded", "reason": "EpochsCompleted", "message": "2 epochs", "rounds": 9, "samples": 576, '
GOOD += '"model": "/output/model.safetensors"}'


def safe_job(**spec: Any) -> dict[str, Any]:
    """1 parameter server, 3 workers; its checkpoints outlive its pods."""
    claim = {"volume": {"persistentVolumeClaim": {"claimName": "models"}}}
    fields = {"workers": [make_group(replicas=3)], "globalBatchSize": 64, "output": claim, "checkpoint": {}}
    return make_manifest("fashion", **fields | spec)


@pytest.mark.timeout(150)
def test_a_worker_that_is_deleted_is_made_again_and_told_of(start_operator: Start, namespace: Namespace) -> None:
    start_operator()
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    with coordinator_of(namespace, uid):
        until("it trains", lambda: condition(_job(namespace), "Training").get("status") == "True")

        namespace.delete("pods", "fashion-cpu-1-1", grace=0)

        until("another pod", lambda: namespace.get("pods", "fashion-cpu-1-2"))
        recovering = until("it is told", lambda: _if(condition(_job(namespace), "Recovering"), "True"))
        assert recovering["reason"] == "PodDeleted"
        assert recovering["message"].startswith("cpu-1 is started again (1 of at most 3 times): worker cpu-1 (pod ")
        run(namespace, "fashion-cpu-1-2")
        over = until("it is over", lambda: _if(condition(_job(namespace), "Recovering"), "False"))
        assert (over["reason"], over["message"]) == ("Recovered", "1 pod was started again: cpu-1 (PodDeleted)")
        assert _counts(namespace) == [("cpu-1", 1, "fashion-cpu-1-2")]
        said = [e for e in namespace.list("events") if e["reason"] == "PodRestarted"]
        lost = "worker cpu-1 (pod fashion-cpu-1-1) was deleted while the job ran"
        assert [e["message"] for e in said] == [f"{lost}; it is started again (1 of at most 3 times)"]
        assert places(living_pods(namespace, uid)) == PLACES


@pytest.mark.timeout(150)
def test_ps_0_is_made_again_and_the_job_comes_to_its_end(start_operator: Start, namespace: Namespace) -> None:
    start_operator()
    uid = namespace.create("heterotrainjobs", safe_job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    with coordinator_of(namespace, uid):
        until("it trains", lambda: condition(_job(namespace), "Training").get("status") == "True")

    namespace.delete("pods", "fashion-ps-0-1", grace=0)

    pod = until("another pod", lambda: namespace.get("pods", "fashion-ps-0-2"))
    config = json.loads(pod["metadata"]["annotations"]["heterotrain.io/trainer-config"])
    assert (config["restore_limit"], pod["spec"]["hostname"]) == (3, "ps-0")
    training = until("it is told", lambda: _if(condition(_job(namespace), "Training"), "False"))
    assert (training["reason"], training["message"]) == ("PodDeleted", "waiting for ps-0, which was lost")
    with coordinator_of(namespace, uid):
        until("it trains again", lambda: condition(_job(namespace), "Training").get("status") == "True")
        end(namespace, "fashion-ps-0-2", "coordinator", ExitCode.SUCCEEDED, GOOD)
        until("it is over", lambda: condition(_job(namespace), "Succeeded").get("status") == "True")
    assert condition(_job(namespace), "Recovering")["message"] == "1 pod was started again: ps-0 (PodDeleted)"


@pytest.mark.timeout(150)
def test_without_a_checkpoint_the_loss_of_ps_0_ends_the_job_and_names_the_remedy(
    start_operator: Start, namespace: Namespace
) -> None:
    start_operator()
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    with coordinator_of(namespace, uid):
        until("it trains", lambda: condition(_job(namespace), "Training").get("status") == "True")

    namespace.delete("pods", "fashion-ps-0-1", grace=0)

    failed = until("it is over", lambda: _if(condition(_job(namespace), "Succeeded"), "False"))
    assert failed["reason"] == "PodDeleted"
    assert failed["message"].endswith(
        "what it held is lost with it; with spec.checkpoint a job goes back to a checkpoint"
    )
    assert _job(namespace)["status"]["failure"]["message"] == failed["message"]
    assert namespace.get("pods", "fashion-ps-0-2") is None


@pytest.mark.timeout(150)
def test_a_script_that_fails_is_no_loss(start_operator: Start, namespace: Namespace) -> None:
    start_operator()
    uid = namespace.create("heterotrainjobs", safe_job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    with coordinator_of(namespace, uid):
        until("it trains", lambda: condition(_job(namespace), "Training").get("status") == "True")
        trace = "Traceback (most recent call last):\n  File 'train.py', line 3\nKeyError: 'label'\n"
        end(namespace, "fashion-cpu-2-1", "trainer", ExitCode.FAILED, trace)
        failed = until("it is over", lambda: _if(condition(_job(namespace), "Succeeded"), "False"))
    assert failed["message"] == "worker cpu-2 (pod fashion-cpu-2-1) exited with code 1: KeyError: 'label'"
    assert namespace.get("pods", "fashion-cpu-2-2") is None


@pytest.mark.timeout(150)
def test_a_place_is_filled_as_often_as_the_limit_says(start_operator: Start, namespace: Namespace) -> None:
    start_operator()
    limited = safe_job(runPolicy={"backoffLimit": 2})
    uid = namespace.create("heterotrainjobs", limited)["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    with coordinator_of(namespace, uid):
        until("it trains", lambda: condition(_job(namespace), "Training").get("status") == "True")
        for attempt in (1, 2):
            namespace.delete("pods", f"fashion-cpu-0-{attempt}", grace=0)
            want = [("cpu-0", attempt, f"fashion-cpu-0-{attempt + 1}")]
            until("another pod is seen", lambda want=want: _counts(namespace) == want)  # type: ignore[misc]
        namespace.delete("pods", "fashion-cpu-0-3", grace=0)
        failed = until("it is over", lambda: _if(condition(_job(namespace), "Succeeded"), "False"), 60)
    assert failed["message"].endswith(
        "it was started again 2 times before, as often as spec.runPolicy.backoffLimit allows"
    )
    assert namespace.get("pods", "fashion-cpu-0-4") is None


@pytest.mark.timeout(150)
@pytest.mark.parametrize("lost", ["the status", "the pod"])
def test_an_operator_that_dies_between_writing_a_loss_down_and_making_it_good(
    start_operator: Start, namespace: Namespace, proxy: ApiProxy, lost: str
) -> None:
    operator = start_operator()
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    with coordinator_of(namespace, uid):
        until("it trains", lambda: condition(_job(namespace), "Training").get("status") == "True")

        def kill(seen: Seen, _: int) -> bool:
            written = seen.resource == "heterotrainjobs/status" and _counts(namespace) != []
            made = seen.resource == "pods" and seen.method == "POST"
            if written if lost == "the status" else made:
                operator.kill()
                return True
            return False

        proxy.after_write = kill
        namespace.delete("pods", "fashion-cpu-1-1", grace=0)
        until("the operator was killed", lambda: operator.process.poll() is not None)
        proxy.after_write = None
        start_operator()

        until("the pod is seen", lambda: _counts(namespace) == [("cpu-1", 1, "fashion-cpu-1-2")])
        always("no other is made", lambda: places(living_pods(namespace, uid)) == PLACES, 2)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("safe", [False, True], ids=["without checkpoints", "with checkpoints"])
def test_an_operator_that_was_away_for_the_whole_training_does_not_do_it_again(
    start_operator: Start, namespace: Namespace, safe: bool
) -> None:
    operator = start_operator()
    uid = namespace.create("heterotrainjobs", safe_job() if safe else job())["metadata"]["uid"]
    for pod in until_complete(namespace, uid, 4):
        run(namespace, pod["metadata"]["name"], names=("trainer", "coordinator"))
    until("all run", lambda: condition(_job(namespace), "PodsReady").get("status") == "True")
    operator.stop()
    for pod in living_pods(namespace, uid):
        namespace.delete("pods", pod["metadata"]["name"], grace=0)

    start_operator()

    if safe:  # the newest checkpoint may be the end of the training: the coordinator finds it
        pods = until_complete(namespace, uid, 4)
        assert {pod["metadata"]["labels"]["heterotrain.io/attempt"] for pod in pods} == {"2"}
        assert sorted(name for name, count, _ in _counts(namespace) if count == 1) == PLACES
    else:
        failed = until("it is over", lambda: _if(condition(_job(namespace), "Succeeded"), "False"))
        assert "what may be done already is not done again" in failed["message"]
        assert namespace.list("pods") == []


def _job(namespace: Namespace) -> dict[str, Any]:
    found = namespace.get("heterotrainjobs", "fashion")
    assert found is not None
    return found


def _if(found: dict[str, Any], status: str) -> dict[str, Any]:
    return found if found.get("status") == status else {}


def _counts(namespace: Namespace) -> list[tuple[str, int, str]]:
    restarts = _job(namespace).get("status", {}).get("recovery", {}).get("restarts", [])
    return [(r["name"], r["count"], r.get("pod", "")) for r in restarts]
