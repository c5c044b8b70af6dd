"""The coordinator's state as parts of the status: progress, speed, plan, one row per worker. Pure.

Everything is brought into the schema's bounds here: a status that the API server refuses would stop all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

from heterotrain_api.conditions import one_line
from heterotrain_api.contract import Role
from heterotrain_api.fields import INT32_MAX, SAFE_INT_MAX
from heterotrain_api.status import (
    MAX_DECISIONS,
    MAX_RECORD,
    MAX_ROWS,
    AdaptationDecision,
    Efficiency,
    PlanStatus,
    Progress,
    ReportedValue,
    SynchronizationStatus,
    WorkerPhase,
    WorkerRow,
)
from heterotrain_core.sync_settings import from_fields
from heterotrain_core.synchronization import describe
from heterotrain_operator.adaptation import Told, brief
from heterotrain_operator.job.diagnosis import Readiness
from heterotrain_operator.job.failures import fills
from heterotrain_operator.job.slots import Slot
from heterotrain_operator.job.view import View
from heterotrain_rpc import control_pb2
from heterotrain_rpc.fields import given_fields

_PHASES: Final = {
    control_pb2.WORKER_PHASE_ABSENT: WorkerPhase.ABSENT,
    control_pb2.WORKER_PHASE_JOINED: WorkerPhase.JOINED,
    control_pb2.WORKER_PHASE_TRAINING: WorkerPhase.TRAINING,
    control_pb2.WORKER_PHASE_FINISHED: WorkerPhase.FINISHED,
    control_pb2.WORKER_PHASE_LOST: WorkerPhase.LOST,
}
_JOINED: Final = frozenset({WorkerPhase.JOINED, WorkerPhase.TRAINING, WorkerPhase.FINISHED})
_MAX_REPORTED: Final = 64


def count(value: float, most: int = SAFE_INT_MAX) -> int:
    """`value` rounded, from 0 to `most`; 0 if it is not a number."""
    return min(max(0, round(value)), most) if math.isfinite(value) else 0


def progress(state: control_pb2.JobState) -> Progress:
    """How far the training is."""
    done, planned = count(state.version), count(state.rounds_planned)
    return Progress(
        epoch=count(state.epoch),
        epochs=count(state.epochs),
        round=done,
        rounds=planned,
        samples=count(state.samples),
        step=f"{done}/{planned}" if planned else str(done),
    )


def efficiency(state: control_pb2.JobState, old: Efficiency) -> Efficiency:
    """Reached and ideal speed of the last rounds. Finished workers have no speed: then what was said stays."""
    reached, ideal = state.samples_per_second, state.ideal_samples_per_second
    if ideal <= 0 < old.ideal_samples_per_second:
        return old
    return Efficiency(
        samples_per_second=count(reached),
        ideal_samples_per_second=count(ideal),
        percent_of_ideal=count(100 * reached / ideal, 1000) if ideal > 0 else 0,
        idle_percent=count(100 * _idle(state), 1000),
        imbalance_percent=count(100 * _imbalance(state), 1000),
        pushed_bytes_per_sample=count(state.pushed_bytes_per_sample),
        pulled_bytes_per_sample=count(state.pulled_bytes_per_sample),
    )


def _timed(state: control_pb2.JobState) -> list[control_pb2.WorkerState]:
    training = control_pb2.WORKER_PHASE_TRAINING
    return [w for w in state.workers if w.phase == training and w.step_seconds > 0 and w.compute_seconds > 0]


def _idle(state: control_pb2.JobState) -> float:
    """Mean part of the steps in which workers wait for others (algorithms.md 4.2)."""
    waits = [1 - _own_seconds(w) / w.step_seconds for w in _timed(state)]
    return max(0.0, fmean(waits)) if waits else 0.0


def _own_seconds(worker: control_pb2.WorkerState) -> float:
    computing = worker.compute_seconds + worker.data_seconds
    return computing + worker.push_seconds + worker.receive_seconds + worker.other_seconds


def _imbalance(state: control_pb2.JobState) -> float:
    """(largest - smallest) / largest of the workers' compute times (algorithms.md 4.2)."""
    times = [w.compute_seconds + w.data_seconds for w in _timed(state)]
    return (max(times) - min(times)) / max(times) if times else 0.0


def decisions(told: Sequence[Told], old: Sequence[AdaptationDecision]) -> tuple[AdaptationDecision, ...]:
    """What the adaptation did lately, and its newest look. What an operator before this one has told stays."""
    new = [
        AdaptationDecision(
            time=item.at.replace(microsecond=0),
            action=item.document["action"],
            message=one_line(str(item.document["reason"])),
            record=brief(item.document, MAX_RECORD),
        )
        for item in told
    ]
    if not new:
        return tuple(old)
    known = {(item.time, item.action, item.message) for item in new}
    kept = [item for item in old if (item.time, item.action, item.message) not in known and not _is_look(item)]
    return tuple([*kept, *new][-MAX_DECISIONS:])


