import math
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterotrain_core.shares import (
    InfeasibleError,
    MaximumTooSmallError,
    MinimumTooLargeError,
    OffGridError,
    allocate,
    proportional,
    start_shares,
)

SPEEDS_4321 = [1 / 40, 1 / 30, 1 / 20, 1 / 10]


def slowest(fixed: Sequence[float], per_sample: Sequence[float], shares: Sequence[int]) -> float:
    return max(a + c * b for a, c, b in zip(fixed, per_sample, shares, strict=True))


def best_by_enumeration(fixed: list[float], per_sample: list[float], total: int, grids: list[range]) -> float | None:
    """Smallest possible slowest time over all shares on the grids with the sum `total`; None if there are none."""
    best = {0: 0.0}
    for a, c, grid in zip(fixed, per_sample, grids, strict=True):
        merged: dict[int, float] = {}
        for used, time in best.items():
            for b in grid:
                if used + b <= total:
                    merged[used + b] = min(merged.get(used + b, math.inf), max(time, a + c * b))
        best = merged
    return best.get(total)


@pytest.mark.parametrize(
    ("fixed", "per_sample", "total", "minimum", "maximum", "want_seconds"),
    [
        pytest.param([0.0] * 4, SPEEDS_4321, 128, [0] * 4, [128] * 4, 1.3, id="C-1 four speeds, no fixed part"),
        pytest.param([0.1] * 4, SPEEDS_4321, 128, [0] * 4, [128] * 4, 1.4, id="C-2 the same fixed part for all"),
        pytest.param([0.6, 0.1, 0.1, 0.1], SPEEDS_4321, 128, [0] * 4, [128] * 4, 1.6, id="C-2 one large fixed part"),
        pytest.param([0.0] * 4, SPEEDS_4321, 128, [4] * 4, [40, 128, 128, 128], 1.5, id="C-4 the fastest is bounded"),
        pytest.param([0.0] * 4, [0.01] * 3 + [0.5], 128, [4] * 4, [128] * 4, 2.0, id="C-5 a minimum binds"),
        pytest.param([0.0] * 3, [0.01] * 3, 128, [4] * 3, [128] * 3, 0.43, id="C-5 without the slow one"),
        pytest.param([0.0] * 3, [1, 1 / 2, 1 / 3], 9, [0] * 3, [9] * 3, 5 / 3, id="C-6 rounding matters"),
    ],
)
def test_the_slowest_worker_is_as_fast_as_the_oracle_says(
    fixed: list[float], per_sample: list[float], total: int, minimum: list[int], maximum: list[int], want_seconds: float
) -> None:
    shares = allocate(fixed, per_sample, total, minimum, maximum, 1)

    assert sum(shares) == total
    assert slowest(fixed, per_sample, shares) == pytest.approx(want_seconds, abs=1e-9)


def test_ties_go_to_the_lower_worker() -> None:
    assert allocate([0.0] * 4, SPEEDS_4321, 128, [0] * 4, [128] * 4, 1) == [52, 39, 25, 12]
    assert allocate([0.0] * 3, [1, 1 / 2, 1 / 3], 9, [0] * 3, [9] * 3, 1) == [1, 3, 5]
    assert allocate([0.0] * 3, [1.0] * 3, 8, [0] * 3, [8] * 3, 1) == [3, 3, 2]


def test_balancing_four_speeds_gains_the_factor_of_oracle_c1() -> None:
    equal, best = [32] * 4, allocate([0.0] * 4, SPEEDS_4321, 128, [0] * 4, [128] * 4, 1)

    gain = slowest([0.0] * 4, SPEEDS_4321, equal) / slowest([0.0] * 4, SPEEDS_4321, best)

    assert gain == pytest.approx(2.4615, abs=5e-5)


