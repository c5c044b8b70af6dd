"""BSP when workers come late, are lost, are drained."""

import pytest

from builders_core import A, B, C, commit, fleet, grant, make_plan
from heterotrain_core.bsp import DRAINED
from heterotrain_core.types import Commit, Contribution, EpochEnd, Grant, SampleRange, TrainingEnd


def test_the_first_round_waits_for_everybody_expected_but_not_for_who_left() -> None:
    job = fleet()

    assert job.join(A) == []
    assert job.leave(C) == []
    assert job.join(B)[:2] == [grant(A, 0, 0, 5), grant(B, 0, 5, 7)]


def test_a_worker_that_comes_late_or_back_takes_part_from_the_next_opened_round() -> None:
    job = fleet()
    job.join(A, B)
    job.leave(C)

    assert job.join(C) == []
    assert job.round() == [
        commit(0, {A: 5, B: 2}, 0, 7), grant(A, 2, 14, 19), grant(B, 2, 19, 21), grant(C, 2, 21, 22)
    ]  # fmt: skip


def test_a_lost_worker_is_out_of_every_open_round_and_its_samples_go_first_again() -> None:
    job = fleet()
    job.join()
    job.round(A, C)

    assert job.leave(B) == [
        Commit(
            0,
            (Contribution(A, 0, 5 / 6), Contribution(C, 0, 1 / 6)),
            1.0,
            (SampleRange(0, 0, 5), SampleRange(0, 7, 8)),
        ),
        # B held [5, 7) in round 0 and [13, 15) ahead in round 1.
        Grant(A, 2, 2, (SampleRange(0, 5, 7), SampleRange(0, 13, 15), SampleRange(0, 16, 17)), None, 1),
        grant(C, 2, 17, 18),
    ]
    assert job.round(A, C)[0] == Commit(
        1, (Contribution(A, 1, 5 / 6), Contribution(C, 1, 1 / 6)), 1.0, (SampleRange(0, 8, 13), SampleRange(0, 15, 16))
    )


def test_a_worker_lost_after_its_done_is_out_too() -> None:
    job = fleet()
    job.join()
    job.round(B)
    job.leave(B)

    assert job.round(A, C)[0] == Commit(
        0, (Contribution(A, 0, 5 / 6), Contribution(C, 0, 1 / 6)), 1.0, (SampleRange(0, 0, 5), SampleRange(0, 7, 8))
    )


def test_rounds_that_lost_everybody_are_committed_empty_and_work_waits_for_somebody() -> None:
    job = fleet()
    job.join()
    for worker in (A, B):
        job.leave(worker)

    assert job.leave(C) == [Commit(0, (), 0.0), Commit(1, (), 0.0)]
    assert (job.policy.live, job.policy.end_reason, job.cursor.remaining) == ((), None, 80)
    assert job.join(A)[0] == grant(A, 2, 0, 5)


def test_the_denominator_is_what_was_granted_less_what_was_lost() -> None:
    job = fleet()
    job.join()
    job.done(B, refused=True)
    job.leave(C)

    assert job.round(A)[0] == commit(0, {A: 5}, 0, 7, scale=5 / 7)


def test_a_drained_worker_finishes_what_it_was_granted_and_is_out_of_later_rounds() -> None:
    job = fleet()
    job.join()
    job.plan(make_plan(2, a=6, c=2))

    assert job.drain(B) == []
    assert job.round() == [
        commit(0, {A: 5, B: 2, C: 1}, 0, 8),
        Grant(A, 2, 2, (SampleRange(0, 16, 22),), None, 2), Grant(C, 2, 2, (SampleRange(0, 22, 24),), None, 2),
    ]  # fmt: skip
    assert job.drain(B) == []
    assert job.round()[:2] == [commit(1, {A: 5, B: 2, C: 1}, 8, 16), TrainingEnd(B, 2, DRAINED)]
    assert job.leave(B) == []
    assert job.round()[0] == commit(2, {A: 6, C: 2}, 16, 24)


def test_who_is_drained_while_holding_nothing_is_dismissed_at_once() -> None:
    job = fleet()
    job.join(A)

    assert job.drain(A) == [TrainingEnd(A, 0, DRAINED)]
    with pytest.raises(ValueError, match="worker b is not there to be drained"):
        job.drain(B)
    assert job.join(B, C)[:2] == [grant(B, 0, 0, 2), grant(C, 0, 2, 3)]


def test_a_worker_drained_with_the_last_round_of_an_epoch_gets_no_epoch_end() -> None:
    job = fleet(dataset_size=8, epochs=2)
    job.join()
    job.drain(B)

    assert job.round()[1:4] == [TrainingEnd(B, 1, DRAINED), EpochEnd(A, 0, 1), EpochEnd(C, 0, 1)]