def _is_look(item: AdaptationDecision) -> bool:
    return item.action in {"Keep", "Recommend"} and '"verified":{' not in item.record


def is_in_force(state: control_pb2.JobState) -> bool:
    """Whether the newest plan is followed: the round that it begins with can be computed.

    Shares granted last do not tell: the ragged round at the end of an epoch has smaller ones under the same plan.
    """
    return state.phase > control_pb2.PHASE_WAITING and state.version >= state.plan.effective_round


def plan(state: control_pb2.JobState, old: PlanStatus) -> PlanStatus:
    """The newest plan, and the one that is followed until it is in force."""
    generation = count(state.plan.generation)
    return PlanStatus(
        generation=generation,
        applied_generation=generation if is_in_force(state) else min(old.applied_generation, generation),
        effective_round=count(state.plan.effective_round),
        reason=one_line(state.plan.reason),
    )


def synchronization(state: control_pb2.JobState, old: SynchronizationStatus) -> SynchronizationStatus:
    """Mode and bound in force, and the staleness seen. A coordinator that says nothing of it changes nothing."""
    told = state.synchronization
    if not told.mode:
        return old
    bound = count(told.bound_in_force, INT32_MAX) if told.HasField("bound_in_force") else None
    gradients = sum(told.staleness.values())
    mean = sum(tau * number for tau, number in told.staleness.items()) / gradients if gradients else 0.0
    return SynchronizationStatus(
        mode=told.mode[:16],
        staleness_bound=bound,
        wanted=_words(told.wanted)[:128],
        largest_staleness=count(told.largest_staleness),
        mean_staleness_milli=count(1000 * mean),
        staleness=f"{count(told.largest_staleness)} ({'no bound' if bound is None else f'bound {bound}'})",
    )


def _words(wanted: control_pb2.Synchronization) -> str:
    try:
        return describe(from_fields(given_fields(wanted)).synchronization())
    except ValueError:  # of a newer version
        return one_line(wanted.mode)


def reported(values: Mapping[str, float]) -> tuple[ReportedValue, ...]:
    """Newest values that the script reported, by name."""
    names = [name for name in sorted(values) if 0 < len(name) <= 64][:_MAX_REPORTED]
    return tuple(ReportedValue(name=name, value=f"{values[name]:.6g}") for name in names)


def rows(view: View, ready: Readiness) -> tuple[WorkerRow, ...]:
    """One row per worker, in the order of the manifest; figures that are not known now stay as they were."""
    old = {row.name: row for row in view.status.workers}
    slots = [slot for slot in view.pods if slot.role is Role.WORKER][:MAX_ROWS]
    states = {} if view.state is None else {worker.name: worker for worker in view.state.workers}
    return tuple(
        _row(view, slot, ready, old.get(slot.name, WorkerRow(name=slot.name)), states.get(slot.name)) for slot in slots
    )


def _row(view: View, slot: Slot, ready: Readiness, old: WorkerRow, state: control_pb2.WorkerState | None) -> WorkerRow:
    pods = view.pods[slot]
    pod = fills(view, pods) or (pods[-1] if pods else None)
    trouble = ready.by_slot.get(slot)
    error = state.error if state is not None else ""
    row = old.model_copy(
        update={
            "group": slot.group,
            "pod": old.pod if pod is None else pod.name,
            "node": old.node if pod is None else pod.node[:253],
            "message": one_line(error or ("" if trouble is None else trouble.text)),
        }
    )
    return row if state is None else row.model_copy(update=_row_figures(state))


def _row_figures(state: control_pb2.WorkerState) -> dict[str, object]:
    waiting = state.step_seconds - state.compute_seconds - state.data_seconds
    return {
        "phase": _PHASES.get(state.phase, WorkerPhase.ABSENT).value,
        "share": count(state.share_wanted, INT32_MAX),
        "applied_share": count(state.share_applied, INT32_MAX),
        "samples_per_second": count(state.samples_per_second),
        "step_milliseconds": count(1000 * state.step_seconds),
        "wait_milliseconds": count(1000 * waiting),
    }


def joined_workers(view: View) -> str | None:
    """``3/4``: workers that have joined, of all; `None` while the job's spec cannot be read."""
    total = sum(slot.role is Role.WORKER for slot in view.pods)
    if view.state is None:
        return view.status.ready_workers or f"0/{total}"
    places = {slot.name for slot in view.pods}
    joined = sum(_PHASES.get(w.phase) in _JOINED for w in view.state.workers if w.name in places)
    return f"{joined}/{total}"


def ready_shards(view: View, ready: Readiness) -> str:
    """``2/2``: parameter servers that answer, of all."""
    shards = [slot for slot in view.pods if slot.role is Role.PS]
    return f"{sum(slot not in ready.by_slot for slot in shards)}/{len(shards)}"
