"""The operator adapts a running job: steps in, a plan to the coordinator, conditions and events for people."""

from __future__ import annotations

from collections.abc import Callable

from heterotrain_operator.cluster.show import status_of
from heterotrain_operator.explain import chain, explain, records_of
from heterotrain_rpc import control_pb2
from support.control_plane import Namespace
from support.operator_process import OperatorProcess
from support.play import condition, job, until, until_complete
from support.trained_job import WORKERS, coordinator_of, training

Start = Callable[..., OperatorProcess]
SHARES = dict(zip(WORKERS, (22, 21, 21), strict=True))
SECONDS_PER_SAMPLE = dict(zip(WORKERS, (0.01, 0.01, 0.03), strict=True))


def unequal(version: int) -> control_pb2.JobState:
    """The third worker takes three times as long for a sample."""
    state = training(version)
    del state.plan.shares[:]
    state.plan.shares.extend(control_pb2.PlanShare(worker=name, samples=share) for name, share in SHARES.items())
    for worker in state.workers:
        worker.share_wanted = worker.share_applied = SHARES[worker.name]
        worker.share_minimum, worker.share_maximum = 1, 64
        worker.recent.extend(
            control_pb2.StepRecord(
                sequence=n,
                samples=SHARES[worker.name],
                compute_seconds=SHARES[worker.name] * SECONDS_PER_SAMPLE[worker.name],
                step_seconds=0.65,
            )
            for n in range(max(1, version - 19), version + 1)
        )
    return state


def test_shares_follow_the_speeds_and_the_status_says_why(start_operator: Start, namespace: Namespace) -> None:
    start_operator()
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)

    with coordinator_of(namespace, uid, unequal) as running:
        coordinator = running.coordinator
        assert coordinator is not None
        plan = until("a plan", lambda: coordinator.plans[0] if coordinator.plans else None)
        differ = until(
            "Balanced", lambda: said if (said := _said(namespace, "Balanced"))["status"] == "False" else None
        )
        lines = until("what explain shows", lambda: _explained(namespace))

    assert sorted(share.samples for share in plan.shares) == [9, 27, 28]
    assert {share.worker: share.samples for share in plan.shares}["cpu-2"] == 9
    assert plan.generation == 2
    assert plan.reason.startswith("the workers' speeds are known for the first time; a round takes 300 ms instead of")
    assert differ["reason"] == "SharesDiffer"
    assert "plan 2 was proposed: the workers' speeds are known for the first time" in lines[0]
    assert any(line.strip().startswith("cpu-2: ") and "share 21→9" in line for line in lines)
    assert _said(namespace, "MetricsAvailable")["reason"] == "MetricsComplete"
    assert _said(namespace, "StragglerDetected")["status"] == "False"


def _explained(namespace: Namespace) -> list[str] | None:
    records = records_of(status_of(namespace.get("heterotrainjobs", "fashion") or {}))
    return explain(chain(records, 2)) if any(record["action"] == "Propose" for record in records) else None


def test_recommended_shares_are_told_and_not_sent(start_operator: Start, namespace: Namespace) -> None:
    start_operator()
    document = job()
    document["spec"]["adaptation"] = {"mode": "Recommend"}
    uid = namespace.create("heterotrainjobs", document)["metadata"]["uid"]
    until_complete(namespace, uid, 4)

    with coordinator_of(namespace, uid, unequal) as running:
        assert running.coordinator is not None
        until("an event", lambda: [e for e in namespace.list("events") if e["reason"] == "PlanRecommended"])
        assert running.coordinator.plans == []

    assert _said(namespace, "Balanced")["reason"] == "PlanRecommended"
    assert "cpu-2 21→9" in _said(namespace, "Balanced")["message"]


def _said(namespace: Namespace, kind: str) -> dict[str, str]:
    return {"status": "", "reason": "", "message": "", **condition(namespace.get("heterotrainjobs", "fashion"), kind)}
