"""Whether the job is over, and how: the outcome of the coordinator, failed containers, pods that are gone. Pure.

Before training a pod is simply made again. What a job loses later is started again where that is possible
(`heterotrain_operator.job.losses`); else it is over.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from heterotrain_api.conditions import ConditionType, Reason, get_condition, one_line
from heterotrain_api.contract import Container, ExitCode, Role
from heterotrain_api.status import ConditionStatus, Failure
from heterotrain_operator.job.diagnosis import readiness
from heterotrain_operator.job.failures import Cause, Rank, causes, fills, gone_failure, who
from heterotrain_operator.job.losses import (
    Loss,
    away_until,
    explained,
    filled,
    losses,
    may_have_trained,
    never_seen,
)
from heterotrain_operator.job.observed import PodSeen
from heterotrain_operator.job.outcome import Outcome, State, outcome_of_state
from heterotrain_operator.job.slots import (
    COORDINATOR_SLOT,
    Slot,
    container,
    is_done,
    is_gone,
    trainer_end,
)
from heterotrain_operator.job.view import View
from heterotrain_operator.job.word import Word, last_word
from heterotrain_rpc import control_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The job is over."""

    succeeded: bool
    reason: str
    message: str
    at: datetime
    failure: Failure | None = None
    outcome: Outcome | None = None
    """The coordinator's account, if there is one."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Something has ended badly; what else ends until then may name the cause."""

    until: datetime
    why: str


Verdict: TypeAlias = End | Wait | None

UNHEARD_EXIT_SECONDS: Final = 60.0
"""Between a shard's exit with code 0 and the end of the job, if the coordinator does not answer: it may have ended too,
and the kubelet of its node be late to say so."""
_OF_OTHERS: Final = frozenset({Reason.WORKER_FAILED, Reason.WORKER_LOST, Reason.SHARD_FAILED})
"""What a coordinator says of other processes; their own ends say it better."""
_LOSSES: Final = frozenset({Reason.WORKER_LOST, Reason.SHARD_FAILED})


def judge(view: View) -> Verdict:
    """Whether the job is over; `None`: it is not, and nothing has failed."""
    word, lost = last_word(view), losses(view)
    mended = {loss.slot for loss in lost if not loss.obstacle} | set(filled(view))
    if word is not None and not word.own and COORDINATOR_SLOT in mended:
        word = None
    if word is not None and word.outcome.state is State.SUCCEEDED:
        return _end_by(view, word, succeeded=True)
    if word is not None and word.pod is not None and is_gone(word.pod):
        # Told to end because its pod was taken away: what it says of that is no wish of the user's.
        return _failed(view, gone_failure(COORDINATOR_SLOT, word.pod), word.at, word.outcome)
    if word is not None and word.outcome.state is State.STOPPED:
        return _end_by(view, word, succeeded=False)
    found = causes(view, gone=view.began or word is not None, mended=mended)
    if word is not None:
        return _after_failed_word(view, word, [cause for cause in found if cause.rank is Rank.OWN])
    if found:
        return _after_failed_container(view, found[0])
    return _by_absence(view, lost, mended)


def _by_absence(view: View, lost: Sequence[Loss], mended: Collection[Slot]) -> Verdict:
    """Nobody has said anything; what is not there any more may say enough."""
    if may_have_trained(view) and COORDINATOR_SLOT not in mended:
        return _failed(view, never_seen(view), None, None)
    return _lost(view, mended) or _ended_early(view) or _too_long_away(view) or _not_due(view, lost)


def _not_due(view: View, lost: Sequence[Loss]) -> Wait | None:
    """What is lost has something to finish, or may be no loss at all."""
    waits = [loss for loss in lost if not loss.obstacle and loss.due > view.now]
    first = min(waits, key=lambda loss: loss.due, default=None)
    return None if first is None else Wait(first.due, f"{who(first.slot)} is lost; its place is given away soon")


