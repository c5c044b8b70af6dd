"""Speeds that changed between plans, for plans that no alarm has called for. Pure.

Where a CPU limit cuts steps into pieces of its period, single steps vary by half and more: an alarm is no reason to act
at once, and may not come at all. The models follow, and shares with them; who reads the plan is still to learn why. A
worker is compared with what it was when it was last spoken of, not with the plan before: a change that several plans
followed a little at a time would be told by none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from heterotrain_core.adaptation.detect import SLOWED, change_words
from heterotrain_core.adaptation.estimate import CERTAINTY
from heterotrain_core.adaptation.plan import Room
from heterotrain_core.adaptation.track import Change, Track, cpu_per_sample
from heterotrain_core.adaptation.values import Found, NodeFact


@dataclass(frozen=True, slots=True)
class Spoken:
    """A worker when a plan first counted on it, or told of its speed last."""

    generation: int
    """Of that plan."""
    share: int
    """Before it."""
    pace: float
    """Seconds per sample with that share."""
    error: float
    """Standard error of it, relative."""
    cpu: float
    """Processor seconds per sample; 0: not known."""
    changes: int
    """Of its speed, seen until then."""


def drifted(
    spoken: Mapping[str, Spoken],
    rooms: Iterable[Room],
    errors: Mapping[str, float],
    tracks: Mapping[str, Track],
    nodes: Mapping[str, NodeFact | None],
) -> tuple[Found, ...]:
    """Workers that take 1.25 times as long as when they were last spoken of, or more; or so much less.

    What all of several workers changed by is left out: it is nobody's own. `errors`: standard errors of
    their models against each other, relative.
    """
    factors = {
        room.name: room.pace(before.share) / before.pace
        for room in rooms
        if room.known and (before := spoken.get(room.name)) is not None and before.pace > 0
    }
    common = _common(list(factors.values()))
    found = []
    for name, factor in factors.items():
        before = spoken[name]
        change = _change(before, name, factor / common, math.hypot(before.error, errors[name]), tracks[name])
        if change is not None:
            found.append(change_words(change, nodes[name], f"since plan {before.generation}"))
    return tuple(found)


def _common(factors: Sequence[float]) -> float:
    """The part of these changes that all show, if it is worth telling of; 1 of a single one, which is its own."""
    if len(factors) < 2:
        return 1.0
    least, most = min(factors), max(factors)
    return least if least >= SLOWED else most if most <= 1 / SLOWED else 1.0


def noted(
    spoken: Mapping[str, Spoken],
    rooms: Iterable[Room],
    errors: Mapping[str, float],
    tracks: Mapping[str, Track],
    *,
    told: Iterable[Found],
    generation: int,
) -> dict[str, Spoken]:
    """What to compare with from plan `generation` on: anew for whom it, or an alarm, told of, and who was unknown."""
    names = {found.worker for found in told}
    now = dict(spoken)
    for room in rooms:
        track, before = tracks.get(room.name), spoken.get(room.name)
        if not room.known or track is None:
            continue
        if before is None or room.name in names or before.changes != track.changes:
            cpu, error = cpu_per_sample(track, room.share), errors[room.name]
            now[room.name] = Spoken(generation, max(1, room.share), room.even, error, cpu, track.changes)
    return now


def _change(before: Spoken, name: str, factor: float, error: float, track: Track) -> Change | None:
    if max(factor, 1 / factor) < SLOWED * (1 + CERTAINTY * error):
        return None
    cpu_now = cpu_per_sample(track, track.points[-1].samples) if track.points else 0.0
    work = cpu_now / before.cpu if before.cpu > 0 else 0.0
    return Change(name, factor, steps=0, cores=work / factor, work=work)
