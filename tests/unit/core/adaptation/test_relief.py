"""The whole loop against a worker that its smallest share cannot help: relaxed, replaced or given up, as declared."""

from __future__ import annotations

import pytest

from builders_adaptation import Pace, Simulation, simulate, steady
from heterotrain_core.adaptation.escalate import Step
from heterotrain_core.adaptation.relief import means_of, with_bound
from heterotrain_core.adaptation.values import Action, Mode, Settings
from heterotrain_core.synchronization import BSP, Asp, Delay, Ssp, Synchronization

ALL = (Step.REBALANCE, Step.RELAX_STALENESS, Step.REPLACE)


def slow_from_60_to_300(round_: int) -> float:
    return 0.02 * (10 if 60 <= round_ < 300 else 1)


def job_with(pace: Pace, synchronization: Synchronization = BSP, **options: object) -> Simulation:
    """Four workers of 50 samples/s with at least 16 samples each, one of them with `pace`."""
    job = simulate([pace] + [steady(0.02)] * 3, noise=0.02, escalation=ALL, **options)
    job.synchronization = synchronization
    for worker in job.workers:
        worker.minimum = 16
    return job


def words(job: Simulation, kind: Action) -> list[str]:
    return [d.reason for _, d in job.decisions if d.action is kind]


def test_a_worker_that_becomes_ten_times_slower_is_relaxed_as_declared_and_comes_back() -> None:
    job = job_with(slow_from_60_to_300, Delay(staleness_bound=1), staleness=(0, 8))

    job.run(60)
    usual = sum(job.round_seconds[40:60]) / 20
    job.run(240)
    relaxed = sum(job.round_seconds[250:300]) / 50
    job.run(200)

    (up, bound), (down, start) = job.bounds
    assert 60 < up < 130
    assert (bound, start) == (4, 1)
    assert down > 300
    assert relaxed < 1.3 * usual
    assert job.planned == dict.fromkeys(("w0", "w1", "w2", "w3"), 32)
    assert "the staleness bound rises from 1 to 4, since the others wait for w0" in words(job, Action.RELAX)
    assert job.replaced == []
    assert job.decisions[-1][1].escalation == ""


def test_where_nothing_can_be_relaxed_it_is_replaced_once_and_then_given_up() -> None:
    job = job_with(slow_from_60_to_300, no_replacing="")

    job.run(250)

    assert [worker for _, worker in job.replaced] == ["w0"]
    (given_up,) = words(job, Action.GIVE_UP)
    assert given_up.startswith("Rebalance, RelaxStaleness, Replace did not help against w0")
    assert job.bounds == []
    assert "given up" in next(d for _, d in reversed(job.decisions) if d.workers).escalation


def test_a_replaced_worker_that_is_as_fast_as_the_others_takes_its_part_again() -> None:
    """The new pod joins 20 rounds after the old one was asked to go."""
    job = job_with(slow_from_60_to_300, no_replacing="")
    while not job.replaced and job.version < 200:
        job.run(1)
    old = job.workers[0]
    old.live = False
    job.planned |= {"w0": 0, "w1": 42, "w2": 43, "w3": 43}
    job.generation += 1
    job.run(20)
    old.live, old.pace, old.done = True, steady(0.02), 0
    old.records.clear()
    job.planned |= {"w0": 32, "w1": 32, "w2": 32, "w3": 32}
    job.generation += 1

    job.run(80)

    assert words(job, Action.GIVE_UP) == []
    assert job.planned["w0"] == pytest.approx(32, abs=2)
    assert len(job.replaced) == 1


def test_what_can_be_done_nowhere_is_given_up_with_the_reasons() -> None:
    job = job_with(slow_from_60_to_300, no_replacing="this machine is the only one")

    job.run(200)

    (given_up,) = words(job, Action.GIVE_UP)
    assert "no range is declared for the staleness bound; this machine is the only one" in given_up
    assert (job.replaced, job.bounds) == ([], [])


def test_recommend_shows_the_next_step_and_takes_none() -> None:
    job = job_with(slow_from_60_to_300, mode=Mode.RECOMMEND, no_replacing="")
    for worker in job.workers[1:]:
        worker.share = job.planned[worker.name] = 37
    job.workers[0].share = job.planned["w0"] = 17
    job.workers[0].minimum = 17

    job.run(200)

    assert job.replaced == []
    assert any("recommended, not applied: w0 is replaced" in text for text in words(job, Action.RECOMMEND))


def test_a_worker_with_a_share_to_lose_is_a_matter_of_shares_alone() -> None:
    job = simulate([slow_from_60_to_300] + [steady(0.02)] * 3, escalation=ALL, no_replacing="")

    job.run(300)

    assert (job.replaced, job.bounds, words(job, Action.GIVE_UP)) == ([], [], [])


@pytest.mark.parametrize(
    ("synchronization", "staleness", "why"),
    [
        pytest.param(Delay(staleness_bound=3), None, "no range is declared", id="no range"),
        pytest.param(BSP, (0, 4), "the mode is BSP, which has no staleness bound", id="no bound in the mode"),
        pytest.param(Asp(), (0, 4), "the mode is ASP", id="never a bound"),
        pytest.param(Ssp(None), (0, 4), "the staleness has no bound", id="unbounded already"),
        pytest.param(None, (0, 4), "the mode is not known yet", id="not told"),
    ],
)
def test_why_the_bound_stays(
    synchronization: Synchronization | None, staleness: tuple[int, int] | None, why: str
) -> None:
    means = means_of(Settings(staleness=staleness), synchronization)

    assert why in means.no_relaxing


def test_only_the_bound_changes() -> None:
    before = Delay(window_seconds=0.2, staleness_bound=1, delay_compensation=0.5)

    assert with_bound(before, 4) == Delay(window_seconds=0.2, staleness_bound=4, delay_compensation=0.5)
    assert with_bound(Ssp(2), 5) == Ssp(5)
    assert with_bound(BSP, 5) == BSP


def test_a_worker_that_cannot_be_replaced_is_given_up_with_its_own_reason() -> None:
    job = job_with(slow_from_60_to_300, no_replacing="")
    job.workers[0].irreplaceable = "w0 cannot be replaced: it was started again 3 times before"

    job.run(200)

    (given_up,) = words(job, Action.GIVE_UP)
    assert "w0 cannot be replaced: it was started again 3 times before" in given_up
    assert job.replaced == []