def _too_long_away(view: View) -> End | None:
    """A parameter server that was started again and does not run: the others wait for it, and hold their machines."""
    late = [slot for slot in view.pods if (until := away_until(view, slot)) is not None and until <= view.now]
    if not late:
        return None
    trouble = readiness(view).by_slot.get(late[0])
    reason, words = (Reason.PODS_PENDING, "") if trouble is None else (trouble.reason, f": {trouble.text}")
    pod = fills(view, view.pods[late[0]])
    seconds = f"{view.settings.recovery_seconds:g} s"
    message = one_line(f"{who(late[0])} was started again and does not run after {seconds}{words}")
    return _failed(view, Failure(pod="" if pod is None else pod.name, reason=reason.value, message=message), None, None)


def _after_failed_word(view: View, word: Word, found: list[Cause]) -> Verdict:
    if found:
        return _failed(view, found[0].failure, found[0].at, word.outcome)
    if word.outcome.reason in _LOSSES:
        lost = _missing(view)
        if lost is not None:
            return _failed(view, lost, word.at, word.outcome)
    if word.outcome.reason in _OF_OTHERS and _is_settling(view, word.at):
        return _wait(view, word.at, "the coordinator says that another process failed")
    return _end_by(view, word, succeeded=False)


def _after_failed_container(view: View, cause: Cause) -> Verdict:
    pod = view.coordinator_pod
    coordinator = None if pod is None else container(pod, Container.COORDINATOR)
    if coordinator is not None and coordinator.state == "running" and _is_settling(view, cause.at):
        return _wait(view, cause.at, f"pod {cause.failure.pod} failed; the coordinator has not said so yet")
    lost = _missing(view) if view.began and cause.rank is Rank.CONSEQUENCE else None
    return _failed(view, lost or cause.failure, cause.at, None)


def _missing(view: View) -> Failure | None:
    """The first slot whose pod was taken away before its work was done."""
    for slot, pods in view.pods.items():
        if fills(view, pods) is None and not _is_accounted_for(view, slot):
            return gone_failure(slot, pods[-1] if pods else None, name=view.last_name(slot))
    return None


def _lost(view: View, mended: Collection[Slot]) -> Verdict:
    """Pods that were taken away from a job that has begun and are not started again."""
    if not view.began or view.job is None:
        return None
    waits: list[Wait] = []
    for slot, pods in view.pods.items():
        if slot in mended or fills(view, pods) is not None or _is_accounted_for(view, slot):
            continue
        failure = gone_failure(slot, pods[-1] if pods else None, name=view.last_name(slot))
        until = _not_ready_since(view) + timedelta(seconds=_patience_seconds(view, slot, ending=bool(pods)))
        if view.now >= until:
            return _failed(view, failure, None, None)
        waits.append(Wait(until, f"{who(slot)} is gone; how its job ends is not known yet"))
    return min(waits, key=lambda wait: wait.until, default=None)


def _patience_seconds(view: View, slot: Slot, *, ending: bool) -> float:
    """How long to wait for a better word on a pod that was taken away.

    A process that is being ended may leave one until its grace is over. Beyond that only the coordinator, if it lives,
    can tell more: that a worker had finished, or that it is saving the model without the others.
    """
    assert view.job is not None  # noqa: S101  # the caller has looked
    grace = view.settings.termination_grace_seconds + view.settings.settle_seconds if ending else 0.0
    if view.coordinator_pod is None or (slot.role is Role.PS and not _is_finishing(view)):
        return grace
    return grace + view.job.spec.synchronization.lease_seconds + 2 * view.settings.settle_seconds


def _ended_early(view: View) -> Verdict:
    """Processes that ended without an error, but before their work was done."""
    waits: list[Wait] = []
    for slot, pods in view.pods.items():
        pod = fills(view, pods)
        end = None if pod is None else trainer_end(pod)
        if pod is None or end is None or end.exit_code != ExitCode.SUCCEEDED:
            continue
        if slot.role is Role.WORKER:
            if _never_joined(view, slot, end.finished_at):
                message = (
                    f"{who(slot)} (pod {pod.name}) ended without joining: does its script call heterotrain.join()?"
                )
                return _early(view, pod, Reason.WORKER_FAILED, message, end.finished_at)
            continue
        if _said_the_end(view):  # its container's account is on the way, from a kubelet that may be slow
            continue
        patience = timedelta(seconds=view.settings.shard_exit_seconds if view.connected else UNHEARD_EXIT_SECONDS)
        until = min(end.finished_at or view.now - patience, view.now) + patience
        if view.now >= until:
            message = f"{who(slot)} (pod {pod.name}) ended before the job did"
            return _early(view, pod, Reason.SHARD_FAILED, message, end.finished_at)
        waits.append(Wait(until, f"{who(slot)} has ended; the coordinator has not yet"))
    return min(waits, key=lambda wait: wait.until, default=None)


