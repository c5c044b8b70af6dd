"""Speed, memory and link models (algorithms.md B2, C4; oracles B-1, C-10, A-9)."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_core.adaptation.estimate import (
    KEPT,
    LinkModel,
    Point,
    SpeedModel,
    fit,
    fit_link,
    without_outliers,
)


def points(*steps: tuple[int, float]) -> list[Point]:
    return [Point(i, samples, busy, 0.0, busy) for i, (samples, busy) in enumerate(steps)]


def test_a_single_stall_changes_no_estimate_oracle_b1() -> None:
    model = fit(points(*((10, t) for t in (0.9, 1.0, 1.0, 1.1, 1.0, 5.0))))

    assert model is not None
    assert (model.seconds(10), model.dropped) == (pytest.approx(1.0), 1)


def test_too_many_outliers_are_a_change_and_count() -> None:
    assert without_outliers([1.0, 1.0, 1.0, 1.0, 3.0, 3.0]) == [1.0, 1.0, 1.0, 1.0, 3.0, 3.0]
    assert without_outliers([1.0] * 9 + [3.0]) == [1.0] * 9


def test_paced_steps_without_any_noise_are_no_outliers_of_each_other() -> None:
    times = [1.0] * 10 + [1.005, 0.995]

    assert without_outliers(times) == times


def test_a_worker_needs_three_records() -> None:
    assert fit(points((10, 1.0), (10, 1.0))) is None
    assert fit(points((10, 1.0), (10, 1.0), (10, 1.0))) is not None


def test_with_one_size_the_time_is_in_proportion() -> None:
    model = fit(points(*[(32, 0.8)] * 5))

    assert model is not None
    assert (model.fixed, model.per_sample, model.identified) == (0.0, pytest.approx(0.025), False)


def test_two_sizes_tell_the_fixed_part() -> None:
    model = fit(points(*[(32, 0.1 + 0.025 * 32)] * 10, *[(52, 0.1 + 0.025 * 52)] * 10))

    assert model is not None
    assert (model.fixed, model.per_sample, model.identified) == (pytest.approx(0.1), pytest.approx(0.025), True)


@pytest.mark.parametrize(
    ("load", "least"),
    [
        pytest.param(1.4, 0.5, id="gone before the larger size: flat at first sight"),
        pytest.param(1.2, 0.7, id="half of it gone"),
        pytest.param(1.0, 0.9, id="there was none"),
    ],
)
def test_a_load_that_leaves_just_when_the_share_grows_does_not_make_more_samples_seem_free(
    load: float, least: float
) -> None:
    """A worker in proportion, with steps that vary by a tenth: sizes are seen one after the other."""
    rng = random.Random(5)
    steps = [(125, load * 0.001 * 125 * rng.gauss(1, 0.1)) for _ in range(10)]
    steps += [(171, 0.001 * 171 * rng.gauss(1, 0.1)) for _ in range(15)]

    model = fit(points(*steps))

    assert model is not None
    assert least < model.per_sample / 0.001 < 1.1


def test_sizes_that_hardly_differ_tell_nothing() -> None:
    model = fit(points(*[(32, 0.9)] * 10, *[(33, 0.8)] * 10))

    assert model is not None
    assert model.identified is False


def test_more_samples_never_take_less_time() -> None:
    model = fit(points(*[(32, 1.0)] * 10, *[(64, 0.8)] * 10))

    assert model is not None
    assert 0 < model.per_sample < model.seconds(64) / 64
    assert model.seconds(64) == pytest.approx(0.9)  # both sizes are pooled


def test_the_shape_of_a_known_model_stays_when_only_one_size_is_seen_again() -> None:
    prior = SpeedModel(0.1, 0.02, identified=True)

    model = fit(points(*[(40, 2 * (0.1 + 0.02 * 40))] * 5), prior)

    assert model is not None
    assert (model.fixed, model.per_sample) == (pytest.approx(0.2), pytest.approx(0.04))


def test_the_model_passes_through_the_present_size() -> None:
    """Where time is not linear, shares are moved from where the worker is."""
    model = fit(points(*[(64, 0.05)] * 20, *[(256, 0.2)] * 20, *[(566, 0.58)] * 10))

    assert model is not None
    assert model.seconds(566) == pytest.approx(0.58)


@given(
    st.floats(0.0, 1.0),
    st.floats(1e-4, 0.1),
    st.integers(8, 64),
    st.integers(2, 8),
    st.floats(0.0, 0.1),
    st.integers(0, 10**6),
)
def test_the_truth_is_found_through_noise_and_stalls(
    fixed: float, slope: float, size: int, times: int, noise: float, seed: int
) -> None:
    rng = random.Random(seed)
    sizes = [size] * (KEPT // 2) + [size * times] * (KEPT // 2)
    steps = [
        (b, (fixed + slope * b) * max(0.3, rng.gauss(1, noise)) * (4 if rng.random() < 0.03 else 1)) for b in sizes
    ]

    model = fit(points(*steps))

    assert model is not None
    present = size * times
    assert model.seconds(present) == pytest.approx(fixed + slope * present, rel=0.02 + 0.8 * noise)
    assert model.fixed >= 0
    assert model.per_sample > 0
    assert math.isfinite(model.error)


@pytest.mark.parametrize(
    ("count", "dearer", "bent"),
    [
        pytest.param(3, 1.15, False, id="three steps, 1.5 deviations off: chance"),
        pytest.param(3, 1.35, True, id="three steps, more than two deviations off"),
        pytest.param(40, 1.15, True, id="forty steps tell 1.5 deviations"),
        pytest.param(40, 1.05, False, id="within what single steps vary by"),
    ],
)
def test_a_larger_size_bends_the_model_if_its_steps_are_enough_to_tell(count: int, dearer: float, bent: bool) -> None:
    alternating = [0.9, 1.1]
    larger = [(15, 15 * dearer * alternating[i % 2]) for i in range(count)]
    present = [(10, 10 * alternating[i % 2]) for i in range(60)]

    model = fit(points(*larger, *present))

    assert model is not None
    assert bool(model.knots) is bent


def test_the_link_is_found_in_spite_of_a_stall_oracle_a9() -> None:
    sizes = [0, 1, 2, 4, 8]
    transfers = [(n * 10**6, 0.004 + n * 10**6 / 100e6 + (0.2 if n == 4 else 0.0)) for n in sizes]

    model = fit_link(transfers)

    assert model == LinkModel(pytest.approx(0.004), pytest.approx(100e6))
    assert model is not None
    assert model.seconds(10**8) == pytest.approx(1.004)
    assert fit_link([(1, 0.1), (1, 0.2)]) is None
