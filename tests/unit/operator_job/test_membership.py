"""Edits of ``replicas``: the coordinator is asked, pods follow what it says, nothing of it is a loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from builders_operator import (
    TRAINING,
    WAITING,
    decided,
    made,
    make_end,
    make_job,
    make_pod,
    make_state,
    make_status,
    pods,
    seen,
    status_of,
    training_status,
    viewed,
)
from heterotrain_api.contract import Annotation
from heterotrain_api.status import GroupStatus, HeteroTrainJobStatus, RequestAnswer
from heterotrain_api.trainer_config import TrainerConfig
from heterotrain_operator.job.decision import MakeCertificate, ScaleGroup
from heterotrain_operator.job.losses import losses
from heterotrain_operator.job.observed import Answer, TrainingSeen
from heterotrain_rpc import control_pb2

ABSENT, ACTIVE, DONE = (
    control_pb2.WORKER_PHASE_ABSENT,
    control_pb2.WORKER_PHASE_TRAINING,
    control_pb2.WORKER_PHASE_FINISHED,
)
Phases = Mapping[str, control_pb2.WorkerPhase.ValueType]
BOTH: Phases = {"cpu-0": ACTIVE, "cpu-1": ACTIVE}


def job(
    replicas: int, status: HeteroTrainJobStatus | None = None, generation: int = 2, **fields: Any
) -> dict[str, Any]:
    workers = [{"name": "cpu", "replicas": replicas, **fields}]
    return make_job(workers=workers, status=status or training_status(), generation=generation)


def told(
    replicas: int,
    workers: Phases = BOTH,
    *,
    phase: control_pb2.Phase.ValueType = TRAINING,
    incarnation: int = 0,
    **fields: Any,
) -> TrainingSeen:
    """The coordinator's word: so many workers in the group, and what they do."""
    state = make_state(phase, workers=workers, **fields)
    state.groups.append(control_pb2.GroupState(name="cpu", replicas=replicas))
    for worker in state.workers:
        worker.incarnation = incarnation or int(worker.phase != ABSENT)
    return seen(state)


def test_the_coordinator_is_asked_for_the_number_that_the_manifest_wants() -> None:
    decision = decided(job(4), pods(), training=told(2))
    assert decision.requests == (ScaleGroup("scale-cpu-4-g2-t1", "cpu", 4),)
    assert (decision.make, decision.delete) == ((), ()), "pods follow its answer"
    assert status_of(decision).groups == (GroupStatus(name="cpu", replicas=2),)


UNASKED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("it has that number", job(2), {"training": told(2)}),
    ("it has not begun", job(4, make_status()), {"training": told(2, {"cpu-0": ABSENT}, phase=WAITING)}),
    ("it does not answer", job(4), {"training": replace(told(2), connected=False)}),
    (
        "it has answered",
        job(4),
        {"training": told(2), "answers": (Answer("scale-cpu-4-g2-t1", False, "it would be too many"),)},
    ),
    (
        "it has answered long ago",
        job(4, training_status(requests=(RequestAnswer(id="scale-cpu-4-g2-t1", accepted=False),))),
        {"training": told(2)},
    ),
]


@pytest.mark.parametrize(("found", "fields"), [c[1:] for c in UNASKED], ids=[c[0] for c in UNASKED])
def test_the_coordinator_is_not_asked(found: dict[str, Any], fields: dict[str, Any]) -> None:
    assert decided(found, pods(), **fields).requests == ()


def test_a_refusal_is_told_and_another_edit_is_another_question() -> None:
    refused = decided(
        job(4), pods(), training=told(2), answers=(Answer("scale-cpu-4-g2-t1", False, "shares below the minimum"),)
    )
    (answer,) = status_of(refused).requests
    assert (answer.accepted, answer.message) == (False, "shares below the minimum")
    assert [(e.warning, e.reason) for e in refused.events if "scale" in e.message] == [(True, "RequestRefused")]
    again = decided(job(3, status_of(refused), generation=3), pods(), training=told(2))
    assert again.requests == (ScaleGroup("scale-cpu-3-g3-t1", "cpu", 3),)


def test_workers_that_are_expected_get_pods_with_certificates_of_their_own_and_are_no_losses() -> None:
    expected = told(4, {**BOTH, "cpu-2": ABSENT, "cpu-3": ABSENT})
    decision = decided(job(4), pods(), training=expected, certified={"cpu": 2})
    assert made(decision) == ["fashion-cpu-2-2", "fashion-cpu-3-2"]
    assert [make.certificate for make in decision.make] == [
        MakeCertificate(f"fashion-3f2a77c0-cpu-{index}", f"cpu-{index}", "fashion-3f2a77c0") for index in (2, 3)
    ]
    (volume,) = [
        volume["secret"]["secretName"] for volume in decision.make[0].manifest["spec"]["volumes"] if "secret" in volume
    ]
    assert volume == "fashion-3f2a77c0-cpu-2"
    assert losses(viewed(job(4), pods(), training=expected)) == ()
    assert status_of(decision).ready_workers == "2/4"
    assert [row.name for row in status_of(decision).workers] == ["cpu-0", "cpu-1", "cpu-2", "cpu-3"]


