"""Events on a job: what a pass decided or found, said once. From the difference between the last status and the new.

Pure. They go out only with a status write, so that a pass that is repeated does not repeat them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from heterotrain_api.conditions import ConditionType, Reason, get_condition, one_line
from heterotrain_api.contract import Annotation, Role
from heterotrain_api.status import Condition, ConditionStatus, HeteroTrainJobStatus
from heterotrain_operator.job.decision import JobEvent
from heterotrain_operator.job.judge import End
from heterotrain_operator.job.placement import preference_words
from heterotrain_operator.job.recovery import fresh, times_words
from heterotrain_operator.job.requests import MalformedRequestError, parse_plan
from heterotrain_operator.job.view import View
from heterotrain_rpc import control_pb2

_FORWARDED: Final = frozenset(
    {
        Reason.STARTED,
        Reason.JOIN_REFUSED,
        Reason.WORKER_LOST,
        Reason.WORKER_DRAINED,
        Reason.CHECKPOINT_SAVED,
        Reason.CHECKPOINT_FAILED,
        Reason.CHECKPOINT_UNUSABLE,
        Reason.RESTORED,
        Reason.GRADIENT_NOT_FINITE,
        Reason.MOMENTUM_WITH_STALENESS,
        Reason.SAVE_FAILED,
        Reason.REPORT_IGNORED,
    }
)
"""The coordinator's events that users care about and that no condition, plan or answer tells anyway."""
_BLOCKED: Final = frozenset(
    {
        Reason.UNSCHEDULABLE,
        Reason.IMAGE_PULL_FAILED,
        Reason.CONTAINER_CONFIG_FAILED,
        Reason.VOLUME_PENDING,
        Reason.POD_DELETED,
    }
)
_ESCALATED: Final = {"Replace": Reason.STRAGGLER_REPLACED, "GiveUp": Reason.ESCALATION_EXHAUSTED}
"""Decisions of the adaptation that no plan tells."""
_NAMED: Final = 12
"""Workers or pods that an event names; of more the number is said."""


def active_events(view: View, new: HeteroTrainJobStatus, replaced: tuple[str, ...]) -> tuple[JobEvent, ...]:
    """Events of a job that is not over. `replaced`: names in the job of pods that are made again."""
    return tuple(
        event
        for source in (
            _acceptance(view, new),
            _replacement(view, replaced),
            _restarts(view, new),
            _readiness(view, new),
            _contact(view, new),
            _forwarded(view),
            _plan(view, new),
            _adaptation(view, new),
            _answers(view, new),
        )
        for event in source
    )


def final_events(view: View, new: HeteroTrainJobStatus, end: End) -> tuple[JobEvent, ...]:
    """Events of a job that has just ended: what was open, and how it ended."""
    return (*_forwarded(view), *_plan(view, new), *_answers(view, new), *_ending(view, new, end))


def late_events(view: View, new: HeteroTrainJobStatus) -> tuple[JobEvent, ...]:
    """Events of a job that was over before."""
    return tuple(_answers(view, new))


def event(reason: str, message: str, *, warning: bool = False) -> JobEvent:
    """An event with a message of one line."""
    return JobEvent(warning, str(reason), one_line(message))


def names(items: list[str]) -> str:
    """``a, b, c``, cut after some."""
    more = f" and {len(items) - _NAMED} more" if len(items) > _NAMED else ""
    return ", ".join(items[:_NAMED]) + more


def _acceptance(view: View, new: HeteroTrainJobStatus) -> Iterator[JobEvent]:
    old, now = _pair(view, new, ConditionType.ACCEPTED)
    if now is None or (old is not None and (old.status, old.reason) == (now.status, now.reason)):
        return
    if now.status is ConditionStatus.TRUE:
        roles = Counter(slot.role for slot in view.pods)
        message = f"created {len(view.pods)} pods: {roles[Role.PS]} parameter servers, {roles[Role.WORKER]} workers"
        preferred = preference_words(view.observed.capabilities)
        yield event(Reason.PODS_CREATED, f"{message}; {preferred}" if preferred else message)
    elif now.status is ConditionStatus.FALSE:
        yield event(now.reason, now.message, warning=True)


def _replacement(view: View, replaced: tuple[str, ...]) -> Iterator[JobEvent]:
    refused = view.observed.refusals or {}
    made = [name for name in replaced if name not in refused]
    if made:
        pods = "1 pod is" if len(made) == 1 else f"{len(made)} pods are"
        yield event(Reason.PODS_REPLACED, f"{pods} created again, theirs are gone: {names(made)}", warning=True)


def _restarts(view: View, new: HeteroTrainJobStatus) -> Iterator[JobEvent]:
    for restart in fresh(view, new):
        words = f"{restart.message}; it is started again ({times_words(view, restart)})"
        yield event(Reason.POD_RESTARTED, words, warning=True)


def _readiness(view: View, new: HeteroTrainJobStatus) -> Iterator[JobEvent]:
    old, now = _pair(view, new, ConditionType.PODS_READY)
    if now is None or (old is not None and (old.status, old.reason) == (now.status, now.reason)):
        return
    if now.status is ConditionStatus.TRUE:
        yield event(now.reason, now.message)
    elif now.reason in _BLOCKED:
        yield event(now.reason, now.message, warning=True)


