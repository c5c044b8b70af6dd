from collections.abc import Callable

import pytest

from builders_core import FIVE_TWO_ONE, A, B, C, Fleet, commit, fleet, grant, make_plan
from heterotrain_core.bsp import EPOCHS_OVER, ROUNDS_OVER, BspPolicy
from heterotrain_core.cursor import DataCursor
from heterotrain_core.schedule import schedule_step
from heterotrain_core.types import (
    Commit,
    EpochEnd,
    Grant,
    Plan,
    SampleRange,
    SyncPolicy,
    TrainingEnd,
)


def test_the_policy_is_a_sync_policy_without_timers() -> None:
    bsp = BspPolicy(FIVE_TWO_ONE, "abc", DataCursor(8, 1))
    policy: SyncPolicy = bsp

    assert (policy.version, bsp.next_timer, policy.on_timer(1.0)) == (0, None, ())


def test_two_epochs_with_a_ragged_last_round_from_the_first_grant_to_the_end() -> None:
    job = fleet(dataset_size=20, epochs=2)

    assert job.join(C, A) == []
    assert job.join(B) == [
        grant(A, 0, 0, 5), grant(B, 0, 5, 7), grant(C, 0, 7, 8),
        grant(A, 1, 8, 13), grant(B, 1, 13, 15), grant(C, 1, 15, 16),
    ]  # fmt: skip
    assert job.round(C, A) == []
    assert job.policy.waiting_for == (B,)
    assert job.round(B) == [
        commit(0, {A: 5, B: 2, C: 1}, 0, 8),
        # Four samples are left: 2.5, 1 and 0.5 by proportion; the equal remainders go to the lower worker.
        grant(A, 2, 16, 19), grant(B, 2, 19, 20),
    ]  # fmt: skip
    assert job.round(A, B, C) == [commit(1, {A: 5, B: 2, C: 1}, 8, 16)]
    assert job.round(B, A) == [
        commit(2, {A: 3, B: 1}, 16, 20),
        EpochEnd(A, 0, 3), EpochEnd(B, 0, 3), EpochEnd(C, 0, 3),
        grant(A, 3, 0, 5, epoch=1), grant(B, 3, 5, 7, epoch=1), grant(C, 3, 7, 8, epoch=1),
        grant(A, 4, 8, 13, epoch=1), grant(B, 4, 13, 15, epoch=1), grant(C, 4, 15, 16, epoch=1),
    ]  # fmt: skip
    job.round(A, B, C)
    job.round(A, B, C)
    assert job.round(A, B) == [
        commit(5, {A: 3, B: 1}, 16, 20, epoch=1),
        EpochEnd(A, 1, 6), EpochEnd(B, 1, 6), EpochEnd(C, 1, 6),
        TrainingEnd(A, 6, EPOCHS_OVER), TrainingEnd(B, 6, EPOCHS_OVER), TrainingEnd(C, 6, EPOCHS_OVER),
    ]  # fmt: skip
    assert job.policy.end_reason == EPOCHS_OVER


def test_a_schedule_by_samples_stands_at_the_version() -> None:
    job = fleet(dataset_size=20, epochs=2)
    decisions = job.join()
    steps: dict[int, int] = {}
    while job.ready():
        for d in decisions:
            if isinstance(d, Grant):
                before = job.policy.samples_before(d.iteration)
                steps[d.iteration] = schedule_step(d.ranges[0].epoch, 20, 8, before)
        decisions = job.round()

    assert steps == {number: number for number in range(6)}
    assert schedule_step(job.cursor.epoch, 20, 8, job.cursor.committed) == job.policy.version == 6


@pytest.mark.parametrize(("rounds_ahead", "want_open"), [(0, [0]), (1, [0, 1]), (2, [0, 1, 2])])
def test_as_many_rounds_are_open_ahead_as_asked(rounds_ahead: int, want_open: list[int]) -> None:
    job = fleet(rounds_ahead=rounds_ahead)
    job.join()
    assert (sorted(job.grants), job.policy.next_round) == (want_open, len(want_open))

    job.round()
    assert job.policy.next_round == len(want_open) + 1


def test_a_refused_gradient_is_used_up_and_stays_in_the_denominator() -> None:
    job = fleet()
    job.join()
    job.done(A, refused=True)

    assert job.round(B, C)[0] == commit(0, {B: 2, C: 1}, 0, 8, scale=3 / 8)


def test_when_all_refuse_only_the_version_moves() -> None:
    job = fleet()
    job.join()
    decisions = [d for worker in (A, B, C) for d in job.done(worker, refused=True)]

    assert decisions[0] == Commit(0, (), 0.0, (SampleRange(0, 0, 8),))


def test_a_plan_is_in_force_for_all_from_the_first_round_not_yet_opened() -> None:
    job = fleet()
    job.join()
    job.round(A)
    new = make_plan(2, a=1, b=3, c=4)

    assert job.plan(new) == []
    assert (job.policy.plan, job.policy.plan_round, job.policy.next_round) == (new, 2, 2)
    job.round(B, C)
    job.round()
    assert {number: [(g.samples, g.plan_generation) for g in gs] for number, gs in job.grants.items()} == {
        0: [(5, 1), (2, 1), (1, 1)], 1: [(5, 1), (2, 1), (1, 1)],
        2: [(1, 2), (3, 2), (4, 2)], 3: [(1, 2), (3, 2), (4, 2)],
    }  # fmt: skip
    assert (job.policy.plan_round, job.policy.next_round) == (2, 4)


