"""ASP and SSP: one commit a push, starts blocked by the slowest."""

import pytest

from builders_sync import World
from heterotrain_core.bsp import DRAINED, ROUNDS_OVER
from heterotrain_core.synchronization import INVERSE, Asp, Bsp, Normalization, Ssp
from heterotrain_core.types import Commit, Contribution, EpochEnd, Grant, SampleRange, TrainingEnd

A, B, C = range(3)


def world(mode: Asp | Ssp, shares: tuple[int, ...] = (5, 2, 1), size: int = 800, limit: int | None = None) -> World:
    made = World(mode, shares, dataset_size=size, epochs=2, max_rounds=limit)
    made.join()
    return made


def test_a_push_is_a_commit_whose_scale_is_its_part_of_the_batch() -> None:
    job = world(Asp())

    assert job.done(B) == [
        Commit(0, (Contribution(B, 0, 1.0),), 2 / 8, (SampleRange(0, 5, 7),)),
        Grant(B, 1, 1, (SampleRange(0, 8, 10),), None, 1),
    ]
    assert job.done(A)[0] == Commit(1, (Contribution(A, 0, 1.0),), 5 / 8, (SampleRange(0, 0, 5),))
    assert (job.policy.staleness_histogram, job.policy.largest_staleness) == ({0: 1, 1: 1}, 1)


def test_a_discount_and_a_full_step_are_options() -> None:
    discounted, full = world(Asp(discount=INVERSE)), world(Asp(normalization=Normalization.ARRIVED))
    for job in (discounted, full):
        job.done(A)
        job.done(B)

    assert [c.scale for c in discounted.commits] == [5 / 8, 2 / 8 / 2]
    assert [c.scale for c in full.commits] == [1.0, 1.0]


def test_a_refused_gradient_moves_only_the_version_and_uses_its_samples_up() -> None:
    job = world(Asp())

    assert job.done(A, refused=True)[0] == Commit(0, (), 0.0, (SampleRange(0, 0, 5),))


def test_who_is_too_far_ahead_waits_and_all_released_start_in_worker_order() -> None:
    job = world(Ssp(1))
    job.done(A)
    assert len(job.done(A)) == 1
    job.done(B)
    assert len(job.done(B)) == 1
    assert job.policy.waiting_for == (C,)

    assert [d.worker for d in job.done(C) if isinstance(d, Grant)] == [A, B, C]
    assert job.policy.waiting_for == ()


def test_the_clock_of_a_lost_worker_holds_nobody() -> None:
    job = world(Ssp(0))
    job.done(A)
    job.done(B)

    assert [d.worker for d in job.leave(C)] == [A, B]


def test_a_worker_that_comes_starts_at_the_least_clock() -> None:
    job = world(Ssp(1))
    job.leave(C)
    for _ in range(3):
        job.done(A)
        job.done(B)
    job.join(C)

    assert len(job.done(A)) == 2
    assert len(job.done(A)) == 1
    job.done(B)
    assert [d.worker for d in job.done(C) if isinstance(d, Grant)] == [A, C]


@pytest.mark.parametrize("how", ["drain", "share of 0"])
def test_who_gets_no_more_work_is_out_of_the_minimum_once_its_gradient_is_in(how: str) -> None:
    job = world(Ssp(0))
    job.done(A)
    job.done(B)
    if how == "drain":
        assert job.drain(C) == []
    else:
        assert job.plan([5, 3, 0]) == []

    decisions = job.done(C)
    assert [d.worker for d in decisions if isinstance(d, Grant)] == [A, B]
    assert (TrainingEnd(C, 3, DRAINED) in decisions) == (how == "drain")


def test_at_the_end_of_an_epoch_clocks_go_on_from_the_largest() -> None:
    job = world(Ssp(1), size=10)
    # 8 of 10 samples are out; A takes the last two, then nobody finds any.
    job.done(A)
    assert job.policy.waiting_for == ()
    job.done(A)
    job.done(B)
    assert job.policy.waiting_for == (C,)
    decisions = job.done(C)

    assert decisions[1:4] == [EpochEnd(w, 0, 4) for w in (A, B, C)]
    assert [d.worker for d in decisions[4:]] == [A, B, C]
    assert len(job.done(A)) == 2, "A is ahead of nobody"


