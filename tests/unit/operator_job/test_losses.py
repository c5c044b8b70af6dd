"""Pods that a training job loses: which are started again, how often, in which order, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

import pytest

from builders_operator import (
    FINISHING,
    NOW,
    TRAINING,
    WAITING,
    ago,
    condition,
    decided,
    in_,
    made,
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
    viewed,
)
from heterotrain_api.conditions import ConditionType, Reason, set_condition
from heterotrain_api.contract import Annotation, Container
from heterotrain_api.status import ConditionStatus, HeteroTrainJobStatus, Recovery, Restart
from heterotrain_api.trainer_config import TrainerConfig
from heterotrain_operator.job.decision import Decision
from heterotrain_operator.job.judge import End, Wait, judge
from heterotrain_operator.job.losses import losses
from heterotrain_operator.job.observed import PodSeen
from heterotrain_rpc import control_pb2

CLAIM: dict[str, Any] = {"volume": {"persistentVolumeClaim": {"claimName": "models"}}}
SAFE: dict[str, Any] = {"checkpoint": {"everyRounds": 10}, "output": CLAIM, "parameterServers": {"replicas": 2}}
"""Checkpoints that outlive every pod; two parameter servers."""
NAMES = ("ps-0", "ps-1", "cpu-0", "cpu-1")
RUNNING: dict[str, Any] = {"training": seen(make_state())}


def all_but(*changed: PodSeen, without: tuple[str, ...] = ()) -> tuple[PodSeen, ...]:
    return pods(*changed, without=without, names=NAMES)


def trained(status: HeteroTrainJobStatus | None = None, **spec: Any) -> dict[str, Any]:
    return make_job(status=status or training_status(), **SAFE | spec)


def worker(code: int, **fields: Any) -> PodSeen:
    return make_pod("cpu-1", phase="Failed", trainer=make_end(code, **fields))


def shard(code: int, **fields: Any) -> PodSeen:
    return make_pod("ps-1", phase="Failed", trainer=make_end(code, **fields))


def deleted(name: str, *, running: bool = True, code: int = 0, ended: float = 1.0) -> PodSeen:
    """A pod whose deletion was asked for 2 s ago; it has ended `ended` seconds ago unless it still runs."""
    pod = make_pod(name, trainer=None if running else make_end(code, seconds_ago=ended))
    if not running and name == "ps-0":
        pod = make_pod(name, trainer=make_end(code), coordinator=make_end(3, message="told to end"))
    return replace(pod, deleting=True, asked_at=ago(2), ends_by=in_(13))


class Lost(NamedTuple):
    text: str
    pods: tuple[PodSeen, ...]
    want: tuple[str, str]
    """Name in the job, reason."""
    want_in_message: str
    due: datetime = NOW


LOST = [
    Lost("a worker's pod is gone", all_but(without=("cpu-1",)), ("cpu-1", "PodDeleted"), "worker cpu-1"),
    Lost("a worker's pod is being deleted", all_but(deleted("cpu-1")), ("cpu-1", "PodDeleted"), "fashion-cpu-1-1"),
    Lost(
        "a worker that was told to end has ended well",
        all_but(deleted("cpu-1", running=False)),
        ("cpu-1", "PodDeleted"),
        "was deleted",
    ),
    Lost(
        "a worker was evicted",
        all_but(make_pod("cpu-1", phase="Failed", disrupted="EvictionByEvictionAPI", trainer=make_end(137))),
        ("cpu-1", "Evicted"),
        "was taken from node node-1 (EvictionByEvictionAPI)",
    ),
    Lost("a worker was killed", all_but(worker(137)), ("cpu-1", "WorkerFailed"), "exited with code 137"),
    Lost(
        "a worker lost the others, long ago",
        all_but(worker(4, message="ps-1 is gone")),
        ("cpu-1", "WorkerFailed"),
        "exited with code 4: ps-1 is gone",
    ),
    Lost(
        "a worker lost the others just now: the coordinator may be ending the job",
        all_but(worker(4, seconds_ago=1)),
        ("cpu-1", "WorkerFailed"),
        "exited with code 4",
        due=in_(4),
    ),
    Lost("a shard's pod is gone", all_but(without=("ps-1",)), ("ps-1", "PodDeleted"), "parameter server ps-1"),
    Lost("a shard was killed", all_but(shard(137)), ("ps-1", "ShardFailed"), "exited with code 137"),
    Lost("a shard crashed", all_but(shard(1, message="Bus error")), ("ps-1", "ShardFailed"), "code 1: Bus error"),
    Lost(
        "a shard is being deleted: its place is free when it has ended, or its grace is over",
        all_but(deleted("ps-1")),
        ("ps-1", "PodDeleted"),
        "was deleted",
        due=in_(18),
    ),
    Lost(
        "a shard that is being deleted has ended",
        all_but(deleted("ps-1", running=False)),
        ("ps-1", "PodDeleted"),
        "was deleted",
    ),
    Lost(
        "the coordinator's pod was deleted, and it left without a word",
        all_but(deleted("ps-0", running=False)),
        ("ps-0", "PodDeleted"),
        "parameter server ps-0",
    ),
    Lost(
        "the coordinator was killed; the shard beside it lives",
        all_but(make_pod("ps-0", coordinator=make_end(137))),
        ("ps-0", "ShardFailed"),
        "container coordinator) exited with code 137",
    ),
    Lost("the coordinator's pod is gone", all_but(without=("ps-0",)), ("ps-0", "PodDeleted"), "ps-0"),
]


@pytest.mark.parametrize("case", LOST, ids=[case.text for case in LOST])
def test_what_is_lost_is_written_down_and_then_made_again(case: Lost) -> None:
    job = trained()
    (loss,) = losses(viewed(job, case.pods, **RUNNING))
    assert (loss.slot.name, loss.failure.reason, loss.due, loss.obstacle) == (*case.want, case.due, "")
    assert case.want_in_message in loss.failure.message
    first = decided(job, case.pods, now=case.due, **RUNNING)
    assert (first.make, first.wake_at) == ((), case.due), "written down first; the next pass comes at once"
    (restart,) = status_of(first).recovery.restarts
    assert (restart.name, restart.reason, restart.count, restart.attempt) == (*case.want, 1, 2)
    assert [e.reason for e in first.events if e.reason == "PodRestarted"] == ["PodRestarted"]
    said = condition(first, ConditionType.RECOVERING)
    assert said[:2] == ("True", case.want[1]), "told with the loss: nobody reads the one without the other"
    second = decided(trained(status_of(first)), case.pods, now=case.due, **RUNNING)
    assert made(second) == [f"fashion-{case.want[0]}-2"]
    last = first if second.status is None else second
    assert status_of(last).recovery.restarts == (restart,), "counted once"


class Kept(NamedTuple):
    text: str
    pods: tuple[PodSeen, ...]
    spec: dict[str, Any]
    want_in_message: str
    """Of the failure of the job."""
    status: HeteroTrainJobStatus | None = None


def restarted(name: str, count: int, **fields: Any) -> HeteroTrainJobStatus:
    entry = Restart(
        name=name, count=count, attempt=count + 1, reason="Evicted", message="was taken", time=ago(60), **fields
    )
    return training_status(recovery=Recovery(restarts=(entry,)))


KEPT = [
    Kept(
        "a shard without checkpoints",
        all_but(shard(137)),
        {"checkpoint": None},
        "what it held is lost with it; with spec.checkpoint a job goes back to a checkpoint",
    ),
    Kept(
        "a shard's pod without checkpoints",
        all_but(replace(make_pod("ps-1"), disrupted="Evicted", phase="Failed", containers=())),
        {"checkpoint": None},
        "with spec.checkpoint a job goes back to a checkpoint",
    ),
    Kept(
        "the coordinator's pod, with the checkpoints in it",
        all_but(deleted("ps-0", running=False)),
        {"output": {}},
        "with a claim in spec.output.volume they outlive it",
    ),
    Kept("a limit of 0", all_but(worker(137)), {"runPolicy": {"backoffLimit": 0}}, "spec.runPolicy.backoffLimit is 0"),
    Kept(
        "a worker that was lost too often",
        all_but(replace(worker(137), attempt=3)),
        {"runPolicy": {"backoffLimit": 2}},
        "it was started again 2 times before, as often as spec.runPolicy.backoffLimit allows",
        restarted("cpu-1", 2, pod="fashion-cpu-1-3"),
    ),
]


@pytest.mark.parametrize("case", KEPT, ids=[case.text for case in KEPT])
def test_what_cannot_be_started_again_fails_the_job_and_says_why(case: Kept) -> None:
    spec = {name: value for name, value in (SAFE | case.spec).items() if value is not None}
    job = make_job(status=case.status or training_status(), **spec)
    verdict = judge(viewed(job, case.pods))
    assert isinstance(verdict, End)
    assert not verdict.succeeded
    assert verdict.message.endswith(case.want_in_message)
    assert verdict.failure is not None
    assert verdict.failure.message == verdict.message


def test_a_shard_whose_node_has_the_checkpoints_may_be_lost_even_without_a_claim() -> None:
    found = decided(trained(output={}), all_but(without=("ps-1",)), **RUNNING)
    assert [restart.name for restart in status_of(found).recovery.restarts] == ["ps-1"]


NO_LOSS: list[tuple[str, tuple[PodSeen, ...], dict[str, Any]]] = [
    ("a script that fails is an error", all_but(worker(1)), RUNNING),
    ("a worker that needs more memory than it may have would again", all_but(worker(137, reason="OOMKilled")), RUNNING),
    ("so would a shard", all_but(shard(137, reason="OOMKilled")), RUNNING),
    ("a shard with wrong options", all_but(shard(2)), RUNNING),
    ("a worker that ended well", all_but(worker(0)), RUNNING),
    ("a worker that ended well before it was deleted", all_but(deleted("cpu-1", running=False, ended=60)), RUNNING),
    (
        "a worker that had finished, whose pod is gone",
        all_but(without=("cpu-1",)),
        {
            "training": seen(
                make_state(
                    workers={"cpu-0": control_pb2.WORKER_PHASE_TRAINING, "cpu-1": control_pb2.WORKER_PHASE_FINISHED}
                )
            )
        },
    ),
    ("a worker at the end of all", all_but(without=("cpu-1",)), {"training": seen(make_state(FINISHING))}),
    (
        "the coordinator has said that the job failed",
        all_but(make_pod("ps-0", coordinator=make_end(1, message=outcome("Failed", "WorkerLost"))), without=("cpu-1",)),
        RUNNING,
    ),
    (
        "the coordinator has said that the job is done",
        all_but(make_pod("ps-0", coordinator=make_end(0, message=outcome("Succeeded", "EpochsCompleted"))), shard(137)),
        RUNNING,
    ),
]


@pytest.mark.parametrize(("found", "fields"), [c[1:] for c in NO_LOSS], ids=[c[0] for c in NO_LOSS])
def test_what_is_no_loss_is_never_started_again(found: tuple[PodSeen, ...], fields: dict[str, Any]) -> None:
    decision = decided(trained(), found, **fields)
    assert losses(viewed(trained(), found, **fields)) == ()
    assert (decision.make, status_of(decision).recovery.restarts) == ((), ())


def test_before_training_a_pod_is_made_again_at_once_and_not_counted() -> None:
    job = make_job(status=make_status(), **SAFE)
    decision = decided(job, all_but(without=("cpu-1",)))
    assert made(decision) == ["fashion-cpu-1-2"]
    assert decision.status is None or not status_of(decision).recovery.restarts


def test_a_pod_of_which_only_one_container_has_ended_is_deleted_as_its_successor_is_made() -> None:
    found = all_but(make_pod("ps-0", coordinator=make_end(137)))
    second = decided(trained(status_of(decided(trained(), found))), found)
    assert [(delete.name, delete.why) for delete in second.delete] == [
        ("fashion-ps-0-1", "a later attempt does its work")
    ]
    assert made(second) == ["fashion-ps-0-2"]


def test_what_was_replaced_says_nothing_about_the_job_any_more() -> None:
    status = restarted("ps-0", 1, pod="fashion-ps-0-2")
    old = make_pod("ps-0", phase="Failed", coordinator=make_end(1, message="Traceback"), trainer=make_end(1))
    assert judge(viewed(trained(status), (*all_but(make_pod("ps-0", attempt=2)), old), **RUNNING)) is None


def test_while_the_cause_of_a_failure_is_looked_for_nothing_is_started_again() -> None:
    found = all_but(make_pod("cpu-0", phase="Failed", trainer=make_end(1, seconds_ago=1)), without=("cpu-1",))
    decision = decided(trained(), found, **RUNNING)
    assert (decision.make, status_of(decision).recovery.restarts) == ((), ())


def test_the_coordinator_is_told_to_expect_what_is_lost_back() -> None:
    (config,) = [
        TrainerConfig.model_validate_json(make.manifest["metadata"]["annotations"][Annotation.TRAINER_CONFIG])
        for make in decided(make_job(**SAFE)).make
        if make.name_in_job == "ps-0"
    ]
    assert (config.restore_limit, config.recovery_seconds) == (3, 600.0)


# What is said.


def awaiting() -> Decision:
    status = restarted("ps-1", 2)
    return decided(trained(status), all_but(without=("ps-1",)), training=seen(make_state(), connected=False))


def test_the_condition_says_what_is_lost_and_why_and_how_often() -> None:
    assert condition(awaiting(), ConditionType.RECOVERING) == (
        "True", "Evicted", "ps-1 is started again (2 of at most 3 times): was taken",
    )  # fmt: skip
    assert condition(awaiting(), ConditionType.TRAINING) == ("False", "Evicted", "waiting for ps-1, which was lost")


def test_once_it_runs_the_condition_says_what_it_cost() -> None:
    state = make_state(restores=1, rounds_lost=7, checkpoint_version=30)
    decision = decided(trained(restarted("ps-1", 1)), all_but(make_pod("ps-1", attempt=2)), training=seen(state))
    what = status_of(decision).recovery
    assert (what.restores, what.rounds_lost, what.checkpoint_version) == (1, 7, 30)
    assert what.restarts[0].pod == "fashion-ps-1-2"
    status, reason, words = condition(decision, ConditionType.RECOVERING)
    assert (status, reason) == ("False", "Recovered")
    cost = "the training went back to a checkpoint once, 7 rounds were trained again"
    assert words == f"1 pod was started again: ps-1 (Evicted); {cost}"


class Told(NamedTuple):
    text: str
    state: control_pb2.JobState | None
    """What the coordinator said last."""
    want: str
    before: ConditionStatus = ConditionStatus.FALSE
    """Of the condition."""


RUNS_AGAIN = "ps-1 runs again (1 of at most 3 times): was taken; the training goes back to a checkpoint"
TOLD = [
    Told("the loss has not been seen yet", make_state(term=2), RUNS_AGAIN),
    Told("the new server is waited for", make_state(WAITING, term=2), RUNS_AGAIN),
    Told("the workers come back", make_state(WAITING, term=3), RUNS_AGAIN),
    Told("it trains again", make_state(term=3, restores=1), ""),
    Told("a server was lost before the new term trained", make_state(WAITING, term=4, restores=2), RUNS_AGAIN),
    Told("the workers come back from a later loss", make_state(WAITING, term=5, restores=3), ""),
    Told("the model is being saved: nothing goes back", make_state(FINISHING, term=2), ""),
    Told("a new operator, while it goes back", None, RUNS_AGAIN, before=ConditionStatus.TRUE),
    Told("a new operator, when it has long been back", None, ""),
]


@pytest.mark.parametrize("case", TOLD, ids=[case.text for case in TOLD])
def test_a_server_that_runs_is_made_good_once_the_training_has_gone_back(case: Told) -> None:
    status = restarted("ps-1", 1, pod="fashion-ps-1-2", term=2)
    old = set_condition(
        status.conditions, ConditionType.RECOVERING, case.before, Reason.EVICTED, generation=1, now=ago(60)
    )
    job = trained(status.model_copy(update={"conditions": old.conditions}))
    training = {} if case.state is None else {"training": seen(case.state)}
    decision = decided(job, all_but(make_pod("ps-1", attempt=2)), now=in_(30), **training)
    said = condition(decision, ConditionType.RECOVERING)
    assert said[:2] == (("True", "Evicted") if case.want else ("False", "Recovered"))
    assert case.want in said[2]


@pytest.mark.parametrize(
    ("state", "want"),
    [
        pytest.param(make_state(term=4), 4, id="while it trained"),
        pytest.param(make_state(WAITING, term=4), 3, id="before it trained: the term may go on with the new server"),
        pytest.param(None, 0, id="unknown"),
    ],
)
def test_a_loss_is_written_down_with_the_term_that_had_trained(state: control_pb2.JobState | None, want: int) -> None:
    training = {} if state is None else {"training": seen(state)}
    first = decided(trained(), all_but(without=("ps-1",)), **training)
    assert [restart.term for restart in status_of(first).recovery.restarts] == [want]


def test_a_server_lost_while_the_job_gathered_is_made_good_by_the_same_term() -> None:
    status = restarted("ps-1", 1, pod="fashion-ps-1-2", term=2)
    pods_now = all_but(make_pod("ps-1", attempt=2))
    said = [
        condition(decided(trained(status), pods_now, training=seen(state)), ConditionType.RECOVERING)[0]
        for state in (make_state(WAITING, term=3), make_state(term=3))
    ]
    assert said == ["True", "False"]


def test_of_several_servers_only_those_lost_last_are_named() -> None:
    old = restarted("ps-0", 1, pod="fashion-ps-0-2", term=1).recovery.restarts
    new = restarted("ps-1", 1, pod="fashion-ps-1-2", term=2).recovery.restarts
    status = training_status(recovery=Recovery(restarts=old + new))
    found = all_but(make_pod("ps-0", attempt=2), make_pod("ps-1", attempt=2))
    said = condition(
        decided(trained(status), found, training=seen(make_state(WAITING, term=3))), ConditionType.RECOVERING
    )
    assert said == ("True", "Evicted", RUNS_AGAIN)


def test_the_end_still_says_what_was_lost() -> None:
    good = make_pod("ps-0", coordinator=make_end(0, message=outcome("Succeeded", "EpochsCompleted")))
    decision = decided(
        trained(restarted("cpu-1", 2, pod="fashion-cpu-1-3")), all_but(good, make_pod("cpu-1", attempt=3))
    )
    assert condition(decision, ConditionType.RECOVERING) == (
        "False", "Recovered", "2 pods were started again: cpu-1 2 times",
    )  # fmt: skip


# Time limits.


def test_a_parameter_server_that_does_not_come_back_ends_the_job_with_the_schedulers_words() -> None:
    status = restarted("ps-1", 1, pod="fashion-ps-1-2")
    pending = make_pod("ps-1", attempt=2, phase="Pending", node="", unschedulable="0/4 nodes are available")
    verdict = judge(viewed(trained(status), all_but(pending), **RUNNING))
    assert verdict is None
    long_ago = status.model_copy(
        update={"recovery": Recovery(restarts=(status.recovery.restarts[0].model_copy(update={"time": ago(601)}),))}
    )
    verdict = judge(viewed(trained(long_ago), all_but(pending), **RUNNING))
    assert isinstance(verdict, End)
    late = "parameter server ps-1 was started again and does not run after 600 s"
    words = f"{late}: pod fashion-ps-1-2: 0/4 nodes are available"
    assert (verdict.reason, verdict.message) == ("Unschedulable", words)


def test_a_worker_may_come_back_whenever_it_can() -> None:
    status = restarted("cpu-1", 1, pod="fashion-cpu-1-2")
    late = status.model_copy(
        update={"recovery": Recovery(restarts=(status.recovery.restarts[0].model_copy(update={"time": ago(9000)}),))}
    )
    pending = make_pod("cpu-1", attempt=2, phase="Pending", node="", unschedulable="no room")
    assert judge(viewed(trained(late), all_but(pending), **RUNNING)) is None


# An operator that was away.


READY = (ConditionType.PODS_READY, ConditionStatus.TRUE, Reason.ALL_PODS_READY)
STARTING = (ConditionType.PODS_READY, ConditionStatus.FALSE, Reason.PODS_PENDING)
NO_IMAGE = (ConditionType.PODS_READY, ConditionStatus.FALSE, Reason.IMAGE_PULL_FAILED)


@pytest.mark.parametrize("status", [make_status(READY, at=1), make_status(STARTING, at=121)], ids=["ran", "long ago"])
def test_a_job_that_may_have_trained_while_nobody_looked_is_not_trained_again(status: HeteroTrainJobStatus) -> None:
    decision = decided(make_job(status=status), (), first_look=True)
    assert decision.make == ()
    assert condition(decision, ConditionType.SUCCEEDED)[:2] == ("False", "PodDeleted")
    assert "what may be done already is not done again" in condition(decision, ConditionType.SUCCEEDED)[2]


def test_with_checkpoints_it_goes_on_from_the_newest_which_may_be_its_end() -> None:
    job = make_job(status=make_status(READY), **SAFE)
    first = decided(job, all_but(without=("ps-0", "cpu-0")), first_look=True)
    assert [restart.name for restart in status_of(first).recovery.restarts] == ["ps-0", "cpu-0"]
    # An operator that dies here has counted them; it would not, had it made the pods first.
    assert (first.make, first.wake_at, first.looked) == ((), NOW, True)
    second = decided(make_job(status=status_of(first), **SAFE), all_but(without=("ps-0", "cpu-0")))
    assert made(second) == ["fashion-ps-0-2", "fashion-cpu-0-2"]


def test_what_is_still_ending_when_an_operator_comes_back_is_judged_when_it_has_ended() -> None:
    job = make_job(status=make_status(READY), **SAFE)
    first = decided(job, all_but(deleted("ps-1"), without=("ps-0", "cpu-0")), first_look=True)
    assert (first.make, first.wake_at, first.looked) == ((), in_(18), False)
    later = decided(job, all_but(without=("ps-0", "ps-1", "cpu-0")), first_look=not first.looked)
    assert [restart.name for restart in status_of(later).recovery.restarts] == ["ps-0", "ps-1", "cpu-0"]


def test_a_pod_that_takes_the_place_of_a_lost_one_is_said_once() -> None:
    job = make_job(status=make_status(READY), **SAFE)
    first = decided(job, all_but(without=("ps-0",)), first_look=True)
    second = decided(make_job(status=status_of(first), **SAFE), all_but(without=("ps-0",)))
    said = [event.reason for decision in (first, second) for event in decision.events]
    assert [reason for reason in said if reason in {"PodRestarted", "PodsReplaced"}] == ["PodRestarted"]


NOT_TRAINED: list[tuple[str, HeteroTrainJobStatus | None, bool]] = [
    ("an operator looked all the time", make_status(READY), False),
    ("none of its pods ever existed", None, True),
    ("its pods were being started a moment ago", make_status(STARTING, at=60), True),
    ("its pods lacked their image", make_status(NO_IMAGE, at=3600), True),
]


@pytest.mark.parametrize(("status", "first"), [c[1:] for c in NOT_TRAINED], ids=[c[0] for c in NOT_TRAINED])
def test_a_job_that_cannot_have_trained_gets_its_pods_again(status: HeteroTrainJobStatus | None, first: bool) -> None:
    assert made(decided(make_job(status=status), (), first_look=first)) != []


@pytest.mark.parametrize("phase", [TRAINING, control_pb2.PHASE_WAITING], ids=["training", "waiting after a restore"])
def test_a_loss_while_the_job_is_gathering_again_counts_as_well(phase: control_pb2.Phase.ValueType) -> None:
    found = decided(trained(), all_but(without=("cpu-1",)), training=seen(make_state(phase)))
    assert [restart.name for restart in status_of(found).recovery.restarts] == ["cpu-1"]


def test_two_losses_at_once_are_both_made_good() -> None:
    found = all_but(without=("ps-1", "cpu-1"))
    first = decided(trained(), found, **RUNNING)
    second = decided(trained(status_of(first)), found, **RUNNING)
    assert made(second) == ["fashion-ps-1-2", "fashion-cpu-1-2"]


def test_a_shard_that_has_time_to_end_holds_the_others_up_no_longer_than_that() -> None:
    verdict = judge(viewed(trained(), all_but(deleted("ps-1")), **RUNNING))
    assert verdict == Wait(in_(18), "parameter server ps-1 is lost; its place is given away soon")


def test_an_account_of_the_coordinator_ends_the_job_even_if_its_pod_is_replaced_at_once() -> None:
    gone = replace(
        make_pod("ps-0", coordinator=make_end(0, message=outcome("Succeeded", "EpochsCompleted"))), deleting=True
    )
    verdict = judge(viewed(trained(), all_but(gone), **RUNNING))
    assert isinstance(verdict, End)
    assert verdict.succeeded
    assert [seen.name for seen in gone.containers] == [Container.TRAINER, Container.COORDINATOR]
