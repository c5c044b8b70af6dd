"""``replicas`` edited while a job trains, on a real API server: the coordinator is asked, pods follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from heterotrain_api.contract import ExitCode
from heterotrain_rpc import control_pb2
from manifests import make_group, make_manifest
from support.control_plane import Namespace
from support.operator_process import OperatorProcess
from support.play import always, condition, end, job, living_pods, places, run, until, until_complete
from support.trained_job import coordinator_of, training

Start = Callable[..., OperatorProcess]


class Group:
    """What the coordinator says of its workers."""

    def __init__(self, *names: str) -> None:
        self.replicas = len(names)
        self.phases = dict.fromkeys(names, control_pb2.WORKER_PHASE_TRAINING)

    def say(self, version: int) -> control_pb2.JobState:
        state = training(version)
        state.groups.append(control_pb2.GroupState(name="cpu", replicas=self.replicas))
        del state.workers[:]
        for name, phase in self.phases.items():
            joined = int(phase != control_pb2.WORKER_PHASE_ABSENT)
            state.workers.append(control_pb2.WorkerState(name=name, group="cpu", phase=phase, incarnation=joined))
        return state


@pytest.mark.timeout(150)
def test_workers_are_added_and_taken_out_without_a_restart(start_operator: Start, namespace: Namespace) -> None:
    start_operator()
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    first = {pod["metadata"]["uid"] for pod in until_complete(namespace, uid, 4)}
    group = Group("cpu-0", "cpu-1", "cpu-2")
    with coordinator_of(namespace, uid, group.say) as running:
        assert running.coordinator is not None
        until("it trains", lambda: condition(_job(namespace), "Training").get("status") == "True")

        _scale(namespace, 4)
        asked = until(
            "the coordinator is asked", lambda: list(running.coordinator.commands if running.coordinator else ())
        )
        assert asked == [control_pb2.CommandRequest(scale=control_pb2.Scale(group="cpu", replicas=4))]
        always("no pod comes before the coordinator expects it", lambda: len(living_pods(namespace, uid)) == 4, 2)
        group.replicas, group.phases["cpu-3"] = 4, control_pb2.WORKER_PHASE_ABSENT
        pods = until_complete(namespace, uid, 5)
        assert places(pods) == ["cpu-0", "cpu-1", "cpu-2", "cpu-3", "ps-0"]
        assert first < {pod["metadata"]["uid"] for pod in pods}
        name = next(p["metadata"]["name"] for p in pods if p["metadata"]["labels"]["heterotrain.io/index"] == "3")
        secrets = {secret["metadata"]["name"]: secret for secret in namespace.list("secrets")}
        (own,) = [secret for secret in secrets if secret.endswith("-cpu-3")]
        assert sorted(secrets[own]["data"]) == ["ca.crt", "cpu-3.crt", "cpu-3.key"]
        run(namespace, name)
        group.phases["cpu-3"] = control_pb2.WORKER_PHASE_TRAINING
        until("all are in", lambda: _job(namespace)["status"]["readyWorkers"] == "4/4")

        _scale(namespace, 1)
        until("it is asked again", lambda: running.coordinator and len(running.coordinator.commands) == 2)
        group.replicas = 1
        until("the rows follow", lambda: [r["name"] for r in _job(namespace)["status"]["workers"]] == ["cpu-0"])
        always("who leaves has time to", lambda: len(living_pods(namespace, uid)) == 5, 2)
        for worker in ("fashion-cpu-1-1", "fashion-cpu-2-1", name):
            end(namespace, worker, "trainer", ExitCode.SUCCEEDED)
        assert places(until_complete(namespace, uid, 2)) == ["cpu-0", "ps-0"]
    stored = _job(namespace)
    assert stored["status"]["groups"] == [{"name": "cpu", "replicas": 1}]
    assert condition(stored, "Recovering")["reason"] == "NothingLost"


@pytest.mark.timeout(150)
def test_what_the_coordinator_refuses_is_said(start_operator: Start, namespace: Namespace) -> None:
    start_operator()
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    with coordinator_of(namespace, uid, Group("cpu-0", "cpu-1", "cpu-2").say) as running:
        assert running.coordinator is not None
        running.coordinator.reply = control_pb2.CommandReply(reason="the minimum shares would exceed the batch")
        until("it trains", lambda: condition(_job(namespace), "Training").get("status") == "True")
        _scale(namespace, 5)
        answers = until("an answer", lambda: _job(namespace)["status"].get("requests"))
        assert [(a["accepted"], a["message"]) for a in answers] == [
            (False, "the minimum shares would exceed the batch")
        ]
        until("an event", lambda: [e for e in namespace.list("events") if e["reason"] == "RequestRefused"])
        always(
            "it is asked once", lambda: running.coordinator is not None and len(running.coordinator.commands) == 1, 2
        )


def test_the_api_server_lets_replicas_be_edited_within_the_rules(namespace: Namespace) -> None:
    groups = [make_group(replicas=2, batch={"initial": 4, "min": 2})]
    namespace.create("heterotrainjobs", make_manifest("fashion", workers=groups, globalBatchSize=8))
    _scale(namespace, 4)  # what they begin with counts for new jobs only
    with pytest.raises(AssertionError, match=r"the sum of replicas x batch\.min is 10, globalBatchSize is 8"):
        _scale(namespace, 5)
    with pytest.raises(AssertionError, match=r"must have batch\.initial such that"):
        namespace.create("heterotrainjobs", make_manifest("other", workers=[{**groups[0], "replicas": 3}]))


def _scale(namespace: Namespace, replicas: int) -> None:
    workers = [{**group, "replicas": replicas} for group in _job(namespace)["spec"]["workers"]]
    namespace.patch("heterotrainjobs", "fashion", {"spec": {"workers": workers}})


def _job(namespace: Namespace) -> dict[str, Any]:
    found = namespace.get("heterotrainjobs", "fashion")
    assert found is not None
    return found
