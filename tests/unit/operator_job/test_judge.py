"""Whether a job is over and who is to blame: one table, from what pods and coordinator left to what the status says."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from builders_operator import (
    FINISHING,
    TRAINING,
    WAITING,
    ago,
    in_,
    make_end,
    make_job,
    make_pod,
    make_state,
    make_status,
    outcome,
    pods,
    seen,
    training_status,
    viewed,
)
from heterotrain_api.conditions import ConditionType, Reason
from heterotrain_api.contract import Container
from heterotrain_api.status import ConditionStatus
from heterotrain_operator.job.judge import End, Wait, judge
from heterotrain_operator.job.observed import ContainerSeen
from heterotrain_rpc import control_pb2

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: no such column\n'


def ps0(code: int, message: str = "", **fields: Any) -> Any:
    """Pod ps-0 whose coordinator has ended."""
    return make_pod("ps-0", coordinator=make_end(code, message=message, **fields.pop("end", {})), **fields)


def worker(code: int, name: str = "cpu-1", **fields: Any) -> Any:
    """A worker whose trainer has ended badly."""
    return make_pod(name, phase="Failed", trainer=make_end(code, **fields))


NO_MORE: dict[str, Any] = {"runPolicy": {"backoffLimit": 0}}
"""Nothing is started again."""


def not_ready(seconds: float, **spec: Any) -> Any:
    return make_job(
        **spec,
        status=training_status(at=seconds).model_copy(
            update={
                "conditions": make_status(
                    (ConditionType.PODS_READY, ConditionStatus.FALSE, Reason.POD_DELETED), at=seconds
                ).conditions
            }
        ),
    )


LOST = outcome("Failed", "WorkerLost", "worker cpu-1 is lost: the stream broke")
FAILED = outcome("Failed", "WorkerFailed", "worker cpu-1 failed: ValueError: no such column")
TRAINED = make_job(status=training_status())
RUNNING: dict[str, Any] = {"training": seen(make_state())}


class Ended(NamedTuple):
    text: str
    observed: dict[str, Any]
    want_reason: str
    want_in_message: str
    want_failure: tuple[str, str, int | None] | None = None
    """Pod, container, exit code."""
    succeeded: bool = False


ENDED = [
    Ended(
        "the coordinator left a good outcome",
        {"job": TRAINED, "pods": pods(ps0(0, outcome("Succeeded", "TargetReached", "accuracy has reached 0.9")))},
        "TargetReached",
        "accuracy has reached 0.9",
        succeeded=True,
    ),
    Ended(
        "its account was cut, the exit code is good",
        {"job": TRAINED, "pods": pods(ps0(0, 'sage": "all epochs", "model": "/output/model.safetensors"}'))},
        "Succeeded",
        "Succeeded",
        succeeded=True,
    ),
    Ended(
        "a good outcome counts though a worker failed after it",
        {"job": TRAINED, "pods": pods(ps0(0, outcome("Succeeded", "EpochsCompleted")), worker(1))},
        "EpochsCompleted",
        "all said",
        succeeded=True,
    ),
    Ended(
        "the user stopped it",
        {"job": TRAINED, "pods": pods(ps0(3, outcome("Stopped", "Stopped", "stopped on request")))},
        "Stopped",
        "stopped on request",
    ),
    Ended(
        "ps-0 was deleted: its coordinator stops as it was told to, but no user asked",
        {"job": TRAINED, "pods": pods(ps0(3, outcome("Stopped", "Stopped", "SIGTERM"), deleting=True))},
        "PodDeleted",
        "ps-0 (pod fashion-ps-0-1) was deleted",
        ("fashion-ps-0-1", "", None),
    ),
    Ended(
        "ps-0 was evicted",
        {"job": TRAINED, "pods": pods(ps0(3, outcome("Stopped", "Stopped", "SIGTERM"), disrupted="EvictionByAPI"))},
        "Evicted",
        "ps-0 (pod fashion-ps-0-1) was taken from node node-1 (EvictionByAPI)",
        ("fashion-ps-0-1", "", None),
    ),
    Ended(
        "the coordinator crashed",
        {"job": TRAINED, "pods": pods(ps0(1, TRACE))},
        "CoordinatorFailed",
        "exited with code 1: ValueError: no such column",
        ("fashion-ps-0-1", Container.COORDINATOR, None),
    ),
    Ended(
        "the coordinator ended without a word",
        {"job": TRAINED, "pods": pods(ps0(0))},
        "CoordinatorFailed",
        "without leaving an outcome",
        ("fashion-ps-0-1", Container.COORDINATOR, None),
    ),
    Ended(
        "the coordinator says that a worker failed, whose container tells the exit code",
        {"job": TRAINED, "pods": pods(ps0(1, FAILED), worker(7, message=TRACE))},
        "WorkerFailed",
        "worker cpu-1 (pod fashion-cpu-1-1) exited with code 7: ValueError: no such column",
        ("fashion-cpu-1-1", Container.TRAINER, 7),
    ),
    Ended(
        "the coordinator says that a worker failed, and its container does not end",
        {"job": TRAINED, "pods": pods(ps0(1, FAILED))},
        "WorkerFailed",
        "worker cpu-1 failed: ValueError: no such column",
        ("fashion-cpu-1-1", "", None),
    ),
    Ended(
        "the coordinator lost a worker that was killed for its memory",
        {"job": TRAINED, "pods": pods(ps0(1, LOST), worker(137, reason="OOMKilled"))},
        "OutOfMemory",
        "ran out of memory (OOMKilled)",
        ("fashion-cpu-1-1", Container.TRAINER, 137),
    ),
    Ended(
        "the coordinator lost a worker whose pod is being deleted",
        {"job": TRAINED, "pods": pods(ps0(1, LOST), make_pod("cpu-1", deleting=True))},
        "PodDeleted",
        "worker cpu-1 (pod fashion-cpu-1-1) was deleted",
        ("fashion-cpu-1-1", "", None),
    ),
    Ended(
        "the coordinator lost a worker whose pod is gone",
        {"job": TRAINED, "pods": pods(ps0(1, LOST), without=("cpu-1",))},
        "PodDeleted",
        "worker cpu-1 (pod fashion-cpu-1-1) was deleted",
        ("fashion-cpu-1-1", "", None),
    ),
    Ended(
        "an evicted worker",
        {
            "job": TRAINED,
            "pods": pods(
                ps0(1, LOST),
                make_pod(
                    "cpu-1", phase="Failed", trainer=make_end(137), disrupted="TerminationByKubelet", message="low disk"
                ),
            ),
        },
        "Evicted",
        "was taken from node node-1 (TerminationByKubelet): low disk",
        ("fashion-cpu-1-1", Container.TRAINER, 137),
    ),
    Ended(
        "nothing but the coordinator's word explains a lost worker",
        {"job": TRAINED, "pods": pods(ps0(1, LOST))},
        "WorkerLost",
        "worker cpu-1 is lost: the stream broke",
        ("fashion-cpu-1-1", "", None),
    ),
    Ended(
        "a reason that this operator does not know",
        {"job": TRAINED, "pods": pods(ps0(1, outcome("Failed", "MoonEclipsed", "too dark")))},
        "CoordinatorFailed",
        "too dark",
        ("fashion-ps-0-1", "", None),
    ),
    Ended(
        "the earliest failure is the cause, others are its consequences",
        {
            "job": TRAINED,
            "pods": pods(worker(1, "cpu-0", seconds_ago=30), worker(4, seconds_ago=40)),
            **RUNNING,
        },
        "WorkerFailed",
        "worker cpu-0",
        ("fashion-cpu-0-1", Container.TRAINER, 1),
    ),
    Ended(
        "a shard that crashed",
        {"job": TRAINED, "pods": pods(make_pod("ps-0", trainer=make_end(1, message="CUDA? no"))), **RUNNING},
        "ShardFailed",
        "parameter server ps-0 (pod fashion-ps-0-1) exited with code 1: CUDA? no",
        ("fashion-ps-0-1", Container.TRAINER, 1),
    ),
    Ended(
        "only consequences are left, the coordinator's pod is gone",
        {"job": TRAINED, "pods": pods(worker(4, "cpu-0"), worker(4), without=("ps-0",))},
        "PodDeleted",
        "parameter server ps-0 (pod fashion-ps-0-1) was deleted",
        ("fashion-ps-0-1", "", None),
    ),
    Ended(
        "a worker that the coordinator does not let in, before training",
        {"job": make_job(), "pods": pods(worker(4, message="refused: wrong protocol version"))},
        "WorkerFailed",
        "exited with code 4: refused: wrong protocol version",
        ("fashion-cpu-1-1", Container.TRAINER, 4),
    ),
    Ended(
        "the same, of a pod that was made a second before the coordinator's",
        {"job": make_job(), "pods": pods(make_pod("ps-0", created=299), worker(4, message="refused"))},
        "WorkerFailed",
        "exited with code 4: refused",
        ("fashion-cpu-1-1", Container.TRAINER, 4),
    ),
    Ended(
        "an init container that failed",
        {
            "job": make_job(),
            "pods": pods(
                make_pod(
                    "cpu-1",
                    phase="Failed",
                    containers=(
                        ContainerSeen("fetch", "terminated", end=make_end(22, message="404")),
                        ContainerSeen(Container.TRAINER, "waiting", "PodInitializing"),
                    ),
                )
            ),
        },
        "WorkerFailed",
        "pod fashion-cpu-1-1, container fetch) exited with code 22: 404",
        ("fashion-cpu-1-1", "fetch", 22),
    ),
    Ended(
        "a worker that ended without joining",
        {
            "job": make_job(),
            "pods": pods(make_pod("cpu-1", phase="Succeeded", trainer=make_end(0))),
            "training": seen(
                make_state(
                    WAITING,
                    workers={"cpu-0": control_pb2.WORKER_PHASE_JOINED, "cpu-1": control_pb2.WORKER_PHASE_ABSENT},
                )
            ),
        },
        "WorkerFailed",
        "does its script call heterotrain.join()?",
        ("fashion-cpu-1-1", Container.TRAINER, 0),
    ),
    Ended(
        "a shard that ended long before the job",
        {"job": TRAINED, "pods": pods(make_pod("ps-0", trainer=make_end(0, seconds_ago=11))), **RUNNING},
        "ShardFailed",
        "ended before the job did",
        ("fashion-ps-0-1", Container.TRAINER, 0),
    ),
    Ended(
        "all pods are gone: what was trained cannot be known any more, and is not done again",
        {"job": TRAINED, "pods": ()},
        "PodDeleted",
        "ps-0",
        ("fashion-ps-0-1", "", None),
    ),
    Ended(
        "all pods are gone, but the coordinator had said how it ended",
        {
            "job": TRAINED,
            "pods": (),
            "training": seen(
                make_state(
                    control_pb2.PHASE_SUCCEEDED,
                    reason="EpochsCompleted",
                    message="3 epochs",
                    model_path="/output/model.safetensors",
                ),
                connected=False,
            ),
        },
        "EpochsCompleted",
        "3 epochs",
        succeeded=True,
    ),
    Ended(
        "a worker's pod is gone and the coordinator says nothing for a lease and some seconds",
        {"job": not_ready(25, **NO_MORE), "pods": pods(without=("cpu-1",)), **RUNNING},
        "PodDeleted",
        "worker cpu-1 (pod fashion-cpu-1-1) was deleted while the job ran; spec.runPolicy.backoffLimit is 0",
        ("fashion-cpu-1-1", "", None),
    ),
    Ended(
        "the node of ps-0 is away, its pod never stops being deleted",
        {"job": not_ready(20), "pods": pods(make_pod("ps-0", deleting=True))},
        "PodDeleted",
        "ps-0",
        ("fashion-ps-0-1", "", None),
    ),
]


@pytest.mark.parametrize("case", ENDED, ids=[case.text for case in ENDED])
def test_over(case: Ended) -> None:
    verdict = judge(viewed(**case.observed))
    assert isinstance(verdict, End)
    assert (verdict.succeeded, verdict.reason) == (case.succeeded, case.want_reason)
    assert case.want_in_message in verdict.message
    failure = verdict.failure
    assert (None if failure is None else (failure.pod, failure.container, failure.exit_code)) == case.want_failure
    if failure is not None:
        assert failure.reason == case.want_reason


class Going(NamedTuple):
    text: str
    observed: dict[str, Any]
    want_until: Any = None
    """`None`: nothing has failed."""


GOING = [
    Going("all pods run", {"job": TRAINED, "pods": pods(), **RUNNING}),
    Going("nothing exists yet", {}),
    Going(
        "a pod that is gone before training", {"job": make_job(status=make_status()), "pods": pods(without=("cpu-1",))}
    ),
    Going(
        "ps-0 was told to end before training",
        {"pods": pods(ps0(3, outcome("Stopped", "Stopped"), deleting=True))},
    ),
    Going(
        "an evicted ps-0 was replaced before training, which has begun meanwhile",
        {
            "job": TRAINED,
            "pods": (
                *pods(make_pod("ps-0", attempt=2)),
                ps0(3, outcome("Stopped", "Stopped"), phase="Failed", disrupted="Evicted"),
            ),
            **RUNNING,
        },
    ),
    Going(
        "a worker failed just now; the coordinator runs on",
        {"job": TRAINED, "pods": pods(worker(1, seconds_ago=2)), **RUNNING},
        in_(3),
    ),
    Going(
        "the coordinator says that a worker failed, which has not ended yet",
        {"job": TRAINED, "pods": pods(ps0(1, FAILED, end={"seconds_ago": 1}))},
        in_(4),
    ),
    Going(
        "a worker finished before its pod was deleted",
        {
            "job": TRAINED,
            "pods": pods(without=("cpu-1",)),
            "training": seen(
                make_state(
                    TRAINING,
                    workers={"cpu-0": control_pb2.WORKER_PHASE_TRAINING, "cpu-1": control_pb2.WORKER_PHASE_FINISHED},
                )
            ),
        },
    ),
    Going(
        "a worker's pod is gone, the coordinator has a lease to say why",
        {"job": make_job(status=training_status(), **NO_MORE), "pods": pods(without=("cpu-1",)), **RUNNING},
        in_(25),
    ),
    Going(
        "ps-0 is being deleted and has some time to leave an outcome",
        {"job": TRAINED, "pods": pods(make_pod("ps-0", deleting=True)), **RUNNING},
        in_(20),
    ),
    Going(
        "a shard ended a moment ago, as at the end of a job",
        {"job": TRAINED, "pods": pods(make_pod("ps-0", trainer=make_end(0, seconds_ago=1))), **RUNNING},
        in_(9),
    ),
    Going(
        "the coordinator is saving the model and a worker's pod is gone",
        {"job": TRAINED, "pods": pods(without=("cpu-0",)), "training": seen(make_state(FINISHING))},
        in_(25),
    ),
    Going(
        "a worker's clock is ahead: its failure is waited for no longer than twice the time",
        {"job": TRAINED, "pods": pods(worker(1, seconds_ago=-4)), **RUNNING},
        in_(9),
    ),
]


@pytest.mark.parametrize("case", GOING, ids=[case.text for case in GOING])
def test_not_over(case: Going) -> None:
    verdict = judge(viewed(**case.observed))
    if case.want_until is None:
        assert verdict is None
    else:
        assert isinstance(verdict, Wait)
        assert verdict.until == case.want_until


def test_a_clock_that_is_far_off_does_not_hold_the_verdict_up() -> None:
    for seconds_ago in (-3600.0, 3600.0, None):
        verdict = judge(viewed(TRAINED, pods(worker(1, seconds_ago=seconds_ago)), **RUNNING))
        assert isinstance(verdict, End)
        assert verdict.at <= ago(0)