def test_a_plan_that_gives_work_to_somebody_wakes_an_idle_policy() -> None:
    job = Fleet(make_plan(a=0, b=8), dataset_size=16)
    job.join()
    assert job.leave(B) == [Commit(0, (), 0.0), Commit(1, (), 0.0)]

    assert job.plan(make_plan(2, a=8)) == [grant(A, 2, 0, 8, generation=2), grant(A, 3, 8, 16, generation=2)]
    assert job.policy.plan_round == 2


@pytest.mark.parametrize(
    ("plan", "want_message"),
    [
        (make_plan(1, a=8), "plan generation 1 is not newer than 1"),
        (make_plan(2, a=8, x=1), "plan 2 names unknown workers: x"),
    ],
)
def test_an_old_plan_or_one_with_strangers_is_refused(plan: Plan, want_message: str) -> None:
    job = fleet()

    with pytest.raises(ValueError, match=want_message):
        job.plan(plan)
    assert job.policy.plan == FIVE_TWO_ONE


def test_a_stop_finishes_the_open_rounds_then_ends() -> None:
    job = fleet()
    job.join()
    job.round(A)

    assert job.stop("the user asked") == []
    assert job.stop("too late") == []
    assert job.round(B, C) == [commit(0, {A: 5, B: 2, C: 1}, 0, 8)]
    assert job.round() == [
        commit(1, {A: 5, B: 2, C: 1}, 8, 16), *(TrainingEnd(w, 2, "the user asked") for w in (A, B, C))
    ]  # fmt: skip
    assert job.policy.end_reason == "the user asked"


def test_a_stop_before_the_first_round_ends_at_once_and_late_comers_are_told() -> None:
    job = fleet()
    job.join(A)

    assert job.stop("the user asked") == [TrainingEnd(A, 0, "the user asked")]
    assert job.join(B) == [TrainingEnd(B, 0, "the user asked")]
    assert job.stop("again") == []


def test_a_stop_in_the_last_round_of_all_epochs_is_a_natural_end() -> None:
    job = fleet(dataset_size=8)
    job.join()
    job.stop()

    assert job.round()[-1] == TrainingEnd(C, 1, EPOCHS_OVER)


@pytest.mark.parametrize("rounds_ahead", [0, 1, 3])
@pytest.mark.parametrize("max_rounds", [1, 2, 5])
def test_the_limit_of_rounds_is_met_exactly(max_rounds: int, rounds_ahead: int) -> None:
    job = fleet(rounds_ahead=rounds_ahead, max_rounds=max_rounds)
    decisions = job.join()
    while job.ready():
        decisions = job.round()

    assert decisions[-3:] == [TrainingEnd(w, max_rounds, ROUNDS_OVER) for w in (A, B, C)]
    assert (len(job.commits), sorted(job.grants)) == (max_rounds, list(range(max_rounds)))


def done_of_unknown_worker(p: BspPolicy) -> object:
    return p.on_done(7, 0, 0, 5, 0.0)


def done_twice(p: BspPolicy) -> object:
    p.on_done(A, 0, 0, 5, 0.0)
    return p.on_done(A, 0, 0, 5, 0.0)


def done_after_leaving(p: BspPolicy) -> object:
    p.on_leave(A, 0.0)
    return p.on_done(A, 0, 0, 5, 0.0)


def done_of_committed_round(p: BspPolicy) -> object:
    for worker, samples in ((A, 5), (B, 2), (C, 1)):
        p.on_done(worker, 0, 0, samples, 0.0)
    return p.on_done(A, 0, 0, 5, 0.0)


@pytest.mark.parametrize(
    ("act", "want_message"),
    [
        pytest.param(done_of_unknown_worker, "worker 7 is unknown: there are 3", id="an unknown worker"),
        pytest.param(done_twice, "worker a, iteration 0: done was said twice", id="a done that comes twice"),
        pytest.param(done_after_leaving, "worker a, iteration 0: was not granted", id="a done of one who left"),
        pytest.param(
            done_of_committed_round, r"iteration 0 is not open; open are \[1, 2\]", id="a round that is committed"
        ),
        pytest.param(
            lambda p: p.on_done(A, 9, 9, 5, 0.0), r"iteration 9 is not open; open are \[0, 1\]", id="a round not opened"
        ),
        pytest.param(
            lambda p: p.on_done(A, 1, 1, 5, 0.0),
            "worker a, iteration 1: cannot be done before version 1 exists; the newest is 0",
            id="a round granted ahead whose version does not exist yet",
        ),
        pytest.param(
            lambda p: p.on_done(A, 0, 0, 4, 0.0),
            "was granted version 0 and 5 samples, done says version 0 and 4 samples",
            id="another number of samples than was granted",
        ),
        pytest.param(lambda p: p.on_join(A, 0.0), "worker a has joined already", id="joining twice"),
        pytest.param(lambda p: p.on_leave(-1, 0.0), "worker -1 is unknown", id="leaving of an unknown worker"),
    ],
)
def test_what_cannot_be_is_refused(act: Callable[[BspPolicy], object], want_message: str) -> None:
    job = fleet()
    job.join()

    with pytest.raises(ValueError, match=want_message):
        act(job.policy)


@pytest.mark.parametrize(
    ("names", "options", "want_message"),
    [
        ("", {}, "names must be unique and at least one"),
        ("aab", {}, "names must be unique and at least one"),
        ("ab", {}, "plan 1 names unknown workers: c"),
        ("abc", {"rounds_ahead": -1}, "rounds_ahead must be at least 0, not -1"),
        ("abc", {"max_rounds": 0}, "max_rounds must be at least 1 or None, not 0"),
    ],
)
def test_a_policy_without_sense_is_refused(names: str, options: dict[str, int], want_message: str) -> None:
    with pytest.raises(ValueError, match=want_message):
        BspPolicy(FIVE_TWO_ONE, names, DataCursor(8, 1), **options)
