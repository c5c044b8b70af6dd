"""How conditions change, and that every reason is explained."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_api.conditions import (
    MAX_MESSAGE,
    REASONS,
    ConditionType,
    Reason,
    display_state,
    get_condition,
    initial_conditions,
    is_finished,
    is_true,
    set_condition,
)
from heterotrain_api.v1alpha1 import Condition, ConditionStatus, HeteroTrainJobStatus, WorkerPhase
from heterotrain_core import run_values

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
INITIAL = initial_conditions(generation=1, now=NOW)

Setting = tuple[ConditionType, ConditionStatus, Reason]


def after(*settings: Setting) -> tuple[Condition, ...]:
    conditions = INITIAL
    for kind, status, reason in settings:
        conditions = set_condition(conditions, kind, status, reason, generation=1, now=NOW).conditions
    return conditions


def test_all_conditions_are_unknown_at_first_sight() -> None:
    assert [(c.type, c.status, c.reason) for c in INITIAL] == [(t.value, UNKNOWN, "NotYetKnown") for t in ConditionType]


def test_a_condition_is_written_as_kubernetes_has_it() -> None:
    change = set_condition(
        (), ConditionType.TRAINING, TRUE, Reason.TRAINING, "Round 3\nof 9", generation=2, now=NOW.replace(microsecond=9)
    )
    assert [c.to_document() for c in change.conditions] == [
        {
            "type": "Training",
            "status": "True",
            "observedGeneration": 2,
            "lastTransitionTime": "2026-01-31T12:00:00Z",
            "reason": "Training",
            "message": "Round 3 of 9",
        }
    ]
    assert change.changed


@given(
    st.sampled_from(ConditionStatus),
    st.sampled_from(ConditionStatus),
    st.sampled_from(Reason),
    st.text(max_size=2 * MAX_MESSAGE),
)
def test_the_time_moves_only_with_the_status(
    first: ConditionStatus, second: ConditionStatus, reason: Reason, message: str
) -> None:
    kind, later = ConditionType.PODS_READY, NOW + timedelta(hours=1)
    before = set_condition(INITIAL, kind, first, Reason.PODS_PENDING, generation=1, now=NOW).conditions
    change = set_condition(before, kind, second, reason, message, generation=2, now=later)
    condition = get_condition(change.conditions, kind)
    assert condition is not None
    assert condition.last_transition_time == (NOW if first is second else later)
    assert len(condition.message) <= MAX_MESSAGE
    assert "\n" not in condition.message
    assert not set_condition(change.conditions, kind, second, reason, message, generation=3, now=later).changed
    assert [c for c in change.conditions if c.type != kind] == [c for c in before if c.type != kind]


def test_a_foreign_condition_stays_where_it_is() -> None:
    foreign = Condition(type="example.com/Audited", status=TRUE, last_transition_time=NOW, reason="Done")
    conditions = (foreign, *INITIAL)
    change = set_condition(conditions, ConditionType.ACCEPTED, TRUE, Reason.VALID, generation=1, now=NOW)
    assert change.conditions[0] == foreign
    assert len(change.conditions) == len(conditions)


ACCEPTED: Setting = (ConditionType.ACCEPTED, TRUE, Reason.VALID)
READY: Setting = (ConditionType.PODS_READY, TRUE, Reason.ALL_PODS_READY)
STATES: list[tuple[str, list[Setting], str]] = [
    ("nothing is known", [], "Pending"),
    ("the quota is used up", [(ConditionType.ACCEPTED, FALSE, Reason.QUOTA_EXCEEDED)], "Blocked: QuotaExceeded"),
    ("pods are not looked at yet", [ACCEPTED], "Starting"),
    ("no node fits", [ACCEPTED, (ConditionType.PODS_READY, FALSE, Reason.UNSCHEDULABLE)], "Starting: Unschedulable"),
    ("pods run, nobody joined", [ACCEPTED, READY], "Running"),
    (
        "workers are missing",
        [ACCEPTED, READY, (ConditionType.TRAINING, FALSE, Reason.WAITING_FOR_WORKERS)],
        "Running: WaitingForWorkers",
    ),
    ("rounds are trained", [ACCEPTED, READY, (ConditionType.TRAINING, TRUE, Reason.TRAINING)], "Training"),
    ("a pod is away while training", [ACCEPTED, (ConditionType.TRAINING, TRUE, Reason.TRAINING)], "Training"),
    ("the end is good", [ACCEPTED, (ConditionType.SUCCEEDED, TRUE, Reason.EPOCHS_COMPLETED)], "Succeeded"),
    ("somebody stopped it", [ACCEPTED, (ConditionType.SUCCEEDED, FALSE, Reason.STOPPED)], "Stopped"),
    ("a worker was lost", [ACCEPTED, (ConditionType.SUCCEEDED, FALSE, Reason.WORKER_LOST)], "Failed: WorkerLost"),
]


@pytest.mark.parametrize(("settings", "want"), [case[1:] for case in STATES], ids=[name for name, *_ in STATES])
def test_the_state_for_display(settings: list[Setting], want: str) -> None:
    conditions = after(*settings)
    assert display_state(conditions) == want
    assert is_finished(conditions) == (want.partition(":")[0] in {"Succeeded", "Failed", "Stopped"})
    assert is_true(conditions, ConditionType.ACCEPTED) == (ACCEPTED in settings)


def test_every_reason_is_explained_and_fits_the_schema() -> None:
    assert list(REASONS) == list(Reason), "each reason, in the order of the enumeration"
    for reason, doc in REASONS.items():
        assert re.fullmatch("([A-Z][a-z]+)+", reason.value), reason
        assert doc.cause.endswith("."), reason
        assert not doc.remedy or doc.remedy.endswith("."), reason
        Condition(type="Accepted", status=FALSE, last_transition_time=NOW, reason=reason.value)


def test_the_coordinator_gives_no_other_reasons() -> None:
    assert {reason.value for reason in run_values.RunReason} <= {reason.value for reason in Reason}


def test_the_coordinator_gives_no_other_phases_of_a_worker() -> None:
    assert {phase.value for phase in run_values.WorkerPhase} == {phase.value for phase in WorkerPhase}


def test_a_status_of_a_newer_version_can_be_read() -> None:
    document = {
        "conditions": [c.to_document() for c in INITIAL],
        "workers": [{"name": "cpu-0", "phase": "Dancing", "new": 1}],
        "novelty": {},
    }
    status = HeteroTrainJobStatus.model_validate(document)
    assert status.conditions == INITIAL
    assert status.workers[0].phase == "Dancing"
