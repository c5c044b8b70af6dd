"""DSSP: how many iterations the fastest may go beyond the lower bound."""

import pytest

from builders_sync import World
from heterotrain_core.sync.dssp import choose_extra, predicted_wait
from heterotrain_core.synchronization import Dssp
from heterotrain_core.types import Grant


def test_the_least_predicted_wait_wins() -> None:
    """ORACLE D-5."""
    assert [predicted_wait(10 + r, 8, 5) for r in range(7)] == [3, 2, 1, 0, 4, 3, 2]
    assert choose_extra(10, 1, 8, 5, 6) == 3


@pytest.mark.parametrize(
    ("fast_now", "fast_seconds", "slow_last", "slow_seconds", "most", "want"),
    [
        pytest.param(10, 1, 8, 5, 2, 2, id="no more than the range allows"),
        pytest.param(10, 1, 8, 5, 0, 0, id="an empty range"),
        pytest.param(10, 5, 8, 5, 6, 0, id="ties go to the fewest"),
        pytest.param(0.3, 0.1, 0.0, 0.7, 8, 4, id="a meeting missed by rounding only is a meeting"),
        pytest.param(20, 1, 8, 5, 6, 3, id="a slowest that is overdue is expected at its next interval"),
    ],
)
def test_how_many_extra_iterations(
    fast_now: float, fast_seconds: float, slow_last: float, slow_seconds: float, most: int, want: int
) -> None:
    assert choose_extra(fast_now, fast_seconds, slow_last, slow_seconds, most) == want


def test_intervals_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="intervals must be above 0"):
        choose_extra(1, 0, 1, 1, 3)


def test_the_fastest_goes_on_to_where_it_meets_the_slowest_and_no_further_than_the_range() -> None:
    job = World(Dssp(lower=1, range=4), [1, 1], dataset_size=1000)
    job.join()

    def step(worker: int, now: float) -> bool:
        """Whether it may start again at once."""
        job.now = now
        return any(isinstance(d, Grant) and d.worker == worker for d in job.done(worker))

    # The slowest has no time yet: nobody gets extra iterations.
    assert [step(0, 1), step(0, 2)] == [True, False]
    assert step(1, 5)
    # Its steps take 5 s, the next ends at 10; those of the fastest take 1 s.
    assert [step(0, 6), step(0, 7), step(0, 8), step(0, 9), step(0, 10)] == [True, True, True, True, False]
    assert job.policy.bound_in_force == 5
