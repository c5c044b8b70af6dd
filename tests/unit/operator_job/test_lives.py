"""Whole lives of jobs, pass by pass: what they cost, and what must hold whatever happens to pods and operator."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from builders_operator import TRAINING, WAITING, make_job, make_state, outcome, seen
from fake_cluster import FakeCluster
from heterotrain_api.conditions import get_condition, is_finished
from heterotrain_api.contract import Container
from heterotrain_api.status import HeteroTrainJobStatus
from heterotrain_operator.job.observed import TrainingSeen

EIGHT: dict[str, Any] = {
    "parameterServers": {"replicas": 2},
    "workers": [{"name": "gpu", "replicas": 2}, {"name": "cpu", "replicas": 4}],
    "globalBatchSize": 64,
}


def status(cluster: FakeCluster) -> HeteroTrainJobStatus:
    return HeteroTrainJobStatus.model_validate(cluster.job["status"])


def heard(cluster: FakeCluster, version: int, phase: int = TRAINING) -> TrainingSeen:
    state = make_state(version=version, message=f"round {version}")
    state.phase = phase  # type: ignore[assignment]
    return replace(seen(state), received_at=cluster.now)


def test_a_job_of_eight_pods_costs_at_most_twenty_writes_until_all_exist_and_run() -> None:
    cluster = FakeCluster(job=make_job(**EIGHT))
    cluster.run_pass()
    assert cluster.writes == 1 + 1 + 8 + 1, "Secret, Service, pods, status"
    for name in sorted(cluster.pods):  # each event of a pod wakes the job
        cluster.pass_time(0.5)
        cluster.run_pass()
        cluster.start(name)
    cluster.run_pass()
    assert [e.reason for d in cluster.decisions for e in d.events] == ["PodsCreated", "AllPodsReady"]
    assert cluster.writes <= 20, cluster.writes


def test_a_running_job_costs_at_most_four_writes_a_minute() -> None:
    cluster = FakeCluster(job=make_job(**EIGHT))
    cluster.run_pass()
    for name in list(cluster.pods):
        cluster.start(name)
    for half_second in range(60):
        cluster.pass_time(0.5)
        cluster.training = heard(cluster, half_second)
        cluster.run_pass()
    for minute in range(5):
        before = cluster.writes
        for second in range(0, 60, 2):
            cluster.pass_time(2)
            cluster.training = heard(cluster, 100 + 60 * minute + second)
            cluster.run_pass()
        assert cluster.writes - before <= 4


def test_a_job_that_waits_costs_nothing() -> None:
    cluster = FakeCluster()
    cluster.run_pass()
    cluster.pass_time(1)
    cluster.run_pass()
    before = cluster.writes
    for _ in range(30):
        cluster.pass_time(60)
        cluster.run_pass()
    assert cluster.writes == before


def test_from_the_manifest_to_the_model() -> None:
    cluster = FakeCluster()
    cluster.run_pass()
    for name in list(cluster.pods):
        cluster.start(name)
    cluster.run_pass()
    cluster.training = heard(cluster, 0, WAITING)
    cluster.run_pass()
    assert status(cluster).state == "Running: WaitingForWorkers"
    cluster.training = heard(cluster, 7)
    cluster.run_pass()
    assert status(cluster).state == "Training"
    for name in ("fashion-cpu-0-1", "fashion-cpu-1-1"):
        cluster.end(name, 0)
        cluster.run_pass()
    cluster.end("fashion-ps-0-1", 0, outcome("Succeeded", "EpochsCompleted"), Container.COORDINATOR)
    cluster.run_pass()
    assert status(cluster).state == "Succeeded"
    cluster.end("fashion-ps-0-1", 0)
    for _ in range(3):
        cluster.pass_time(60)
        cluster.run_pass()
    assert cluster.made == ["fashion-ps-0-1", "fashion-cpu-0-1", "fashion-cpu-1-1"]
    for name in list(cluster.pods):
        cluster.delete(name, at_once=True)
        cluster.run_pass()
    assert len(cluster.made) == 3, "what is done is never done again"


def test_pods_that_somebody_deletes_again_and_again_are_made_with_growing_patience() -> None:
    cluster = FakeCluster()
    for _ in range(2 * 600):
        cluster.run_pass()
        for name in [name for name in cluster.pods if "cpu-0" in name]:
            cluster.delete(name, at_once=True)
        cluster.pass_time(0.5)
    made = [name for name in cluster.made if "cpu-0" in name]
    assert len(made) == 4 + 4, "four at once, then after 20, 40, 80 and 160 s; the next after 300"
    assert sorted(cluster.pods) == ["fashion-cpu-1-1", "fashion-ps-0-1"]


def test_pods_that_their_node_refuses_for_hours_do_not_pile_up() -> None:
    cluster = FakeCluster()
    for _ in range(8 * 60):
        cluster.run_pass()
        for name in [name for name in cluster.pods if "cpu-0" in name]:
            cluster.evict(name)
        cluster.pass_time(60)
    for name in [name for name, pod in cluster.pods.items() if pod.deleting]:
        cluster.delete(name, at_once=True)
    assert len([name for name in cluster.made if "cpu-0" in name]) > 50
    assert len([name for name in cluster.pods if "cpu-0" in name]) <= 7


def test_an_operator_that_dies_after_any_create_makes_nothing_twice() -> None:
    for killed_after in range(8):
        cluster = FakeCluster(job=make_job(**EIGHT))
        cluster.run_pass(creates=killed_after)
        cluster.run_pass()
        cluster.run_pass()
        assert sorted(cluster.made) == sorted(cluster.pods)
        assert len(cluster.made) == 8


ACTIONS = st.one_of(
    st.tuples(st.just("pass"), st.integers(0, 4), st.booleans()),
    st.tuples(st.just("time"), st.sampled_from([1, 10, 60, 600]), st.none()),
    st.tuples(st.sampled_from(["start", "delete", "vanish", "evict"]), st.integers(0, 20), st.none()),
    st.tuples(st.just("end"), st.integers(0, 20), st.sampled_from([0, 1, 3, 4, 137])),
    st.tuples(st.just("outcome"), st.sampled_from(["Succeeded", "Stopped", "Failed"]), st.none()),
    st.tuples(st.just("heard"), st.sampled_from([1, 2, 3, 4, 5, 6]), st.booleans()),
)


def act(cluster: FakeCluster, kind: str, first: object, second: object) -> None:
    """Something happens; what it is about may not exist, then nothing happens."""
    names = sorted(cluster.pods)
    name = names[first % len(names)] if names and isinstance(first, int) else None
    match kind, first, second:
        case "pass", int(creates), bool(writes):
            cluster.run_pass(creates=10_000 if creates > 3 else creates, writes_status=writes)
        case "time", int(seconds), _:
            cluster.pass_time(seconds)
        case "heard", int(phase), bool(connected):
            cluster.training = replace(heard(cluster, 5, phase), connected=connected)
        case "outcome", str(state), _ if "fashion-ps-0-1" in cluster.pods:
            code = {"Succeeded": 0, "Stopped": 3, "Failed": 1}[state]
            cluster.end("fashion-ps-0-1", code, outcome(state, "WorkerLost"), Container.COORDINATOR)
        case "start", _, _ if name is not None:
            cluster.start(name)
        case "delete", _, _ if name is not None:
            cluster.delete(name)
        case "vanish", _, _ if name is not None:
            cluster.delete(name, at_once=True)
        case "evict", _, _ if name is not None:
            cluster.evict(name)
        case "end", _, int(code) if name is not None:
            cluster.end(name, code)
        case _:
            pass


SAFE: dict[str, Any] = {
    "checkpoint": {},
    "output": {"volume": {"persistentVolumeClaim": {"claimName": "models"}}},
    "runPolicy": {"backoffLimit": 2},
}


@settings(max_examples=100)
@given(st.lists(ACTIONS, max_size=25), st.sampled_from([{}, SAFE]))
def test_whatever_happens(actions: list[tuple[str, object, object]], spec: dict[str, Any]) -> None:
    cluster = FakeCluster(job=make_job(**spec))
    over: tuple[object, int] | None = None
    for action in actions:
        act(cluster, *action)
        slots = Counter(pod.name_in_job for pod in cluster.living)
        assert not slots or max(slots.values()) == 1, "never two pods for one slot"
        if "status" not in cluster.job:
            continue
        conditions = status(cluster).conditions
        counts = [restart.count for restart in status(cluster).recovery.restarts]
        assert max(counts, default=0) <= (2 if spec else 3), "no place is filled again more often than allowed"
        if is_finished(conditions):
            verdict = get_condition(conditions, "Succeeded"), len(cluster.made)  # type: ignore[arg-type]
            assert over in (None, verdict), "what is over stays so, and nothing is made"
            over = verdict
        else:
            assert over is None
