"""What is done about stale gradients (algorithms.md E)."""

import math
from collections.abc import Callable

import pytest

from builders_sync import World
from heterotrain_core.staleness import (
    adaptive_strength,
    compensate,
    compensate_all,
    expected_round_seconds,
    largest_stable_step,
    momentum_advice,
    staleness_aware_rate,
)
from heterotrain_core.synchronization import (
    INVERSE,
    Asp,
    Bsp,
    Delay,
    Discount,
    DiscountKind,
    Dssp,
    Ssp,
    Synchronization,
)
from heterotrain_core.types import Commit

NO_MOMENTUM = [(0, 2.0), (1, 1.0), (2, 0.61803), (3, 0.44504), (4, 0.34730), (8, 0.18454)]


def descend(step: float, tau: int, momentum: float, steps: int) -> list[float]:
    """``w' = w + momentum (w - w before) - step x w[tau ago]``, from 1; before the start w is 1 too."""
    path = [1.0] * (tau + 2)
    for _ in range(steps):
        if abs(path[-1]) > 1e12:
            break
        path.append(path[-1] + momentum * (path[-1] - path[-2]) - step * path[-1 - tau])
    return path[tau + 1 :]


def size(path: list[float]) -> float:
    return max(map(abs, path))


@pytest.mark.parametrize(("tau", "want"), NO_MOMENTUM)
def test_the_largest_stable_step_without_momentum(tau: int, want: float) -> None:
    """ORACLE E-1: just below it descent shrinks, just above it grows."""
    bound = largest_stable_step(tau)
    assert bound == pytest.approx(want, abs=5e-6)
    assert bound == pytest.approx(2 * math.sin(math.pi / (2 * (2 * tau + 1))), abs=1e-12)

    below, above = descend(0.98 * bound, tau, 0.0, 4000), descend(1.02 * bound, tau, 0.0, 4000)
    assert size(below[-100:]) < 0.01 * size(below[:100])
    assert size(above) > 100 * size(below)


@pytest.mark.parametrize(
    ("momentum", "tau", "want"),
    [
        (0.5, 0, 3.0), (0.5, 1, 0.5), (0.5, 2, 0.28078), (0.5, 3, 0.19927),
        (0.9, 0, 3.8), (0.9, 1, 0.1), (0.9, 2, 0.05125), (0.9, 3, 0.03478),
    ],
)  # fmt: skip
def test_the_largest_stable_step_with_momentum(momentum: float, tau: int, want: float) -> None:
    """ORACLE E-1, the other rows."""
    bound = largest_stable_step(tau, momentum)

    assert bound == pytest.approx(want, abs=5e-6)
    below, above = descend(0.98 * bound, tau, momentum, 8000), descend(1.02 * bound, tau, momentum, 8000)
    assert size(below[-100:]) < 0.01 * size(below[:100])
    assert size(above) > 100 * size(below)


@pytest.mark.parametrize(
    ("step", "want"),
    [
        (0.5, [1, 0.5, 0, -0.25, -0.25, -0.125, 0, 0.0625, 0.0625, 0.03125, 0]),
        (1.0, [1, 0, -1, -1, 0, 1, 1]),
    ],
)
def test_descent_with_one_step_of_delay(step: float, want: list[float]) -> None:
    """ORACLE E-2."""
    assert descend(step, 1, 0.0, len(want) - 1) == want
    if step == 1.0:
        assert descend(step, 1, 0.0, 66)[-7:] == want


@pytest.mark.parametrize(("tau", "want"), [(0, 0.1), (1, 0.1), (2, 0.05), (3, 0.033333), (8, 0.0125)])
def test_the_staleness_aware_rate(tau: int, want: float) -> None:
    """ORACLE E-3; as a discount it is the same."""
    assert staleness_aware_rate(0.1, tau) == pytest.approx(want, abs=5e-7)
    assert 0.1 * Discount(DiscountKind.STALENESS_AWARE).factor(tau) == pytest.approx(want, abs=5e-7)


def test_discounts() -> None:
    assert [INVERSE.factor(tau) for tau in (0, 1, 3)] == [1, 0.5, 0.25]
    assert [Discount(DiscountKind.POLYNOMIAL, 0.5).factor(tau) for tau in (0, 3)] == [1, 0.5]
    assert [Discount().factor(tau) for tau in (0, 9)] == [1, 1]


def test_delay_compensation() -> None:
    """ORACLE E-4."""
    assert compensate(2, 0.7, 1, 0.5) == pytest.approx(1.4, abs=1e-12)
    assert compensate_all([2, 0], [0.7, 5], [1, 1], 0.5) == pytest.approx([1.4, 0], abs=1e-12)
    assert adaptive_strength(2.0, 15.9, 0.1) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="shorter"):
        compensate_all([1, 2], [1], [1], 1.0)


