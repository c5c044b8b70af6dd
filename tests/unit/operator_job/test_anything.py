"""`decide` takes anything that an API server may hold, and what it decides can be carried out."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from builders_operator import (
    FALSE,
    NOW,
    SETTINGS,
    TRUE,
    ended_status,
    make_end,
    make_job,
    make_pod,
    make_service,
    make_state,
    make_status,
    outcome,
    seen,
    training_status,
)
from heterotrain_api.conditions import MAX_MESSAGE, ConditionType, Reason, is_finished
from heterotrain_api.contract import Annotation, Container
from heterotrain_api.crd import job_schema
from heterotrain_api.names import MAX_LABEL
from heterotrain_api.schema_check import check
from heterotrain_api.status import HeteroTrainJobStatus
from heterotrain_operator.job.decide import decide
from heterotrain_operator.job.failures import fills
from heterotrain_operator.job.observed import Answer, ContainerEnd, ContainerSeen, Observed, PodSeen, Unreachable
from heterotrain_operator.job.view import read

STATUS_SCHEMA = job_schema()["properties"]["status"]
TIMES = st.sampled_from([-3600.0, -3.0, 0.0, 1.0, 4.0, 30.0, 3600.0])
TEXTS = st.sampled_from(["", "x", "Traceback (most recent call last):\n  x\nValueError: no", "é" * 3000, "a\nb"])

ENDS = st.builds(
    lambda code, reason, message, at: make_end(code, reason=reason, message=message, seconds_ago=at),
    st.sampled_from([0, 1, 2, 3, 4, 137, 139, 255]),
    st.sampled_from(["", "OOMKilled", "Error", "ContainerCannotRun"]),
    TEXTS
    | st.sampled_from(
        [outcome(state, reason) for state in ("Succeeded", "Failed", "Stopped") for reason in ("WorkerLost", "Odd")]
        + ['{"state": "Succeeded"', '{"state": 7}', "[" * 2000, '{"state": "Failed", "rounds": 1e400}']
    ),
    TIMES | st.none(),
)


def container(name: str, end: ContainerEnd | None, waiting: str) -> ContainerSeen:
    if end is not None:
        return ContainerSeen(name, "terminated", end=end)
    return ContainerSeen(name, "waiting", waiting, "words") if waiting else ContainerSeen(name, "running")


CONTAINERS = st.lists(
    st.builds(
        container,
        st.sampled_from([Container.TRAINER, Container.COORDINATOR, "sidecar"]),
        ENDS | st.none(),
        st.sampled_from(["", "ImagePullBackOff", "ContainerCreating", "CreateContainerConfigError"]),
    ),
    max_size=3,
    unique_by=lambda seen: seen.name,
).map(tuple)

PODS: st.SearchStrategy[PodSeen] = st.builds(
    make_pod,
    st.sampled_from(["ps-0", "cpu-0", "cpu-1", "cpu-7", "old-0", "ps-1"]),
    attempt=st.integers(1, 3),
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
    ready=st.booleans(),
    created=st.floats(0, 100),
    containers=CONTAINERS,
    deleting=st.booleans(),
    disrupted=st.sampled_from(["", "", "Evicted"]),
    unschedulable=st.sampled_from(["", "", 'persistentvolumeclaim "x" not found', "0/1 nodes"]),
    message=TEXTS,
)

STATUSES = st.sampled_from(
    [
        None,
        {},
        {"conditions": "none"},
        make_status(),
        make_status((ConditionType.ACCEPTED, FALSE, Reason.QUOTA_EXCEEDED)),
        make_status((ConditionType.PODS_READY, FALSE, Reason.POD_DELETED), attempt=3),
        training_status(),
        training_status(at=-500),
        ended_status(TRUE),
        ended_status(FALSE, at=100),
    ]
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from([Annotation.PLAN_REQUEST, Annotation.COMMAND]),
    st.sampled_from(["", "{", '{"id": "a", "shares": {"cpu-0": 1}}', '{"id": "a", "command": "stop"}']),
)
SPECS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {"image": None},
        {"workers": [{"name": "cpu", "template": {"spec": {"hostNetwork": True}}}]},
        {"workers": []},
        {"globalBatchSize": 0},
    ]
)
JOBS = st.builds(
    lambda status, annotations, spec, deleting: make_job(
        status=status, annotations=annotations, deleting=deleting, **spec
    ),
    STATUSES,
    ANNOTATIONS,
    SPECS,
    st.sampled_from([False] * 9 + [True]),
)

OBSERVED = st.builds(
    Observed,
    job=JOBS,
    pods=st.lists(PODS, max_size=7, unique_by=lambda pod: pod.name).map(tuple),
    service=st.sampled_from([None, make_service(), make_service(selector={"app": "mine"}), {}]),
    secret_present=st.booleans(),
    foreign=st.sampled_from([(), (), ("service/fashion-3f2a77c0",), ("pod/fashion-cpu-0-1",)]),
    training=st.none()
    | st.builds(
        lambda phase, connected, age, worker: seen(
            make_state(phase, workers={"cpu-0": worker, "cpu-1": worker}), connected=connected, seconds_ago=age
        ),
        st.integers(0, 6),
        st.booleans(),
        TIMES,
        st.integers(0, 5),
    ),
    refusals=st.sampled_from([None, {}, {"cpu-0": "exceeded quota: q"}, {"ps-0": "é" * 2000}]),
    answers=st.sampled_from([(), (Answer("a", False, "no"),), (Answer("", True, ""), Answer("b" * 99, True, ""))]),
    unreachable=st.sampled_from([None, Unreachable(NOW - timedelta(minutes=1), "UNAVAILABLE: é\n" * 99)]),
)


@settings(max_examples=80)
@given(OBSERVED)
def test_anything_can_be_decided_and_carried_out(observed: Observed) -> None:
    decision = decide(observed, SETTINGS, NOW)
    view = read(observed, SETTINGS, NOW)
    slots = [make.name_in_job for make in decision.make]
    names = [make.manifest["metadata"]["name"] for make in decision.make]

    assert len(set(slots)) == len(slots), "one pod for a slot"
    assert not set(names) & {pod.name for pod in observed.pods}, "a name is never used twice"
    assert all(len(name) <= MAX_LABEL for name in names)
    filled = {slot.name for slot, pods in view.pods.items() if fills(view, pods) is not None}
    assert not set(slots) & filled, "no second pod beside one that does its work"
    makes = bool(decision.make or decision.secret or decision.service)
    assert not (makes and (view.finished or view.deleting or view.faults)), "nothing is made that must not be"
    assert not (decision.make and view.began), "what has begun to train is not begun again"

    if decision.status is not None:
        assert list(check(decision.status, STATUS_SCHEMA, "status")) == []
        status = HeteroTrainJobStatus.model_validate(decision.status)
        assert {c.type for c in status.conditions} >= set(ConditionType)
        assert all(re.fullmatch(r"\S.*|", c.message) and len(c.message) <= MAX_MESSAGE for c in status.conditions)
        assert not (is_finished(status.conditions) and decision.make)
    for event in decision.events:
        assert event.reason in set(Reason)
        assert event.message
        assert len(event.message) <= MAX_MESSAGE
        assert "\n" not in event.message
    assert not decision.events or decision.status is not None, "an event comes with a write"
    assert decision.wake_at is None or decision.wake_at > NOW - timedelta(seconds=1)