def _early(view: View, pod: PodSeen, reason: Reason, message: str, at: datetime | None) -> End:
    failure = Failure(
        pod=pod.name, container=Container.TRAINER, exit_code=0, reason=reason.value, message=one_line(message)
    )
    return _failed(view, failure, at, None)


def _never_joined(view: View, slot: Slot, ended: datetime | None) -> bool:
    training, worker = view.observed.training, view.worker_state(slot.name)
    if training is None or worker is None or not training.connected:
        return False
    return worker.phase == control_pb2.WORKER_PHASE_ABSENT and ended is not None and training.received_at > ended


def _is_accounted_for(view: View, slot: Slot) -> bool:
    """Whether nothing is missed of a slot without a pod: its worker had finished."""
    return slot.role is Role.WORKER and (
        view.has_finished(slot) or any(is_done(pod) for pod in view.pods.get(slot, ()))
    )


def _said_the_end(view: View) -> bool:
    """Whether the coordinator told over its channel how the job ended."""
    return view.state is not None and outcome_of_state(view.state) is not None


def _is_finishing(view: View) -> bool:
    state = view.state
    return state is not None and state.phase > control_pb2.PHASE_TRAINING


def _not_ready_since(view: View) -> datetime:
    """Since when the status says that not all pods are ready; now, if it does not say so yet."""
    ready = get_condition(view.status.conditions, ConditionType.PODS_READY)
    if ready is None or ready.status is not ConditionStatus.FALSE:
        return view.now
    return ready.last_transition_time


def _is_settling(view: View, at: datetime | None) -> bool:
    """Whether it is too early to name the cause. A time in the future (another clock) is waited for no longer."""
    if at is None:
        return False
    settle = timedelta(seconds=view.settings.settle_seconds)
    return at - settle <= view.now < at + settle


def _wait(view: View, at: datetime | None, why: str) -> Wait:
    settle = timedelta(seconds=view.settings.settle_seconds)
    return Wait((at or view.now) + settle, why)


def _end_by(view: View, word: Word, *, succeeded: bool) -> End:
    outcome = word.outcome
    reason = outcome.reason or (Reason.SUCCEEDED if succeeded else Reason.COORDINATOR_FAILED)
    failure = None
    if outcome.state is State.FAILED:
        failure = Failure(
            pod=_blamed_pod(view, word),
            container=Container.COORDINATOR if reason == Reason.COORDINATOR_FAILED else "",
            reason=known_reason(reason),
            message=one_line(outcome.message),
        )
    return End(
        succeeded=succeeded,
        reason=known_reason(Reason.STOPPED if outcome.state is State.STOPPED else reason),
        message=outcome.message or reason,
        at=min(word.at or view.now, view.now),
        failure=failure,
        outcome=outcome,
    )


def _blamed_pod(view: View, word: Word) -> str:
    """The pod that the coordinator's words are about: a worker that it names, else its own."""
    for slot, pods in view.pods.items():
        if pods and re.search(rf"{re.escape(who(slot))}(?![\w-])", word.outcome.message):
            return pods[-1].name
    return "" if word.pod is None else word.pod.name


def _failed(view: View, failure: Failure, at: datetime | None, outcome: Outcome | None) -> End:
    failure = explained(view, failure)
    return End(
        succeeded=False,
        reason=failure.reason,
        message=failure.message,
        at=min(at or view.now, view.now),
        failure=failure,
        outcome=outcome,
    )


def known_reason(reason: str) -> str:
    """`reason` if it is in the documented list, as a newer trainer may say others; else that it failed."""
    return reason if reason in set(Reason) else Reason.COORDINATOR_FAILED.value
