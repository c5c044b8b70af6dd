"""A running job: its coordinator is real gRPC on loopback, the pods exist in the API only."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from heterotrain_rpc import control_pb2
from support.api_proxy import ApiProxy
from support.control_plane import Namespace
from support.operator_process import OperatorProcess
from support.play import condition, job, run, until, until_complete
from support.trained_job import Running, coordinator_of

Start = Callable[..., OperatorProcess]
MEASURED_SECONDS = 65.0


@pytest.fixture
def trained(start_operator: Start, namespace: Namespace) -> Iterator[tuple[OperatorProcess, Running, str]]:
    operator = start_operator()
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    with coordinator_of(namespace, uid) as running:
        until("it trains", lambda: condition(_job(namespace), "Training").get("status") == "True")
        yield operator, running, uid


@pytest.mark.timeout(150)
def test_an_idle_running_job_costs_at_most_four_writes_a_minute(
    trained: tuple[OperatorProcess, Running, str], namespace: Namespace, proxy: ApiProxy
) -> None:
    time.sleep(3)  # what the start itself had to say
    before, round_before = len(proxy.writes()), _job(namespace)["status"]["progress"]["round"]
    time.sleep(MEASURED_SECONDS)
    writes = proxy.writes()[before:]
    a_minute = len(writes) * 60 / MEASURED_SECONDS
    print(
        f"\nwrites of a running job in {MEASURED_SECONDS:g} s: {[w.resource for w in writes]}, {a_minute:.1f} a minute"
    )
    assert a_minute <= 4
    assert _job(namespace)["status"]["progress"]["round"] > round_before


def test_a_plan_that_the_user_asks_for_reaches_the_coordinator_and_its_answer_the_user(
    trained: tuple[OperatorProcess, Running, str], namespace: Namespace
) -> None:
    _, running, _ = trained
    assert running.coordinator is not None
    running.coordinator.verdict = control_pb2.PlanVerdict(refusals=[control_pb2.Refusal(reason="the sum is 9")])
    request = json.dumps({"id": "r-1", "shares": {"cpu-0": 9}, "reason": "a try"})

    annotations = {"heterotrain.io/plan-request": request}
    namespace.patch("heterotrainjobs", "fashion", {"metadata": {"annotations": annotations}})

    answer = until("an answer", lambda: _job(namespace)["status"].get("requests"))
    assert [(a["id"], a["accepted"]) for a in answer] == [("r-1", False)]
    assert "the sum is 9" in answer[0]["message"]
    until("an event", lambda: [e for e in namespace.list("events") if e["reason"] == "PlanRefused"])
    assert [list(plan.shares) for plan in running.coordinator.plans] == [
        [control_pb2.PlanShare(worker="cpu-0", samples=9)]
    ]
    assert _job(namespace)["metadata"]["annotations"] == annotations


def test_killed_during_training_the_operator_comes_back_and_is_right_again(
    trained: tuple[OperatorProcess, Running, str], namespace: Namespace, start_operator: Start
) -> None:
    operator, _, uid = trained
    pods = {pod["metadata"]["uid"] for pod in until_complete(namespace, uid, 4)}
    operator.kill()
    round_before = _job(namespace)["status"]["progress"]["round"]
    time.sleep(2)

    start_operator()

    until("the status goes on", lambda: _job(namespace)["status"]["progress"]["round"] > round_before)
    assert condition(_job(namespace), "Training")["status"] == "True"
    assert {pod["metadata"]["uid"] for pod in until_complete(namespace, uid, 4)} == pods


def test_a_coordinator_that_the_operator_cannot_reach_is_said_within_a_minute(
    start_operator: Start, namespace: Namespace
) -> None:
    start_operator(unreachable_seconds=2)
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    for pod in until_complete(namespace, uid, 4):
        run(namespace, pod["metadata"]["name"], ip="127.9.1.1", names=("trainer", "coordinator"))

    said = until(
        "the job says so",
        lambda: c if (c := condition(_job(namespace), "Training")).get("status") == "Unknown" else {},
        60,
    )

    assert said["reason"] == "CoordinatorUnreachable"
    assert "Connection refused" in said["message"]
    until("an event", lambda: [e for e in namespace.list("events") if e["reason"] == "CoordinatorUnreachable"])


def _job(namespace: Namespace) -> dict[str, Any]:
    found = namespace.get("heterotrainjobs", "fashion")
    assert found is not None
    return found
