"""Times that are no lines: what they say, and shares by them."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_core.curve import Curve, line, through
from heterotrain_core.shares import MaximumTooSmallError, allocate, allocate_along

THROTTLED = through([(17, 0.006), (33, 0.062), (50, 0.125)])
"""0.37 ms a sample, and 10 ms of processor time in each 100 ms."""


@pytest.mark.parametrize(
    ("samples", "want"),
    [
        pytest.param(0, 0.0, id="nothing takes no time"),
        pytest.param(8.5, 0.003, id="below the first knot: in proportion"),
        pytest.param(17, 0.006, id="at a knot"),
        pytest.param(25, 0.034, id="between two"),
        pytest.param(50, 0.125, id="at the last"),
        pytest.param(67, 0.188, id="beyond it: as steep as before it"),
    ],
)
def test_time_goes_straight_from_knot_to_knot(samples: float, want: float) -> None:
    assert THROTTLED.seconds(samples) == pytest.approx(want)


def test_beyond_the_last_knot_no_more_than_four_times_the_mean_slope_is_assumed() -> None:
    jump = through([(30, 0.01), (32, 0.1)])

    assert jump.seconds(64) == pytest.approx(0.1 + 4 * 0.1)


def test_where_knots_become_flatter_more_is_in_proportion_at_least() -> None:
    assert through([(10, 0.1), (100, 0.11)]).seconds(200) == pytest.approx(0.22)


def test_a_line_is_a_curve_and_what_is_beside_computing_is_added_to_any() -> None:
    assert line(0.1, 0.02).seconds(10) == pytest.approx(0.3)
    assert THROTTLED.later(0.01).seconds(33) == pytest.approx(0.072)


knots = st.lists(
    st.tuples(st.integers(1, 9), st.one_of(st.just(0.0), st.floats(1e-3, 1.0))), min_size=1, max_size=5
).map(
    lambda steps: [
        (sum(s for s, _ in steps[: i + 1]), 0.01 + sum(t for _, t in steps[: i + 1])) for i in range(len(steps))
    ]
)


@given(knots.map(through), st.integers(0, 60))
def test_more_samples_never_take_less_and_the_largest_share_by_a_time_is_found(curve: Curve, samples: int) -> None:
    now, then = curve.seconds(samples), curve.seconds(samples + 1)

    assert now <= then + 1e-12
    assert curve.samples_by(then) >= samples + 1 - 1e-6 or math.isclose(then, now)


@given(st.lists(knots.map(through), min_size=2, max_size=3), st.integers(1, 3), st.data())
def test_shares_along_curves_are_those_of_enumeration(curves: list[Curve], grain: int, data: st.DataObject) -> None:
    low = data.draw(st.lists(st.integers(0, 4), min_size=len(curves), max_size=len(curves)))
    grains = data.draw(st.lists(st.integers(0, 7), min_size=len(curves), max_size=len(curves)))
    high = [a + k * grain for a, k in zip(low, grains, strict=True)]
    total = sum(low) + grain * data.draw(st.integers(0, sum(grains)))

    shares = allocate_along(curves, total, low, high, grain)

    def slowest(parts: tuple[int, ...] | list[int]) -> float:
        return max(curve.seconds(b) for curve, b in zip(curves, parts, strict=True))

    grids = [range(a, b + 1, grain) for a, b in zip(low, high, strict=True)]
    best = min(slowest(parts) for parts in product(*grids) if sum(parts) == total)
    assert sum(shares) == total
    assert all(b in grid for b, grid in zip(shares, grids, strict=True))
    assert slowest(shares) == pytest.approx(best)


def test_shares_along_lines_are_those_of_allocate() -> None:
    fixed, slopes = [0.6, 0.1, 0.1, 0.1], [1 / 40, 1 / 30, 1 / 20, 1 / 10]
    low, high = [4] * 4, [40, 128, 128, 128]

    along = allocate_along([line(a, c) for a, c in zip(fixed, slopes, strict=True)], 128, low, high, 1)

    assert along == allocate(fixed, slopes, 128, low, high, 1)


def test_shares_that_cannot_be_are_refused_along_curves_too() -> None:
    with pytest.raises(MaximumTooSmallError, match="raise the maximums by 4"):
        allocate_along([THROTTLED, THROTTLED], 24, [1, 1], [10, 10], 1)