def test_a_worker_that_leaves_keeps_its_pod_until_it_has_ended() -> None:
    running = decided(job(1), pods(), training=told(1))
    assert running.delete == ()
    ended = decided(job(1), pods(make_pod("cpu-1", phase="Succeeded", trainer=make_end(0))), training=told(1))
    assert [(pod.name, pod.why) for pod in ended.delete] == [("fashion-cpu-1-1", "the job has no place for it")]
    assert [row.name for row in status_of(ended).workers] == ["cpu-0"]


def test_a_worker_that_leaves_before_it_was_ever_started_just_goes() -> None:
    pending = make_pod("cpu-1", phase="Pending", node="", unschedulable="no room")
    decision = decided(job(1), pods(pending), training=told(1, {"cpu-0": ACTIVE}))
    assert [pod.name for pod in decision.delete] == ["fashion-cpu-1-1"]


def test_a_worker_that_had_left_and_is_wanted_again_gets_another_pod() -> None:
    left = make_pod("cpu-1", phase="Succeeded", trainer=make_end(0))
    decision = decided(job(2), pods(left), training=told(2, {"cpu-0": ACTIVE, "cpu-1": ABSENT}, incarnation=1))
    assert made(decision) == ["fashion-cpu-1-2"]
    assert status_of(decision).recovery.restarts == (), "nothing was lost"


def test_a_new_worker_whose_script_does_not_join_fails_the_job() -> None:
    ended = make_pod("cpu-1", phase="Succeeded", trainer=make_end(0))
    decision = decided(job(2), pods(ended), training=told(2, {"cpu-0": ACTIVE, "cpu-1": ABSENT}))
    assert made(decision) == []
    assert (
        "does its script call heterotrain.join()?" in (status_of(decision).failure or pytest.fail("no failure")).message
    )


def test_an_operator_that_starts_anew_knows_the_number_from_the_status() -> None:
    status = training_status(groups=(GroupStatus(name="cpu", replicas=1),))
    assert losses(viewed(job(4, status), pods(without=("cpu-1",)))) == (), "neither of those to come"
    decision = decided(job(4, status), pods(without=("cpu-1",)))
    assert (decision.make, decision.requests) == ((), ())


def test_a_coordinator_that_is_made_again_expects_those_that_are_there() -> None:
    groups = (GroupStatus(name="cpu", replicas=3),)
    claim = {"volume": {"persistentVolumeClaim": {"claimName": "models"}}}
    names = ("ps-0", "cpu-0", "cpu-1", "cpu-2")

    def document(status: HeteroTrainJobStatus) -> dict[str, Any]:
        return make_job(
            workers=[{"name": "cpu", "replicas": 5, "batch": {"initial": 2}}],
            globalBatchSize=8,
            status=status,
            generation=2,
            checkpoint={},
            output=claim,
        )

    found = pods(without=("ps-0",), names=names)
    first = decided(document(training_status(groups=groups)), found)
    second = decided(document(status_of(first)), found)
    (make,) = second.make
    config = TrainerConfig.model_validate_json(make.manifest["metadata"]["annotations"][Annotation.TRAINER_CONFIG])
    assert [worker.name for worker in config.workers] == ["cpu-0", "cpu-1", "cpu-2"]
    assert sum(worker.share for worker in config.workers) == 8


# Before training.


def test_an_edit_before_training_makes_the_coordinator_anew() -> None:
    status = make_status(groups=(GroupStatus(name="cpu", replicas=2),))
    waiting = told(2, {"cpu-0": ABSENT, "cpu-1": ABSENT}, phase=WAITING)
    first = decided(job(3, status), pods(), training=waiting)
    assert [(pod.name, pod.why) for pod in first.delete] == [
        ("fashion-ps-0-1", "it waits for other workers than the manifest has now")
    ]
    gone = replace(make_pod("ps-0"), deleting=True)
    second = decided(job(3, status), pods(gone), training=replace(waiting, connected=False))
    assert made(second) == ["fashion-ps-0-2", "fashion-cpu-2-2"]
    config = second.make[0].manifest["metadata"]["annotations"][Annotation.TRAINER_CONFIG]
    assert len(TrainerConfig.model_validate_json(config).workers) == 3


def test_an_edit_as_all_have_joined_waits_for_the_training() -> None:
    status = make_status(groups=(GroupStatus(name="cpu", replicas=2),))
    joined = {"cpu-0": control_pb2.WORKER_PHASE_JOINED, "cpu-1": control_pb2.WORKER_PHASE_JOINED}
    decision = decided(job(3, status), pods(), training=told(2, joined, phase=WAITING))
    assert (decision.delete, decision.make, decision.requests) == ((), (), ())


def test_shares_that_a_new_job_must_have_are_not_asked_of_one_that_was_scaled() -> None:
    decision = decided(job(4, batch={"initial": 4}), pods(), training=told(2))
    assert decision.requests == (ScaleGroup("scale-cpu-4-g2-t1", "cpu", 4),)
    new = job(4, make_status(), generation=1, batch={"initial": 4})
    assert "batch.initial" in str(viewed(new).faults)
