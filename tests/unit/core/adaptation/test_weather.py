"""Which changes of speed pass over windows and cool-down, and which wait as any other gain."""

from __future__ import annotations

import math

import pytest

from heterotrain_core.adaptation.estimate import SpeedModel
from heterotrain_core.adaptation.state import State, _may_wait
from heterotrain_core.adaptation.track import Change, Track
from heterotrain_core.adaptation.values import Observation, Settings


def model(noise: float) -> SpeedModel:
    return SpeedModel(fixed=0.0, per_sample=0.01, noise=noise, steps=50, dropped=0, error=0.01, identified=False)


@pytest.mark.parametrize(
    ("factor", "noise", "others", "waits"),
    [
        pytest.param(1.2, 0.02, 1.0, False, id="steady steps: a fifth is no noise"),
        pytest.param(1.1, 0.02, 1.0, True, id="less than 1.15 may be noise"),
        pytest.param(1.3, 0.12, 1.0, True, id="steps that vary by 12 %: 1.36 may come and go"),
        pytest.param(1 / 1.3, 0.12, 1.0, True, id="faster too"),
        pytest.param(1.4, 0.12, 1.0, False, id="more than three times what they vary"),
        pytest.param(2.5, 0.3, 1.0, True, id="steps that vary so much that a dozen may seem another speed"),
        pytest.param(1.5, 0.02, 1.2, True, id="all others are slower at once: what is left goes with it"),
        pytest.param(1.5, 0.02, 1.05, False, id="the others hardly are"),
        pytest.param(1.5, 0.02, 1 / 1.2, False, id="the others are faster"),
        pytest.param(2.0, 0.02, 1.2, False, id="more than half as much again as the others"),
    ],
)
def test_which_changes_wait(factor: float, noise: float, others: float, waits: bool) -> None:
    state = State(Settings(global_batch=100), tracks={"w": Track(model=model(noise))})
    seen = Observation(training=True, version=50, generation=1, effective_round=0, workers=())
    assert _may_wait(state, seen, Change("w", factor, steps=3), {7: math.log(others)}) == waits
