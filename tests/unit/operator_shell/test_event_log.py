"""Events: each said once, repeats counted, nothing lost when the API server is away."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from heterotrain_operator.job.decision import JobEvent
from heterotrain_operator.job.event_log import EventLog

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
STARTED = JobEvent(False, "Started", "the first round was granted")
LOST = JobEvent(True, "WorkerLost", "worker cpu-0 is silent")
JOB: dict[str, Any] = {
    "apiVersion": "heterotrain.io/v1alpha1",
    "kind": "HeteroTrainJob",
    "metadata": {"name": "fashion", "namespace": "ml", "uid": "u-1", "resourceVersion": "7"},
}


def make_log() -> EventLog:
    return EventLog(timedelta(minutes=10))


def test_an_event_as_the_api_takes_it() -> None:
    log = make_log()
    log.say(LOST, JOB, NOW)
    (said,) = log.unsent
    assert said.manifest(JOB) == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": said.name, "namespace": "ml"},
        "involvedObject": {
            "apiVersion": "heterotrain.io/v1alpha1",
            "kind": "HeteroTrainJob",
            "name": "fashion",
            "namespace": "ml",
            "uid": "u-1",
            "resourceVersion": "7",
        },
        "type": "Warning",
        "reason": "WorkerLost",
        "message": "worker cpu-0 is silent",
        "source": {"component": "heterotrain-operator"},
        "reportingComponent": "heterotrain-operator",
        "reportingInstance": "heterotrain-operator",
        "firstTimestamp": "2026-01-01T12:00:00Z",
        "lastTimestamp": "2026-01-01T12:00:00Z",
        "count": 1,
    }


def test_a_repeat_within_ten_minutes_raises_the_count_of_the_first() -> None:
    log = make_log()
    log.say(LOST, JOB, NOW)
    (first,) = log.unsent
    log.sent(first)
    log.say(LOST, JOB, NOW + timedelta(minutes=9))
    (second,) = log.unsent
    assert second.name == first.name
    assert second.repetition() == {"count": 2, "lastTimestamp": "2026-01-01T12:09:00Z"}


def test_a_repeat_after_ten_minutes_is_a_new_event() -> None:
    log = make_log()
    log.say(LOST, JOB, NOW)
    (first,) = log.unsent
    log.sent(first)
    log.say(LOST, JOB, NOW + timedelta(minutes=10))
    (second,) = log.unsent
    assert second.name != first.name
    assert second.count == 1


def test_what_could_not_be_sent_is_kept_in_order_and_only_in_its_newest_form() -> None:
    log = make_log()
    log.say(STARTED, JOB, NOW)
    log.say(LOST, JOB, NOW)
    old = log.unsent[1]
    log.say(LOST, JOB, NOW + timedelta(seconds=5))
    log.sent(old)  # its answer comes late; the repetition still has to be sent
    assert [(said.event, said.count) for said in log.unsent] == [(STARTED, 1), (LOST, 2)]
    for said in log.unsent:
        log.sent(said)
    assert log.unsent == ()


def test_names_follow_from_what_is_said_of_whom_and_when() -> None:
    names = set()
    for job_uid, event, moment in [
        ("u-1", LOST, NOW),
        ("u-1", LOST, NOW),
        ("u-2", LOST, NOW),
        ("u-1", STARTED, NOW),
        ("u-1", LOST, NOW + timedelta(seconds=1)),
    ]:
        log = make_log()
        log.say(event, {**JOB, "metadata": {**JOB["metadata"], "uid": job_uid}}, moment)
        names.add(log.unsent[0].name)
    assert len(names) == 4
