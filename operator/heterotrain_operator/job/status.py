"""The status of a job: built whole from what is seen now and what the last one remembers, then compared. Pure.

Figures alone are written every `JobSettings.status_interval_seconds`; whatever a person or a program waits for at once.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from heterotrain_api.conditions import display_state
from heterotrain_api.status import Condition, GroupStatus, HeteroTrainJobStatus, Model, Progress, RequestAnswer
from heterotrain_api.v1alpha1 import Volume
from heterotrain_operator.job import figures
from heterotrain_operator.job.children import highest_attempt
from heterotrain_operator.job.conditions import at_the_end, while_active, with_statements
from heterotrain_operator.job.diagnosis import Readiness
from heterotrain_operator.job.judge import End
from heterotrain_operator.job.outcome import Outcome, State
from heterotrain_operator.job.recovery import recovery
from heterotrain_operator.job.view import View


def active_status(
    view: View, ready: Readiness, requests: tuple[RequestAnswer, ...], *, hold: bool = False
) -> HeteroTrainJobStatus:
    """The status of a job that is not over. `hold`: it may be about to end, and nothing is started again."""
    what = recovery(view, hold=hold)
    # A loss is told by the conditions in the same breath: who waits for its end must not read the state before it.
    told = replace(view, status=view.status.model_copy(update={"recovery": what}))
    update = _seen(view, ready) | {"requests": requests, "recovery": what}
    return _finish(view, with_statements(view, while_active(told, ready)), update)


def final_status(view: View, ready: Readiness, end: End, requests: tuple[RequestAnswer, ...]) -> HeteroTrainJobStatus:
    """The status of a job that has just ended."""
    what = recovery(view, hold=True)
    update = _seen(view, ready) | {
        "requests": requests,
        "recovery": what,
        "completion_time": end.at,
        "failure": end.failure,
        # Pods end with their job: how many were ready is of interest while it runs only.
        "ready_workers": None,
        "ready_parameter_servers": None,
    }
    if end.outcome is not None:
        update |= _of_outcome(view, end.outcome, update)
    return _finish(view, with_statements(view, at_the_end(end, what)), update)


def answered_status(view: View, requests: tuple[RequestAnswer, ...]) -> HeteroTrainJobStatus:
    """The status of a job that was over before, with answers to late requests."""
    return view.status.model_copy(update={"requests": requests, "update_time": view.now})


def is_due(view: View, new: HeteroTrainJobStatus) -> bool:
    """Whether `new` must be written now."""
    old = view.status
    if _without_time(new) == _without_time(old):
        return False
    return _key(new) != _key(old) or due_at(view) <= view.now


def is_changed(view: View, new: HeteroTrainJobStatus) -> bool:
    """Whether `new` says anything that the written status does not."""
    return _without_time(new) != _without_time(view.status)


def due_at(view: View) -> datetime:
    """When figures alone may be written next."""
    last = view.status.update_time
    if last is None or last > view.now:  # never written, or by a clock that went wrong
        return view.now
    return last + timedelta(seconds=view.settings.status_interval_seconds)


def model_of(view: View, path: str) -> Model:
    """Where the model lies, and whether it outlives the job's pods."""
    volume = None if view.job is None else view.job.spec.output.volume
    if volume is None:
        return Model(path=path[:4096], volume="emptyDir", durable=False)
    name, durable = _volume_name(volume)
    return Model(path=path[:4096], volume=name[:253], durable=durable)


def _volume_name(volume: Volume) -> tuple[str, bool]:
    """``kind/name``, and whether what is in it stays. An inline or ephemeral volume goes with its pod."""
    if volume.persistent_volume_claim is not None:
        return f"persistentVolumeClaim/{volume.persistent_volume_claim.claim_name}", True
    if volume.nfs is not None:
        return f"nfs/{volume.nfs.get('server', '')}:{volume.nfs.get('path', '')}", True
    return next(iter(volume.to_document()), "emptyDir"), False


def _seen(view: View, ready: Readiness) -> dict[str, Any]:
    """All that does not depend on whether the job is over."""
    old, state = view.status, view.state
    update: dict[str, Any] = {
        "start_time": old.start_time or view.now,
        "training_start_time": old.training_start_time or (view.now if view.began else None),
        "attempt": highest_attempt(view),
        "groups": tuple(GroupStatus(name=name, replicas=count) for name, count in view.replicas.items()),
    }
    if view.job is not None:
        update |= {
            "workers": figures.rows(view, ready),
            "ready_workers": figures.joined_workers(view),
            "ready_parameter_servers": figures.ready_shards(view, ready),
        }
    if state is not None:
        update |= {
            "progress": figures.progress(state),
            "efficiency": figures.efficiency(state, old.efficiency),
            "plan": figures.plan(state, old.plan),
            "synchronization": figures.synchronization(state, old.synchronization),
            "reported": figures.reported(state.reported),
            "decisions": figures.decisions(view.observed.decisions, old.decisions),
            "last_event_sequence": max((event.sequence for event in state.events), default=old.last_event_sequence),
        }
    return update


def _of_outcome(view: View, outcome: Outcome, update: dict[str, Any]) -> dict[str, Any]:
    """The account's figures are the last ones; the coordinator's state may be a few rounds older."""
    progress: Progress = update.get("progress", view.status.progress)
    final: dict[str, Any] = {}
    if outcome.rounds >= progress.round:
        rounds, samples = figures.count(outcome.rounds), figures.count(outcome.samples)
        step = f"{rounds}/{progress.rounds}" if progress.rounds else str(rounds)
        final["progress"] = progress.model_copy(update={"round": rounds, "samples": samples, "step": step})
    if outcome.reported:
        final["reported"] = figures.reported(outcome.reported)
    if outcome.model and outcome.state is not State.FAILED:
        final["model"] = model_of(view, outcome.model)
    return final


def _finish(view: View, conditions: tuple[Condition, ...], update: dict[str, Any]) -> HeteroTrainJobStatus:
    return view.status.model_copy(
        update=update
        | {
            "conditions": conditions,
            "observed_generation": view.generation,
            "state": display_state(conditions)[:128],
            "update_time": view.now,
        }
    )


def _without_time(status: HeteroTrainJobStatus) -> dict[str, Any]:
    """As a document, since times are compared as they are written: in whole seconds."""
    return {key: value for key, value in status.to_document().items() if key != "updateTime"}


def _key(status: HeteroTrainJobStatus) -> object:
    """What somebody may wait for, or what must not be lost."""
    return (
        tuple((c.type, c.status, c.reason, c.observed_generation) for c in status.conditions),
        (status.plan.generation, status.plan.applied_generation),
        (status.groups, status.recovery.restarts, status.recovery.restores),
        (status.requests, status.model, status.failure, status.attempt, status.observed_generation),
        (status.start_time is None, status.training_start_time is None, status.completion_time is None),
    )
