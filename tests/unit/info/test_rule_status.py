"""A rule's state as a status: what it says, and which changes of it are worth a write."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from heterotrain_api.conditions import one_line
from heterotrain_api.crd import PROCESSING, kind_schema
from heterotrain_api.info_fields import RuleStatus
from heterotrain_api.rule_conditions import RULE_REASONS, RuleReason
from heterotrain_api.schema_check import check
from heterotrain_operator.info import collect
from heterotrain_operator.info.rule_state import RuleKind, RuleState
from heterotrain_operator.info.rule_status import Urgency, is_due, status_of, urgency
from heterotrain_operator.info.sources.base import Reason


def state(**fields: Any) -> RuleState:
    """A rule that runs well."""
    good = RuleState(RuleKind.COLLECT, "a", 1, ready=True, reason=RuleReason.SAMPLES_STORED)
    good.last_run, good.last_sample, good.samples, good.series, good.samples_per_second = 100.0, 98.0, 40, 4, 2.0
    return replace(good, **fields)


def conditions(status: RuleStatus) -> list[tuple[str, str, str, str]]:
    return [(c.type, c.status.value, c.reason, c.message) for c in status.conditions]


def test_a_state_is_told_as_a_status_that_the_schema_takes() -> None:
    failed = RuleState(RuleKind.COLLECT, "a", generation=3, ready=False, error="x" * 2000, reason=RuleReason.NO_SAMPLES)
    failed.ran(100.0, 0.25, 40, 98.0)
    failed.ran(120.9, 0.25, 40, 118.0)
    status = status_of(failed, 125.0)
    document = status.to_document()
    assert list(check(document, kind_schema(PROCESSING)["properties"]["status"], "status")) == []
    assert (status.ready, status.age_seconds, len(status.error)) == ("False", 7, 1024)
    assert status.samples_per_second == 1.914
    assert status.last_run_time == datetime.fromtimestamp(120, UTC)
    assert conditions(status) == [
        ("Accepted", "True", "Obeyed", ""),
        ("Ready", "False", "NoSamples", one_line("x" * 2000)),
    ]
    assert RuleStatus.model_validate(document) == status  # as it is read again


def test_before_the_first_run_nobody_knows() -> None:
    status = status_of(RuleState(RuleKind.PROCESS, "b", 1), 0)
    assert (status.ready, status.age_seconds, status.last_run_time) == ("Unknown", None, None)
    assert conditions(status) == [("Accepted", "True", "Obeyed", ""), ("Ready", "Unknown", "NotYetKnown", "")]


def test_a_rule_that_is_refused_says_why_in_both_conditions() -> None:
    refused = RuleState(RuleKind.PROCESS, "b", 2, error="a ring", accepted=False, reason=RuleReason.RULE_CONFLICT)
    assert conditions(status_of(refused, 0)) == [
        ("Accepted", "False", "RuleConflict", "a ring"),
        ("Ready", "False", "RuleConflict", "a ring"),
    ]


def test_a_transition_time_moves_only_with_the_status() -> None:
    first = status_of(state(), 100.0)
    later = status_of(state(ready=False, reason=RuleReason.SOURCE_UNREACHABLE, error="timeout"), 200.0, first)
    times = [c.last_transition_time.timestamp() for c in later.conditions]
    assert times == [100.0, 200.0]
    again = status_of(state(ready=False, reason=RuleReason.NO_SAMPLES, error="empty"), 300.0, later)
    assert [c.last_transition_time.timestamp() for c in again.conditions] == times


OLD = status_of(state(), 100.0)


@pytest.mark.parametrize(
    ("new", "now", "want"),
    [
        pytest.param(state(), 100.0, Urgency.NEVER, id="nothing has changed"),
        pytest.param(state(last_run=105.0, samples=50, last_sample=103.0), 107.0, Urgency.REFRESH, id="it went on"),
        pytest.param(state(last_sample=97.0), 108.0, Urgency.REFRESH, id="an age within some runs"),
        pytest.param(state(), 198.0, Urgency.FIGURES, id="data grow old"),
        pytest.param(state(samples_per_second=2.4), 100.0, Urgency.REFRESH, id="about the same speed"),
        pytest.param(state(samples_per_second=4.0), 100.0, Urgency.FIGURES, id="twice the speed"),
        pytest.param(state(samples_per_second=0.0), 100.0, Urgency.FIGURES, id="no more samples"),
        pytest.param(state(series=400), 100.0, Urgency.FIGURES, id="many more series"),
        pytest.param(state(error="1 unmapped"), 100.0, Urgency.FIGURES, id="other words"),
        pytest.param(state(reason=RuleReason.SAMPLES_MISSING, error="1"), 100.0, Urgency.NOW, id="another reason"),
        pytest.param(state(ready=False, reason=RuleReason.NO_SAMPLES), 100.0, Urgency.NOW, id="no longer ready"),
        pytest.param(state(generation=2), 100.0, Urgency.NOW, id="another generation"),
        pytest.param(
            RuleState(RuleKind.COLLECT, "a", 1), 100.0, Urgency.FIGURES, id="a restart: what was said is known better"
        ),
        pytest.param(
            RuleState(RuleKind.COLLECT, "a", 2), 100.0, Urgency.NOW, id="not yet run, but it is another generation"
        ),
    ],
)
def test_how_soon_a_change_is_written(new: RuleState, now: float, want: Urgency) -> None:
    assert urgency(OLD, status_of(new, now, OLD)) is want


def test_a_rule_that_was_refused_before_a_restart_and_is_obeyed_now_is_told_at_once() -> None:
    refused = status_of(RuleState(RuleKind.COLLECT, "a", 1, accepted=False, reason=RuleReason.INVALID_SPEC), 100.0)
    assert urgency(refused, status_of(RuleState(RuleKind.COLLECT, "a", 1), 101.0, refused)) is Urgency.NOW
    assert urgency(None, status_of(RuleState(RuleKind.COLLECT, "a", 1), 101.0)) is Urgency.NOW


@pytest.mark.parametrize(
    ("urgent", "since", "want"),
    [
        (Urgency.NOW, 0, True),
        (Urgency.FIGURES, 59, False),
        (Urgency.FIGURES, 60, True),
        (Urgency.REFRESH, 599, False),
        (Urgency.REFRESH, 600, True),
        (Urgency.NEVER, 10_000, False),
    ],
)
def test_when_it_is_due(urgent: Urgency, since: float, want: bool) -> None:
    assert is_due(urgent, since) is want


def test_every_failure_of_a_source_and_every_reason_is_explained() -> None:
    assert set(collect.CONDITION_REASONS) == set(Reason)
    assert set(RULE_REASONS) == set(RuleReason)
