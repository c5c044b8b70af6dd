"""What counts of a worker's steps, and when its speed has changed (oracles A-8, B-2, B-4)."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest

from heterotrain_core.adaptation.estimate import KEPT
from heterotrain_core.adaptation.track import COLD_STEPS, REMEMBERED, REMEMBERED_SECONDS, Change, Track, follow
from heterotrain_core.run_values import Timings
from heterotrain_core.telemetry import StepRecord


def records(times: Iterable[float], samples: int = 10, first: int = 1) -> list[StepRecord]:
    return [StepRecord(first + i, samples, Timings(compute=t, step=t)) for i, t in enumerate(times)]


def settled(steps: int = 30, samples: int = 10, seconds: float = 1.0) -> Track:
    track, _ = follow(Track(), "w", records([seconds] * steps, samples), 0.0)
    return track


def after(track: Track, times: Iterable[float], samples: int = 10) -> tuple[Track, list[tuple[int, Change]]]:
    """Steps one by one; the changes, with the number of the step that showed them."""
    found: list[tuple[int, Change]] = []
    for number, t in enumerate(times, 1):
        track, changes = follow(track, "w", records([t], samples, first=track.seen + 1), float(number))
        found += [(number, change) for change in changes]
    return track, found


def test_the_first_steps_of_a_process_and_of_a_size_do_not_count() -> None:
    cold = [*records([9.0] * COLD_STEPS), *records([1.0] * 3, first=3), *records([5.0, 2.0], samples=20, first=6)]

    track, _ = follow(Track(), "w", cold, 0.0)

    assert [(p.samples, p.busy) for p in track.points] == [(10, 1.0)] * 3 + [(20, 2.0)]


def test_records_told_twice_count_once() -> None:
    told = records([1.0] * 8)

    once, _ = follow(Track(), "w", told, 0.0)
    twice, _ = follow(once, "w", told, 0.5)

    assert twice.points == once.points
    assert len(once.points) == 8 - COLD_STEPS


def test_a_worker_that_counts_anew_has_started_again() -> None:
    track, changes = follow(settled(), "w", records([3.0] * 6), 9.0)

    assert changes == []
    assert len(track.points) == 6 - COLD_STEPS


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf], ids=str)
def test_times_that_mean_nothing_are_passed_over_and_counted(bad: float) -> None:
    track = settled()

    after_it, changes = follow(track, "w", records([bad], first=track.seen + 1), 5.0)

    assert (after_it.points, changes, after_it.bad, after_it.news_at) == (track.points, [], 1, 0.0)


@pytest.mark.parametrize(
    ("times", "want"),
    [
        pytest.param([1 / 0.8] * 7, [3], id="B-2: a fifth slower, at the third slow step"),
        pytest.param([1 / 0.96] * 60, [], id="B-2: 4 % slower, never"),
        pytest.param([2.0] * 3, [3], id="half as fast"),
        pytest.param([0.5] * 3, [3], id="twice as fast"),
        pytest.param([50.0, 50.0, 1.0, 1.0, 1.0, 1.0], [], id="two stalls, however long, are noise"),
        pytest.param([4.0] + [1.0] * 12 + [4.0] + [1.0] * 12, [], id="a stall now and then"),
    ],
)
def test_the_change_is_found_when_it_must_be(times: list[float], want: list[int]) -> None:
    _, found = after(settled(), times)

    assert [number for number, _ in found] == want


def test_after_a_change_only_the_new_speed_counts() -> None:
    track, found = after(settled(), [2.0, 2.0, 2.0, 2.0])

    assert found == [(3, Change("w", pytest.approx(2.0), 3))]
    assert track.model is not None
    assert track.model.seconds(10) == pytest.approx(2.0)
    assert (track.changes, len(track.points)) == (1, 4)


def test_noise_of_five_in_a_hundred_is_no_change_in_two_thousand_steps() -> None:
    rng = random.Random(3)
    track, _ = follow(Track(), "w", records([rng.gauss(1, 0.05) for _ in range(20)]), 0.0)

    _, found = after(track, [rng.gauss(1, 0.05) for _ in range(400)])

    assert found == []


def test_a_new_share_that_takes_more_than_in_proportion_is_no_change_of_speed() -> None:
    """What is known of the old share stays, and shares between the two are foretold by both."""
    track, found = after(settled(), [10.0] * 5, samples=20)

    assert found == [(4, Change("w", pytest.approx(5.0), 3, samples=20))]
    assert track.model is not None
    assert [track.model.seconds(b) for b in (10, 15, 20)] == pytest.approx([1.0, 5.5, 10.0])


def test_a_share_near_a_known_one_tells_a_change_of_speed() -> None:
    track, found = after(settled(), [10.0] * 5, samples=11)

    assert [(number, change.samples) for number, change in found] == [(4, 0)]
    assert track.model is not None
    assert track.model.seconds(22) == pytest.approx(20.0)


def test_steps_as_foretold_with_a_new_share_and_slower_ones_later_are_a_change_of_speed() -> None:
    _, found = after(settled(), [2.0] * 8 + [8.0] * 4, samples=20)

    assert [(number, change.samples) for number, change in found] == [(11, 0)]


def test_a_worker_that_comes_back_to_a_share_and_takes_longer_for_it_has_become_slower() -> None:
    track, _ = after(settled(), [10.0] * 5, samples=20)

    track, found = after(track, [5.0] * 3, samples=10)

    assert [(number, change.factor, change.samples) for number, change in found] == [(3, pytest.approx(5.0), 0)]
    assert track.model is not None
    assert track.model.seconds(10) == pytest.approx(5.0)


def test_what_is_remembered_of_other_shares_changes_with_the_speed() -> None:
    track, _ = after(settled(), [10.0] * 5, samples=20)

    track, found = after(track, [20.0] * 4, samples=20)

    assert [change.samples for _, change in found] == [0]
    assert track.model is not None
    assert [track.model.seconds(b) for b in (10, 20)] == pytest.approx([2.0, 20.0])


def test_only_the_newest_shares_are_remembered() -> None:
    track = settled()

    for samples in range(20, 20 + 2 * REMEMBERED):
        track, _ = after(track, [samples / 10] * 4, samples=samples)

    assert len(track.remembered) == REMEMBERED
    assert min(track.remembered) > 20


def test_the_ragged_last_round_of_an_epoch_takes_nothing_of_what_is_known() -> None:
    track = settled(40)

    for _ in range(3):
        track, found = after(track, [0.4], samples=4)
        assert found == []
        track, found = after(track, [1.0] * 9)
        assert found == []

    assert len(track.points) == 38 + 2 + 27  # without the cold ones, and the first of the ragged


def test_a_load_that_came_with_a_new_share_and_goes_leaves_no_trace() -> None:
    track, came = after(settled(), [12.0] * 30, samples=20)

    track, went = after(track, [2.0] * 6, samples=20)

    assert [change.samples for _, change in (*came, *went)] == [20, 0]
    assert track.model is not None
    assert [track.model.seconds(b) for b in (10, 20, 40)] == pytest.approx([1.0, 2.0, 4.0])


def test_a_load_that_came_with_a_new_share_and_shows_with_the_old_one_too_is_no_cost_of_the_new_one() -> None:
    track, came = after(settled(), [12.0] * 6, samples=20)

    track, found = after(track, [6.0] * 4)

    assert [change.samples for _, change in (*came, *found)] == [20, 0]
    assert track.model is not None
    assert [track.model.seconds(b) for b in (10, 20, 40)] == pytest.approx([6.0, 12.0, 24.0])


def test_a_load_that_goes_just_as_the_share_changes_is_no_saving_of_the_new_share() -> None:
    """The plan made against the load came when the load left: the share that it had seemed to take twice as long."""
    track, came = after(settled(60, samples=20, seconds=2.0), [4.0] * 8, samples=20)

    track, went = after(track, [1.5] * 6, samples=15)

    assert [change.samples for _, change in (*came, *went)] == [0, 0]
    assert track.model is not None
    assert [track.model.seconds(b) for b in (15, 20, 30)] == pytest.approx([1.5, 2.0, 3.0])


def test_a_load_that_came_in_two_steps_and_goes_in_one_is_no_saving_of_the_new_share_either() -> None:
    track, came = after(settled(60, samples=20, seconds=2.0), [3.0] * 12 + [5.0] * 8, samples=20)

    _, went = after(track, [1.5] * 6, samples=15)

    assert [change.samples for _, change in (*came, *went)] == [0, 0, 0]


def test_how_fast_a_worker_was_long_ago_says_nothing_of_a_new_share() -> None:
    track, came = after(settled(60, samples=20, seconds=2.0), [4.0] * (KEPT + 10), samples=20)

    _, went = after(track, [1.5] * 6, samples=15)

    assert [change.samples for _, change in (*came, *went)] == [0, 15]


@pytest.mark.parametrize(
    ("pause", "want"),
    [
        pytest.param(0.0, 10.0, id="soon: it is remembered, though its steps are not kept any more"),
        pytest.param(REMEMBERED_SECONDS, 2.0, id="long ago: it may have been a load that has left since"),
    ],
)
def test_what_another_share_took_is_not_remembered_for_ever(pause: float, want: float) -> None:
    track, _ = after(settled(), [10.0] * 5, samples=20)
    track, _ = after(track, [1.0] * 120)

    for _ in range(20):
        track, found = follow(track, "w", records([1.0], first=track.seen + 1), 120.0 + pause)
        assert found == []

    assert track.model is not None
    assert track.model.seconds(20) == pytest.approx(want)


@pytest.mark.parametrize(
    ("withheld", "want"),
    [
        pytest.param(0.0, 0.75, id="nobody was waited for: all of it is its own"),
        pytest.param(0.5, 0.25, id="what was left once it could have gone on"),
        pytest.param(0.9, 0.1, id="it waited for others: only pushing and receiving are its own"),
        pytest.param(None, 0.1, id="nobody says"),
    ],
)
def test_what_a_worker_is_late_after_a_wait_counts_as_its_own(withheld: float | None, want: float) -> None:
    """It pushes for 50 ms and pulls for 700, receiving in 50 of them; then it computes for 250."""
    timings = Timings(compute=0.25, push=0.05, pull=0.7, step=1.0, receive=0.05)
    told = [StepRecord(n, 10, timings, 1.0 + n, withheld) for n in range(1, 9)]

    track, _ = follow(Track(), "w", told, 0.0)

    assert [p.beside for p in track.points] == pytest.approx([want] * len(track.points))
