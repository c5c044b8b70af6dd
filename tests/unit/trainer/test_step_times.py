"""The parts of an iteration's time: what is the worker's own, and what it waited for others."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from heterotrain.engine import Update
from heterotrain.step_times import StepTimes
from heterotrain_core.types import Grant, SampleRange
from heterotrain_rpc import session_pb2 as pb

GRANT = Grant(0, 0, 0, (SampleRange(0, 0, 4),), None, 1)


@dataclass
class Hand:
    """A clock that stands still until it is moved."""

    now: float = 100.0

    def move(self, seconds: float) -> None:
        self.now += seconds


def an_iteration(
    *, wait: float = 0.0, transfer: float = 0.0, hand_over: float = 0.0, before: float = 0.0, evaluation: float = 0.0,
    measured: float = 0.0, data: float = 0.0, compute: float = 1.0, push: float = 0.0, after: float = 0.0,
    cpu: float = 0.0,
) -> list[pb.Timings]:  # fmt: skip
    """Two iterations: one of nothing but computing, then one with these parts (seconds), in this order."""
    hand = Hand()
    times = StepTimes(lambda: hand.now)
    times.start()
    hand.move(1.0)
    with times.pushing():
        pass
    done = [times.done(Update(GRANT, None, data_seconds=0.0, compute_seconds=1.0))]
    hand.move(after)
    with times.pulling():
        hand.move(wait + transfer)
        times.receive(transfer, lambda: hand.move(hand_over))
    with times.evaluating():
        hand.move(evaluation / 2)
    hand.move(measured)
    with times.evaluating(measured):
        hand.move(evaluation / 2)
    hand.move(before + data + compute)
    with times.pushing():
        hand.move(push)
    return [*done, times.done(Update(GRANT, None, data_seconds=data, compute_seconds=compute, cpu_seconds=cpu))]


@pytest.mark.parametrize(
    ("parts", "want"),
    [
        pytest.param({}, pb.Timings(), id="nothing but computing"),
        pytest.param({"wait": 4.0}, pb.Timings(pull_seconds=4.0), id="waiting for the others is in the pull alone"),
        pytest.param(
            {"wait": 4.0, "transfer": 0.5, "hand_over": 0.25},
            pb.Timings(pull_seconds=4.75, receive_seconds=0.75),
            id="transfer and copy to the device are received, after the wait",
        ),
        pytest.param(
            {"after": 0.25, "before": 0.5},
            pb.Timings(other_seconds=0.75),
            id="messages and the script between steps are its own",
        ),
        pytest.param(
            {"evaluation": 8.0, "measured": 2.0, "before": 0.5},
            pb.Timings(other_seconds=0.5),
            id="an evaluation is not, with its waits",
        ),
        pytest.param({"cpu": 3.5}, pb.Timings(cpu_seconds=3.5), id="processor time is told, and is no part of it"),
        pytest.param({"data": 0.25, "push": 0.5}, pb.Timings(data_seconds=0.25, push_seconds=0.5), id="data and push"),
    ],
)
def test_every_part_of_an_iteration_is_counted_once(parts: dict[str, float], want: pb.Timings) -> None:
    first, second = an_iteration(**parts)
    want.compute_seconds, want.step_seconds = 1.0, 1.0 + sum(parts.values()) - parts.get("cpu", 0.0)
    assert first == pb.Timings(compute_seconds=1.0, step_seconds=1.0)
    assert second == want


def test_a_second_item_in_one_iteration_is_no_own_time() -> None:
    """The end of an epoch comes first, then the next grant: both are waited for."""
    hand = Hand()
    times = StepTimes(lambda: hand.now)
    times.start()
    for _ in range(2):
        with times.pulling():
            hand.move(3.0)
    hand.move(1.0)
    with times.pushing():
        pass
    done = times.done(Update(GRANT, None, data_seconds=0.0, compute_seconds=1.0))
    assert done == pb.Timings(compute_seconds=1.0, pull_seconds=3.0, step_seconds=7.0)
