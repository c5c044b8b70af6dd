"""Shares computed in parts: chosen by what a sample takes at once and in smaller numbers, undone if that errs. Pure.

Page faults and caches make a large batch dearer a sample than a small one (a CPU worker fell from 1,550 to 964
samples/s as its batch grew from 256 to 566). Each growth of a share is a measurement of that: the size from before and
the new one, minutes apart at most. Waiting for a processor (a CPU limit, neighbours) looks alike in time, but takes no
more processor time, and parts do not help against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Final

from heterotrain_core.adaptation import plan as plans
from heterotrain_core.adaptation.detect import MORE_WORK
from heterotrain_core.adaptation.estimate import SPREAD, TRUSTED
from heterotrain_core.adaptation.guard import Made
from heterotrain_core.adaptation.saying import propose, seconds
from heterotrain_core.adaptation.state import State
from heterotrain_core.adaptation.track import cpu_per_sample, steps_with
from heterotrain_core.adaptation.values import Action, Decision, Observation, Verification
from heterotrain_core.adaptation.weigh import Weighed, weigh

WHOLE_FREEZES: Final = 2
"""Freezes for which a share that was no faster in parts is computed at once."""


def processor_growth(state: State, made: Made, name: str) -> float:
    """Processor time of a sample with the share after a change over that before; 0: not known."""
    before, mark = made.cpus.get(name, 0.0), -1 if made.marks is None else made.marks.get(name, -1)
    now = cpu_per_sample(state.tracks[name], made.after[name], mark)
    return now / before if before and now else 0.0


def dearer(state: State, seen: Observation, made: Made, now: float) -> dict[str, float]:
    """Workers whose larger share takes more of time and processor a sample than the one before, and how many times."""
    if made.parts or made.marks is None:
        return {}
    found: dict[str, float] = {}
    for worker in seen.workers:
        before, after = made.before.get(worker.name, 0), made.after.get(worker.name, 0)
        in_parts = worker.micro_batch is not None and worker.micro_batch < after
        if not worker.live or in_parts or after < SPREAD * before or before < 1 or _is_whole(state, worker.name, now):
            continue
        points = steps_with(state.tracks[worker.name].points, after, made.marks.get(worker.name, -1))
        pace = made.paces.get(worker.name, 0.0)
        if len(points) < TRUSTED or pace <= 0:
            continue
        times = median([p.busy / p.samples for p in points]) / pace
        if min(times, processor_growth(state, made, worker.name)) > MORE_WORK:
            found[worker.name] = times
    return found


def split_for_speed(
    state: State, seen: Observation, made: Made, found: Mapping[str, float], now: float
) -> tuple[State, Decision]:
    """Have the workers of `found` (see `dearer`) compute their share in parts of the size from before the change."""
    weighed = weigh(state, seen, now)
    sizes = {name: made.before[name] for name in found}
    who = ", ".join(f"{name} in parts of {sizes[name]}, a sample took {found[name]:.2f}x at once" for name in found)
    state, decision = propose(
        state,
        seen,
        weighed,
        now,
        action=Action.SPLIT,
        shares=weighed.present,
        why=f"a share is computed in parts: {who}",
        micro_batches=sizes,
    )
    if state.pending is not None:
        state = replace(state, pending=replace(state.pending, predicted_seconds=_predicted(weighed, found)))
    return state, replace(decision, found=(*state.changes, *weighed.found))


def _predicted(weighed: Weighed, found: Mapping[str, float]) -> float:
    """A round's time once the workers of `found` compute as fast as with their smaller shares."""
    present = weighed.present
    beside_slowest = weighed.present_seconds - plans.slowest(weighed.rooms, present)
    times = [
        room.beside + (room.seconds(present[room.name]) - room.beside) / found.get(room.name, 1.0)
        for room in weighed.rooms
    ]
    return max(times, default=0.0) + beside_slowest


def is_only_parts(made: Made) -> bool:
    """Whether a change moved no shares: only how they are computed."""
    return bool(made.parts) and made.before == made.after


def whole_again(
    state: State, seen: Observation, made: Made, verified: Verification, now: float
) -> tuple[State, Decision]:
    """Parts made rounds slower: the shares are computed at once again, and stay so for a while."""
    until = now + WHOLE_FREEZES * state.settings.freeze_seconds
    state = replace(state, whole={**state.whole, **dict.fromkeys(made.parts, until)})
    largest = {w.name: max(w.bounds.maximum, w.share) for w in seen.workers if w.name in made.parts}
    weighed = weigh(state, seen, now)
    why = (
        f"plan {made.generation} made rounds slower ({seconds(made.predicted_seconds)} predicted, "
        f"{seconds(verified.measured_seconds)} measured): {', '.join(sorted(largest))} again at once"
    )
    state, decision = propose(
        state, seen, weighed, now, action=Action.ROLL_BACK, shares=made.before, why=why, micro_batches=largest
    )
    return state, replace(decision, verified=verified, found=(*state.changes, *weighed.found))


def _is_whole(state: State, name: str, now: float) -> bool:
    return now < state.whole.get(name, now)
