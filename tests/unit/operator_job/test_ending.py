"""After the end: pods end by themselves, are deleted if they do not, and never come back."""

from __future__ import annotations

from builders_operator import (
    decided,
    ended_status,
    in_,
    make_job,
    make_pod,
    make_state,
    pods,
    seen,
    status_of,
)
from heterotrain_operator.job.decision import DeletePod

ENDED = (make_pod("cpu-0", phase="Succeeded"), make_pod("ps-0", phase="Succeeded"))


def test_pods_that_still_run_are_given_half_a_minute() -> None:
    decision = decided(make_job(status=ended_status(at=10)), pods(*ENDED))
    assert (decision.delete, decision.status, decision.wake_at) == ((), None, in_(20))


def test_then_they_are_deleted_and_those_that_ended_stay_for_their_logs() -> None:
    pending = make_pod("cpu-1", phase="Pending")
    decision = decided(make_job(status=ended_status(at=30)), pods(*ENDED, pending))
    assert decision.delete == (DeletePod(pending.name, pending.uid, "the job is over"),)
    assert [(e.reason, e.message) for e in decision.events] == [
        ("PodsEnded", "deleted what still ran 30 s after the end: fashion-cpu-1-1")
    ]
    assert decision.status is not None, "an event comes with a write"
    assert decision.wake_at is None


def test_a_pod_that_is_being_deleted_is_not_deleted_again() -> None:
    decision = decided(make_job(status=ended_status(at=300)), pods(*ENDED, make_pod("cpu-1", deleting=True)))
    assert (decision.delete, decision.status) == ((), None)


def test_a_finished_job_stays_finished_whatever_is_taken_from_it() -> None:
    job = make_job(status=ended_status(at=3600))
    for left in (pods(*ENDED), ENDED[:1], ()):
        decision = decided(job, left, service=None, secret_present=False)
        assert (decision.make, decision.secret, decision.service) == ((), None, None)
        assert decision.status is None or status_of(decision).conditions == ended_status(at=3600).conditions


def test_a_state_that_comes_late_does_not_bring_the_job_back() -> None:
    decision = decided(make_job(status=ended_status(at=10)), pods(*ENDED), training=seen(make_state()))
    assert (decision.status, decision.requests) == (None, ())


def test_the_end_is_found_without_its_time() -> None:
    status = ended_status(at=100).model_copy(update={"completion_time": None})
    decision = decided(make_job(status=status), pods(*ENDED))
    assert [pod.name for pod in decision.delete] == ["fashion-cpu-1-1"]
    assert status_of(decision).conditions == status.conditions
