from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.local.speeds import PACED_CORES, SpeedsError, parse_speeds, stretches

FOUR = ("a-0", "a-1", "b-0", "b-1")


def test_speeds_are_read_in_the_order_of_the_manifest() -> None:
    assert parse_speeds("4:3:2:1.5", FOUR) == (4.0, 3.0, 2.0, 1.5)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("4:3", "names 2 speeds, but the job has 4 workers (a-0, a-1, b-0, b-1)", id="too few"),
        pytest.param("4:3:2:1:1", "names 5 speeds", id="too many"),
        pytest.param("4:3:two:1", "must be numbers separated by colons", id="a word"),
        pytest.param("4:3:0:1", "above 0", id="a worker that stands still"),
        pytest.param("4:3:-1:1", "above 0", id="a negative speed"),
        pytest.param("4:3:nan:1", "above 0", id="not a number"),
        pytest.param("4:3:inf:1", "above 0", id="infinitely fast"),
    ],
)
def test_wrong_speeds_are_refused(text: str, want: str) -> None:
    with pytest.raises(SpeedsError) as caught:
        parse_speeds(text, FOUR)
    assert want in str(caught.value)


@pytest.mark.parametrize(
    ("speeds", "cores", "want"),
    [
        pytest.param((4, 3, 2, 1), 16, (1.0, 4 / 3, 2.0, 4.0), id="many cores: the fastest at full speed"),
        pytest.param((4, 3, 2, 1), 2, (2.5 / 1.5, 2.5 / 1.5 * 4 / 3, 10 / 3, 20 / 3), id="two cores: all slower"),
        pytest.param((1, 1), 1, (2 / 0.75, 2 / 0.75), id="equal workers on one core"),
        pytest.param((5,), 1, (4 / 3,), id="one worker leaves a quarter of one core to the others"),
    ],
)
def test_stretches(speeds: tuple[float, ...], cores: int, want: tuple[float, ...]) -> None:
    assert stretches(speeds, cores) == pytest.approx(want)


@given(
    speeds=st.lists(st.floats(min_value=0.01, max_value=100), min_size=1, max_size=16),
    cores=st.integers(min_value=1, max_value=64),
)
def test_paced_work_fits_the_machine_in_the_ratio_asked_for(speeds: list[float], cores: int) -> None:
    found = stretches(speeds, cores)
    assert min(found) >= 1
    assert sum(1 / stretch for stretch in found) <= PACED_CORES * cores * (1 + 1e-9)
    for speed, stretch in zip(speeds, found, strict=True):
        assert math.isclose(speed * stretch, speeds[0] * found[0], rel_tol=1e-9)
