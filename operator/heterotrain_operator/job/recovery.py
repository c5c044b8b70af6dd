"""What the status says of losses: counted once, with the reasons; and the condition Recovering. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from heterotrain_api.conditions import ConditionType, Reason, is_true
from heterotrain_api.contract import Role
from heterotrain_api.status import ConditionStatus, HeteroTrainJobStatus, Recovery, Restart
from heterotrain_operator.job.children import next_attempt
from heterotrain_operator.job.diagnosis import Readiness
from heterotrain_operator.job.failures import fills
from heterotrain_operator.job.figures import count
from heterotrain_operator.job.losses import Loss, is_awaited, losses
from heterotrain_operator.job.restart_rules import limit_of
from heterotrain_operator.job.slots import Slot
from heterotrain_operator.job.statement import Statement
from heterotrain_operator.job.view import View
from heterotrain_rpc import control_pb2

_NAMED: Final = 8
"""Places that the words name; of more the number is said."""


def recovery(view: View, *, hold: bool) -> Recovery:
    """What is to be written. `hold`: the job has ended, or may be about to, and nothing is started again."""
    old = view.status.recovery
    restarts = {restart.name: _seen(view, restart) for restart in old.restarts}
    for loss in () if hold else losses(view):
        if not loss.obstacle and loss.due <= view.now:
            restarts[loss.slot.name] = _counted(view, loss)
    state = view.state
    if state is None:
        return old.model_copy(update={"restarts": tuple(restarts.values())})
    return Recovery(
        restarts=tuple(restarts.values()),
        # A coordinator that is started again hears of those before it from the disk, once it has opened its term.
        restores=max(count(state.restores), old.restores),
        rounds_lost=max(count(state.rounds_lost), old.rounds_lost),
        checkpoint_version=(
            count(state.checkpoint_version) if state.HasField("checkpoint_version") else old.checkpoint_version
        ),
    )


def has_news(view: View, new: HeteroTrainJobStatus) -> bool:
    """Whether `new` gives places to other attempts, so that the next pass has pods to make."""
    attempts = {restart.name: restart.attempt for restart in view.status.recovery.restarts}
    return any(attempts.get(restart.name) != restart.attempt for restart in new.recovery.restarts)


def fresh(view: View, new: HeteroTrainJobStatus) -> Iterator[Restart]:
    """The losses that `new` tells of and the status before did not."""
    counts = {restart.name: restart.count for restart in view.status.recovery.restarts}
    yield from (restart for restart in new.recovery.restarts if restart.count > counts.get(restart.name, 0))


def times_words(view: View, restart: Restart) -> str:
    """``1 of at most 3 times``."""
    slot = next((slot for slot in view.pods if slot.name == restart.name), None)
    most = "" if slot is None or view.job is None else f" of at most {limit_of(view.job.spec, slot)}"
    return f"{restart.count}{most} times"


def recovering(view: View, ready: Readiness) -> Statement:
    """The condition of a job that is not over."""
    away = tuple(_away(view, ready))
    if away:
        return Statement(ConditionStatus.TRUE, away[0].reason, _each(view, away, "is started again"))
    behind = _behind(view)
    if behind:
        words = f"{_each(view, behind, 'runs again')}; the training goes back to a checkpoint"
        return Statement(ConditionStatus.TRUE, behind[0].reason, words)
    return recovered(view.status.recovery)


def recovered(what: Recovery) -> Statement:
    """The condition while nothing is lost, or when the job is over: what was, in all."""
    if not what.restarts and not what.restores:
        return Statement(ConditionStatus.FALSE, Reason.NOTHING_LOST, "nothing of the job was lost")
    total = sum(restart.count for restart in what.restarts)
    pods = "1 pod was" if total == 1 else f"{total} pods were"
    each = [_times(restart) for restart in what.restarts]
    words = f"{pods} started again: {_listed(each, ', ')}" if each else "no pod was lost"
    if what.restores:
        times = "once" if what.restores == 1 else f"{what.restores} times"
        rounds = "1 round was" if what.rounds_lost == 1 else f"{what.rounds_lost} rounds were"
        words += f"; the training went back to a checkpoint {times}, {rounds} trained again"
    return Statement(ConditionStatus.FALSE, Reason.RECOVERED, words)


def lost_servers(view: View, ready: Readiness) -> tuple[Restart, ...]:
    """Parameter servers that are being started again: without them nothing is trained."""
    servers = {slot.name for slot in view.pods if slot.role is Role.PS}
    return tuple(restart for restart in _away(view, ready) if restart.name in servers)


def _away(view: View, ready: Readiness) -> Iterator[Restart]:
    """Of the places that were lost those whose pod does not run and answer yet."""
    for slot in view.pods:
        restart = view.restart_of(slot)
        if restart is not None and (is_awaited(view, slot) or _is_away(view, slot, restart, ready)):
            yield restart


def _behind(view: View) -> tuple[Restart, ...]:
    """Parameter servers that run again and without which the training has not gone on yet: those lost last.

    The coordinator may take a server that is gone for a slow connection longer than its successor takes to start.
    """
    found = (view.restart_of(slot) for slot in view.pods if slot.role is Role.PS)
    restarts = [restart for restart in found if restart is not None]
    newest = max((restart.term for restart in restarts), default=0)
    lasts = (
        is_true(view.status.conditions, ConditionType.RECOVERING) if view.state is None else _lasts(view.state, newest)
    )
    return tuple(restart for restart in restarts if restart.term == newest) if lasts else ()


def _lasts(state: control_pb2.JobState, term: int) -> bool:
    """Whether the job has not trained again since it lost a server while, or after, it trained in `term`."""
    if state.phase == control_pb2.PHASE_WAITING:
        # The next term, or the one after that if a server was lost before that had begun to train.
        return state.term <= term + 2
    return state.phase == control_pb2.PHASE_TRAINING and state.term <= term


def _is_away(view: View, slot: Slot, restart: Restart, ready: Readiness) -> bool:
    pod = fills(view, view.pods[slot])
    if pod is None:
        return False
    return pod.attempt < restart.attempt or (slot in ready.by_slot and pod.phase in ("Pending", "Running"))


def _seen(view: View, restart: Restart) -> Restart:
    """With the name of its pod, once that is there."""
    slot = next((slot for slot in view.pods if slot.name == restart.name), None)
    pod = None if slot is None or restart.pod else fills(view, view.pods[slot])
    return restart if pod is None else restart.model_copy(update={"pod": pod.name})


def _counted(view: View, loss: Loss) -> Restart:
    before = view.restart_of(loss.slot)
    return Restart(
        name=loss.slot.name,
        count=1 if before is None else before.count + 1,
        attempt=next_attempt(view, loss.slot),
        reason=loss.failure.reason,
        message=loss.failure.message,
        time=view.now,
        term=_trained_in(view.state),
    )


def _trained_in(state: control_pb2.JobState | None) -> int:
    """The last term in which the job trained; 0: not known."""
    if state is None:
        return 0
    return max(0, count(state.term) - (state.phase == control_pb2.PHASE_WAITING))


def _each(view: View, restarts: Sequence[Restart], does: str) -> str:
    words = [f"{restart.name} {does} ({times_words(view, restart)}): {restart.message}" for restart in restarts]
    return _listed(words, "; ")


def _times(restart: Restart) -> str:
    return f"{restart.name} ({restart.reason})" if restart.count == 1 else f"{restart.name} {restart.count} times"


def _listed(words: list[str], separator: str) -> str:
    more = f"{separator}{len(words) - _NAMED} more" if len(words) > _NAMED else ""
    return separator.join(words[:_NAMED]) + more
