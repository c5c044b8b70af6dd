"""Shares before any step, from what a rule says of the nodes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from builders_adaptation import Simulation, simulate, steady
from heterotrain_core.adaptation.start import start_plan
from heterotrain_core.adaptation.values import Action, Mode, NodeFact, Observation, WorkerSeen
from heterotrain_core.types import Bounds

SPEEDS = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}
BATCH = 40


def observation(
    speeds: dict[str, float | None], *, generation: int = 1, shares: tuple[int, ...] = (10, 10, 10, 10), start: int = 10
) -> Observation:
    workers = tuple(
        WorkerSeen(name, True, share, Bounds(1, BATCH), node=NodeFact(f"n{name}", training_speed=speed))
        for (name, speed), share in zip(speeds.items(), shares, strict=True)
    )
    return Observation(True, 0, generation, 0, workers, start_shares=dict.fromkeys(speeds, start))


def test_shares_are_in_proportion_to_what_the_nodes_are_said_to_do() -> None:
    start = start_plan(observation(dict(SPEEDS)), BATCH, 1)
    assert start is not None
    assert start.shares == {"a": 16, "b": 12, "c": 8, "d": 4}
    assert start.why == (
        "before any step, by node_training_speed: a 10→16 (node na: 4), b 10→12 (node nb: 3), c 10→8 (node nc: 2), "
        "d 10→4 (node nd: 1)"
    )


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(observation(dict(SPEEDS), generation=2), id="another plan than the first one is in force"),
        pytest.param(observation(dict(SPEEDS), shares=(25, 5, 5, 5)), id="the manifest names shares"),
        pytest.param(observation(dict(SPEEDS), start=9), id="shares of another manifest"),
        pytest.param(observation({**SPEEDS, "d": None}), id="one node says nothing"),
        pytest.param(observation({**SPEEDS, "d": 0.0}), id="a speed of 0 says nothing"),
        pytest.param(observation({**SPEEDS, "d": math.inf}), id="nor does an infinite one"),
        pytest.param(observation(dict.fromkeys(SPEEDS, 7.0)), id="all are alike: the shares are those already"),
        pytest.param(replace(observation(dict(SPEEDS)), workers=()), id="nobody is there yet"),
    ],
)
def test_otherwise_the_first_plan_stays(seen: Observation) -> None:
    assert start_plan(seen, BATCH, 1) is None


def unequal(*, mode: Mode = Mode.APPLY, said: tuple[float, ...] = (4.0, 3.0, 2.0, 1.0)) -> Simulation:
    job = simulate([steady(1 / 40), steady(1 / 30), steady(1 / 20), steady(1 / 10)], mode=mode)
    for worker, speed in zip(job.workers, said, strict=True):
        worker.node = NodeFact(f"n-{worker.name}", training_speed=speed)
    return job


def test_a_job_whose_nodes_are_known_begins_with_the_right_shares_and_needs_no_other_plan() -> None:
    job = unequal()
    job.run(100)
    (version, shares), *others = job.plans
    assert (version <= 1, others) == (True, [])
    assert [shares[f"w{index}"] for index in range(4)] == [52, 39, 25, 12]
    assert job.efficiency(3, 100) > 0.9


def test_what_turns_out_wrong_is_put_right_by_the_first_speeds_without_any_waiting() -> None:
    job = unequal(said=(1.0, 2.0, 3.0, 4.0))
    job.run(40)
    assert [version <= 15 for version, _ in job.plans] == [True, True]
    assert job.efficiency(20, 40) > 0.9
    assert {decision.action for _, decision in job.decisions} <= {Action.NONE, Action.KEEP, Action.PROPOSE}


def test_a_recommendation_changes_nothing() -> None:
    job = unequal(mode=Mode.RECOMMEND)
    job.run(3)
    assert job.plans == []
    first = next(decision for _, decision in job.decisions if decision.action is not Action.NONE)
    assert first.action is Action.RECOMMEND
    assert first.reason.startswith("recommended, not applied: before any step, by node_training_speed")
