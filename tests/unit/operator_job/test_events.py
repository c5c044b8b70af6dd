"""Events: one for each decision or finding, none when the same is seen again."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from builders_operator import (
    TRUE,
    decided,
    make_end,
    make_job,
    make_pod,
    make_state,
    make_status,
    outcome,
    pods,
    seen,
    status_of,
    training_status,
    written,
)
from heterotrain_api.conditions import ConditionType, Reason
from heterotrain_api.contract import Annotation
from heterotrain_api.status import SynchronizationStatus
from heterotrain_operator.job.observed import Answer
from heterotrain_rpc import control_pb2

RUNNING: dict[str, Any] = {"pods": pods(), "training": seen(make_state())}
TRAINED = written(60, status=training_status(), **RUNNING)


def said(sequence: int, reason: str, message: str, *, warning: bool = False) -> control_pb2.Event:
    return control_pb2.Event(sequence=sequence, reason=reason, message=message, warning=warning)


def new_plan(derived: bool = False) -> control_pb2.JobState:
    state = make_state(generation=2, effective_round=50)
    state.workers[0].share_wanted, state.workers[1].share_wanted = 6, 2
    state.plan.reason, state.plan.derived = "cpu-1 is slower", derived
    return state


class Case(NamedTuple):
    text: str
    observed: dict[str, Any]
    want: list[tuple[bool, str, str]]
    """Warning, reason, message."""


ACCEPTED = make_status((ConditionType.ACCEPTED, TRUE, Reason.VALID))
ANSWERED = {
    "job": make_job(status=TRAINED, annotations={Annotation.PLAN_REQUEST: '{"id": "p", "shares": {"cpu-0": 6}}'})
}

AWAY = (
    "the coordinator in the pod of ps-0 does not answer; training goes on without the operator; "
    "last heard from at 2026-03-01T11:59:30Z"
)
NOT_DURABLE = (
    "the model /output/model.safetensors lies in pod fashion-ps-0-1 on node node-1 only (volume emptyDir) and is lost "
    "when that pod is deleted; give spec.output.volume a claim to keep it"
)

CASES = [
    Case("what is only asked for is no news", {}, []),
    Case(
        "all pods exist",
        {"job": make_job(status=written(5)), "pods": pods(make_pod("cpu-1", phase="Pending", node=""))},
        [(False, "PodsCreated", "created 3 pods: 1 parameter servers, 2 workers")],
    ),
    Case(
        "a burst of losses is one event",
        {"job": make_job(status=ACCEPTED)},
        [(True, "PodsReplaced", "3 pods are created again, theirs are gone: ps-0, cpu-0, cpu-1")],
    ),
    Case(
        "a pod that is refused again is not told as created",
        {
            "job": make_job(status=written(5, pods=pods(without=("cpu-1",)), status=ACCEPTED)),
            "pods": pods(without=("cpu-1",)),
            "refusals": {"cpu-1": "exceeded quota: q"},
        },
        [(True, "QuotaExceeded", "cpu-1 could not be created: exceeded quota: q")],
    ),
    Case(
        "a pod cannot start",
        {
            "job": make_job(status=written(5, pods=pods())),
            "pods": pods(make_pod("cpu-1", phase="Pending", waiting=("ErrImagePull", "no such image"))),
        },
        [
            (
                True,
                "ImagePullFailed",
                "2 of 3 pods are ready; pod fashion-cpu-1-1, container trainer: ErrImagePull: no such image",
            )
        ],
    ),
    Case(
        "the image was mended",
        {
            "job": make_job(
                status=written(5, pods=pods(make_pod("cpu-1", phase="Pending", waiting=("ErrImagePull", "x"))))
            ),
            "pods": pods(),
        },
        [(False, "AllPodsReady", "all 3 pods are ready")],
    ),
    Case("the same again", {"job": make_job(status=TRAINED), **RUNNING}, []),
    Case(
        "a plan, with old and new shares and the reason",
        {"job": make_job(status=TRAINED), "pods": pods(), "training": seen(new_plan())},
        [(False, "PlanAgreed", "plan 1→2 from round 50: cpu-0 4→6, cpu-1 4→2: cpu-1 is slower")],
    ),
    Case(
        "a plan that changes the mode and leaves the shares",
        {
            "job": make_job(
                status=TRAINED.model_copy(
                    update={"synchronization": SynchronizationStatus(mode="SSP", wanted="SSP, no bound")}
                )
            ),
            "pods": pods(),
            "training": seen(make_state(generation=2, effective_round=50)),
        },
        [
            (
                False,
                "PlanAgreed",
                "plan 1→2 from round 50: SSP, no bound → Delay, window 0.02 s, at most 3 rounds stale: start shares",
            )
        ],
    ),
    Case(
        "a plan that the coordinator derived",
        {"job": make_job(status=TRAINED), "pods": pods(), "training": seen(new_plan(derived=True))},
        [(False, "PlanDerived", "plan 1→2 from round 50: cpu-0 4→6, cpu-1 4→2: cpu-1 is slower")],
    ),
    Case(
        "the coordinator's own events: new ones, those that matter, one of each kind",
        {
            "job": make_job(status=TRAINED.model_copy(update={"last_event_sequence": 2})),
            "pods": pods(),
            "training": seen(
                make_state(
                    events=(
                        said(2, "Started", "old"),
                        said(3, "WorkerJoined", "cpu-0 joined"),
                        said(4, "WorkerLost", "worker cpu-0 is lost: silent for 15 s", warning=True),
                        said(4, "GradientNotFinite", "cpu-0, round 7", warning=True),
                        said(5, "GradientNotFinite", "cpu-1, round 9", warning=True),
                    )
                )
            ),
        },
        [
            (True, "WorkerLost", "worker cpu-0 is lost: silent for 15 s"),
            (True, "GradientNotFinite", "cpu-1, round 9 (2 times since the last look)"),
        ],
    ),
    Case(
        "a coordinator that was made again counts from one",
        {
            "job": make_job(status=TRAINED.model_copy(update={"last_event_sequence": 40})),
            "pods": pods(),
            "training": seen(make_state(events=(said(1, "Started", "the first round was granted"),))),
        },
        [(False, "Started", "the first round was granted")],
    ),
    Case(
        "a refused plan",
        {**ANSWERED, **RUNNING, "answers": (Answer("p", False, "the shares sum to 10, not 8"),)},
        [(True, "PlanRefused", "request p was refused: the shares sum to 10, not 8")],
    ),
    Case(
        "an accepted plan is told by its change",
        {**ANSWERED, **RUNNING, "answers": (Answer("p", True, "in force"),)},
        [],
    ),
    Case(
        "an accepted command",
        {"job": make_job(status=TRAINED), **RUNNING, "answers": (Answer("c", True, "stop was accepted"),)},
        [(False, "RequestAccepted", "request c: stop was accepted")],
    ),
    Case(
        "contact is lost",
        {
            "job": make_job(status=TRAINED),
            "pods": pods(),
            "training": seen(make_state(), connected=False, seconds_ago=30),
        },
        [
            (
                True,
                "CoordinatorUnreachable",
                AWAY,
            )
        ],
    ),
    Case(
        "contact is there again",
        {
            "job": make_job(
                status=written(
                    10,
                    status=TRAINED,
                    pods=pods(),
                    training=seen(make_state(), connected=False, seconds_ago=60),
                )
            ),
            **RUNNING,
        },
        [(False, "Training", "the coordinator answers again")],
    ),
    Case(
        "a good end without a claim warns of what will be lost",
        {
            "job": make_job(status=TRAINED),
            "pods": pods(make_pod("ps-0", coordinator=make_end(0, message=outcome("Succeeded", "EpochsCompleted")))),
        },
        [
            (False, "Succeeded", "all said"),
            (
                True,
                "ModelNotDurable",
                NOT_DURABLE,
            ),
        ],
    ),
    Case(
        "a bad end",
        {
            "job": make_job(status=TRAINED),
            "pods": pods(make_pod("cpu-1", phase="Failed", trainer=make_end(1, message="ValueError: no"))),
        },
        [(True, "WorkerFailed", "worker cpu-1 (pod fashion-cpu-1-1) exited with code 1: ValueError: no")],
    ),
    Case(
        "stopped as asked is no warning",
        {
            "job": make_job(status=TRAINED),
            "pods": pods(make_pod("ps-0", coordinator=make_end(3, message=outcome("Stopped", "Stopped", "asked", "")))),
        },
        [(False, "Stopped", "asked")],
    ),
    Case(
        "a name of somebody else's",
        {"foreign": ("secret/fashion-3f2a77c0",)},
        [
            (
                True,
                "NameConflict",
                "secret/fashion-3f2a77c0 exists and belongs to somebody else: delete it, or give the job another name",
            )
        ],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.text for case in CASES])
def test_events(case: Case) -> None:
    decision = decided(**case.observed)
    assert [(e.warning, e.reason, e.message) for e in decision.events] == case.want
    if decision.events:
        job = dict(case.observed.get("job") or make_job()) | {"status": status_of(decision).to_document()}
        again = decided(**case.observed | {"job": job}).events
        # What is said with the making of pods is said again only if they are made again, as here.
        assert [e for e in again if e.reason not in ("PodsReplaced", "PodsEnded")] == [], "said once"


def test_an_answer_is_not_told_again_with_later_figures() -> None:
    status = written(60, status=TRAINED, **RUNNING, answers=(Answer("c", False, "no such worker"),))
    assert [answer.id for answer in status.requests] == ["c"]
    later = decided(make_job(status=status), pods(), training=seen(make_state(version=41)))
    assert later.status is not None
    assert later.events == ()


def test_a_burst_names_some_and_counts_the_rest() -> None:
    job = make_job(workers=[{"name": "cpu", "replicas": 32}], globalBatchSize=64, status=ACCEPTED)
    decision = decided(job, (make_pod("ps-0"), make_pod("cpu-0"), make_pod("cpu-31")))
    assert len(decision.make) == 30
    assert [e.message for e in decision.events] == [
        "30 pods are created again, theirs are gone: " + ", ".join(f"cpu-{i}" for i in range(1, 13)) + " and 18 more"
    ]
