"""A speed that changed between two plans is named with the plan that follows from it, if no alarm called for that."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from heterotrain_core.adaptation.drift import drifted
from heterotrain_core.adaptation.estimate import Point, SpeedModel
from heterotrain_core.adaptation.guard import Made
from heterotrain_core.adaptation.plan import Room
from heterotrain_core.adaptation.track import Track
from heterotrain_core.adaptation.values import NodeFact

SHARE_BEFORE, SHARE_NOW = 20, 30


def made(**values: object) -> Made:
    """Plan 4, made when a sample took 10 ms, 9 of them of a processor."""
    base: dict[str, object] = {
        "generation": 4, "effective_round": 9, "before": {"w": SHARE_BEFORE}, "after": {"w": SHARE_NOW},
        "predicted_seconds": 1.0, "speed_before": 1.0, "noise_before": 0.0, "changes": {"w": 1},
        "paces": {"w": 0.01}, "cpus": {"w": 0.009},
    }  # fmt: skip
    return Made(**(base | values))  # type: ignore[arg-type]  # the dataclass's own fields


def seen(pace: float, cpu: float, *, error: float = 0.0) -> tuple[Room, Mapping[str, Track]]:
    """The worker now: seconds and processor seconds per sample."""
    points = tuple(Point(i, SHARE_NOW, pace * SHARE_NOW, 0.0, 1.0, cpu * SHARE_NOW) for i in range(5))
    track = Track(points=points, model=SpeedModel(0.0, pace, error=error))
    room = Room("w", SHARE_NOW, 0.5, pace, 1, 100, True, beside=0.5)
    return room, {"w": track}


@pytest.mark.parametrize(
    ("plan", "now", "node", "want"),
    [
        pytest.param(
            made(), seen(0.02, 0.009), None,
            ["w became 2.00x slower since plan 4: it gets 50% of the processor time that it had"], id="slower",
        ),
        pytest.param(
            made(), seen(0.02, 0.009), NodeFact("x", others_busy=0.6),
            ["w became 2.00x slower since plan 4: node x is 60% busy with other pods"], id="its node tells more",
        ),
        pytest.param(made(), seen(0.005, 0.0045), None, ["w became 2.00x faster since plan 4"], id="faster"),
        pytest.param(made(), seen(0.0115, 0.009), None, [], id="too little to speak of"),
        pytest.param(made(), seen(0.016, 0.009, error=0.1), None, [], id="its model is not certain enough"),
        pytest.param(made(paces={}), seen(0.02, 0.009), None, [], id="not known at that time"),
        pytest.param(None, seen(0.02, 0.009), None, [], id="no plan before"),
    ],
)  # fmt: skip
def test_what_is_told(
    plan: Made | None, now: tuple[Room, Mapping[str, Track]], node: NodeFact | None, want: list[str]
) -> None:
    room, tracks = now
    assert [found.words for found in drifted(plan, [room], tracks, {"w": node})] == want