def test_moving_samples_from_straggler_to_leader_ends_no_better_oracle_c7() -> None:
    """Step 4, halved when leader and straggler swap, until the times are within 5 %; in fractions, since ties count."""
    shares, step, last = [32] * 4, 4, (-1, -1)
    times: list[Fraction] = []
    while True:
        seconds = [Fraction(b, speed) for b, speed in zip(shares, [40, 30, 20, 10], strict=True)]
        times.append(max(seconds))
        if max(seconds) / min(seconds) < Fraction(105, 100):
            break
        leader, straggler = seconds.index(min(seconds)), seconds.index(max(seconds))
        if last == (straggler, leader):
            step = max(1, step // 2)
        shares[leader] += step
        shares[straggler] -= step
        last = (leader, straggler)

    assert (shares, len(times) - 1) == ([51, 38, 26, 13], 10)
    assert [float(t) for t in times] == pytest.approx(
        [3.2, 2.8, 2.4, 2.0, 1.6, 1.6, 1.4, 4 / 3, 1.3, 1.4, 1.3], abs=1e-9
    )
    best = allocate([0.0] * 4, SPEEDS_4321, 128, [0] * 4, [128] * 4, 1)
    assert slowest([0.0] * 4, SPEEDS_4321, best) == pytest.approx(float(times[-1]), abs=1e-9)


def small_instances() -> Iterator[tuple[list[float], list[float], int, list[int], list[int], int]]:
    rng = random.Random(3)
    for _ in range(3000):
        n, grain = rng.randint(1, 4), rng.choice([1, 1, 2, 3])
        minimum = [rng.randint(0, 3) for _ in range(n)]
        maximum = [low + rng.randint(0, 9) for low in minimum]
        fixed = [rng.choice([0.0, 0.1, 0.5, rng.random()]) for _ in range(n)]
        per_sample = [rng.choice([0.1, 0.25, 1.0, rng.random() + 0.01]) for _ in range(n)]
        yield fixed, per_sample, rng.randint(sum(minimum), sum(maximum)), minimum, maximum, grain


def test_three_thousand_small_instances_equal_enumeration() -> None:
    infeasible = 0
    for fixed, per_sample, total, minimum, maximum, grain in small_instances():
        grids = [range(low, high + 1, grain) for low, high in zip(minimum, maximum, strict=True)]
        want = best_by_enumeration(fixed, per_sample, total, grids)
        if want is None:
            infeasible += 1
            with pytest.raises(InfeasibleError):
                allocate(fixed, per_sample, total, minimum, maximum, grain)
            continue
        shares = allocate(fixed, per_sample, total, minimum, maximum, grain)
        assert sum(shares) == total
        assert all(b in grid for b, grid in zip(shares, grids, strict=True))
        assert slowest(fixed, per_sample, shares) == want

    assert 100 < infeasible < 2000


@settings(max_examples=60)
@given(
    data=st.lists(
        st.tuples(
            st.floats(0, 100), st.sampled_from([1e-9, 1e-3, 0.5, 1.0, 7.0]), st.integers(0, 5), st.integers(0, 300)
        ),
        min_size=1,
        max_size=6,
    ),
    part=st.floats(0, 1),
    grain=st.integers(1, 4),
)
def test_the_fast_start_gives_what_the_plain_greedy_rule_gives(
    data: list[tuple[float, float, int, int]], part: float, grain: int
) -> None:
    fixed, per_sample = [a for a, _, _, _ in data], [c for _, c, _, _ in data]
    minimum, maximum = [low for _, _, low, _ in data], [low + room for _, _, low, room in data]
    capacity = sum(room // grain for _, _, _, room in data)
    total = sum(minimum) + round(part * capacity) * grain
    want = list(minimum)
    while sum(want) < total:
        open_workers = [i for i, b in enumerate(want) if b + grain <= maximum[i]]
        earliest = min(open_workers, key=lambda i: (fixed[i] + per_sample[i] * (want[i] + grain), i))
        want[earliest] += grain

    assert allocate(fixed, per_sample, total, minimum, maximum, grain) == want


def test_a_thousand_workers_are_served_mostly_by_the_bisected_start() -> None:
    fixed = [0.01 * (i % 7) for i in range(1000)]
    per_sample = [1e-3 * (1 + i % 13) for i in range(1000)]
    shares = allocate(fixed, per_sample, 100_000, [1] * 1000, [4000] * 1000, 1)

    times = [a + c * b for a, c, b in zip(fixed, per_sample, shares, strict=True)]
    with_one_more = [t + c for t, c in zip(times, per_sample, strict=True)]
    assert sum(shares) == 100_000
    # Optimal: nobody could take a sample of the slowest and end earlier than it.
    assert min(with_one_more) >= max(t for t, b in zip(times, shares, strict=True) if b > 1) - 1e-12


@pytest.mark.parametrize(
    ("total", "minimum", "maximum", "grain", "want_error", "want_message"),
    [
        pytest.param(
            7, [4, 4], [8, 8], 1, MinimumTooLargeError,
            "the minimum shares sum to 8, more than the 7 samples to share out: "
            "lower the minimums by 1, or take more samples or fewer workers",
            id="the minimums are too large",
        ),
        pytest.param(
            20, [4, 4], [9, 8], 2, MaximumTooSmallError,
            "the maximum shares (on the grain of 2) sum to 16, less than the 20 samples to share out: "
            "raise the maximums by 4, or take fewer samples or more workers",
            id="the maximums are too small",
        ),
        pytest.param(
            11, [4, 4], [8, 8], 2, OffGridError,
            "11 samples less the minimum shares (8) leave 3, not a multiple of the grain 2: "
            "change the minimums or the total by 1, or take another grain",
            id="the rest is off the grain",
        ),
        pytest.param(8, [4, 4], [8, 8], 0, ValueError, "grain must be at least 1, not 0", id="no grain"),
        pytest.param(
            8, [4, 9], [8, 8], 1, ValueError,
            "worker 1: 0 <= minimum <= maximum must hold, not minimum 9 and maximum 8", id="bounds the wrong way round",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_apart(
    total: int, minimum: list[int], maximum: list[int], grain: int, want_error: type[ValueError], want_message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        allocate([0.0, 0.0], [1.0, 1.0], total, minimum, maximum, grain)

    assert (type(caught.value), str(caught.value)) == (want_error, want_message)


@pytest.mark.parametrize(
    ("fixed", "per_sample", "want_message"),
    [
        ([math.inf, 0.0], [1.0, 1.0], "worker 0: fixed_seconds must be finite and at least 0, not inf"),
        ([0.0, 0.0], [1.0, 0.0], "worker 1: seconds_per_sample must be finite and at least 1e-15, not 0.0"),
        ([0.0], [1.0], "1 workers have speeds, 2 have bounds"),
    ],
)
def test_speeds_without_sense_are_refused(fixed: list[float], per_sample: list[float], want_message: str) -> None:
    with pytest.raises(ValueError, match=want_message):
        allocate(fixed, per_sample, 8, [0, 0], [8, 8], 1)


@pytest.mark.parametrize(
    ("weights", "total", "want_parts"),
    [
        pytest.param([40, 30, 20, 10], 128, [51, 38, 26, 13], id="C-1 largest remainder"),
        pytest.param([200 / 3, 50.0, 100 / 3, 50 / 3], 128, [51, 38, 26, 13], id="C-3 renormalised controller output"),
        pytest.param([1, 2, 3], 9, [2, 3, 4], id="C-6 equal remainders go to the lower index"),
        pytest.param([5, 2, 1], 4, [3, 1, 0], id="a ragged round leaves somebody without work"),
        pytest.param([1, 1, 1], 2, [1, 1, 0], id="ties go to the lower index"),
        pytest.param([0, 7], 3, [0, 3], id="no weight, no part"),
        pytest.param([0, 0], 0, [0, 0], id="nothing to share out"),
    ],
)
def test_parts_are_in_proportion(weights: list[float], total: int, want_parts: list[int]) -> None:
    assert proportional(weights, total) == want_parts


@given(weights=st.lists(st.integers(0, 10**6), min_size=1, max_size=30).filter(any), total=st.integers(0, 10**9))
def test_parts_sum_up_and_are_within_one_of_the_ideal(weights: list[int], total: int) -> None:
    parts = proportional(weights, total)

    assert sum(parts) == total
    assert all(abs(p * sum(weights) - w * total) < sum(weights) for p, w in zip(parts, weights, strict=True))


@pytest.mark.parametrize(("weights", "total"), [([0, 0], 1), ([1, -1], 1), ([1, 1], -1), ([], 1)])
def test_nothing_can_be_in_proportion_to_that(weights: list[int], total: int) -> None:
    with pytest.raises(ValueError, match="must be at least 0"):
        proportional(weights, total)


@pytest.mark.parametrize(
    ("initial", "want_shares"),
    [
        pytest.param([None, None, None], [11, 11, 10], id="nobody says anything: equal shares"),
        pytest.param([20, None, None], [20, 6, 6], id="one is given, the others get equal parts of the rest"),
        pytest.param([5, None, 2], [5, 25, 2], id="one is left over for the rest"),
        pytest.param([20, 8, 4], [20, 8, 4], id="all are given"),
    ],
)
def test_start_shares_keep_what_is_given(initial: list[int | None], want_shares: list[int]) -> None:
    assert start_shares(initial, [1, 1, 1], [32, 32, 32], 32, 1) == want_shares


def test_start_shares_stay_within_bounds_and_on_the_grid() -> None:
    assert start_shares([None] * 3, [2, 8, 4], [6, 64, 64], 42, 4) == [6, 20, 16]


@pytest.mark.parametrize(
    ("initial", "total", "want_error", "want_message"),
    [
        pytest.param(
            [40, None], 32, ValueError,
            "worker gpu-0: initial share 40 is not between its bounds 2 and 34",
            id="out of bounds",
        ),
        pytest.param(
            [None, 5], 32, ValueError,
            "worker cpu-0: initial share 5 is not its minimum 2 plus a multiple of the grain 2: take 4",
            id="off the grain",
        ),
        pytest.param(
            [10, 10], 32, InfeasibleError,
            "the initial shares sum to 20, not to 32: change them, or leave one out",
            id="the sum differs",
        ),
        pytest.param(
            [2, None], 64, MaximumTooSmallError,
            "workers without initial share (cpu-0), initial shares of the others 2: "
            "the maximum shares (on the grain of 2) sum to 34, less than the 62 samples to share out: "
            "raise the maximums by 28, or take fewer samples or more workers",
            id="the others cannot make it up",
        ),
    ],
)  # fmt: skip
def test_start_shares_say_which_worker_is_at_fault(
    initial: list[int | None], total: int, want_error: type[ValueError], want_message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        start_shares(initial, [2, 2], [34, 34], total, 2, names=["gpu-0", "cpu-0"])

    assert (type(caught.value), str(caught.value)) == (want_error, want_message)
