"""The conditions Balanced, StragglerDetected and MetricsAvailable, from the adaptation loop's newest decision.

Pure. Without a decision the conditions stay as they were: an operator that has just started learns the speeds again.
"""

from __future__ import annotations

from typing import Final

from heterotrain_api.conditions import ConditionType, Reason, get_condition
from heterotrain_api.status import ConditionStatus
from heterotrain_api.v1alpha1 import AdaptationMode
from heterotrain_core.adaptation.values import Action, Decision, Finding
from heterotrain_operator.job.judge import known_reason
from heterotrain_operator.job.statement import Statement
from heterotrain_operator.job.view import View

TRUE: Final = ConditionStatus.TRUE
FALSE: Final = ConditionStatus.FALSE
UNKNOWN: Final = ConditionStatus.UNKNOWN
_KINDS: Final = (ConditionType.BALANCED, ConditionType.STRAGGLER_DETECTED, ConditionType.METRICS_AVAILABLE)


def adaptation_statements(view: View, *, unreachable: bool) -> list[tuple[ConditionType, Statement | None]]:
    """The three conditions; `None`: as before. `unreachable`: the coordinator does not answer."""
    if view.job is not None and view.job.spec.adaptation.mode is AdaptationMode.OFF:
        off = Statement(UNKNOWN, Reason.ADAPTATION_OFF, "spec.adaptation.mode is Off: shares are not looked at")
        return [(kind, off) for kind in _KINDS]
    decision = view.observed.adaptation
    metrics = None if decision is None else _metrics(decision)
    if unreachable:
        words = "the coordinator does not answer: the plan in force stays"
        metrics = Statement(UNKNOWN, Reason.COORDINATOR_UNREACHABLE, words)
    said = [
        (ConditionType.BALANCED, None if decision is None else _balanced(decision)),
        (ConditionType.STRAGGLER_DETECTED, None if decision is None else _straggler(decision)),
        (ConditionType.METRICS_AVAILABLE, metrics),
    ]
    return [(kind, new or _as_before(view, kind)) for kind, new in said]


def _as_before(view: View, kind: ConditionType) -> Statement | None:
    """Said again, so that it is known to hold for the manifest as it is now."""
    old = get_condition(view.status.conditions, kind)
    return None if old is None else Statement(old.status, known_reason(old.reason), old.message)


def _balanced(decision: Decision) -> Statement:
    known = [row for row in decision.workers if row.seconds_per_sample > 0]
    if not known or len(known) < len(decision.workers):
        return Statement(UNKNOWN, Reason.NOT_YET_KNOWN, decision.reason)
    if decision.action is Action.RECOMMEND:
        return Statement(FALSE, Reason.PLAN_RECOMMENDED, decision.reason)
    if decision.gain <= decision.band:
        return Statement(TRUE, Reason.SHARES_FIT, _with_advice(decision.reason, decision))
    return Statement(FALSE, Reason.SHARES_DIFFER, _with_advice(decision.reason, decision))


def _straggler(decision: Decision) -> Statement:
    found = [f.words for f in decision.found if f.kind is Finding.STRAGGLER]
    if found:
        words = "; ".join([*found, *([decision.escalation] if decision.escalation else [])])
        return Statement(TRUE, Reason.STRAGGLER, _with_advice(words, decision))
    slower = [f.words for f in decision.found if f.kind in {Finding.BUILT_IN, Finding.SLOWER}]
    return Statement(FALSE, Reason.NO_STRAGGLER, "; ".join(dict.fromkeys(slower)) or "no worker holds the others up")


def _metrics(decision: Decision) -> Statement:
    lost = [f.words for f in decision.found if f.kind is Finding.LOST]
    if lost:
        return Statement(FALSE, Reason.METRICS_LOST, "; ".join(lost))
    if any(row.steps == 0 for row in decision.workers):
        return Statement(UNKNOWN, Reason.NOT_YET_KNOWN, decision.reason)
    return Statement(TRUE, Reason.METRICS_COMPLETE, f"steps of all {len(decision.workers)} workers arrive")


def _with_advice(words: str, decision: Decision) -> str:
    return f"{words}; {decision.advice}" if decision.advice else words
