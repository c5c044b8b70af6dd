"""Delay: rounds that close after a window, bounded staleness, weights."""

import pytest

from builders_sync import World
from heterotrain_core.staleness import make_commit
from heterotrain_core.synchronization import INVERSE, NO_DISCOUNT, Asp, Delay, Normalization
from heterotrain_core.types import Commit, Contribution, Grant, SampleRange

A, B, C, D = range(4)


def world(
    window: float | None = 1.0, bound: int | None = 3, shares: tuple[int, ...] = (3, 2, 2, 1), limit: int | None = None
) -> World:
    made = World(Delay(window, bound), shares, dataset_size=8000, max_rounds=limit)
    made.join()
    return made


def at(job: World, now: float, *workers: int) -> list[int]:
    """These workers are done at `now`, and timers then due come; returns who starts."""
    job.now = now
    decisions = [d for w in workers for d in job.done(w)]
    if job.policy.next_timer is not None and job.policy.next_timer <= now:
        decisions += job.tick()
    return [d.worker for d in decisions if isinstance(d, Grant)]


def test_a_round_closes_a_window_after_its_first_gradient_and_late_ones_come_into_the_next() -> None:
    job = world()
    assert at(job, 5.0, B) == []
    assert job.policy.next_timer == 6.0
    assert at(job, 5.5, A) == []
    assert at(job, 6.0, C) == [A, B, C], "arrivals come before a close of the same instant"
    assert job.policy.next_timer is None
    assert at(job, 7.0, D) == []
    assert at(job, 8.0) == [D]

    in_time = tuple(Contribution(w, 0, n / 7) for w, n in ((A, 3), (B, 2), (C, 2)))
    assert job.commits == [
        Commit(0, in_time, 7 / 8, (SampleRange(0, 0, 7),)),
        # One version late: counts half.
        Commit(1, (Contribution(D, 0, 1.0),), 0.5 / 8, (SampleRange(0, 7, 8),)),
    ]  # fmt: skip
    assert (job.policy.staleness_histogram, job.policy.largest_staleness) == ({0: 3, 1: 1}, 1)


def test_a_round_closes_at_once_when_everybody_is_in() -> None:
    job = world(window=100.0)

    assert at(job, 1.0, A, B, C, D) == [A, B, C, D]


def test_a_round_waits_for_who_would_exceed_the_bound_and_closes_by_the_timer_when_they_are_in() -> None:
    job = world(bound=1)
    at(job, 1.0, A, B, C)
    at(job, 2.0)
    at(job, 3.0, A)
    assert job.policy.next_timer is None
    assert job.policy.waiting_for == (D,)

    job.now = 9.0
    assert job.done(D) == []
    assert job.policy.next_timer == 4.0, "in the past: to be called at once"
    assert at(job, 9.0) == [A, D]
    assert job.commits[1].contributions == (Contribution(A, 1, 3 / 3.5), Contribution(D, 0, 0.5 / 3.5))


def test_the_timer_before_its_time_does_nothing() -> None:
    job = world()
    at(job, 1.0, A)

    assert job.policy.on_timer(1.9) == ()


def test_who_was_lost_after_its_gradient_came_is_out_and_the_window_is_that_of_the_next_one() -> None:
    job = world()
    at(job, 1.0, A)
    at(job, 1.5, B)
    job.leave(A)

    assert job.policy.next_timer == 2.5
    assert at(job, 2.5) == [B]
    assert job.commits[0].contributions == (Contribution(B, 0, 1.0),)


def test_the_last_one_missing_is_lost_so_the_round_closes() -> None:
    job = world(window=None)
    at(job, 1.0, A, B, C)

    assert [d for d in job.leave(D) if isinstance(d, Commit)] == job.commits
    assert job.commits[0].scale == 1.0, "the denominator is what was granted less what the lost one had"


