"""Between the coordinator's messages, the resource and the loop's values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heterotrain_api.validation import parse
from heterotrain_core.adaptation.escalate import Step
from heterotrain_core.adaptation.values import (
    Action,
    Answer,
    Decision,
    Mode,
    Observation,
    Proposal,
    Refused,
    Settings,
    Verification,
    WorkerSeen,
)
from heterotrain_core.run_values import Timings
from heterotrain_core.synchronization import BSP, Delay, Ssp, Synchronization, describe
from heterotrain_core.telemetry import StepRecord
from heterotrain_core.types import Bounds
from heterotrain_operator.adaptation import (
    answer_of,
    answer_words,
    decision_document,
    gist,
    is_told,
    loop_settings,
    observation_of,
    plan_of,
    unanswered,
)
from heterotrain_rpc import control_pb2
from manifests import make_manifest


def test_settings_come_from_the_manifest() -> None:
    spec = {"mode": "Recommend", "intervalSeconds": 7, "deadBandPercent": 4, "cooldownRounds": 20}
    job = parse(make_manifest(globalBatchSize=10, batchGrain=2, adaptation=spec))

    assert loop_settings(job.spec, no_replacing="nowhere") == Settings(
        mode=Mode.RECOMMEND, interval_seconds=7.0, dead_band=0.04, cooldown_rounds=20, grain=2, global_batch=10,
        lost_seconds=21.0, no_replacing="nowhere",
    )  # fmt: skip


def test_a_job_adapts_unless_told_otherwise() -> None:
    assert loop_settings(parse(make_manifest()).spec).mode is Mode.APPLY


@pytest.mark.parametrize(
    ("spec", "want", "staleness"),
    [
        pytest.param({}, (Step.REBALANCE,), None, id="shares alone"),
        pytest.param(
            {"synchronization": {"mode": "SSP", "adaptive": {"min": 1, "max": 8}}},
            (Step.REBALANCE, Step.RELAX_STALENESS),
            (1, 8),
            id="a range for the bound is there to be used",
        ),
        pytest.param(
            {"adaptation": {"escalation": ["Rebalance", "Replace"]}},
            (Step.REBALANCE, Step.REPLACE),
            None,
            id="declared",
        ),
    ],
)
def test_what_is_tried_against_a_straggler(
    spec: dict[str, Any], want: tuple[Step, ...], staleness: tuple[int, int] | None
) -> None:
    settings = loop_settings(parse(make_manifest(**spec)).spec)

    assert (settings.escalation, settings.staleness) == (want, staleness)


def test_a_state_is_what_the_loop_sees() -> None:
    training, lost = control_pb2.WORKER_PHASE_TRAINING, control_pb2.WORKER_PHASE_LOST
    record = control_pb2.StepRecord(
        sequence=9, samples=6, data_seconds=0.0625, compute_seconds=0.5, push_seconds=0.25, pull_seconds=0.125,
        step_seconds=1.0, receive_seconds=0.03125, other_seconds=0.015625, ended_seconds=7.0, withheld_seconds=0.5,
    )  # fmt: skip
    older = control_pb2.StepRecord(sequence=8, samples=6)
    times = Timings(data=0.0625, compute=0.5, push=0.25, pull=0.125, step=1.0, receive=0.03125, other=0.015625)
    state = control_pb2.JobState(
        phase=control_pb2.PHASE_TRAINING,
        version=9,
        plan=control_pb2.PlanState(
            generation=2, effective_round=4, shares=[control_pb2.PlanShare(worker="a", samples=8)]
        ),
        workers=[
            control_pb2.WorkerState(name="a", phase=training, share_minimum=1, share_maximum=9, recent=[older, record]),
            control_pb2.WorkerState(name="drained", phase=training, share_maximum=9),
            control_pb2.WorkerState(name="lost", phase=lost, share_maximum=9),
        ],
    )

    assert observation_of(state, {"a": 4}) == Observation(
        training=True,
        version=9,
        generation=2,
        effective_round=4,
        workers=(
            WorkerSeen("a", True, 8, Bounds(1, 9), (StepRecord(8, 6, Timings()), StepRecord(9, 6, times, 7.0, 0.5))),
            WorkerSeen("drained", False, 0, Bounds(0, 9)),
            WorkerSeen("lost", False, 0, Bounds(0, 9)),
        ),
        start_shares={"a": 4},
    )


def test_a_proposal_carries_its_generation() -> None:
    assert plan_of(Proposal(3, {"b": 2, "a": 6}, "why")) == control_pb2.Plan(
        generation=3,
        shares=[control_pb2.PlanShare(worker="a", samples=6), control_pb2.PlanShare(worker="b", samples=2)],
        reason="why",
    )


@pytest.mark.parametrize("wanted", [Delay(staleness_bound=0), Delay(staleness_bound=4), Ssp(3), BSP], ids=describe)
def test_mode_and_bound_come_back_as_they_were_proposed(wanted: Synchronization) -> None:
    plan = plan_of(Proposal(3, {"a": 8}, "why", wanted))
    state = control_pb2.JobState(synchronization=control_pb2.SynchronizationState(wanted=plan.synchronization))

    assert observation_of(state, {}).synchronization == wanted


def test_parts_of_a_share_are_proposed_and_seen() -> None:
    plan = plan_of(Proposal(3, {"a": 52, "b": 12}, "why", micro_batches={"a": 32}))
    state = control_pb2.JobState(
        plan=control_pb2.PlanState(shares=plan.shares),
        workers=[control_pb2.WorkerState(name="a"), control_pb2.WorkerState(name="b")],
    )

    assert [worker.micro_batch for worker in observation_of(state, {}).workers] == [32, None]


def test_a_mode_that_this_version_does_not_know_is_none() -> None:
    newer = control_pb2.SynchronizationState(wanted=control_pb2.Synchronization(mode="Gossip"))

    assert observation_of(control_pb2.JobState(synchronization=newer), {}).synchronization is None


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        (
            answer_of(control_pb2.PlanVerdict(accepted=True, generation=3, effective_round=9)),
            "plan 3 is agreed, in force from round 9",
        ),
        (
            answer_of(
                control_pb2.PlanVerdict(generation=3, refusals=[control_pb2.Refusal(worker="a", reason="too large")])
            ),
            "plan 3 was refused: a: too large",
        ),
        (
            answer_of(control_pb2.PlanVerdict(generation=3)),
            "plan 3 was refused: the coordinator: refused without a reason",
        ),
        (
            unanswered(Proposal(3, {}, ""), "UNAVAILABLE: gone"),
            "plan 3 was refused: the coordinator: no answer: UNAVAILABLE: gone",
        ),
    ],
    ids=["agreed", "refused by a worker", "refused by nobody", "not answered"],
)
def test_an_answer_in_words(answer: Answer, want: str) -> None:
    assert answer_words(answer) == want
    assert all(isinstance(refusal, Refused) for refusal in answer.refusals)


def test_keeping_is_told_once_until_its_words_change_by_more_than_numbers() -> None:
    first = Decision(Action.KEEP, "new shares would gain 1.0%, within the dead band of 3.0%")
    again = Decision(Action.KEEP, "new shares would gain 0.7%, within the dead band of 3.2%")
    other = Decision(Action.KEEP, "the shares are the best for the present speeds")

    assert is_told(first, "")
    assert not is_told(again, gist(first))
    assert is_told(other, gist(first))
    assert is_told(Decision(Action.PROPOSE, first.reason), gist(first))
    assert not is_told(Decision(Action.NONE, "x"), "")


def test_a_decision_is_a_line_of_json() -> None:
    decision = Decision(Action.KEEP, "verified", verified=Verification(2, 1.0, 1.25, 80.0, 100.0))

    document = json.loads(json.dumps(decision_document(decision, seconds=4.0)))

    assert (document["action"], document["seconds"], document["verified"]["error"]) == ("Keep", 4.0, 0.2)


def test_a_bound_that_is_proposed_is_recorded_in_words() -> None:
    decision = Decision(Action.RELAX, "relaxed", proposal=Proposal(3, {"a": 8}, "why", Ssp(4)))

    document = json.loads(json.dumps(decision_document(decision, seconds=4.0)))

    assert document["proposal"]["synchronization"] == "SSP, at most 4 iterations ahead"


@pytest.mark.parametrize(
    ("device", "want"),
    [
        pytest.param("CPU", 0.25, id="it computes on processors"),
        pytest.param("CUDA", 0.0, id="it does not: what the processor does meanwhile tells nothing"),
    ],
)
def test_processor_time_counts_of_workers_that_compute_on_processors(device: str, want: float) -> None:
    step = control_pb2.StepRecord(sequence=1, samples=4, compute_seconds=0.5, cpu_seconds=0.25)
    worker = control_pb2.WorkerState(name="w", phase=control_pb2.WORKER_PHASE_TRAINING, device=device, recent=[step])

    (seen,) = observation_of(control_pb2.JobState(workers=[worker]), {}).workers

    assert [record.timings for record in seen.records] == [Timings(compute=0.5, cpu=want)]
