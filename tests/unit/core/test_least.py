import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_core.least import amounts, raise_minimum, raise_shares, round_sizes
from heterotrain_core.types import Bounds, Plan, Share


@pytest.mark.parametrize(
    ("planned", "remaining", "least", "want"),
    [
        pytest.param([5, 2, 1], 20, 1, [5, 2, 1], id="a model that needs nothing gets what is planned"),
        pytest.param([5, 2, 1], 3, 1, [2, 1, 0], id="a rest is shared out in proportion"),
        pytest.param([5, 3], 20, 2, [5, 3], id="shares that are large enough stay"),
        pytest.param([5, 3], 9, 2, [4, 3], id="one sample would be left over: it gets a second one"),
        pytest.param([5, 3], 8, 2, [5, 3], id="nothing is left over"),
        pytest.param([2], 3, 2, [3], id="nothing can be spared for the one left over: it comes along"),
        pytest.param([5, 2, 1], 20, 2, [6, 2, 0], id="a share of one goes to the largest share"),
        pytest.param([1, 1, 1, 1], 20, 2, [2, 2, 0, 0], id="shares of one are paired"),
        pytest.param([1], 20, 2, [2], id="alone, a share of one takes a second one"),
        pytest.param([5, 3], 3, 2, [3, 0], id="a rest of three is for one worker"),
        pytest.param([5, 3], 1, 2, [1, 0], id="a data set of one sample is used all the same"),
        pytest.param([5, 3], 0, 2, [0, 0], id="nothing is left"),
        pytest.param([], 9, 2, [], id="nobody asks"),
    ],
)
def test_nobody_gets_fewer_samples_than_the_model_needs(
    planned: list[int], remaining: int, least: int, want: list[int]
) -> None:
    assert amounts(planned, remaining, least) == want


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 60), st.integers(1, 4))
def test_every_part_and_what_is_left_over_is_nothing_or_enough(planned: list[int], remaining: int, least: int) -> None:
    parts = amounts(planned, remaining, least)
    total = sum(parts)
    assert len(parts) == len(planned)
    assert total <= remaining
    if remaining < least:
        assert sorted(parts)[-1] == total == remaining
        return
    assert all(part == 0 or part >= least for part in parts)
    assert remaining - total == 0 or remaining - total >= least
    assert abs(total - min(sum(planned), remaining)) < least


@given(st.integers(1, 200), st.integers(1, 20), st.integers(1, 3))
def test_the_rounds_of_one_worker_are_cut_as_they_are_handed_out(samples: int, batch: int, least: int) -> None:
    sizes, left = [], samples
    while left:
        sizes += amounts([batch], left, min(least, batch))
        left = samples - sum(sizes)
    assert round_sizes(samples, batch, min(least, batch)) == (len(sizes), sizes[-1])
    assert sizes[:-2] == [batch] * (len(sizes) - 2)


@pytest.mark.parametrize(
    ("bounds", "grain", "want"),
    [
        pytest.param(Bounds(1, 8), 1, Bounds(2, 8), id="to what is needed"),
        pytest.param(Bounds(1, 9), 4, Bounds(5, 9), id="to the next share on the grid"),
        pytest.param(Bounds(3, 8), 1, Bounds(3, 8), id="it is enough already"),
        pytest.param(Bounds(1, 1), 1, Bounds(1, 1), id="no share that is allowed is enough"),
        pytest.param(Bounds(0, 8), 1, Bounds(0, 8), id="a worker that may be without work still may"),
    ],
)
def test_minimums_are_raised_on_the_grid(bounds: Bounds, grain: int, want: Bounds) -> None:
    assert raise_minimum(bounds, 2, grain) == want


def test_a_plan_gets_shares_within_raised_bounds() -> None:
    bounds = {"a": Bounds(2, 8), "b": Bounds(2, 8), "c": Bounds(2, 8)}
    plan = Plan(3, {"a": Share(6, 3), "b": Share(1, 1), "c": Share(1)}, "start shares")
    assert raise_shares(plan, bounds, 8, 1, "why") == Plan(
        4, {"a": Share(4, 3), "b": Share(2, 1), "c": Share(2)}, "why", derived=True
    )
    fits = Plan(3, {"a": Share(4), "b": Share(2), "c": Share(2)})
    assert raise_shares(fits, bounds, 8, 1, "why") is fits
    assert raise_shares(Plan(1, {n: Share(1) for n in bounds}), bounds, 3, 1, "why") is None