def test_a_newcomer_starts_at_once_but_in_lock_step_with_the_next_round() -> None:
    for mode, want in ((Delay(1.0, 3), [D]), (Delay(1.0, 0), []), (Delay(None, 3), [])):
        job = World(mode, [3, 2, 2, 1], dataset_size=800)
        job.leave(D)
        job.join(A, B, C)
        assert [d.worker for d in job.join(D) if isinstance(d, Grant)] == want


def test_a_lowered_bound_is_in_force_after_the_round_that_waits_for_the_gradients_beyond_it() -> None:
    job = world(window=0.0, bound=8)
    for now in range(1, 6):
        at(job, now, A, B, C)
    job.synchronize(Delay(0.0, 1))
    assert (job.policy.bound_wanted, job.policy.bound_in_force) == (1, 8)

    at(job, 6.0, A, B, C)
    assert job.policy.waiting_for == (D,)
    assert job.policy.bound_in_force == 8
    assert at(job, 7.0, D) == [A, B, C, D]
    assert (job.policy.bound_wanted, job.policy.bound_in_force) == (1, 1)
    assert job.policy.largest_staleness == 5


def test_a_lowered_bound_that_nothing_is_beyond_and_a_raised_one_are_in_force_at_once() -> None:
    job = world(window=0.0, bound=8)
    at(job, 1.0, A, B, C)

    for bound in (1, 5, None):
        job.synchronize(Delay(0.0, bound))
        assert (job.policy.bound_wanted, job.policy.bound_in_force) == (bound, bound)
    job.synchronize(Delay(0.0, 0))
    assert (job.policy.bound_wanted, job.policy.bound_in_force) == (0, None)
    job.leave(D)
    assert job.policy.bound_in_force == 0, "the gradient beyond it is lost"


def test_a_shorter_window_closes_a_round_that_waits() -> None:
    job = world(window=60.0)
    at(job, 1.0, A)

    job.synchronize(Delay(2.0, 3))
    assert job.policy.next_timer == 3.0


def test_the_last_round_of_a_limit_waits_for_everybody_who_computes() -> None:
    job = world(window=0.0, bound=None, limit=3)
    at(job, 1.0, A)
    at(job, 2.0, A)
    assert at(job, 3.0, A) == []
    assert job.policy.next_timer is None
    at(job, 4.0, B, C)
    job.now = 5.0
    job.done(D)

    assert job.policy.end_reason is not None
    assert len(job.commits[2].contributions) == 4
    assert job.policy.largest_staleness == 2


@pytest.mark.parametrize(
    ("normalization", "want"),
    [(Normalization.TARGET, (0.3984375, 0.025390625)), (Normalization.ARRIVED, (0.940092, 0.059908))],
)
def test_weights(normalization: Normalization, want: tuple[float, float]) -> None:
    """ORACLE D-7."""
    grants = [
        Grant(0, 7, 7, (SampleRange(0, 0, 51),), None, 1),
        Grant(1, 4, 4, (SampleRange(0, 51, 64),), None, 1),
    ]
    commit = make_commit(7, grants, (), batch=128, discount=INVERSE, normalization=normalization)

    omegas = [c.weight * commit.scale for c in commit.contributions]
    assert omegas == pytest.approx(want, abs=1e-9 if normalization is Normalization.TARGET else 5e-7)
    assert sum(c.weight for c in commit.contributions) == 1


def test_a_small_last_share_of_an_epoch_counts_by_its_samples() -> None:
    for mode in (Delay(0.0, None, NO_DISCOUNT), Asp()):
        job = World(mode, [3, 5], dataset_size=9)
        job.join()
        at(job, 1.0, A)
        at(job, 2.0, A)
        assert [c.scale for c in job.commits] == [3 / 8, 1 / 8]


def test_settings_of_another_mode_are_a_mistake_of_the_program() -> None:
    from heterotrain_core.sync.delay import DelayMode
    from heterotrain_core.sync.state import TrainingState

    job = world()
    state = TrainingState(job.policy.plan, job.names, job.cursor)
    with pytest.raises(TypeError, match="Delay cannot take the settings of ASP"):
        DelayMode(state, Delay()).configure(Asp())
