"""The whole loop where no model of a worker by itself is right: a shared machine, loads that come and go.

Shares may then be wrong for a while. They must not be worse than equal ones, and nobody may be trapped at its smallest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from builders_adaptation import simulate, steady
from builders_contention import Contended, Machine, contended, drifting
from heterotrain_core.adaptation.values import Action, Mode

EQUAL = (125, 125, 125, 125)
FITTING = (200, 150, 100, 50)
"""In proportion to the speeds."""


def play(machine: Machine, shares: Sequence[int], mode: Mode, seed: int, seconds: float = 100) -> Contended:
    job = contended((4, 3, 2, 1), machine=machine, seed=seed)
    job.settings = replace(job.settings, mode=mode)
    job.state = replace(job.state, settings=job.settings)
    for worker, share in zip(job.workers, shares, strict=True):
        worker.share = job.planned[worker.name] = share
    job.until(seconds)
    return job


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "machine", [Machine(burst_seconds=0), Machine()], ids=["a quiet machine", "another program half of the time"]
)
def test_two_cores_for_four_workers_are_used_as_with_fitting_shares(machine: Machine, seed: int) -> None:
    adapted, fitting = play(machine, EQUAL, Mode.APPLY, seed), play(machine, FITTING, Mode.OFF, seed)

    assert adapted.speed(0.5) > 0.95 * fitting.speed(0.5)
    assert len(adapted.plans) <= 4


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "machine",
    [
        Machine(burst_cores=3),
        Machine(burst_cores=6, burst_seconds=5),
        Machine(burst_cores=8, burst_seconds=15),
        Machine(burst_cores=16, burst_seconds=10, cache=0.2),
    ],
    ids=["3 programs", "6 programs", "8 programs for long", "16 programs and a cache too small"],
)
def test_on_a_machine_that_is_far_too_small_rounds_are_not_slower_than_with_equal_shares(
    machine: Machine, seed: int
) -> None:
    adapted, equal = play(machine, EQUAL, Mode.APPLY, seed), play(machine, EQUAL, Mode.OFF, seed)

    assert adapted.speed() > equal.speed()
    assert min(plan["w0"] for _, plan in adapted.plans) > 20


@pytest.mark.parametrize(
    ("amplitude", "rounds", "seed"), [(1.0, 8, 27), (1.0, 8, 38), (1.0, 8, 48), (0.7, 15, 4), (1.0, 25, 9)], ids=str
)
def test_speeds_that_change_all_the_time_trap_nobody_at_its_smallest_share(
    amplitude: float, rounds: int, seed: int
) -> None:
    """Lines fitted to sizes that were computed under unlike loads made some of these jobs slower than equal shares."""
    paces = drifting(seed, amplitude=amplitude, rounds=rounds, of_rounds=600)
    job = simulate(paces, batch=500, noise=0.05, seed=seed)
    for worker in job.workers:
        worker.minimum, worker.maximum = 10, 400

    job.run(400)

    equal = sum(max(pace(round_) * 125 for pace in paces) + job.overhead for round_ in range(400))
    assert sum(job.round_seconds) < 0.65 * equal
    assert min(min(plan["w0"], plan["w1"]) for _, plan in job.plans) > 60


def test_a_worker_that_slows_down_as_its_share_grows_but_not_for_it_is_cleared_once_it_is_as_slow_without() -> None:
    """The first plan comes into force at round 7; from round 8 on the worker is slow for another reason."""
    job = simulate([lambda round_: (4 if round_ >= 8 else 1) / 40, steady(1 / 30), steady(1 / 20), steady(1 / 10)])

    job.run(60)

    made = [d.action for _, d in job.decisions if d.proposal]
    assert made[:4] == [Action.PROPOSE, Action.SPLIT, Action.ROLL_BACK, Action.PROPOSE]
    assert job.state.ceilings == {}
    assert job.efficiency(40, 60) > 0.9


def test_a_small_change_of_speed_right_after_a_plan_waits_for_the_cool_down() -> None:
    """It may be the plan's own effect: on a shared machine other shares make the neighbours faster or slower."""
    job = simulate([steady(1 / 40), lambda round_: (1.4 if round_ >= 10 else 1) / 30, steady(1 / 20), steady(1 / 10)])

    job.run(40)

    assert [version for version, _ in job.plans] == [5, 19]  # in force from round 7: cool-down until 17
    assert job.efficiency(25, 40) > 0.9