def test_with_new_shares_nobody_waits_for_iterations_that_the_old_ones_left_behind() -> None:
    job = world(Ssp(2))
    for _ in range(3):
        job.done(A)
        job.done(B)
    assert job.policy.waiting_for == (C,), "A and B are three ahead"

    assert [d.worker for d in job.plan([4, 2, 2]) if isinstance(d, Grant)] == []
    assert [d.worker for d in job.done(C) if isinstance(d, Grant)] == [A, B, C]

    job.done(A)
    job.done(A)
    assert len(job.done(A)) == 1, "three ahead again, as at the beginning"
    job.done(B)
    assert [d.worker for d in job.done(C) if isinstance(d, Grant)] == [A, C]


def test_who_catches_up_does_not_wait_for_another_who_has_yet_to() -> None:
    job = world(Ssp(1))
    job.done(A)
    job.done(A)
    job.plan([3, 3, 2])

    assert [d.worker for d in job.done(B) if isinstance(d, Grant)] == [B], "one ahead of C; A stays two ahead"
    assert [d.worker for d in job.done(C) if isinstance(d, Grant)] == [A, C]


def test_who_may_not_catch_up_at_once_goes_on_with_it() -> None:
    job = world(Ssp(6))
    for _ in range(7):
        job.done(A)
    job.plan([3, 3, 2], Ssp(2))

    job.done(B)
    job.done(C)
    assert A not in job.ready(), "B is at 2 and C at 4, of 7"
    job.done(B)
    assert A not in job.ready(), "B is at 6"
    assert [d.worker for d in job.done(C) if isinstance(d, Grant)] == [A, C]


def test_a_plan_with_the_same_shares_lets_nobody_skip() -> None:
    job = world(Ssp(1))
    job.done(A)
    job.done(A)
    job.done(B)
    job.plan([5, 2, 1])

    assert [d.worker for d in job.done(C) if isinstance(d, Grant)] == [A, C]
    job.done(A)
    assert job.policy.waiting_for == (B, C), "A is two ahead of both"


def test_a_lowered_bound_is_in_force_when_the_gradients_beyond_it_are_in() -> None:
    job = world(Ssp(8))
    for _ in range(5):
        job.done(A)

    job.synchronize(Ssp(1))
    assert (job.policy.bound_wanted, job.policy.bound_in_force) == (1, 8)
    assert len(job.done(A)) == 1
    assert (job.policy.bound_wanted, job.policy.bound_in_force) == (1, 1)
    # A has completed 6 iterations: it may start when the others have completed 5.
    started = [any(isinstance(d, Grant) and d.worker == A for d in job.done(w)) for _ in range(5) for w in (B, C)]
    assert started == [False] * 9 + [True]


def test_a_raised_bound_starts_who_waited_at_once() -> None:
    job = world(Ssp(0))
    job.done(A)

    assert [d.worker for d in job.synchronize(Ssp(2))] == [A]
    assert (job.policy.bound_wanted, job.policy.bound_in_force) == (2, 2)


def test_each_grant_is_a_version_so_the_limit_of_rounds_is_met_exactly() -> None:
    job = world(Asp(), limit=5)
    job.done(A)
    job.done(A)
    assert job.done(A)[1:] == []
    job.done(B)
    assert job.done(C)[1:] == [TrainingEnd(w, 5, ROUNDS_OVER) for w in (A, B, C)]


def test_settings_of_another_mode_are_not_taken_for_this_ones() -> None:
    job = world(Ssp(1))

    with pytest.raises(ValueError, match="worker w0, iteration 7: was not granted, or done was said twice"):
        job.policy.on_done(A, 7, 7, 5, 0.0)
    with pytest.raises(ValueError, match="was granted version 0 and 5 samples, done says version 0 and 4 samples"):
        job.policy.on_done(A, 0, 0, 4, 0.0)
    job.synchronize(Bsp())
    assert (job.policy.synchronization, job.policy.synchronization_wanted) == (Ssp(1), Bsp())
