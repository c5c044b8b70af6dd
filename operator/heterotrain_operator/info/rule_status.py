"""A rule's state as the status of its resource, and when that is worth a write. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import IntEnum
from typing import Final

from heterotrain_api.conditions import one_line
from heterotrain_api.info_fields import RuleStatus
from heterotrain_api.rule_conditions import RuleCondition, RuleReason
from heterotrain_api.status import Condition, ConditionStatus
from heterotrain_operator.info.rule_state import RuleState

FIGURES_SECONDS: Final = 60.0
"""Figures that differ noticeably are written at most this often."""
REFRESH_SECONDS: Final = 600.0
"""Whatever differs at all is written at least this often."""
_NOTICEABLE: Final = 1.25
"""Ratio from which a speed or a count counts as another one."""
_MUCH_OLDER: Final = 2.0
"""Ratio from which an age counts as another one: it goes up and down with every run."""
_YOUNG_SECONDS: Final = 15
"""Ages below are all the same."""


class Urgency(IntEnum):
    """How soon a status should be written."""

    NEVER = 0
    """Nothing differs."""
    REFRESH = 1
    """It differs in what always does: times and totals."""
    FIGURES = 2
    """It differs in figures that people look at."""
    NOW = 3
    """It says something else."""


def status_of(state: RuleState, now: float, old: RuleStatus | None = None) -> RuleStatus:
    """The status of a rule. `old`: as written last; its conditions' times stay where their statuses do."""
    age = state.age(now)
    return RuleStatus(
        conditions=_conditions(state, now, old),
        ready=_ready(state),
        samples_per_second=round(state.samples_per_second, 3),
        age_seconds=None if age is None else int(age),
        error=one_line(state.error),
        last_run_time=None if state.last_run is None else datetime.fromtimestamp(int(state.last_run), UTC),
        duration_milliseconds=None if state.last_run is None else round(state.duration * 1e3, 3),
        samples=state.samples,
        series=state.series,
        observed_generation=state.generation,
    )


def urgency(old: RuleStatus | None, new: RuleStatus) -> Urgency:
    """How soon `new` should take the place of `old`, `None`: there is none."""
    if old is None:
        return Urgency.NOW
    if _said(old) != _said(new):
        # Just after the operator has started, what was said before is known better than that nothing has come yet.
        same_rule = old.observed_generation == new.observed_generation and _accepted(old) == _accepted(new)
        return Urgency.FIGURES if same_rule and new.ready is ConditionStatus.UNKNOWN else Urgency.NOW
    if _figures_differ(old, new):
        return Urgency.FIGURES
    return Urgency.NEVER if old == new else Urgency.REFRESH


def is_due(urgency: Urgency, since_write: float) -> bool:
    """Whether to write, `since_write` seconds after the last time."""
    match urgency:
        case Urgency.NOW:
            return True
        case Urgency.FIGURES:
            return since_write >= FIGURES_SECONDS
        case Urgency.REFRESH:
            return since_write >= REFRESH_SECONDS
        case Urgency.NEVER:
            return False


def _ready(state: RuleState) -> ConditionStatus:
    if state.reason in (RuleReason.NOT_YET_KNOWN, RuleReason.WAITING_FOR_SAMPLES):
        return ConditionStatus.UNKNOWN
    return ConditionStatus.TRUE if state.ready else ConditionStatus.FALSE


def _conditions(state: RuleState, now: float, old: RuleStatus | None) -> tuple[Condition, ...]:
    accepted = ConditionStatus.TRUE if state.accepted else ConditionStatus.FALSE
    why = RuleReason.OBEYED if state.accepted else state.reason
    said = (
        (RuleCondition.ACCEPTED, accepted, why, "" if state.accepted else state.error),
        (RuleCondition.READY, _ready(state), state.reason, state.error),
    )
    before = {condition.type: condition for condition in (() if old is None else old.conditions)}
    return tuple(
        Condition(
            type=kind.value,
            status=status,
            observed_generation=state.generation,
            last_transition_time=before[kind].last_transition_time
            if kind in before and before[kind].status is status
            else datetime.fromtimestamp(int(now), UTC),
            reason=reason.value,
            message=one_line(message),
        )
        for kind, status, reason, message in said
    )


def _accepted(status: RuleStatus) -> object:
    return next((c.status for c in status.conditions if c.type == RuleCondition.ACCEPTED), None)


def _said(status: RuleStatus) -> object:
    """All but figures and words."""
    return status.ready, status.observed_generation, [(c.type, c.status, c.reason) for c in status.conditions]


def _figures_differ(old: RuleStatus, new: RuleStatus) -> bool:
    return (
        old.error != new.error
        or _apart(old.samples_per_second, new.samples_per_second, _NOTICEABLE)
        or _apart(old.series, new.series, _NOTICEABLE)
        or (old.age_seconds is None) != (new.age_seconds is None)
        or _apart(max(old.age_seconds or 0, _YOUNG_SECONDS), max(new.age_seconds or 0, _YOUNG_SECONDS), _MUCH_OLDER)
    )


def _apart(a: float, b: float, ratio: float) -> bool:
    return max(a, b) > ratio * min(a, b)
