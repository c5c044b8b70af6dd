"""What the status shows, and when it is written."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from builders_operator import (
    FALSE,
    FINISHING,
    NOW,
    TRUE,
    UNKNOWN,
    WAITING,
    ago,
    condition,
    decided,
    ended_status,
    make_end,
    make_job,
    make_pod,
    make_state,
    outcome,
    pods,
    seen,
    status_of,
    training_status,
    viewed,
    written,
)
from heterotrain_api.conditions import ConditionType, Reason, get_condition, is_finished
from heterotrain_api.crd import job_schema
from heterotrain_api.schema_check import check
from heterotrain_api.status import Condition, HeteroTrainJobStatus, WorkerRow
from heterotrain_operator.job.view import read_status
from heterotrain_rpc import control_pb2

RUNNING: dict[str, Any] = {"pods": pods(), "training": seen(make_state())}
GOOD_END = make_end(0, message=outcome("Succeeded", "EpochsCompleted", "all epochs are over"))


def fits_the_schema(document: Any) -> bool:
    return list(check(document, job_schema()["properties"]["status"], "status")) == []


def test_the_status_of_a_running_job() -> None:
    status = status_of(decided(make_job(status=training_status()), **RUNNING))
    assert status.state == "Training"
    assert status.progress.model_dump() == {
        "epoch": 0,
        "epochs": 3,
        "round": 40,
        "rounds": 120,
        "samples": 320,
        "step": "40/120",
    }
    assert status.efficiency.model_dump() == {
        "samplesPerSecond": 90,
        "idealSamplesPerSecond": 100,
        "percentOfIdeal": 90,
        "idlePercent": 10,
        "imbalancePercent": 0,
        "pushedBytesPerSample": 800,
        "pulledBytesPerSample": 401,
    }
    assert (status.ready_workers, status.ready_parameter_servers) == ("2/2", "1/1")
    assert status.synchronization.model_dump() == {
        "mode": "Delay",
        "stalenessBound": 5,
        "wanted": "Delay, window 0.02 s, at most 3 rounds stale",
        "largestStaleness": 4,
        "meanStalenessMilli": 300,
        "staleness": "4 (bound 5)",
    }
    assert status.plan.model_dump() == {
        "generation": 1,
        "appliedGeneration": 1,
        "effectiveRound": 0,
        "reason": "start shares",
    }
    assert status.workers[1] == WorkerRow(
        name="cpu-1",
        group="cpu",
        pod="fashion-cpu-1-1",
        node="node-1",
        phase="Training",
        share=4,
        applied_share=4,
        samples_per_second=50,
        step_milliseconds=100,
        wait_milliseconds=15,
    )
    assert (status.training_start_time, status.update_time, status.attempt) == (ago(120), NOW, 1)


def empty_fields(value: Any, path: str = "") -> list[str]:
    """Paths of what says nothing."""
    if isinstance(value, dict):
        return [found for name, item in value.items() for found in empty_fields(item, f"{path}.{name}")] or (
            [] if value else [path]
        )
    if isinstance(value, list):
        return [found for i, item in enumerate(value) for found in empty_fields(item, f"{path}[{i}]")] or (
            [] if value else [path]
        )
    return [path] if value in ("", None) else []


def test_nothing_that_is_empty_is_written() -> None:
    waiting = decided(make_job(), pods(make_pod("cpu-1", phase="Pending"))).status
    assert waiting is not None
    assert empty_fields(waiting) == []
    assert {"progress", "efficiency", "plan", "synchronization", "requests", "reported"} & waiting.keys() == set()
    assert waiting["workers"][1] == {"name": "cpu-1", "group": "cpu", "pod": "fashion-cpu-1-1", "phase": "Absent"} | {
        name: value for name, value in waiting["workers"][1].items() if name in ("node", "message")
    }
    training = decided(make_job(status=training_status()), **RUNNING).status
    assert training is not None
    assert empty_fields(training) == []
    assert training["progress"]["epoch"] == 0, "a number says something once the training has begun"


def test_a_message_that_is_over_is_left_out_of_the_next_status() -> None:
    troubled = training_status(workers=(WorkerRow(name="cpu-0", group="cpu", message="no space left"),))
    status = decided(make_job(status=troubled), **RUNNING).status
    assert status is not None
    assert [row.get("message") for row in status["workers"]] == [None, None]
    assert read_status(status).workers[0].message == ""


def test_training_begins_once_and_is_remembered() -> None:
    first = status_of(decided(make_job(), **RUNNING))
    assert first.training_start_time == NOW
    more = seen(make_state(version=41))
    later = status_of(decided(make_job(status=first), pods(), training=more, now=NOW + timedelta(hours=1)))
    assert later.training_start_time == NOW


def test_a_good_end() -> None:
    job = make_job(status=training_status(), output={"volume": {"persistentVolumeClaim": {"claimName": "fashion"}}})
    decision = decided(
        job, pods(make_pod("ps-0", phase="Succeeded", coordinator=GOOD_END)), training=seen(make_state(FINISHING))
    )
    status = status_of(decision)
    assert condition(decision, ConditionType.SUCCEEDED) == ("True", "EpochsCompleted", "all epochs are over")
    assert status.state == "Succeeded"
    assert status.model is not None
    assert status.model.model_dump() == {
        "path": "/output/model.safetensors",
        "volume": "persistentVolumeClaim/fashion",
        "durable": True,
    }
    assert (status.progress.step, status.progress.samples) == ("120/120", 960)
    assert [(value.name, value.value) for value in status.reported] == [("accuracy", "0.91")]
    assert (status.completion_time, status.failure) == (ago(60), None)
    assert (status.ready_workers, status.ready_parameter_servers) == (None, None), "pods end with their job"


VOLUMES: list[tuple[dict[str, Any] | None, str, bool]] = [
    (None, "emptyDir", False),
    ({"emptyDir": {}}, "emptyDir", False),
    ({"ephemeral": {"volumeClaimTemplate": {}}}, "ephemeral", False),
    ({"csi": {"driver": "x"}}, "csi", False),
    ({"nfs": {"server": "store", "path": "/models"}}, "nfs/store:/models", True),
    ({"persistentVolumeClaim": {"claimName": "c"}}, "persistentVolumeClaim/c", True),
]


@pytest.mark.parametrize(("volume", "name", "durable"), VOLUMES)
def test_whether_the_model_stays(volume: dict[str, Any] | None, name: str, durable: bool) -> None:
    job = make_job(status=training_status(), output={"volume": volume} if volume else None)
    model = status_of(decided(job, pods(make_pod("ps-0", coordinator=GOOD_END)))).model
    assert model is not None
    assert (model.volume, model.durable) == (name, durable)


def test_a_failure_keeps_what_was_reached_and_names_the_pod() -> None:
    job = make_job(status=written(60, status=training_status(), **RUNNING))
    failed = make_pod("cpu-1", phase="Failed", trainer=make_end(1, message="ValueError: no"))
    status = status_of(decided(job, pods(failed)))
    assert status.failure is not None
    assert status.failure.to_document() == {
        "pod": "fashion-cpu-1-1",
        "container": "trainer",
        "exitCode": 1,
        "reason": "WorkerFailed",
        "message": "worker cpu-1 (pod fashion-cpu-1-1) exited with code 1: ValueError: no",
    }
    assert (status.state, status.progress.step, status.model) == ("Failed: WorkerFailed", "40/120", None)


def test_foreign_conditions_stay() -> None:
    theirs = Condition(type="team.io/Reviewed", status=TRUE, last_transition_time=ago(9000), reason="Looked")
    status = training_status()
    job = make_job(status=status.model_copy(update={"conditions": (theirs, *status.conditions)}))
    assert status_of(decided(job, **RUNNING)).conditions[0] == theirs


def test_transition_times_move_only_when_a_status_changes() -> None:
    job = make_job(status=training_status(at=100))
    decision = decided(
        job, pods(make_pod("cpu-1", phase="Pending", waiting=("ErrImagePull", "x"))), training=seen(make_state())
    )
    times = {c.type: c.last_transition_time for c in status_of(decision).conditions}
    assert times[ConditionType.TRAINING] == ago(100)
    assert times[ConditionType.PODS_READY] == NOW


WRITES: list[tuple[str, float, dict[str, Any], bool]] = [
    ("nothing is new", 60, RUNNING, False),
    ("figures, a moment after the last write", 19, {**RUNNING, "training": seen(make_state(version=41))}, False),
    ("figures, in time", 20, {**RUNNING, "training": seen(make_state(version=41))}, True),
    (
        "a worker's pod is not ready: a condition changes",
        1,
        {**RUNNING, "pods": pods(make_pod("cpu-1", ready=False))},
        True,
    ),
    ("another plan", 1, {**RUNNING, "training": seen(make_state(generation=2, effective_round=50))}, True),
    ("training is over", 1, {**RUNNING, "training": seen(make_state(FINISHING))}, True),
]


@pytest.mark.parametrize(("age", "observed", "want"), [case[1:] for case in WRITES], ids=[case[0] for case in WRITES])
def test_when_it_is_written(age: float, observed: dict[str, Any], want: bool) -> None:
    job = make_job(status=written(age, status=training_status(), **RUNNING))
    assert (decided(job, **observed).status is not None) == want


def test_an_edit_of_the_spec_is_acknowledged_at_once() -> None:
    job = make_job(status=written(1, status=training_status(), **RUNNING), generation=2)
    status = status_of(decided(job, **RUNNING))
    assert {status.observed_generation, *(c.observed_generation for c in status.conditions)} == {2}


def test_a_clock_that_jumped_back_does_not_stop_the_figures() -> None:
    job = make_job(status=written(-3600, status=training_status(), **RUNNING))
    assert decided(job, pods(), training=seen(make_state(version=41))).status is not None


PLANS: list[tuple[str, dict[str, Any], tuple[str, str], int]] = [
    ("training has not begun", {"phase": WAITING, "version": 0}, ("False", "PlanPending"), 1),
    ("the next plan begins later", {"generation": 2, "effective_round": 50}, ("False", "PlanPending"), 1),
    ("its first round is being trained", {"generation": 2, "effective_round": 40}, ("True", "PlanAgreed"), 2),
]


@pytest.mark.parametrize(("fields", "want", "applied"), [case[1:] for case in PLANS], ids=[case[0] for case in PLANS])
def test_a_plan_is_applied_once_its_round_has_come(fields: dict[str, Any], want: tuple[str, str], applied: int) -> None:
    job = make_job(status=training_status(plan={"generation": 1, "applied_generation": 1}))
    decision = decided(job, pods(), training=seen(make_state(**fields)))
    assert condition(decision, ConditionType.PLAN_APPLIED)[:2] == want
    assert status_of(decision).plan.applied_generation == applied


def test_figures_stay_as_they_were_while_the_coordinator_is_away() -> None:
    status = written(60, status=training_status(), **RUNNING)
    later = status_of(decided(make_job(status=status), pods(make_pod("cpu-1", ready=False))))
    assert later.progress == status.progress
    assert [row.share for row in later.workers] == [4, 4]


def test_the_efficiency_of_the_training_stays_when_its_workers_have_finished() -> None:
    status = written(60, status=training_status(), **RUNNING)
    finished = seen(make_state(samples_per_second=95, ideal_samples_per_second=0))
    later = status_of(decided(make_job(status=status), pods(make_pod("cpu-1", ready=False)), training=finished))
    assert status.efficiency.ideal_samples_per_second == 100
    assert later.efficiency == status.efficiency


def test_whatever_a_coordinator_says_fits_the_schema() -> None:
    state = make_state(
        version=-3,
        samples=2**62,
        samples_per_second=math.inf,
        ideal_samples_per_second=1e-300,
        message="x" * 9000,
        reported={"": 1.0, "a" * 65: 1.0, "nan": math.nan, "big": 1e300} | {f"v{i:03}": 0.5 for i in range(90)},
    )
    state.workers[0].error = "Traceback\n" * 1000
    state.workers[0].step_seconds = math.nan
    state.workers[0].share_wanted = -1
    state.plan.reason = "why\n" * 1000
    decision = decided(make_job(), pods(), training=seen(state))
    assert fits_the_schema(decision.status)
    assert len(status_of(decision).reported) == 64


def test_a_large_job_shows_its_first_workers_and_all_totals() -> None:
    job = make_job(workers=[{"name": "cpu", "replicas": 100}], globalBatchSize=200)
    decision = decided(job, training=seen(make_state(WAITING)))
    assert fits_the_schema(decision.status)
    assert len(status_of(decision).workers) == 64
    assert status_of(decision).ready_workers == "2/100"


def test_what_is_known_of_the_end_survives_a_status_of_another_version() -> None:
    document: dict[str, Any] = ended_status(FALSE).to_document()
    document["workers"] = [{"name": "cpu-0", "share": "many"}, {"name": "cpu-1", "share": 4}]
    document["conditions"].insert(0, {"type": "Odd", "status": "Maybe"})
    document["progress"] = "far"
    status = read_status(document)
    assert is_finished(status.conditions)
    assert [row.name for row in status.workers] == ["cpu-1"]
    assert read_status("nonsense") == HeteroTrainJobStatus()


def test_a_state_of_another_job_of_the_same_name_does_not_count() -> None:
    state = make_state()
    state.job_uid = "another"
    view = viewed(pods=pods(), training=seen(state))
    assert (view.state, view.connected, view.began) == (None, False, False)
    assert viewed(training=seen(control_pb2.JobState())).state is None


def test_conditions_at_the_end_do_not_claim_that_anything_runs() -> None:
    decision = decided(
        make_job(status=written(60, status=training_status(), **RUNNING)), pods(make_pod("ps-0", coordinator=GOOD_END))
    )
    found = {c.type: c.status for c in status_of(decision).conditions}
    adaptation = dict.fromkeys(("Balanced", "StragglerDetected", "MetricsAvailable"), UNKNOWN)
    over = {"Accepted": TRUE, "PodsReady": FALSE, "Training": FALSE, "PlanApplied": TRUE, "Succeeded": TRUE}
    assert found == over | adaptation | {"Recovering": FALSE}
    ready = get_condition(status_of(decision).conditions, ConditionType.PODS_READY)
    assert ready is not None
    assert ready.reason == Reason.EPOCHS_COMPLETED
