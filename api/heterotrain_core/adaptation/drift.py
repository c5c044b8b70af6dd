"""Speeds that changed between two plans, for plans that no alarm has called for. Pure.

Where a CPU limit cuts steps into pieces of its period, single steps vary by half and more: an alarm is no reason to act
at once, and may not come at all. The models follow, and shares with them; who reads the plan is still to learn why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from heterotrain_core.adaptation.detect import SLOWED, change_words
from heterotrain_core.adaptation.guard import CERTAINTY, Made
from heterotrain_core.adaptation.plan import Room
from heterotrain_core.adaptation.track import Change, Track, cpu_per_sample
from heterotrain_core.adaptation.values import Found, NodeFact


def drifted(
    made: Made | None, rooms: Iterable[Room], tracks: Mapping[str, Track], nodes: Mapping[str, NodeFact | None]
) -> tuple[Found, ...]:
    """Workers that take 1.25 times as long as when the plan in force was made, or more; or so much less."""
    if made is None:
        return ()
    changes = [_change(made, room, tracks[room.name]) for room in rooms if room.known]
    since = f"since plan {made.generation}"
    return tuple(change_words(change, nodes[change.worker], since) for change in changes if change is not None)


def _change(made: Made, room: Room, track: Track) -> Change | None:
    share, before = made.before.get(room.name, 0), made.paces.get(room.name, 0.0)
    if share < 1 or before <= 0 or track.model is None:
        return None
    factor = room.pace(share) / before
    if max(factor, 1 / factor) < SLOWED * (1 + CERTAINTY * track.model.error):
        return None
    cpu_before, cpu_now = made.cpus.get(room.name, 0.0), cpu_per_sample(track, room.share)
    work = cpu_now / cpu_before if cpu_before > 0 else 0.0
    return Change(room.name, factor, steps=0, cores=work / factor, work=work)
