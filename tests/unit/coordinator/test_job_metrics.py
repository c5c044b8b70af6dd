"""The job's state as metrics: what is not known is left out, and whoever asks never waits for ever."""

from __future__ import annotations

import asyncio
import threading

import pytest
from prometheus_client import generate_latest

from heterotrain.coordinator import metrics
from heterotrain.coordinator.metrics import JobCollector, job_families, job_registry
from heterotrain_rpc.control_pb2 import (
    PHASE_TRAINING,
    PHASE_WAITING,
    WORKER_PHASE_JOINED,
    WORKER_PHASE_TRAINING,
    JobState,
    PlanState,
    SynchronizationState,
    WorkerState,
)


def texts(state: JobState) -> set[str]:
    """Samples as text, without prefix, those that are 0 left out."""
    return {
        f"{sample.name.removeprefix('heterotrain_trainer_')}"
        f"{''.join(f' {value}' for value in sample.labels.values())} = {sample.value:g}"
        for family in job_families(state)
        for sample in family.samples
        if sample.value
    }


def test_a_job_that_waits_says_nothing_of_speeds() -> None:
    state = JobState(
        job_name="j", job_uid="u", phase=PHASE_WAITING, version=-1, shards=2,
        workers=[WorkerState(name="a-0", group="a", phase=WORKER_PHASE_JOINED, share_wanted=8)],
    )  # fmt: skip
    assert texts(state) == {
        "info j u Waiting = 1", "shards = 2", "member_phase a-0 a Joined = 1", "member_share_wanted_samples a-0 a = 8",
    }  # fmt: skip


def test_a_job_that_trains_says_all_that_it_knows() -> None:
    state = JobState(
        job_name="j", job_uid="u", phase=PHASE_TRAINING, version=7, samples=56, epoch=1, training_seconds=3.5,
        samples_per_second=16, ideal_samples_per_second=20, round_seconds=0.5, restores=1, rounds_lost=2, shards=1,
        plan=PlanState(generation=3, effective_round=5), reported={"accuracy": 0.25},
        synchronization=SynchronizationState(bound_in_force=3, largest_staleness=2, staleness={0: 5, 2: 1}),
        workers=[
            WorkerState(
                name="a-0", group="a", phase=WORKER_PHASE_TRAINING, share_wanted=8, share_applied=6, rounds=7,
                samples=50, refused=1, samples_per_second=20, step_seconds=0.5, compute_seconds=0.25,
                push_seconds=0.125, pull_seconds=0.0625, data_seconds=0.0625,
            )
        ],
    )  # fmt: skip
    assert texts(state) == {
        "info j u Training = 1", "rounds = 7", "samples = 56", "epoch = 1", "training_seconds = 3.5",
        "samples_per_second = 16", "ideal_samples_per_second = 20", "round_seconds = 0.5", "restores_total = 1",
        "rounds_lost_total = 2", "shards = 1", "plan_generation = 3", "plan_effective_round = 5",
        "gradients_total 0 = 5", "gradients_total 2 = 1", "largest_staleness = 2", "staleness_bound = 3",
        "reported accuracy = 0.25", "member_phase a-0 a Training = 1", "member_share_wanted_samples a-0 a = 8",
        "member_share_samples a-0 a = 6", "member_rounds_total a-0 a = 7", "member_samples_total a-0 a = 50",
        "member_refused_total a-0 a = 1", "member_samples_per_second a-0 a = 20", "member_seconds a-0 a step = 0.5",
        "member_seconds a-0 a compute = 0.25", "member_seconds a-0 a push = 0.125",
        "member_seconds a-0 a pull = 0.0625", "member_seconds a-0 a data = 0.0625",
    }  # fmt: skip


async def test_the_state_is_asked_for_on_the_loop_that_has_it() -> None:
    loop, asked = asyncio.get_running_loop(), []

    def state() -> JobState:
        asked.append(threading.current_thread())
        return JobState(version=4)

    page = await asyncio.to_thread(generate_latest, job_registry(loop, state))
    assert b"heterotrain_trainer_rounds 4.0" in page
    assert asked == [threading.current_thread()]


def test_a_loop_that_does_not_answer_gives_an_empty_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "ANSWER_SECONDS", 0.01)
    loop = asyncio.new_event_loop()
    try:
        assert list(JobCollector(loop, JobState).collect()) == []
        loop.run_until_complete(asyncio.sleep(0))  # what was asked is carried out, for nobody
    finally:
        loop.close()
    assert list(JobCollector(loop, JobState).collect()) == [], "a closed one too"
