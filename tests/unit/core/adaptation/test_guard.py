"""When a better plan is put in force (algorithms.md B3; oracle B-3)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from heterotrain_core.adaptation.estimate import SpeedModel
from heterotrain_core.adaptation.guard import (
    DOUBT_SECONDS,
    Guard,
    Made,
    Speed,
    Verdict,
    after_change,
    band,
    doubt,
    doubted,
    judge,
    made_worse,
    of_plan,
    reach,
    undoes,
    verify,
)
from heterotrain_core.adaptation.values import Settings

SETTINGS = Settings(dead_band=0.05, windows=2, cooldown_rounds=10)


def made(before: tuple[int, int], after: tuple[int, int], effective: int, generation: int = 2) -> Made:
    return Made(
        generation=generation,
        effective_round=effective,
        before=dict(zip("ab", before, strict=True)),
        after=dict(zip("ab", after, strict=True)),
        predicted_seconds=1.0,
        speed_before=100.0,
        noise_before=0.01,
        changes={},
    )


def windows(gains: list[float], guard: Guard | None = None, version: int = 100, urgent: str = "") -> list[bool]:
    """Whether each window in turn acts."""
    state, acts = guard or Guard(), []
    for gain in gains:
        state, verdict = judge(
            state, SETTINGS, gain=gain, limit=0.05, version=version, now=0.0, urgent=urgent, window=True
        )
        acts.append(verdict.act)
    return acts


@pytest.mark.parametrize(
    ("gains", "want"),
    [
        pytest.param([0.04] * 50, [False] * 50, id="4 % for ever: never"),
        pytest.param([0.08], [False], id="8 % for one window: not yet"),
        pytest.param([0.08, 0.08], [False, True], id="8 % for two windows: once"),
        pytest.param([0.08, 0.04, 0.08], [False] * 3, id="the windows must follow each other"),
    ],
)
def test_dead_band_and_windows_are_those_of_oracle_b3(gains: list[float], want: list[bool]) -> None:
    assert windows(gains) == want


def test_an_alarm_acts_at_once_but_not_within_the_dead_band() -> None:
    assert windows([0.08], urgent="a became 2x slower") == [True]
    assert windows([0.04], urgent="a became 2x slower") == [False]


def test_changes_keep_their_distance_unless_something_happened() -> None:
    guard = Guard(made=made((5, 5), (6, 4), effective=95))

    assert windows([0.2] * 3, guard) == [False] * 3
    assert windows([0.2] * 2, guard, version=105) == [False, True]
    assert windows([0.2], guard, urgent="b left") == [True]


def test_what_the_models_may_be_wrong_by_widens_the_dead_band() -> None:
    rough = [SpeedModel(0, 1, error=0.01), SpeedModel(0, 1, error=0.04)]
    assert band(SETTINGS, []) == 0.05
    assert band(SETTINGS, rough) == pytest.approx(0.12)
    assert band(SETTINGS, rough, uncertainty=0.02) == pytest.approx(0.06)


@pytest.mark.parametrize(
    ("steps", "uncertainty", "want"),
    [
        pytest.param((100, 100), None, 0.075, id="all have all steps that are kept: what is left was within the band"),
        pytest.param((100, 99), None, 0.05, id="one of them has not"),
        pytest.param((100, 100), 0.001, 0.06, id="models that are not rough: noise lifts gains less"),
    ],
)
def test_what_has_long_been_within_the_band_must_exceed_more_of_it(
    steps: tuple[int, int], uncertainty: float | None, want: float
) -> None:
    models = [SpeedModel(0, 1, error=0.01, steps=count) for count in steps]

    assert band(SETTINGS, models, uncertainty=uncertainty) == pytest.approx(want)


@pytest.mark.parametrize(
    ("steps", "uncertainty", "doubt", "want"),
    [
        pytest.param(100, 0.001, 0.0, 0.05 / 3, id="a third of the dead band"),
        pytest.param(100, 0.01, 0.0, 0.03, id="not within what models may be wrong by"),
        pytest.param(100, 0.001, 0.04, 0.04, id="nor within what rounds took longer than predicted"),
        pytest.param(99, 0.001, 0.0, 0.05, id="not before there are as many steps as are kept"),
        pytest.param(100, None, 0.0, 0.075, id="not where models are rough"),
    ],
)
def test_shares_chosen_from_few_steps_are_held_to_a_fine_band_once(
    steps: int, uncertainty: float | None, doubt: float, want: float
) -> None:
    models = [SpeedModel(0, 1, error=0.01, steps=steps), SpeedModel(0, 1, error=0.01, steps=100)]

    assert band(SETTINGS, models, doubt, uncertainty, refined=False) == pytest.approx(want)


def test_whether_shares_need_a_second_look_comes_with_the_plan_and_goes_with_one_of_somebody_else() -> None:
    own = after_change(Guard(), SETTINGS, replace(made((5, 5), (6, 4), 10, generation=4), refined=True), 0.0)

    assert [of_plan(own, generation).refined for generation in (3, 4, 5)] == [True, True, False]
    assert not after_change(own, SETTINGS, made((5, 5), (6, 4), 10, generation=6), 0.0).refined


@pytest.mark.parametrize(
    ("measured", "want"),
    [
        pytest.param([1.2], [0.2], id="a fifth later than predicted: gains up to that are not believed"),
        pytest.param([1.2, 1.0, 1.0], [0.2, 0.1, 0.05], id="half as much with each that comes true"),
        pytest.param([0.7], [0.0], id="sooner than predicted"),
        pytest.param([9.0], [0.5], id="large gains are always believed"),
    ],
)
def test_predictions_that_did_not_come_true_widen_the_dead_band(measured: list[float], want: list[float]) -> None:
    guard, doubts = Guard(), []
    for seconds in measured:
        change = made((5, 5), (6, 4), 10)
        guard = doubted(guard, verify(change, Speed(seconds, 100.0, 0.01)), 7.0, change)
        doubts.append(guard.doubt)

    assert doubts == pytest.approx(want)
    assert band(SETTINGS, [], doubts[0]) == pytest.approx(max(0.05, want[0]))


@pytest.mark.parametrize(
    ("predicted_from", "rest_on", "want"),
    [
        pytest.param(4, 4, 0.4, id="as few steps: the whole"),
        pytest.param(4, 100, 0.08, id="25 times as many: a fifth"),
        pytest.param(100, 4, 0.4, id="fewer: no more than it was"),
        pytest.param(0, 100, 0.4, id="not known from how many: the whole"),
        pytest.param(4, 0, 0.4, id="no model now: the whole"),
    ],
)
def test_models_of_more_steps_than_the_one_that_was_wrong_are_doubted_less(
    predicted_from: int, rest_on: int, want: float
) -> None:
    change = replace(made((5, 5), (6, 4), 10), steps=predicted_from)
    guard = after_change(doubted(Guard(), verify(change, Speed(1.4, 100.0, 0.01)), 7.0, change), SETTINGS, change, 8.0)

    assert doubt(guard, 7.0, rest_on) == pytest.approx(want)


def test_a_doubt_that_is_left_rests_on_the_steps_of_the_prediction_it_came_from() -> None:
    change = replace(made((5, 5), (6, 4), 10), steps=25)
    late, in_time = (verify(change, Speed(s, 100.0, 0.01)) for s in (1.4, 1.0))
    guard = doubted(doubted(Guard(), late, 7.0, change), in_time, 7.0, replace(change, steps=4))

    assert doubt(guard, 7.0, 100) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("before", "after", "want"),
    [
        pytest.param((50, 50), (100, 25), 0.4, id="as far: a share doubles again"),
        pytest.param((50, 50), (200, 25), 0.4, id="further: no more than it was"),
        pytest.param((100, 100), (110, 90), 0.4 * math.log(1.1) / math.log(2), id="a tenth more"),
        pytest.param((100, 100), (90, 80), 0.0, id="nobody computes more than has been measured"),
        pytest.param((0, 100), (50, 50), 0.0, id="a new worker's share is no growth"),
        pytest.param((50, 50), (0, 50), 0.0, id="a share of 0"),
        pytest.param((0, 0), (50, 50), 0.0, id="nobody had a share"),
    ],
)
def test_a_plan_that_goes_less_far_than_the_one_that_was_wrong_is_doubted_less(
    before: tuple[int, int], after: tuple[int, int], want: float
) -> None:
    change = made((50, 50), (100, 25), 10)
    guard = doubted(Guard(), verify(change, Speed(1.4, 100.0, 0.01)), 7.0, change)

    following = made(before, after, 20)
    assert doubt(guard, 7.0, far=reach(following.before, following.after)) == pytest.approx(want)


@pytest.mark.parametrize(
    ("later", "want"),
    [
        pytest.param(0.0, 0.5, id="at once"),
        pytest.param(DOUBT_SECONDS, 0.25, id="half of it"),
        pytest.param(1e9, 0.0, id="nothing"),
    ],
)
def test_doubt_goes_with_time_when_no_change_comes_that_could_prove_it_wrong(later: float, want: float) -> None:
    change = made((5, 5), (6, 4), 10)
    guard = after_change(doubted(Guard(), verify(change, Speed(9.0, 100.0, 0.01)), 7.0, change), SETTINGS, change, 8.0)

    assert doubt(guard, 7.0 + later) == pytest.approx(want)


@pytest.mark.parametrize(
    ("second", "want"),
    [
        pytest.param(((7, 3), (5, 5)), True, id="all the way back"),
        pytest.param(((7, 3), (6, 4)), True, id="half of the way back"),
        pytest.param(((70, 30), (69, 31)), False, id="a small correction"),
        pytest.param(((7, 3), (9, 1)), False, id="further the same way"),
    ],
)
def test_what_undoes_a_change(second: tuple[tuple[int, int], tuple[int, int]], want: bool) -> None:
    first = made((50, 50), (70, 30), 10) if second[0][0] > 10 else made((5, 5), (7, 3), 10)

    assert undoes(made(*second, effective=20), first) is want


def test_going_to_and_fro_halves_the_step_then_freezes() -> None:
    guard, now, parts = Guard(), 0.0, []
    for turn in range(4):
        there, back = (50, 50), (70, 30)
        change = made(there, back, 20 * turn) if turn % 2 == 0 else made(back, there, 20 * turn)
        guard = after_change(guard, SETTINGS, change, now)
        parts.append((guard.part, guard.widen))

    assert parts == [(1.0, 1), (0.5, 2), (0.5, 4), (1.0, 1)]
    assert guard.frozen_until == SETTINGS.freeze_seconds
    _, verdict = judge(guard, SETTINGS, gain=0.5, limit=0.05, version=999, now=60.0, urgent="", window=True)
    assert verdict == Verdict(
        False, "shares are frozen for 60 s more: they went to and fro 3 times within 40 rounds each"
    )


@pytest.mark.parametrize(
    ("gains", "urgent", "want"),
    [
        pytest.param([0.2] * 6, "", [False] * 5 + [True], id="a large gain for six windows"),
        pytest.param([0.2] * 5 + [0.04] + [0.2] * 5, "", [False] * 11, id="not in a row"),
        pytest.param([0.08] * 20, "", [False] * 20, id="a small gain"),
        pytest.param([0.2] * 20, "a became 3x slower", [False] * 20, id="speeds change all the time"),
    ],
)
def test_a_freeze_ends_early_for_a_large_gain_that_lasts(gains: list[float], urgent: str, want: list[bool]) -> None:
    assert windows(gains, Guard(frozen_until=1e6, frozen_why="they went to and fro"), urgent=urgent) == want


def test_a_change_long_after_the_last_one_undoes_nothing() -> None:
    guard = after_change(Guard(), SETTINGS, made((50, 50), (70, 30), 50), 0.0)

    guard = after_change(guard, SETTINGS, made((70, 30), (50, 50), 150), 0.0)

    assert (guard.part, guard.reversals) == (1.0, 0)


@pytest.mark.parametrize(
    ("speed", "want"),
    [
        pytest.param(Speed(1.0, 90.0, 0.01), True, id="a tenth slower"),
        pytest.param(Speed(1.0, 96.0, 0.01), False, id="within the dead band"),
        pytest.param(Speed(1.0, 90.0, 0.05), False, id="within the noise"),
        pytest.param(Speed(1.0, 120.0, 0.01), False, id="faster"),
    ],
)
def test_what_made_things_worse(speed: Speed, want: bool) -> None:
    change = made((5, 5), (7, 3), 10)

    assert made_worse(change, speed, SETTINGS) is want
    assert made_worse(replace(change, speed_before=0.0), speed, SETTINGS) is False
