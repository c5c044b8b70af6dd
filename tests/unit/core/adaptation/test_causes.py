"""Why a worker became slower, told from its own processor time where nothing is known of its node."""

from __future__ import annotations

import pytest

from heterotrain_core.adaptation.detect import change_words
from heterotrain_core.adaptation.track import Track, follow
from heterotrain_core.adaptation.values import NodeFact
from heterotrain_core.run_values import Timings
from heterotrain_core.telemetry import StepRecord


def steps(count: int, first: int, *, seconds: float, cpu: float, samples: int = 10) -> list[StepRecord]:
    timings = Timings(compute=seconds, step=seconds, cpu=cpu)
    return [StepRecord(first + i, samples, timings) for i in range(count)]


@pytest.mark.parametrize(
    ("seconds", "cpu", "samples", "node", "want"),
    [
        pytest.param(
            2.0, 0.9, 10, None,
            "w became 2.00x slower 3 steps ago: it gets 50% of the processor time that it had",
            id="it waits for its processor",
        ),
        pytest.param(
            2.0, 1.8, 10, None,
            "w became 2.00x slower 3 steps ago: a sample takes 2.00x the processor time",
            id="it computes more",
        ),
        pytest.param(
            2.0, 0.9, 10, NodeFact("x", others_busy=0.9),
            "w became 2.00x slower 3 steps ago: node x is 90% busy with other pods",
            id="its node tells more",
        ),
        pytest.param(
            8.0, 1.8, 20, None,
            "w takes 4.00x as long for 20 samples as others let expect: it gets 25% of the processor time that it had",
            id="a larger share that is held up by a CPU limit",
        ),
        pytest.param(0.5, 0.45, 10, None, "w became 2.00x faster 3 steps ago", id="faster needs no cause"),
        pytest.param(2.0, 0.0, 10, None, "w became 2.00x slower 3 steps ago", id="processor time not known"),
    ],
)  # fmt: skip
def test_the_cause_of_a_change(seconds: float, cpu: float, samples: int, node: NodeFact | None, want: str) -> None:
    before, _ = follow(Track(), "w", steps(20, 1, seconds=1.0, cpu=0.9), 0.0)
    first_is_left_out = 1 if samples != 10 else 0

    _, changes = follow(before, "w", steps(3 + first_is_left_out, 21, seconds=seconds, cpu=cpu, samples=samples), 1.0)

    assert [change_words(change, node).words for change in changes] == [want]
