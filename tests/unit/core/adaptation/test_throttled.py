"""The whole loop with workers that are held to a part of a core, where no line is right (`builders_throttled`)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from builders_throttled import Throttled, fitting, held, throttled
from heterotrain_core.adaptation.values import Finding, Mode

QUOTAS = (0.8, 0.4, 0.2, 0.1)


@pytest.mark.parametrize(
    ("start", "cpu", "want"),
    [
        pytest.param(0.0, 0.010, 0.010, id="within what the period grants"),
        pytest.param(0.0, 0.015, 0.105, id="half as much again waits for the next period"),
        pytest.param(0.095, 0.015, 0.015, id="the end of one period and the beginning of the next"),
        pytest.param(0.0, 0.100, 0.910, id="ten periods' worth"),
    ],
)
def test_a_tenth_of_a_core(start: float, cpu: float, want: float) -> None:
    assert throttled(start, cpu, 0.1, 0.1) == pytest.approx(want)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("shares", "least_gain"),
    [
        pytest.param((200, 150, 100, 50), 1.0, id="4 : 3 : 2 : 1 at first"),
        pytest.param((125,) * 4, 2.5, id="equal at first"),
        pytest.param((64,) * 4, 2.5, id="equal, and small"),
    ],
)
def test_shares_settle_although_a_period_is_as_long_as_a_round(
    shares: Sequence[int], least_gain: float, seed: int
) -> None:
    """A plan that moves a share over the edge of a period changes its time tenfold: that is no change of speed.

    When it was taken for one, what was known of other shares was forgotten, and shares went to and fro for ever.
    """
    adapted = held(QUOTAS, shares, seed=seed)
    as_quotas = held(QUOTAS, fitting(QUOTAS, sum(shares)), mode=Mode.OFF, seed=seed)
    equal = held(QUOTAS, [sum(shares) // 4] * 4, mode=Mode.OFF, seed=seed)

    for job in (adapted, as_quotas, equal):
        job.until(100)

    assert adapted.speed(0.3) > 0.95 * as_quotas.speed(0.3)
    assert adapted.speed(0.3) > least_gain * equal.speed(0.3)
    assert len(adapted.plans) <= 7


@pytest.mark.parametrize("seed", range(3))
def test_with_short_periods_one_or_two_plans_are_enough(seed: int) -> None:
    adapted = held(QUOTAS, (125,) * 4, seed=seed, period=0.02)
    as_quotas = held(QUOTAS, fitting(QUOTAS, 500), mode=Mode.OFF, seed=seed, period=0.02)

    adapted.until(100)
    as_quotas.until(100)

    assert adapted.speed(0.3) > 0.95 * as_quotas.speed(0.3)
    assert len(adapted.plans) <= 2


@pytest.mark.parametrize("seed", [1, 3])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_half_of_the_cores_and_their_return_are_told_although_single_steps_vary_by_half(victim: int, seed: int) -> None:
    job = held(QUOTAS, (125,) * 4, seed=seed)
    job.until(60)

    began = job.now
    job.quotas = [quota / (2 if i == victim else 1) for i, quota in enumerate(QUOTAS)]
    job.until(began + 20)
    ended = job.now
    job.quotas = QUOTAS
    job.until(ended + 20)

    assert Finding.SLOWER in told(job, f"w{victim}", began, ended)
    # Not with any seed (nor with 2): whose share fits into a period by then is told of before its cores come back.
    assert Finding.FASTER in told(job, f"w{victim}", ended, job.now)


def told(job: Throttled, worker: str, since: float, until: float) -> set[Finding]:
    """Changes of speed of a worker that decisions of this time tell of."""
    return {
        found.kind
        for _, decision in job.decisions
        if since < decision.time <= until
        for found in decision.found
        if found.worker == worker and "became" in found.words
    }