def test_momentum_is_advised_against_only_where_it_meets_staleness() -> None:
    assert momentum_advice(0, 0.9) is None
    assert momentum_advice(3, 0.0) is None
    advice = momentum_advice(1, 0.9)
    assert advice is not None
    assert "falls from 3.8 to 0.1 (38 times less; 1 without momentum)" in advice


@pytest.mark.parametrize(
    ("workers", "needed", "want"),
    [(10, 10, 2.92897), (11, 10, 2.01988), (12, 10, 1.60321), (4, 4, 2.08333), (5, 4, 1.28333)],
)
def test_expected_time_of_a_round_with_backup_workers(workers: int, needed: int, want: float) -> None:
    """ORACLE D-6."""
    assert expected_round_seconds(workers, needed) == pytest.approx(want, abs=5e-6)
    assert expected_round_seconds(workers, needed, 2.0) == pytest.approx(2 * want, abs=1e-5)


@pytest.mark.parametrize(
    ("make", "want_message"),
    [
        (lambda: Ssp(-1), "staleness bound must be at least 0, not -1"),
        (lambda: Dssp(lower=-1), "DSSP lower bound must be at least 0"),
        (lambda: Dssp(range=-1), "DSSP range must be at least 0"),
        (lambda: Delay(window_seconds=-0.1), "delay window must be at least 0 seconds and finite"),
        (lambda: Delay(staleness_bound=-1), "staleness bound must be at least 0"),
        (lambda: Discount(DiscountKind.POLYNOMIAL, -1.0), "discount exponent must be from 0 to 10"),
        (lambda: largest_stable_step(-1), "tau must be at least 0"),
        (lambda: largest_stable_step(1, 1.0), "momentum must be at least 0 and below 1"),
        (lambda: expected_round_seconds(3, 4), "needed must be between 1 and 3"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Callable[[], object], want_message: str) -> None:
    with pytest.raises(ValueError, match=want_message):
        make()


class Sgd:
    """SGD with momentum on one number, as a shard carries out commits: rate x scale."""

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum
        self.velocity = 0.0

    def step(self, value: float, gradient: float, rate: float) -> float:
        self.velocity = self.momentum * self.velocity + gradient
        return value - rate * self.velocity


class AdamW:
    """AdamW on one number."""

    def __init__(self) -> None:
        self.first = self.second = 0.0
        self.count = 0

    def step(self, value: float, gradient: float, rate: float) -> float:
        self.count += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        corrected = self.first / (1 - 0.9**self.count)
        return value * (1 - rate * 0.01) - rate * corrected / (math.sqrt(self.second / (1 - 0.999**self.count)) + 1e-8)


def train(mode: Synchronization, optimizer: Sgd | AdamW, rate: float, samples: int) -> float:
    """The value after `samples` samples of descent on w^2 / 2 from 1; workers of shares 4, 2, 2 take 1, 1, 2 s."""
    job = World(mode, [4, 2, 2], dataset_size=10**6)
    job.join()
    values = [1.0]
    due = {0: 1.0, 1: 1.0, 2: 2.0}
    while sum(len(r) for c in job.commits for r in c.ranges) < samples:
        worker = min(job.ready(), key=lambda w: due[w]) if job.ready() else None
        timer = job.policy.next_timer
        if worker is not None and (timer is None or due[worker] <= timer):
            job.now = max(job.now, due[worker])
            due[worker] = job.now + (2.0 if worker == 2 else 1.0)
            decisions = job.done(worker)
        else:
            decisions = job.tick()
        for d in decisions:
            if isinstance(d, Commit):
                gradient = sum(c.weight * values[c.iteration] for c in d.contributions)
                values.append(optimizer.step(values[d.version], gradient, rate * d.scale))
    return values[-1]


@pytest.mark.parametrize("mode", [Asp(), Delay(0.0, None, Discount()), Delay(0.25, 2, Discount()), Ssp(2)])
@pytest.mark.parametrize(
    ("make", "rate"),
    [
        pytest.param(lambda: Sgd(0.0), 0.005, id="sgd"),
        pytest.param(lambda: Sgd(0.9), 0.0005, id="momentum"),
        pytest.param(AdamW, 0.004, id="adamw"),
    ],
)  # fmt: skip
def test_optimizers_move_per_sample_as_under_bsp(
    mode: Synchronization, make: Callable[[], Sgd | AdamW], rate: float
) -> None:
    bsp, other = train(Bsp(), make(), rate, 8 * 100), train(mode, make(), rate, 8 * 100)

    assert 0.3 < bsp < 0.8
    assert other == pytest.approx(bsp, abs=0.02)
