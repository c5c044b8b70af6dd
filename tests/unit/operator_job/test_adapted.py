"""What the adaptation loop's newest decision makes of a job's conditions and events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders_operator import ago, condition, decided, make_job, make_state, pods, seen, training_status, written
from heterotrain_api.conditions import ConditionType
from heterotrain_core.adaptation.values import Action, Decision, Finding, Found, WorkerPlan
from heterotrain_operator.job.observed import Unreachable

RUNNING: dict[str, Any] = {"pods": pods(), "training": seen(make_state())}
KINDS = (ConditionType.BALANCED, ConditionType.STRAGGLER_DETECTED, ConditionType.METRICS_AVAILABLE)


def worker(name: str, **fields: Any) -> WorkerPlan:
    row = WorkerPlan(name, 4, 4, 0.0, 0.1, 0.01, 20, 0, 0.4, 0.4)
    return replace(row, **fields)


def look(**fields: Any) -> Decision:
    decision = Decision(
        Action.KEEP, "the shares are the best", workers=(worker("cpu-0"), worker("cpu-1")), gain=0.0, band=0.03
    )
    return replace(decision, **fields)


SLOW = Found("cpu-1", Finding.STRAGGLER, "cpu-1 takes 2 s with its smallest share of 4, the others 1 s: it is slow")
LOST = Found("cpu-1", Finding.LOST, "no record of a step of cpu-1 for 20 s: its share stays as it is")
FINE = {
    ConditionType.BALANCED: ("True", "SharesFit", "the shares are the best"),
    ConditionType.STRAGGLER_DETECTED: ("False", "NoStraggler", "no worker holds the others up"),
    ConditionType.METRICS_AVAILABLE: ("True", "MetricsComplete", "steps of all 2 workers arrive"),
}


@pytest.mark.parametrize(
    ("decision", "want"),
    [
        pytest.param(look(), {}, id="all is well"),
        pytest.param(
            look(gain=0.2, reason="this must last: window 1 of 2"),
            {ConditionType.BALANCED: ("False", "SharesDiffer", "this must last: window 1 of 2")},
            id="other shares would help and wait",
        ),
        pytest.param(
            look(gain=0.2, action=Action.RECOMMEND, reason="recommended, not applied: a gain"),
            {ConditionType.BALANCED: ("False", "PlanRecommended", "recommended, not applied: a gain")},
            id="other shares are only shown",
        ),
        pytest.param(
            look(found=(SLOW,), advice="without cpu-1 rounds would be 2.0x faster"),
            {
                ConditionType.BALANCED: (
                    "True",
                    "SharesFit",
                    "the shares are the best; without cpu-1 rounds would be 2.0x faster",
                ),
                ConditionType.STRAGGLER_DETECTED: (
                    "True",
                    "Straggler",
                    f"{SLOW.words}; without cpu-1 rounds would be 2.0x faster",
                ),
            },
            id="a straggler, and what it costs",
        ),
        pytest.param(
            look(found=(LOST,)),
            {ConditionType.METRICS_AVAILABLE: ("False", "MetricsLost", LOST.words)},
            id="metrics of a worker are lost",
        ),
        pytest.param(
            look(reason="waiting for step records", workers=(worker("cpu-0", seconds_per_sample=0.0, steps=0),)),
            {
                ConditionType.BALANCED: ("Unknown", "NotYetKnown", "waiting for step records"),
                ConditionType.METRICS_AVAILABLE: ("Unknown", "NotYetKnown", "waiting for step records"),
            },
            id="nothing measured yet",
        ),
    ],
)
def test_a_decision_in_conditions(decision: Decision, want: dict[ConditionType, tuple[str, str, str]]) -> None:
    found = decided(make_job(), adaptation=decision, **RUNNING)

    assert {kind: condition(found, kind) for kind in KINDS} == FINE | want


def test_switched_off_nothing_is_claimed() -> None:
    found = decided(make_job(adaptation={"mode": "Off"}), adaptation=look(), **RUNNING)

    assert {condition(found, kind)[:2] for kind in KINDS} == {("Unknown", "AdaptationOff")}


def test_a_restarted_operator_says_what_was_last_known() -> None:
    before = written(60, status=training_status(), adaptation=look(found=(SLOW,)), **RUNNING)

    found = decided(make_job(status=before, generation=2), **RUNNING)

    assert condition(found, ConditionType.STRAGGLER_DETECTED)[:2] == ("True", "Straggler")


def test_without_the_coordinator_metrics_are_unknown() -> None:
    away = {"pods": pods(), "training": seen(make_state(), connected=False, seconds_ago=60.0)}

    found = decided(
        make_job(status=training_status()), adaptation=look(), unreachable=Unreachable(ago(40), "gone"), **away
    )

    assert condition(found, ConditionType.METRICS_AVAILABLE)[:2] == ("Unknown", "CoordinatorUnreachable")


@pytest.mark.parametrize(
    ("before", "after", "want"),
    [
        pytest.param(look(), look(), [], id="nothing new"),
        pytest.param(look(), look(found=(SLOW,)), [(True, "Straggler")], id="a straggler comes"),
        pytest.param(look(found=(SLOW,)), look(), [(False, "NoStraggler")], id="and goes"),
        pytest.param(look(), look(found=(LOST,)), [(True, "MetricsLost")], id="metrics are lost"),
        pytest.param(look(found=(LOST,)), look(), [(False, "MetricsComplete")], id="and come back"),
        pytest.param(
            look(), look(action=Action.RECOMMEND, gain=0.2), [(False, "PlanRecommended")], id="shares are recommended"
        ),
    ],
)
def test_events_tell_what_came_and_went_once(before: Decision, after: Decision, want: list[tuple[bool, str]]) -> None:
    status = written(60, status=training_status(), adaptation=before, **RUNNING)

    found = decided(make_job(status=status), adaptation=after, **RUNNING)

    assert [(e.warning, e.reason) for e in found.events] == want
