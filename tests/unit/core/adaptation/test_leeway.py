"""How much earlier workers are to finish whose steps vary: the least expected round, found by trying, is the oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builders_adaptation import simulate, steady
from heterotrain_core.adaptation.estimate import ANCHORED, NOISE_FLOOR, Point, step_spread
from heterotrain_core.adaptation.leeway import LARGEST, expected_last, leeways
from heterotrain_core.adaptation.plan import ERRATIC, LARGEST_SPREAD, Room, best_shares, expected, with_leeway
from heterotrain_core.adaptation.weigh import waited_for
from heterotrain_core.curve import line, through
from heterotrain_core.synchronization import Asp, Backup, Bsp, Delay, Dssp, Ssp, Synchronization

LADDER = (1.0, 1.33, 2.0, 4.0)
"""Milliseconds a sample: 4 : 3 : 2 : 1."""


def rooms(paces: Sequence[float], spreads: Sequence[float], share: int = 64) -> list[Room]:
    return [
        Room(f"w{i}", share, 0.0, pace, 1, 10_000, True, spread=spread)
        for i, (pace, spread) in enumerate(zip(paces, spreads, strict=True))
    ]


@pytest.mark.parametrize(
    ("means", "deviations", "want"),
    [
        pytest.param((), (), 0.0, id="nobody"),
        pytest.param((5.0,), (2.0,), 5.0, id="one"),
        pytest.param((5.0, 3.0), (0.0, 0.0), 5.0, id="nothing varies"),
        pytest.param((5.0, 3.0), (0.0, 0.1), 5.0, id="who varies is always earlier"),
        pytest.param((5.0, 9.0), (0.0, 1.0), 9.0, id="who varies is always later"),
        pytest.param((5.0, 5.0), (1.0, 1.0), 5.0 + 1 / math.sqrt(math.pi), id="two alike: deviation / sqrt(pi) more"),
        pytest.param((5.0, 5.0), (0.0, 1.0), 5.0 + 1 / math.sqrt(2 * math.pi), id="one of two: / sqrt(2 pi)"),
        pytest.param((5.0, 4.0), (1.5, 2.0), 5.5760, id="two that differ: Clark's formula"),
        pytest.param((5.0,) * 4, (1.0,) * 4, 5.0 + 1.02938, id="four alike: 1.03 deviations more"),
    ],
)
def test_the_last_of_normal_times(means: tuple[float, ...], deviations: tuple[float, ...], want: float) -> None:
    assert expected_last(means, deviations).seconds == pytest.approx(want, abs=0.01)


@pytest.mark.parametrize(
    ("means", "deviations", "want"),
    [
        pytest.param((5.0,), (2.0,), (1.0,), id="one"),
        pytest.param((5.0, 3.0), (0.0, 0.0), (1.0, 0.0), id="nothing varies"),
        pytest.param((5.0, 5.0), (1.0, 1.0), (0.5, 0.5), id="two alike"),
        pytest.param((5.0, 5.0), (0.0, 1.0), (0.5, 0.5), id="one of two"),
        pytest.param((5.0, 4.0), (1.5, 2.0), (0.6554, 0.3446), id="two that differ: Phi(1 / 2.5)"),
        pytest.param((5.0, 4.9, 0.1), (0.0, 0.0, 0.1), (1.0, 0.0, 0.0), id="who varies is always earlier"),
    ],
)
def test_who_is_the_last(means: tuple[float, ...], deviations: tuple[float, ...], want: tuple[float, ...]) -> None:
    assert expected_last(means, deviations).chances == pytest.approx(want, abs=0.01)


def test_with_leeway_each_is_last_as_often_as_its_part_of_all_speed() -> None:
    planned = with_leeway(rooms(LADDER, (0.1,) * 4), 1.0)
    shares = best_shares(planned, 2560, 1)

    last = expected(planned, shares)

    times = {room.name: room.seconds(shares[room.name]) for room in planned}
    chances = [last.weights[name] / time for name, time in times.items()]
    assert chances == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=0.035)


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 0.5)), min_size=1, max_size=6))
@example(times=[(1.0, 0.5), (1.1, 1e-5)])  # narrower than the steps in time of the sum
@example(times=[(1.0, 0.5), (1.1, 1e-5), (1.1, 1e-9)])
@example(times=[(1.0, 0.5), (1.0, 1e-300)])
def test_the_last_is_never_expected_before_the_slowest_mean(times: list[tuple[float, float]]) -> None:
    means, deviations = zip(*((mean, mean * spread) for mean, spread in times), strict=True)
    slowest, widest, last = max(means), max(deviations), expected_last(means, deviations)

    assert slowest - widest / 16 <= last.seconds <= slowest + 2 * widest
    assert sum(last.chances) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("paces", "spreads", "want"),
    [
        pytest.param((1.0, 2.0), (0.0, 0.0), (0.0, 0.0), id="nothing varies"),
        pytest.param((1.0,), (0.1,), (0.0,), id="alone: nobody waits"),
        pytest.param((1.0, 1.0), (0.1, 0.0), (0.0545, 0.0), id="in time with 2 ** -1/2: 0.545 deviations"),
        pytest.param((1.0,) * 4, (0.1,) * 4, (0.0,) * 4, id="alike: nobody is to be earlier than others"),
        pytest.param(LADDER, (0.1,) * 4, (0.0, 0.0174, 0.0401, 0.0747), id="the slower, the more"),
        pytest.param((1.0,) * 256, (0.1,) * 255 + (0.15,), (0.0,) * 255 + (0.108,), id="of very many too"),
        pytest.param((1.0, 100.0), (0.0, 0.2), (0.0, LARGEST), id="at most a quarter"),
        pytest.param((1e-12, 1e8), (0.1, 0.1), (0.0, LARGEST), id="beside somebody without end faster"),
    ],
)
def test_leeway(paces: tuple[float, ...], spreads: tuple[float, ...], want: tuple[float, ...]) -> None:
    assert leeways(paces, spreads) == pytest.approx(want, abs=1e-3)


@pytest.mark.parametrize(
    ("spreads", "saved"),
    [
        pytest.param((0.1,) * 4, 0.003, id="all vary alike"),
        pytest.param((0.05, 0.07, 0.1, 0.15), 0.012, id="the slow vary more"),
        pytest.param(
            (0.15, 0.1, 0.07, 0.05), -0.004, id="the fast vary more: equal means are the best but for a sample"
        ),
        pytest.param((0.0, 0.0, 0.1, 0.15), 0.02, id="only the slow vary"),
    ],
)
def test_shares_with_leeway_are_near_the_least_expected_round(spreads: tuple[float, ...], saved: float) -> None:
    even = rooms(LADDER, spreads)
    planned = with_leeway(even, 1.0)

    shares = best_shares(planned, 256, 1)
    middle = list(shares.values())
    steps = [range(-8, 9, 2), range(-6, 7, 2), range(-4, 5)]
    tried = (
        {"w0": middle[0] - a - b - c, "w1": middle[1] + a, "w2": middle[2] + b, "w3": middle[3] + c}
        for a, b, c in product(*steps)
    )
    least = min(expected(planned, other).seconds for other in tried)

    assert expected(planned, shares).seconds <= 1.01 * least
    assert 1 - expected(planned, shares).seconds / expected(planned, best_shares(even, 256, 1)).seconds > saved


@pytest.mark.parametrize(
    ("part", "want"),
    [
        pytest.param(1.0, 0.0747, id="every round waits for everybody"),
        pytest.param(0.25, 0.0196, id="a bound of three rounds: a quarter of the variation"),
        pytest.param(0.0, 0.0, id="nobody waits"),
    ],
)
def test_leeway_is_for_those_who_wait(part: float, want: float) -> None:
    slowest = with_leeway(rooms(LADDER, (0.1,) * 4), part)[3]

    assert slowest.leeway == pytest.approx(want, abs=1e-3)


@pytest.mark.parametrize(
    ("spread", "reckoned", "rough"),
    [
        pytest.param(LARGEST_SPREAD, LARGEST_SPREAD, False, id="a fifth: with all of it"),
        pytest.param(0.25, 0.125, True, id="a quarter: with half"),
        pytest.param(ERRATIC, 0.0, True, id="three tenths: with nothing, as if its steps were constant"),
        pytest.param(0.6, 0.0, True, id="more"),
    ],
)
def test_the_more_erratic_steps_are_the_less_is_planned_with_them(spread: float, reckoned: float, rough: bool) -> None:
    planned = with_leeway(rooms((1.0, 1.0), (0.0, spread)), 1.0)[1]

    assert (planned.reckoned, planned.is_rough(planned.share)) == (pytest.approx(reckoned), rough)
    assert planned.spread == spread


def test_what_is_not_waited_for_is_still_told_and_still_rough() -> None:
    planned = with_leeway(rooms((1.0, 1.0), (0.1, 0.6)), 0.25)

    assert [room.spread for room in planned] == [0.1, 0.6]
    assert [room.is_rough(room.share) for room in planned] == [False, True]
    assert [room.reckoned for room in planned] == pytest.approx([0.025, 0.0])


def test_a_worker_of_unknown_speed_is_not_planned_with() -> None:
    (known,) = rooms((1.0,), (0.1,))
    unknown = Room("u", 64, 0.0, 1.0, 64, 64, known=False, spread=0.1)

    planned = with_leeway([unknown, known], 1.0)

    assert [(room.name, room.leeway) for room in planned] == [("u", 0.0), ("w0", 0.0)]
    assert expected(planned, {"w0": 64, "u": 640}).seconds == pytest.approx(64.0, abs=0.01)


def test_leeway_stretches_a_curve_as_it_stretches_a_line() -> None:
    curved = [replace(room, bent=line(room.fixed, room.per_sample)) for room in rooms(LADDER, (0.1,) * 4)]

    assert best_shares(with_leeway(curved, 1.0), 256, 1) == best_shares(
        with_leeway(rooms(LADDER, (0.1,) * 4), 1.0), 256, 1
    )


@pytest.mark.parametrize(
    ("mode", "want"),
    [
        pytest.param(None, 1.0, id="not known: as under BSP"),
        pytest.param(Bsp(), 1.0, id="BSP"),
        pytest.param(Backup(0), 1.0, id="Backup without backups"),
        pytest.param(Backup(1), 0.0, id="Backup"),
        pytest.param(Asp(), 0.0, id="ASP"),
        pytest.param(Ssp(0), 1.0, id="SSP, no iteration ahead"),
        pytest.param(Ssp(3), 0.25, id="SSP, three"),
        pytest.param(Ssp(None), 0.0, id="SSP without a bound"),
        pytest.param(Dssp(lower=1, range=2), 0.25, id="DSSP, up to three"),
        pytest.param(Delay(window_seconds=None), 1.0, id="Delay that waits for everybody"),
        pytest.param(Delay(staleness_bound=4), 0.2, id="Delay, four rounds"),
    ],
)
def test_how_much_of_a_steps_variation_others_wait_for(mode: Synchronization | None, want: float) -> None:
    assert waited_for(mode) == want


@pytest.mark.parametrize(
    ("weather", "want"),
    [
        pytest.param(0.0, 0.08, id="all of it is its own"),
        pytest.param(0.15, 0.08, id="what all workers show at the same time is no reason to be early"),
    ],
)
def test_what_all_workers_share_is_no_leeway(weather: float, want: float) -> None:
    job = simulate([steady(0.001 * k) for k in (1, 2, 4, 8)], batch=256, noise=0.08, weather=weather, seed=1)
    job.until(60)

    newest = next(decision for _, decision in reversed(job.decisions) if decision.workers)
    spreads = [row.spread for row in newest.workers]
    assert spreads == pytest.approx([want] * 4, abs=0.035)


def points(samples: int, times: Sequence[float]) -> list[Point]:
    return [Point(i, samples, busy, 0.0, busy) for i, busy in enumerate(times)]


TEN_PERCENT = [1.0 + 0.1 * z for z in (-1.5, -1.0, -0.67, -0.32, 0.0, 0.32, 0.67, 1.0, 1.5)]


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        pytest.param(points(64, TEN_PERCENT), 0.1, id="ten percent"),
        pytest.param(points(64, [*TEN_PERCENT, 5.0]), 0.1, id="a stall changes little"),
        pytest.param([], None, id="nothing seen"),
        pytest.param(points(64, TEN_PERCENT[: ANCHORED - 1]), None, id="too few to tell"),
        pytest.param(points(64, [1.0 + NOISE_FLOOR / 2 * (-1) ** i for i in range(20)]), 0.0, id="within the floor"),
        pytest.param(
            [*points(32, TEN_PERCENT), *points(64, [2 * t for t in TEN_PERCENT[1::3]])], 0.1,
            id="few of the present size: all sizes, each around its own median",
        ),
    ],
)  # fmt: skip
def test_how_single_steps_vary(seen: list[Point], want: float | None) -> None:
    assert step_spread(seen) == (None if want is None else pytest.approx(want, rel=0.25, abs=1e-9))


@pytest.mark.parametrize(
    ("wanted", "rough"),
    [
        pytest.param(100, False, id="it stays"),
        pytest.param(105, False, id="a twentieth: nearly"),
        pytest.param(94, True, id="it moves"),
    ],
)
def test_a_bend_matters_to_a_share_that_moves(wanted: int, rough: bool) -> None:
    bent = replace(rooms((1.0,), (0.0,))[0], share=100, bent=through(((100, 1.0), (120, 3.0))))

    assert bent.is_rough(wanted) is rough
    assert not replace(bent, bent=None).is_rough(wanted)


def test_a_share_of_few_samples_nearly_stays_if_one_moves() -> None:
    bent = replace(rooms((1.0,), (0.0,))[0], share=8, bent=through(((8, 1.0), (12, 3.0))))

    assert [bent.is_rough(wanted) for wanted in (7, 9, 10)] == [False, False, True]
