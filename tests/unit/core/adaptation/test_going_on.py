"""Plans that trust held back, whose rest follows at once; and plans that are not made, since it may be noise."""

from __future__ import annotations

import pytest

from builders_adaptation import Simulation, simulate, steady
from heterotrain_core.adaptation.values import Action, Finding

SIX_SIX_FOUR_32 = [steady(0.192 / speed) for speed in (6, 6, 4, 32)]


def reasons(job: Simulation) -> list[str]:
    """Of the plans."""
    return [d.reason for _, d in job.decisions if d.action is Action.PROPOSE]


@pytest.mark.parametrize(
    ("noise", "seed"),
    [(0.0, 1), (0.01, 1), (0.05, 1), (0.05, 2), (0.05, 3), (0.05, 7)],
    ids=["none", "1 %", "5 %", "5 %, another", "5 %, a third", "5 %, a fourth"],
)
def test_what_the_trust_region_held_back_follows_as_soon_as_the_first_plan_is_as_predicted(
    noise: float, seed: int
) -> None:
    """Set-up het-8: 64 samples are at most doubled, 171 are right. Two plans in short succession, then quiet."""
    job = simulate(SIX_SIX_FOUR_32, batch=256, noise=noise, seed=seed)

    job.until(600)

    (first, held), (second, rest) = job.plans
    assert held["w3"] == 128
    assert rest["w3"] == pytest.approx(171, abs=9)
    assert second - first <= 10  # rounds; two until it is in force, four until three steps with it count
    assert job.efficiency(second + 2, len(job.round_seconds)) > 0.93
    assert "plan 2, which the trust region held back, is as fast as predicted" in reasons(job)[1]
    assert [d.verified.generation for _, d in job.decisions if d.verified] == [2, 3]


@pytest.mark.parametrize(
    ("overhead", "why"),
    [
        pytest.param(0.01, "which the trust region held back", id="as predicted: the rest at once"),
        pytest.param(0.4, "the gain lasted for 2 windows", id="a fifth slower than predicted: windows and cool-down"),
    ],
)
def test_a_held_plan_that_does_not_come_true_waits_as_any_other(overhead: float, why: str) -> None:
    job = simulate(SIX_SIX_FOUR_32, batch=256)
    job.run(6)
    job.overhead = overhead  # the update takes longer from now on, whatever the shares

    job.run(60)

    assert why in reasons(job)[1]


def test_a_small_change_of_speed_may_be_noise_and_passes_over_no_windows() -> None:
    job = simulate([lambda round_: 0.02 * (1.12 if round_ >= 50 else 1)] + [steady(0.02)] * 3)

    job.run(120)

    assert ("w0", Finding.SLOWER) in {(f.worker, f.kind) for _, d in job.decisions for f in d.found}
    assert all("the gain lasted for 2 windows" in reason for reason in reasons(job))
    assert 1 <= len(job.plans) <= 2
