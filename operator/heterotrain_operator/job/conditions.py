"""What each condition of a job says now. Pure; how conditions change is in `heterotrain_api.conditions`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from heterotrain_api.conditions import ConditionType, Reason, get_condition, initial_conditions, set_condition
from heterotrain_api.contract import Container
from heterotrain_api.status import Condition, ConditionStatus, Recovery, format_time
from heterotrain_operator.job.adapted import adaptation_statements
from heterotrain_operator.job.diagnosis import Readiness, conflicts, refusal
from heterotrain_operator.job.failures import fills
from heterotrain_operator.job.figures import is_in_force
from heterotrain_operator.job.judge import End, known_reason
from heterotrain_operator.job.recovery import lost_servers, recovered, recovering
from heterotrain_operator.job.slots import container
from heterotrain_operator.job.statement import Statement
from heterotrain_operator.job.view import View
from heterotrain_rpc import control_pb2

TRUE: Final = ConditionStatus.TRUE
FALSE: Final = ConditionStatus.FALSE
UNKNOWN: Final = ConditionStatus.UNKNOWN

_REFUSED: Final = frozenset({Reason.QUOTA_EXCEEDED, Reason.CREATE_REFUSED})


def with_statements(view: View, statements: Sequence[tuple[ConditionType, Statement | None]]) -> tuple[Condition, ...]:
    """The status's conditions with what is said now; `None`: as before. Foreign conditions stay."""
    conditions = view.status.conditions
    for first in initial_conditions(generation=view.generation, now=view.now):
        if get_condition(conditions, ConditionType(first.type)) is None:
            conditions = (*conditions, first)
    for kind, said in statements:
        if said is not None:
            conditions = set_condition(
                conditions,
                kind,
                said.status,
                Reason(said.reason),
                said.message,
                generation=view.generation,
                now=view.now,
            ).conditions
    return conditions


def while_active(view: View, ready: Readiness) -> list[tuple[ConditionType, Statement | None]]:
    """What is said of a job that is not over."""
    phase = Reason.TRAINING if view.began else Reason.WAITING_FOR_WORKERS
    late = unreachable_from(view)
    return [
        (ConditionType.ACCEPTED, _accepted(view)),
        (ConditionType.PODS_READY, _pods_ready(view, ready)),
        (ConditionType.TRAINING, _training(view, ready)),
        (ConditionType.PLAN_APPLIED, _plan_applied(view)),
        *adaptation_statements(view, unreachable=late is not None and late <= view.now),
        (ConditionType.RECOVERING, recovering(view, ready)),
        (ConditionType.SUCCEEDED, Statement(UNKNOWN, phase, "the job is not over")),
    ]


def at_the_end(end: End, what: Recovery) -> list[tuple[ConditionType, Statement | None]]:
    """What is said of a job that is over. Whether it was accepted and which plan it had at last stays to be read."""
    over = Statement(FALSE, end.reason, "the job is over")
    return [
        (ConditionType.PODS_READY, over),
        (ConditionType.TRAINING, over),
        (ConditionType.RECOVERING, recovered(what)),
        (ConditionType.SUCCEEDED, Statement(TRUE if end.succeeded else FALSE, end.reason, end.message)),
    ]


def unreachable_from(view: View) -> datetime | None:
    """When the coordinator counts as unreachable, now or later; `None`: it answers, or does not run yet."""
    pod, training = view.coordinator_pod, view.observed.training
    seen = None if pod is None else container(pod, Container.COORDINATOR)
    if pod is None or seen is None or seen.state != "running":
        return None
    if view.observed.unreachable is not None and (training is not None or pod.ready):
        since = view.observed.unreachable.since
    elif training is not None and not training.connected:
        since = training.received_at
    else:
        return None  # what never answered and is not ready either is still being started: `PodsReady` says so
    return since + timedelta(seconds=view.settings.unreachable_seconds)


