from __future__ import annotations

from collections.abc import Sequence

import pytest

from heterotrain_core.lab.setups import SETUPS
from heterotrain_core.lab.trace import Step, Trace, Window
from heterotrain_operator.lab.figures import (
    PlanFigures,
    Recovery,
    best_share,
    curve,
    disturbance,
    ideal_within,
    plans,
    possible,
    real_part,
    recoveries,
    shares_over_time,
    throughput,
    time_to,
)

EQUAL = (250.0, 250.0, 250.0, 250.0)


def lockstep(rounds: Sequence[tuple[float, Sequence[int]]], slow: range = range(0)) -> list[Trace]:
    """Traces of four workers from rounds of (seconds, samples of each); worker 0 is slowed down in rounds `slow`."""
    since, made = 0.0, [[], [], [], []]  # type: tuple[float, list[list[Step]]]
    for number, (seconds, shares) in enumerate(rounds):
        for worker, samples in enumerate(shares):
            factor = 2 if worker == 0 and number in slow else 1
            made[worker].append(Step(since, since + seconds, samples, 0.02, 0.2, factor))
        since += seconds
    return list(made)


def test_the_ideal_of_a_window_is_that_of_its_own_processor_time() -> None:
    steps = [Step(0.0, 1.0, 50, 1.0, 1.0, 1, 0.9, 0.8), Step(1.0, 3.0, 50, 2.0, 2.0, 1, 1.7, 1.6)]
    slow = [Step(0.0, 2.9, 20, 2.9, 2.9, 1, 0.5, 0.4)]
    assert ideal_within((0.8, 0.2), [steps, slow], Window(0.0, 3.0)) == pytest.approx(0.8 * 100 / 2.4 + 0.2 * 20 / 0.4)
    assert ideal_within((0.8,), [steps], Window(1.0, 3.0)) == pytest.approx(25.0), "whole steps of the window only"
    assert ideal_within((0.8, 0.2), [steps, slow], Window(1.0, 3.0)) is None, "a worker without a step"
    assert ideal_within((), [steps, slow], Window(0.0, 3.0)) is None, "paced workers have no quotas"


def decisions(*made: tuple[int, int, float], refused: Sequence[int] = ()) -> list[dict[str, object]]:
    """The adaptation's record, from (generation, effective round, predicted seconds)."""
    record: list[dict[str, object]] = [{"action": "Keep", "proposal": None}]
    for generation, effective, predicted in made:
        proposal = {"generation": generation, "shares": {"w-0": 1}, "reason": "faster"}
        record.append({"action": "Propose", "proposal": proposal, "predicted_seconds": predicted})
        refusals = [{"worker": "w-0", "reason": "no"}] if generation in refused else []
        answer = {"generation": generation, "effective_round": effective, "refusals": refusals}
        record.append({"action": "Answer", "answer": answer})
    return record


def test_throughput_is_that_of_all_workers_in_the_window() -> None:
    traces = lockstep([(0.5, (64, 64, 64, 64))] * 10)
    assert throughput(traces, Window(1.0, 3.0)) == pytest.approx(512)
    assert curve(traces, 5.0, bins=2) == [(1.25, pytest.approx(512)), (3.75, pytest.approx(512))]


@pytest.mark.parametrize(
    ("setup", "slow", "want"),
    [
        pytest.param("equal", range(0), 1000.0, id="undisturbed: the sum of the speeds"),
        pytest.param("transient", range(0), 1000 / 1.15, id="bursts: less their mean"),
        pytest.param("step-change", range(5, 10), 1000 - 125 / 2, id="slow for half of the window"),
    ],
)
def test_the_ideal_of_a_run_is_what_its_workers_were_capable_of(setup: str, slow: range, want: float) -> None:
    traces = lockstep([(0.5, (64, 64, 64, 64))] * 10, slow)
    assert possible(SETUPS[setup], EQUAL, traces, Window(0.0, 5.0)) == pytest.approx(want)


def test_the_best_whole_shares_lose_by_rounding_and_by_links() -> None:
    assert best_share(SETUPS["equal"], 256, EQUAL) == pytest.approx(1.0)
    assert best_share(SETUPS["equal"], 257, EQUAL) == pytest.approx(257 / 260)
    linked = best_share(SETUPS["slow-link"], 256, EQUAL)
    assert 256 / (256 + 250 * 0.22) * 0.98 < linked <= 256 / (256 + 250 * 0.22)


