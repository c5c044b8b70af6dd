"""What a job that trains has lost of its pods, and whether that may be started again. Pure.

A loss is written into the status first, with the attempt that takes its place; the pass after that makes the pod
(`heterotrain_operator.job.children`). So it is counted once, whatever becomes of the operator in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from heterotrain_api.conditions import ConditionType, Reason, get_condition, one_line
from heterotrain_api.contract import Container, ExitCode, Role
from heterotrain_api.status import ConditionStatus, Failure
from heterotrain_operator.job.failures import failure_of, fills, gone_failure, who
from heterotrain_operator.job.membership import is_newcomer
from heterotrain_operator.job.observed import ContainerEnd, PodSeen
from heterotrain_operator.job.outcome import OOM_KILLED
from heterotrain_operator.job.restart_rules import limit_of, obstacle
from heterotrain_operator.job.slots import COORDINATOR_SLOT, Slot, container_end, trainer_end
from heterotrain_operator.job.view import View
from heterotrain_operator.job.word import last_word
from heterotrain_rpc import control_pb2

UNWATCHED: Final = timedelta(minutes=2)
"""An operator that runs has looked since; in less time pods that were not ready hardly train and finish."""
FIRST_SIGNAL: Final = 128
"""Exit codes above are 128 and the number of the signal that killed the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A place whose pod does not do its work any more."""

    slot: Slot
    failure: Failure
    """What a job that cannot go on without it fails with."""
    at: datetime | None
    """When it was lost, if that is known."""
    due: datetime
    """From when on its place is given to another pod: the old one may have something to finish."""
    obstacle: str = ""
    """Why it cannot be started again; empty: it can."""


def losses(view: View) -> tuple[Loss, ...]:
    """What is lost now and not written down yet, in the order of the places. None once the coordinator has said how the
    job ended: that stands.
    """
    word = last_word(view)
    if view.job is None or (word is not None and word.own) or not (view.began or may_have_trained(view)):
        return ()
    being_filled = set(filled(view))
    return tuple(loss for slot in view.pods if slot not in being_filled for loss in _loss_of(view, slot))


def is_awaited(view: View, slot: Slot) -> bool:
    """Whether the place was given to an attempt whose pod has not been seen yet."""
    restart = view.restart_of(slot)
    return restart is not None and not restart.pod and fills(view, view.pods.get(slot, ())) is None


def filled(view: View) -> Iterator[Slot]:
    """Places without a pod that get one, and whose lack is no failure."""
    for slot, pods in view.pods.items():
        if is_awaited(view, slot) or (fills(view, pods) is None and is_newcomer(view, slot)):
            yield slot


def may_have_trained(view: View) -> bool:
    """Whether the job may have trained, and even finished, while nobody looked: all its pods existed and ran, or had
    the time to, and of the coordinator's nothing is left that tells.
    """
    looked_away = view.observed.first_look and view.status.attempt > 0 and not view.began
    if not looked_away or view.coordinator_pod is not None or last_word(view) is not None:
        return False
    ready = get_condition(view.status.conditions, ConditionType.PODS_READY)
    if ready is None or ready.status is ConditionStatus.TRUE:
        return ready is not None
    # Pods that could not start then, for want of an image or a node, most likely never did.
    long_ago = view.status.update_time is None or view.now - view.status.update_time > UNWATCHED
    return ready.reason == Reason.PODS_PENDING and long_ago


def away_until(view: View, slot: Slot) -> datetime | None:
    """How long others wait for a parameter server that was started again; `None`: it runs, or was never lost."""
    restart = view.restart_of(slot)
    pod = fills(view, view.pods.get(slot, ()))
    if slot.role is not Role.PS or restart is None or (pod is not None and pod.phase != "Pending"):
        return None
    return restart.time + timedelta(seconds=view.settings.recovery_seconds)


def _loss_of(view: View, slot: Slot) -> Iterator[Loss]:
    pods = view.pods[slot]
    pod = fills(view, pods)
    if pod is None:
        last = next((pod for pod in reversed(pods) if not pod.replaced), None)
        if slot.role is Role.WORKER and _is_over_for(view, slot, last):
            return
        name = view.last_name(slot)
        failure = gone_failure(slot, last, name=name)
        yield _loss(view, slot, failure, _ended(last), _free_at(view, slot, last))
        return
    found = _killed(view, slot, pod)
    if found is not None:
        name, end = found
        due = view.now
        if end.exit_code == ExitCode.PEER_LOST and end.finished_at is not None:
            # A coordinator that ends the job sends its workers home: its word comes within seconds.
            settled = min(end.finished_at, view.now) + timedelta(seconds=view.settings.settle_seconds)
            due = max(view.now, settled)
        yield _loss(view, slot, failure_of(view, slot, pod, name, end), end.finished_at, due)


def _loss(view: View, slot: Slot, failure: Failure, at: datetime | None, due: datetime) -> Loss:
    return Loss(slot=slot, failure=failure, at=at, due=due, obstacle=_obstacle(view, slot))


def _killed(view: View, slot: Slot, pod: PodSeen) -> tuple[str, ContainerEnd] | None:
    """The container of a pod whose end is no fault of the script or the manifest, so that another try may go well."""
    if slot.role is Role.WORKER:
        end = trainer_end(pod)
        again = end is not None and (end.exit_code > FIRST_SIGNAL or end.exit_code == ExitCode.PEER_LOST)
        return (Container.TRAINER, end) if end is not None and again and end.reason != OOM_KILLED else None
    names = [Container.COORDINATOR, Container.TRAINER] if slot == COORDINATOR_SLOT else [Container.TRAINER]
    for name in names:
        end = container_end(pod, name)
        if end is None or end.reason == OOM_KILLED or end.exit_code == ExitCode.INVALID:
            continue
        # A shard that ends well may have been sent home; a coordinator that ends well has left its account.
        if end.exit_code != ExitCode.SUCCEEDED:
            return name, end
    return None


def _is_over_for(view: View, slot: Slot, last: PodSeen | None) -> bool:
    """Whether nothing is missed of a worker whose pod is gone: it had finished, or all have."""
    state = view.state
    if state is not None and state.phase > control_pb2.PHASE_TRAINING:
        return True
    return last is None and view.has_finished(slot)


def _free_at(view: View, slot: Slot, last: PodSeen | None) -> datetime:
    """A parameter server writes and answers until it has ended: two of one name must not. A node that is cut off never
    tells of the end: the time that the pod was given must do.
    """
    if slot.role is Role.WORKER or last is None or last.ends_by is None:
        return view.now
    running = any(seen.state == "running" for seen in last.containers)
    return last.ends_by + timedelta(seconds=view.settings.settle_seconds) if running else view.now


def _ended(pod: PodSeen | None) -> datetime | None:
    end = None if pod is None else trainer_end(pod)
    return None if end is None else end.finished_at


def cannot_restart(view: View, slot: Slot) -> str:
    """Why a pod of this place could not be started again if it were lost now; empty: it could."""
    if not view.began:
        return "training has not begun"
    return _obstacle(view, slot)


def _obstacle(view: View, slot: Slot) -> str:
    assert view.job is not None  # noqa: S101  # the caller has looked
    by_manifest = obstacle(view.job.spec, slot)
    restart = view.restart_of(slot)
    count = 0 if restart is None else restart.count
    if by_manifest:
        return by_manifest
    if not view.observed.secret_present:
        return "it cannot be started again, as the Secret with its certificates is gone"
    if count >= limit_of(view.job.spec, slot):
        times = "once" if count == 1 else f"{count} times"
        return f"it was started again {times} before, as often as spec.runPolicy.backoffLimit allows"
    return ""


def explained(view: View, failure: Failure) -> Failure:
    """The failure, with why what was lost was not started again."""
    for loss in losses(view):
        if loss.obstacle and loss.failure.pod == failure.pod and loss.failure.reason == failure.reason:
            return failure.model_copy(update={"message": one_line(f"{failure.message}; {loss.obstacle}")})
    return failure


def never_seen(view: View) -> Failure:
    """The failure of a job that may have trained while nobody looked, and cannot go on from a checkpoint."""
    message = (
        f"{who(COORDINATOR_SLOT)} is gone, and no operator ran to see whether the job had trained or ended: what may "
        "be done already is not done again; create the job again if it is needed"
    )
    return Failure(pod=view.last_name(COORDINATOR_SLOT), reason=Reason.POD_DELETED.value, message=message)