def _accepted(view: View) -> Statement | None:
    taken = conflicts(view)
    refused = refusal(view)
    complete = bool(view.pods) and all(fills(view, pods) is not None for pods in view.pods.values())
    old = get_condition(view.status.conditions, ConditionType.ACCEPTED)
    said: Statement | None
    if view.faults:
        said = Statement(FALSE, Reason.INVALID_SPEC, "; ".join(str(fault) for fault in view.faults))
    elif taken:
        message = f"{', '.join(taken)} exists and belongs to somebody else: delete it, or give the job another name"
        said = Statement(FALSE, Reason.NAME_CONFLICT, message)
    elif refused is not None:
        said = Statement(FALSE, refused.reason, refused.text)
    elif complete or view.began:
        said = Statement(TRUE, Reason.VALID, f"the manifest is valid and all {len(view.pods)} pods were created")
    elif old is not None and (old.status is TRUE or (old.status is FALSE and old.reason in _REFUSED)):
        # Not known anew before the next answer of the API server: a lost pod, or one that was refused.
        said = Statement(old.status, known_reason(old.reason), old.message)
    else:
        said = Statement(UNKNOWN, Reason.PODS_PENDING, "the job's objects are being created")
    return said


def _pods_ready(view: View, ready: Readiness) -> Statement | None:
    if view.job is None:
        return None
    return Statement(TRUE if ready.ready else FALSE, ready.reason, ready.message)


def _training(view: View, ready: Readiness) -> Statement | None:
    state, late = view.state, unreachable_from(view)
    lost = () if view.connected else lost_servers(view, ready)
    if lost:
        return Statement(FALSE, lost[0].reason, f"waiting for {', '.join(r.name for r in lost)}, which was lost")
    if late is not None and late <= view.now:
        training = view.observed.training
        heard = "" if training is None else f"; last heard from at {format_time(training.received_at)}"
        why = "" if view.observed.unreachable is None else f" ({view.observed.unreachable.why})"
        message = (
            f"the coordinator in the pod of ps-0 does not answer; training goes on without the operator{heard}{why}"
        )
        return Statement(UNKNOWN, Reason.COORDINATOR_UNREACHABLE, message)
    if state is not None:
        return _of_phase(state)
    if view.began:
        return None  # the operator has just started: what was last known holds until the coordinator answers
    return Statement(FALSE, Reason.WAITING_FOR_WORKERS, "waiting for the coordinator in the pod of ps-0")


def _of_phase(state: control_pb2.JobState) -> Statement:
    match state.phase:
        case control_pb2.PHASE_TRAINING:
            said = Statement(TRUE, Reason.TRAINING, state.message)
        case control_pb2.PHASE_FINISHING:
            said = Statement(FALSE, Reason.FINISHING, state.message)
        case control_pb2.PHASE_WAITING:
            shards = state.reason == Reason.WAITING_FOR_SHARDS
            said = Statement(FALSE, Reason.WAITING_FOR_SHARDS if shards else Reason.WAITING_FOR_WORKERS, state.message)
        case _:
            said = Statement(FALSE, Reason.FINISHING, "the coordinator has ended the job; its pod is about to end")
    return said


def _plan_applied(view: View) -> Statement | None:
    state = view.state
    if state is None or not state.plan.generation or state.phase == control_pb2.PHASE_UNSPECIFIED:
        return None
    plan = state.plan
    why = f": {plan.reason}" if plan.reason else ""
    if is_in_force(state):
        reason = Reason.PLAN_DERIVED if plan.derived else Reason.PLAN_AGREED
        return Statement(TRUE, reason, f"plan {plan.generation} is in force from round {plan.effective_round}{why}")
    when = "when training begins" if state.phase == control_pb2.PHASE_WAITING else f"from round {plan.effective_round}"
    return Statement(FALSE, Reason.PLAN_PENDING, f"plan {plan.generation} will be followed {when}{why}")
