"""`decide`, rung by rung."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest

from builders_operator import (
    FALSE,
    FINISHING,
    PODS,
    TRUE,
    UID,
    UNKNOWN,
    WAITING,
    ago,
    condition,
    decided,
    ended_status,
    in_,
    made,
    make_end,
    make_job,
    make_pod,
    make_service,
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
from heterotrain_operator.job.decision import ApplyPlan, Decision, DeletePod, MakeSecret, SendCommand
from heterotrain_operator.job.observed import Unreachable
from heterotrain_rpc import control_pb2

ACCEPTED, READY, TRAINING, PLAN, BALANCED, STRAGGLER, METRICS, RECOVERING, SUCCEEDED = ConditionType


class Case(NamedTuple):
    text: str
    want_why: str
    observed: dict[str, Any]
    want_made: tuple[str, ...] = ()
    want_said: tuple[ConditionType, str, str] | None = None
    """Condition, its status and reason; `None`: no status is written."""


ALL_MADE = tuple(f"fashion-{name}-1" for name in PODS)
ACCEPTED_STATUS = make_status((ACCEPTED, TRUE, Reason.VALID))
REFUSED = Unreachable(ago(20), "UNAVAILABLE: connection refused")

CASES = [
    Case(
        "a job that is being deleted is left to garbage collection",
        "the job is being deleted: garbage collection takes its children",
        {"job": make_job(deleting=True)},
    ),
    Case(
        "a job that is over makes nothing, though all its pods are gone",
        "the job is over",
        {"job": make_job(status=ended_status())},
    ),
    Case(
        "in a namespace that is being deleted nothing is made",
        "the namespace is being deleted",
        {"refusals": {"ps-0": "unable to create new content in namespace team because it is being terminated"}},
    ),
    Case(
        "a template that clashes is refused with its field",
        "the spec is not valid: spec.workers[0].template.spec.hostNetwork: must be false or left out: "
        "the ports of a job's pods are fixed, on a node they would clash",
        {"job": make_job(workers=[{"name": "cpu", "template": {"spec": {"hostNetwork": True}}}])},
        want_said=(ACCEPTED, "False", "InvalidSpec"),
    ),
    Case(
        "a spec of another version that cannot be read is refused with its field",
        "the spec is not valid: spec.workers[0].device: Input should be 'CPU' or 'CUDA'",
        {"job": make_job(workers=[{"name": "cpu", "device": "TPU"}])},
        want_said=(ACCEPTED, "False", "InvalidSpec"),
    ),
    Case(
        "a Service of a stranger blocks the job",
        "a name belongs to somebody else: service/fashion-3f2a77c0",
        {"foreign": ("service/fashion-3f2a77c0",)},
        want_said=(ACCEPTED, "False", "NameConflict"),
    ),
    Case(
        "at first sight all children are made and all conditions written",
        "3 pods are missing",
        {},
        want_made=ALL_MADE,
        want_said=(ACCEPTED, "Unknown", "PodsPending"),
    ),
    Case(
        "pods that could not be made are asked for again, and the refusal is said",
        "1 pod is missing",
        {"pods": pods(without=("cpu-1",)), "refusals": {"cpu-1": "pods is forbidden: exceeded quota: small"}},
        want_made=("fashion-cpu-1-1",),
        want_said=(ACCEPTED, "False", "QuotaExceeded"),
    ),
    Case(
        "a pod with an image that cannot be pulled is named",
        "waiting for the start",
        {"pods": pods(make_pod("cpu-1", phase="Pending", waiting=("ImagePullBackOff", "not found")))},
        want_said=(READY, "False", "ImagePullFailed"),
    ),
    Case(
        "all pods run, nobody has joined",
        "waiting for the start",
        {"pods": pods()},
        want_said=(TRAINING, "False", "WaitingForWorkers"),
    ),
    Case(
        "training is shown",
        "training",
        {"pods": pods(), "training": seen(make_state())},
        want_said=(TRAINING, "True", "Training"),
    ),
    Case(
        "the coordinator's good end is the job's",
        "the job is over: EpochsCompleted",
        {
            "job": make_job(status=training_status()),
            "pods": pods(make_pod("ps-0", coordinator=make_end(0, message=outcome("Succeeded", "EpochsCompleted")))),
        },
        want_said=(SUCCEEDED, "True", "EpochsCompleted"),
    ),
    Case(
        "a container that failed fails the job",
        "the job is over: WorkerFailed",
        {
            "job": make_job(status=training_status()),
            "pods": pods(make_pod("cpu-1", phase="Failed", trainer=make_end(1, message="ValueError: no"))),
        },
        want_said=(SUCCEEDED, "False", "WorkerFailed"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.text for case in CASES])
def test_rung(case: Case) -> None:
    decision = decided(**case.observed)
    assert decision.why == case.want_why
    assert tuple(made(decision)) == case.want_made
    if case.want_said is None:
        assert decision.status is None
    else:
        kind, status, reason = case.want_said
        assert condition(decision, kind)[:2] == (status, reason)
        assert len(status_of(decision).conditions) == len(ConditionType)


def test_first_pass_makes_service_and_secret_with_a_certificate_for_every_process() -> None:
    decision = decided()
    assert decision.secret == MakeSecret("fashion-3f2a77c0", PODS, {"cpu": 2})
    assert decision.service is not None
    assert decision.service.manifest["metadata"]["name"] == "fashion-3f2a77c0"
    assert decision.wake_at == in_(5)
    assert decision.events == (), "what was only asked for is no news yet"


def test_a_status_says_something_from_the_first_pass_on() -> None:
    status = status_of(decided())
    assert {c.type: c.status for c in status.conditions} == {
        ACCEPTED: UNKNOWN,
        READY: FALSE,
        TRAINING: FALSE,
        PLAN: UNKNOWN,
        BALANCED: UNKNOWN,
        STRAGGLER: UNKNOWN,
        METRICS: UNKNOWN,
        RECOVERING: FALSE,
        SUCCEEDED: UNKNOWN,
    }
    assert (status.state, status.ready_workers, status.ready_parameter_servers) == ("Pending", "0/2", "0/1")
    assert [row.name for row in status.workers] == ["cpu-0", "cpu-1"]


def lost(*names: str, **changes: Any) -> dict[str, Any]:
    return {"job": make_job(status=ACCEPTED_STATUS), "pods": pods(without=names), **changes}


ATTEMPTS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("a pod that is gone gets the next attempt", lost("cpu-1"), ["fashion-cpu-1-2"]),
    ("all pods gone at once are made in one pass", lost(*PODS), [f"fashion-{name}-2" for name in PODS]),
    (
        "a pod that is being deleted is replaced at once",
        {"job": make_job(status=ACCEPTED_STATUS), "pods": pods(make_pod("cpu-1", attempt=3, deleting=True))},
        ["fashion-cpu-1-4"],
    ),
    (
        "the highest attempt of any pod counts where nothing is left of a pod",
        {"job": make_job(status=ACCEPTED_STATUS.model_copy(update={"attempt": 4})), "pods": pods(without=("cpu-0",))},
        ["fashion-cpu-0-5"],
    ),
    (
        "until all pods existed together the same names are asked for again",
        {"job": make_job(status=make_status(attempt=0)), "pods": pods(without=("cpu-0", "cpu-1"))},
        ["fashion-cpu-0-1", "fashion-cpu-1-1"],
    ),
    (
        "a stranger's name is passed over",
        {"job": make_job(), "pods": pods(without=("cpu-0",)), "foreign": ("pod/fashion-cpu-0-1",)},
        ["fashion-cpu-0-2"],
    ),
    (
        "an evicted pod is replaced",
        {"job": make_job(), "pods": pods(make_pod("cpu-1", phase="Failed", disrupted="Evicted"))},
        ["fashion-cpu-1-2"],
    ),
    (
        "a pod that is evicted again and again waits longer",
        {
            "job": make_job(),
            "pods": pods(
                make_pod("cpu-1", phase="Failed", disrupted="OutOfcpu", created=30),
                make_pod("cpu-1", attempt=2, phase="Failed", disrupted="OutOfcpu", created=15),
            ),
        },
        [],
    ),
    (
        "a worker that left with a coordinator that was replaced starts again",
        {
            "job": make_job(),
            "pods": pods(
                make_pod("ps-0", attempt=2, created=5),
                make_pod("cpu-1", phase="Failed", trainer=make_end(4, seconds_ago=7)),
            ),
        },
        ["fashion-cpu-1-2"],
    ),
    (
        "and so does a shard that it had sent home",
        {
            "job": make_job(parameterServers={"replicas": 2}),
            "pods": (
                *pods(make_pod("ps-0", attempt=2, created=5)),
                make_pod("ps-1", phase="Succeeded", trainer=make_end(0, seconds_ago=7)),
            ),
        },
        ["fashion-ps-1-2"],
    ),
    (
        "a worker that is finished is not replaced",
        {"job": make_job(), "pods": pods(make_pod("cpu-1", phase="Succeeded", trainer=make_end(0), deleting=True))},
        [],
    ),
    (
        "a worker that had finished before its pod was deleted is not replaced",
        {
            "job": make_job(status=training_status()),
            "pods": pods(without=("cpu-1",)),
            "training": seen(
                make_state(
                    workers={"cpu-0": control_pb2.WORKER_PHASE_TRAINING, "cpu-1": control_pb2.WORKER_PHASE_FINISHED}
                )
            ),
        },
        [],
    ),
    (
        "once training has begun nothing is replaced",
        {"job": make_job(status=training_status()), "pods": pods(without=("cpu-1",)), "training": seen(make_state())},
        [],
    ),
]


@pytest.mark.parametrize(("observed", "want"), [case[1:] for case in ATTEMPTS], ids=[case[0] for case in ATTEMPTS])
def test_missing_pods(observed: dict[str, Any], want: list[str]) -> None:
    assert made(decided(**observed)) == want


def test_a_pod_that_waits_after_evictions_is_made_when_its_time_has_come() -> None:
    evicted = [
        make_pod("cpu-1", attempt=attempt, phase="Failed", disrupted="OutOfcpu", created=60 - attempt)
        for attempt in (1, 2, 3)
    ]
    job = make_job(status=ACCEPTED_STATUS)
    due = ago(57) + timedelta(seconds=40)
    early = decided(job, pods(*evicted), now=due - timedelta(seconds=1))
    assert (made(early), early.wake_at) == ([], due)
    assert made(decided(job, pods(*evicted), now=due)) == ["fashion-cpu-1-4"]


def test_the_highest_attempt_is_remembered_once_all_pods_exist_together() -> None:
    replaced = make_pod("cpu-1", attempt=3)
    job = make_job(status=make_status(attempt=1))
    assert status_of(decided(job, pods(replaced, without=("cpu-0",)))).attempt == 1
    assert status_of(decided(job, pods(replaced))).attempt == 3


def test_a_job_that_trains_was_accepted_whatever_became_of_its_finished_workers() -> None:
    state = make_state(workers={"cpu-0": control_pb2.WORKER_PHASE_TRAINING, "cpu-1": control_pb2.WORKER_PHASE_FINISHED})
    decision = decided(make_job(status=make_status()), pods(without=("cpu-1",)), training=seen(state))
    assert condition(decision, ACCEPTED)[:2] == ("True", "Valid")
    assert condition(decision, READY)[:2] == ("True", "AllPodsReady")


def test_a_lost_secret_makes_all_pods_start_again_with_new_certificates() -> None:
    decision = decided(pods=pods(), secret_present=False)
    assert decision.secret is not None
    assert [pod.name for pod in decision.delete] == [pod.name for pod in pods()]
    assert made(decision) == []
    training = decided(make_job(status=training_status()), pods(), secret_present=False, training=seen(make_state()))
    assert (training.secret, training.delete) == (None, ())


def test_pods_beside_the_one_that_counts_are_deleted() -> None:
    second, stray = make_pod("cpu-0", attempt=2), make_pod("old-0")
    decision = decided(pods=pods(make_pod("cpu-0"), second, stray))
    assert decision.delete == (
        DeletePod(second.name, second.uid, "fashion-cpu-0-1 does its work"),
        DeletePod(stray.name, stray.uid, "the job has no place for it"),
    )


class Wake(NamedTuple):
    text: str
    observed: dict[str, Any]
    want: datetime | None


WAKES = [
    Wake("pods were made: look whether they were taken", {}, in_(5)),
    Wake("the API server refuses: nothing tells when it will take them", {"refusals": {"ps-0": "no"}}, in_(30)),
    Wake("nothing to wait for", {"job": make_job(status=written(5, pods=pods())), "pods": pods()}, None),
    Wake(
        "a coordinator that was just lost",
        {
            "job": make_job(status=training_status()),
            "pods": pods(),
            "training": seen(make_state(), connected=False, seconds_ago=5),
        },
        in_(10),
    ),
    Wake(
        "figures that were written a moment ago",
        {
            "job": make_job(status=written(5, pods=pods(), training=seen(make_state()))),
            "pods": pods(),
            "training": seen(make_state(version=41)),
        },
        in_(15),
    ),
]


@pytest.mark.parametrize("case", WAKES, ids=[case.text for case in WAKES])
def test_the_next_pass(case: Wake) -> None:
    assert decided(**case.observed).wake_at == case.want


def test_requests_go_to_a_coordinator_that_answers_and_wait_for_one_that_does_not() -> None:
    asked = {
        Annotation.PLAN_REQUEST: '{"id": "p1", "shares": {"cpu-0": 6}}',
        Annotation.COMMAND: '{"id": "c1", "command": "stop"}',
    }
    job = make_job(annotations=asked, status=training_status())
    want = (
        ApplyPlan("p1", {"cpu-0": 6}, "asked for by a user"),
        SendCommand("c1", "stop"),
    )
    assert decided(job, pods(), training=seen(make_state())).requests == want
    assert decided(job, pods(), training=seen(make_state(), connected=False)).requests == ()


def test_a_stop_before_anybody_can_be_asked_ends_the_job() -> None:
    job = make_job(annotations={Annotation.COMMAND: '{"id": "c1", "command": "stop"}'}, status=ACCEPTED_STATUS)
    decision = decided(job, pods(make_pod("cpu-1", phase="Pending", node="")))
    assert condition(decision, SUCCEEDED)[:2] == ("False", "Stopped")
    assert status_of(decision).state == "Stopped"
    assert [(a.id, a.accepted) for a in status_of(decision).requests] == [("c1", True)]


def test_finishing_and_waiting_are_told_apart_from_training() -> None:
    waiting = make_state(WAITING, message="waiting for cpu-1 to join", reason="WaitingForWorkers")
    assert condition(decided(pods=pods(), training=seen(waiting)), TRAINING) == (
        "False",
        "WaitingForWorkers",
        "waiting for cpu-1 to join",
    )
    finishing = make_state(FINISHING, message="the model is being saved")
    assert condition(decided(pods=pods(), training=seen(finishing)), TRAINING)[:2] == ("False", "Finishing")


def test_an_unreachable_coordinator_makes_training_unknown_and_keeps_the_figures() -> None:
    status = training_status(progress={"round": 40, "step": "40/120"})
    decision = decided(
        make_job(status=status), pods(), training=seen(make_state(version=40), connected=False, seconds_ago=16)
    )
    assert condition(decision, TRAINING)[:2] == ("Unknown", "CoordinatorUnreachable")
    assert status_of(decision).progress.step == "40/120"


def test_a_restarted_operator_that_cannot_reach_the_coordinator_says_so() -> None:
    job = make_job(status=written(30, pods=pods(), training=seen(make_state())))
    assert decided(job, pods()).status is None, "it has not tried yet"
    tried = decided(job, pods(), unreachable=REFUSED)
    status, reason, message = condition(tried, TRAINING)
    assert (status, reason) == ("Unknown", "CoordinatorUnreachable")
    assert "connection refused" in message


def test_a_coordinator_that_runs_and_never_answers_is_reported_once_its_pod_is_ready() -> None:
    job = make_job(status=written(30, pods=pods()))
    starting = decided(job, pods(make_pod("ps-0", ready=False)), unreachable=REFUSED)
    assert condition(starting, TRAINING)[1] == "WaitingForWorkers"
    ready = decided(job, pods(), unreachable=REFUSED)
    assert condition(ready, TRAINING)[:2] == ("Unknown", "CoordinatorUnreachable")
    assert [event.reason for event in ready.events] == ["CoordinatorUnreachable"]


def test_a_coordinator_tried_in_vain_a_moment_ago_gets_a_pass_when_it_counts_as_unreachable() -> None:
    job = make_job(status=written(30, pods=pods()))
    assert decided(job, pods(), unreachable=Unreachable(ago(5), "connection refused")).wake_at == in_(10)


DRIFTS = {
    "somebody deleted it": None,
    "it selects other pods": make_service(selector={"heterotrain.io/job-uid": UID, "app": "mine"}),
    "it hides pods that are not ready": make_service(publishNotReadyAddresses=False),
    "it lacks a port": make_service(ports=make_service()["spec"]["ports"][1:]),
}


@pytest.mark.parametrize("began", [True, False], ids=["during training", "before"])
@pytest.mark.parametrize("service", DRIFTS.values(), ids=DRIFTS)
def test_a_service_that_is_not_what_it_should_be_is_applied(service: Any, began: bool) -> None:
    job = make_job(status=training_status() if began else ACCEPTED_STATUS)
    decision = decided(
        job, pods(), service=service, training=seen(make_state(control_pb2.PHASE_TRAINING if began else WAITING))
    )
    assert decision.service is not None
    assert decision.service.manifest["spec"]["selector"] == {"heterotrain.io/job-uid": UID}
    assert (decision.make, decision.delete) == ((), ())


def test_a_service_that_others_added_to_is_left_alone() -> None:
    service = make_service(trafficDistribution="PreferClose")
    service["spec"]["ports"].append({"name": "metrics", "port": 9000, "protocol": "TCP"})
    service["metadata"]["labels"]["team"] = "a"
    assert decided(make_job(status=training_status()), pods(), service=service).service is None


def test_during_training_the_service_is_made_again_though_the_secret_is_lost_too() -> None:
    decision = decided(make_job(status=training_status()), pods(), service=None, secret_present=False)
    assert decision.service is not None
    assert (decision.secret, decision.make, decision.delete) == (None, (), ())


def test_a_spec_made_invalid_during_training_does_not_end_it() -> None:
    broken = [{"name": "cpu", "replicas": 2, "template": {"spec": {"hostname": "x"}}}]
    job = make_job(workers=broken, status=training_status(), generation=2)
    decision = decided(job, pods(), training=seen(make_state()))
    assert condition(decision, ACCEPTED)[:2] == ("False", "InvalidSpec")
    assert condition(decision, TRAINING)[:2] == ("True", "Training")
    assert status_of(decision).observed_generation == 2


def test_the_same_observation_gives_the_same_decision() -> None:
    decisions: list[Decision] = [decided(pods=pods(), training=seen(make_state())) for _ in range(2)]
    assert decisions[0] == decisions[1]