def _contact(view: View, new: HeteroTrainJobStatus) -> Iterator[JobEvent]:
    old, now = _pair(view, new, ConditionType.TRAINING)
    was = old is not None and old.reason == Reason.COORDINATOR_UNREACHABLE
    if now is None or was == (now.reason == Reason.COORDINATOR_UNREACHABLE):
        return
    if was:
        yield event(now.reason, "the coordinator answers again")
    else:
        yield event(now.reason, now.message, warning=True)


def _forwarded(view: View) -> Iterator[JobEvent]:
    """New events of the coordinator, one for each reason and pass: the last, and how many there were."""
    state = view.state
    if state is None:
        return
    newest = max((said.sequence for said in state.events), default=0)
    # A coordinator that was made again counts from 1.
    last = view.status.last_event_sequence if newest >= view.status.last_event_sequence else 0
    by_reason: dict[str, list[control_pb2.Event]] = {}
    for said in state.events:
        if said.sequence > last and said.reason in _FORWARDED:
            by_reason.setdefault(said.reason, []).append(said)
    for reason, found in by_reason.items():
        times = f" ({len(found)} times since the last look)" if len(found) > 1 else ""
        yield event(reason, found[-1].message + times, warning=found[-1].warning)


def _plan(view: View, new: HeteroTrainJobStatus) -> Iterator[JobEvent]:
    old, plan, state = view.status.plan, new.plan, view.state
    if state is None or not old.generation or plan.generation <= old.generation:
        return
    before = {row.name: row.share for row in view.status.workers}
    changes = [
        f"{row.name} {before.get(row.name, 0)}→{row.share}"
        for row in new.workers
        if before.get(row.name, 0) != row.share
    ]
    was, wanted = view.status.synchronization.wanted, new.synchronization.wanted
    mode = [f"{was} → {wanted}"] if was and was != wanted else []
    what = "; ".join([*mode, names(changes) or ("" if mode else "same shares")]).strip("; ")
    why = f": {plan.reason}" if plan.reason else ""
    message = f"plan {old.generation}→{plan.generation} from round {plan.effective_round}: {what}{why}"
    yield event(Reason.PLAN_DERIVED if state.plan.derived else Reason.PLAN_AGREED, message)


def _adaptation(view: View, new: HeteroTrainJobStatus) -> Iterator[JobEvent]:
    """A straggler or lost metrics, come or gone; shares that are recommended. Those put in force their plan tells."""
    for kind, bad in (
        (ConditionType.STRAGGLER_DETECTED, ConditionStatus.TRUE),
        (ConditionType.METRICS_AVAILABLE, ConditionStatus.FALSE),
    ):
        old, now = _pair(view, new, kind)
        was = old is not None and old.status is bad
        if now is None or was == (now.status is bad) or now.status is ConditionStatus.UNKNOWN:
            continue
        yield event(now.reason, now.message, warning=now.status is bad)
    known = {(item.time, item.action) for item in view.status.decisions}
    for item in new.decisions:
        if item.action in _ESCALATED and (item.time, item.action) not in known:
            yield event(_ESCALATED[item.action], item.message, warning=True)
    old, now = _pair(view, new, ConditionType.BALANCED)
    if now is not None and now.reason == Reason.PLAN_RECOMMENDED and (old is None or old.reason != now.reason):
        yield event(now.reason, now.message)


def _answers(view: View, new: HeteroTrainJobStatus) -> Iterator[JobEvent]:
    before = {answer.id for answer in view.status.requests}
    plan_id = _plan_request_id(view.annotations)
    for answer in new.requests:
        if answer.id in before:
            continue
        is_plan = answer.id == plan_id
        if not answer.accepted:
            reason = Reason.PLAN_REFUSED if is_plan else Reason.REQUEST_REFUSED
            yield event(reason, f"request {answer.id} was refused: {answer.message}", warning=True)
        elif not is_plan:  # of a plan the change itself is told
            yield event(Reason.REQUEST_ACCEPTED, f"request {answer.id}: {answer.message or 'done'}")


def _ending(view: View, new: HeteroTrainJobStatus, end: End) -> Iterator[JobEvent]:
    if end.succeeded:
        yield event(Reason.SUCCEEDED, end.message)
    else:
        yield event(end.reason, end.message, warning=end.reason != Reason.STOPPED)
    model = new.model
    if model is not None and not model.durable:
        pod = view.coordinator_pod
        where = "the pod of ps-0" if pod is None else f"pod {pod.name}" + (f" on node {pod.node}" if pod.node else "")
        message = (
            f"the model {model.path} lies in {where} only (volume {model.volume}) and is lost when that pod is "
            "deleted; give spec.output.volume a claim to keep it"
        )
        yield event(Reason.MODEL_NOT_DURABLE, message, warning=True)


def _plan_request_id(annotations: Mapping[str, str]) -> str | None:
    text = annotations.get(Annotation.PLAN_REQUEST)
    if not text:
        return None
    try:
        return parse_plan(text).request_id
    except MalformedRequestError as error:
        return error.request_id


def _pair(view: View, new: HeteroTrainJobStatus, kind: ConditionType) -> tuple[Condition | None, Condition | None]:
    return get_condition(view.status.conditions, kind), get_condition(new.conditions, kind)
