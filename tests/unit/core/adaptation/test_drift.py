"""A speed that changed between two plans is named with the plan that follows from it, if no alarm called for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from heterotrain_core.adaptation.drift import Spoken, drifted, noted
from heterotrain_core.adaptation.estimate import Point, SpeedModel
from heterotrain_core.adaptation.plan import Room
from heterotrain_core.adaptation.track import Track
from heterotrain_core.adaptation.values import Finding, Found, NodeFact

SHARE_BEFORE, SHARE_NOW = 20, 30


def spoken(**values: float) -> Mapping[str, Spoken]:
    """With plan 4, when a sample took 10 ms, 9 of them of a processor."""
    base = Spoken(generation=4, share=SHARE_BEFORE, pace=0.01, error=0.0, cpu=0.009, changes=1)
    return {"w": replace(base, **values)}


def seen(pace: float, cpu: float, *, error: float = 0.0) -> tuple[Room, Mapping[str, Track]]:
    """The worker now: seconds and processor seconds per sample."""
    points = tuple(Point(i, SHARE_NOW, pace * SHARE_NOW, 0.0, 1.0, cpu * SHARE_NOW) for i in range(5))
    track = Track(points=points, model=SpeedModel(0.0, pace, error=error))
    room = Room("w", SHARE_NOW, 0.5, pace, 1, 100, True, beside=0.5)
    return room, {"w": track}


def errors_of(tracks: Mapping[str, Track]) -> dict[str, float]:
    return {name: track.model.error for name, track in tracks.items() if track.model is not None}


@pytest.mark.parametrize(
    ("before", "now", "node", "want"),
    [
        pytest.param(
            spoken(), seen(0.02, 0.009), None,
            ["w became 2.00x slower since plan 4: it gets 50% of the processor time that it had"], id="slower",
        ),
        pytest.param(
            spoken(), seen(0.02, 0.009), NodeFact("x", others_busy=0.6),
            ["w became 2.00x slower since plan 4: node x is 60% busy with other pods"], id="its node tells more",
        ),
        pytest.param(spoken(), seen(0.005, 0.0045), None, ["w became 2.00x faster since plan 4"], id="faster"),
        pytest.param(spoken(), seen(0.0115, 0.009), None, [], id="too little to speak of"),
        pytest.param(spoken(), seen(0.016, 0.009, error=0.1), None, [], id="its model is not certain enough"),
        pytest.param({}, seen(0.02, 0.009), None, [], id="never spoken of"),
        pytest.param(spoken(error=0.1), seen(0.016, 0.009), None, [], id="what was known of it then was not certain"),
    ],
)  # fmt: skip
def test_what_is_told(
    before: Mapping[str, Spoken], now: tuple[Room, Mapping[str, Track]], node: NodeFact | None, want: list[str]
) -> None:
    room, tracks = now
    assert [found.words for found in drifted(before, [room], errors_of(tracks), tracks, {"w": node})] == want


SLOWER = Found("w", Finding.SLOWER, "w became 2.00x slower since plan 4")


@pytest.mark.parametrize(
    ("before", "told", "want"),
    [
        pytest.param(
            spoken(), [SLOWER], Spoken(7, SHARE_NOW, pytest.approx(0.02), 0.0, 0.009, 0), id="told of with this plan"
        ),
        pytest.param({}, [], Spoken(7, SHARE_NOW, pytest.approx(0.02), 0.0, 0.009, 0), id="never before"),
        pytest.param(
            spoken(changes=1),
            [],
            Spoken(7, SHARE_NOW, pytest.approx(0.02), 0.0, 0.009, 0),
            id="an alarm has told since",
        ),
        pytest.param(spoken(changes=0), [], spoken(changes=0)["w"], id="several plans may follow a slow change"),
    ],
)
def test_what_a_worker_is_compared_with_from_a_plan_on(
    before: Mapping[str, Spoken], told: list[Found], want: Spoken
) -> None:
    room, tracks = seen(0.02, 0.009)
    assert noted(before, [room], errors_of(tracks), tracks, told=told, generation=7)["w"] == want


def test_what_all_workers_changed_by_is_told_of_none() -> None:
    room, tracks = seen(0.016, 0.009)
    rooms = [replace(room, name=name) for name in "wxy"]
    before = {name: spoken()["w"] for name in "wxy"}
    of_all = dict.fromkeys("wxy", tracks["w"])
    nodes = dict.fromkeys("wxy")

    assert drifted(before, rooms, dict.fromkeys("wxy", 0.0), of_all, nodes) == ()
    slower = [*rooms[:2], replace(rooms[2], per_sample=0.032)]
    found = drifted(before, slower, dict.fromkeys("wxy", 0.0), of_all, nodes)
    assert [f.words.partition(":")[0] for f in found] == ["y became 2.00x slower since plan 4"]
