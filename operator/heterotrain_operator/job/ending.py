"""What is left to do for a job that is over: its pods end by themselves, and are deleted if they do not. Pure.

Pods that have ended stay, for their logs, until somebody deletes the job. Nothing is ever made again.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from heterotrain_api.conditions import ConditionType, Reason, get_condition
from heterotrain_operator.job.decision import Decision, DeletePod
from heterotrain_operator.job.events import event, late_events, names
from heterotrain_operator.job.observed import PodSeen
from heterotrain_operator.job.requests import closed, desk
from heterotrain_operator.job.status import answered_status, is_changed
from heterotrain_operator.job.view import View

_ENDED: Final = frozenset({"Succeeded", "Failed"})


def after_the_end(view: View) -> Decision:
    """The pass of a job that is remembered to be over."""
    deadline = ended_at(view) + timedelta(seconds=view.settings.leftover_seconds)
    running = still_running(view)
    due = running if view.now >= deadline else ()
    status = answered_status(view, closed(desk(view), view, None).answers)
    events = late_events(view, status)
    if due:
        message = f"deleted what still ran {view.settings.leftover_seconds:g} s after the end: "
        events += (event(Reason.PODS_ENDED, message + names([pod.name for pod in due])),)
    write = bool(events) or is_changed(view, status)
    decision = Decision(
        delete=tuple(DeletePod(pod.name, pod.uid, "the job is over") for pod in due),
        status=status.to_document() if write else None,
        events=events,
        why="the job is over",
    )
    return replace(decision, wake_at=deadline) if running and not due else decision


def still_running(view: View) -> tuple[PodSeen, ...]:
    """Pods that have not ended and are not being deleted."""
    return tuple(pod for pod in view.observed.pods if pod.phase not in _ENDED and not pod.deleting)


def ended_at(view: View) -> datetime:
    """When the job was over, by the status; its condition tells if the time itself is lost."""
    if view.status.completion_time is not None:
        return view.status.completion_time
    succeeded = get_condition(view.status.conditions, ConditionType.SUCCEEDED)
    return view.now if succeeded is None else succeeded.last_transition_time