def test_the_real_part_is_told_apart_from_the_padding() -> None:
    assert real_part(lockstep([(0.5, (64, 64, 64, 64))] * 3)) == pytest.approx(0.1)


def test_shares_are_kept_where_they_change() -> None:
    (trace, *_) = lockstep([(1.0, (64,)), (1.0, (64,)), (1.0, (70,)), (1.0, (64,)), (1.0, (1,))])
    assert shares_over_time(trace, 0.0, 4.5) == [(0.0, 64), (2.0, 70), (3.0, 64)]


@pytest.mark.parametrize(
    ("accuracies", "want"),
    [
        pytest.param([0.80, 0.86, 0.87], 1.0, id="two in a row"),
        pytest.param([0.86, 0.84, 0.85, 0.90], 2.0, id="a single one does not count"),
        pytest.param([0.80, 0.90], None, id="only the last one"),
        pytest.param([], None, id="none measured"),
    ],
)
def test_the_target_is_reached_when_two_measurements_in_a_row_reach_it(
    accuracies: list[float], want: float | None
) -> None:
    assert time_to([(float(n), accuracy) for n, accuracy in enumerate(accuracies)]) == want


def test_a_plans_prediction_is_held_against_the_rounds_that_it_was_in_force_for() -> None:
    rounds = lockstep([(0.6, (64,))] * 5 + [(0.9, (64,))] + [(0.3, (64,))] * 10 + [(0.25, (64,))] * 4)[0]
    assert plans(decisions((2, 5, 0.27), (3, 9, 0.1), (4, 16, 0.26), refused=[3]), rounds) == [
        PlanFigures(2, 5, 0.27, pytest.approx(0.3), {"w-0": 1}, "faster"),
        PlanFigures(4, 16, 0.26, pytest.approx(0.25), {"w-0": 1}, "faster"),
    ]


def test_a_run_without_plans_has_none() -> None:
    assert plans(decisions((2, 5, 0.27), refused=[2]), lockstep([(0.6, (64,))] * 5)[0]) == []


def test_a_plan_without_rounds_has_no_error() -> None:
    (made,) = plans(decisions((2, 5, 0.27)), lockstep([(0.6, (64,))] * 5)[0])
    assert (made.measured_seconds, made.error) == (None, None)


def step_change(slow_at_first: int) -> list[Trace]:
    """50 rounds at full speed; then worker 0 halves, and its share follows after so many rounds; back at 150."""
    full, wrong, right = (0.256, (64,) * 4), (0.512, (64,) * 4), (0.293, (37, 73, 73, 73))
    slow = [wrong] * slow_at_first + [right] * (100 - slow_at_first)
    return lockstep([full] * 50 + slow + [full] * 50, range(50, 150))


def test_recovery_is_counted_from_each_change_of_speed() -> None:
    made = [PlanFigures(2, 53, 0.29, 0.29, {}, ""), PlanFigures(3, 152, 0.26, 0.26, {}, "")]
    assert recoveries(SETUPS["step-change"], step_change(3), 1000.0, made) == [
        Recovery(step=50, rounds=3, seconds=pytest.approx(3 * 0.512), plans=1),
        Recovery(step=150, rounds=0, seconds=0.0, plans=1),
    ]
    assert disturbance(SETUPS["step-change"], step_change(3), 1e9) == [
        (pytest.approx(50 * 0.256), pytest.approx(50 * 0.256 + 3 * 0.512 + 97 * 0.293))
    ]


def test_a_run_that_never_recovers_says_so() -> None:
    first, _ = recoveries(SETUPS["step-change"], step_change(100), 1000.0, [])
    assert first == Recovery(step=50, rounds=None, seconds=None, plans=0)


def test_nothing_to_recover_from_without_a_change() -> None:
    assert recoveries(SETUPS["equal"], lockstep([(0.5, (64,) * 4)] * 60), 1000.0, []) == []
    assert disturbance(SETUPS["equal"], lockstep([(0.5, (64,) * 4)] * 60), 30.0) == []
