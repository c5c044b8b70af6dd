"""Present shares against the best ones, by the models: everything a decision is made from. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from heterotrain_core.adaptation import guard as guards
from heterotrain_core.adaptation import plan as plans
from heterotrain_core.adaptation.detect import is_lost, lost_words, steady, straggler
from heterotrain_core.adaptation.escalate import Signs
from heterotrain_core.adaptation.estimate import KEPT
from heterotrain_core.adaptation.plan import Expected, Room
from heterotrain_core.adaptation.state import State
from heterotrain_core.adaptation.together import aligned
from heterotrain_core.adaptation.track import Track, steps_with
from heterotrain_core.adaptation.values import Finding, Found, Observation, WorkerPlan, WorkerSeen
from heterotrain_core.synchronization import Backup, Synchronization

KNOWN_WELL: Final = 20
"""Steps of every worker from which on it is known how they vary, and so how often it is the last."""
NEAR: Final = 1.1
"""Times the largest share that a worker has computed, as far as a small gain is worth going."""
WAITING: Final = 0.1
"""Part of the others' steps spent waiting from which on a worker holds them up."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """One look at the job."""

    present: Mapping[str, int]
    wanted: Mapping[str, int]
    rooms: tuple[Room, ...]
    rows: tuple[WorkerPlan, ...]
    found: tuple[Found, ...]
    unknown: tuple[str, ...]
    """Live workers without a model."""
    lost: frozenset[str]
    steps: int
    """Of the model that rests on the fewest; 0: there is none."""
    band: float
    usual: float
    """The band for shares that were chosen from many steps: not the fine one."""
    gain: float
    present_seconds: float
    predicted_seconds: float
    measured: guards.Speed | None
    advice: str
    signs: Signs
    """Who holds the others up although it has its smallest share."""

    @property
    def refined(self) -> bool:
        """A look with the fine band found nothing to gain, which is all of it: of many, noise makes one exceed any."""
        return (self.wanted == self.present and self.steps >= KEPT) or self.gain <= self.band < self.usual


def weigh(state: State, seen: Observation, now: float) -> Weighed:
    """Weigh the shares of the newest plan against those of the least step time."""
    settings, tracks = state.settings, aligned(state.tracks)
    live = [w for w in seen.workers if w.live]
    newest = max((t.news_at for t in tracks.values() if t.news_at is not None), default=None)
    lost = frozenset(w.name for w in live if is_lost(tracks.get(w.name), settings, now, newest))
    ceilings = {name: ceiling.samples for name, ceiling in state.ceilings.items() if now < ceiling.until}
    rooms = plans.rooms(live, tracks, ceilings, lost, settings.grain)
    present = {w.name: w.share for w in live}
    total = plans.total_of(live, settings.global_batch, settings.grain) or sum(present.values())
    rooms = plans.with_leeway(plans.in_corridor(rooms, total, settings.grain), waited_for(seen.synchronization))
    best = plans.best_shares(rooms, total, settings.grain)
    whole = sum(present.values()) != total or guards.is_calm(state.guard, settings, seen.version)
    part = 1.0 if whole else state.guard.part
    wanted = plans.part_way(present, best, part=part, found=rooms, grain=settings.grain)
    measured = guards.measured(live, tracks, None, 1)
    now_expected, then_expected = plans.expected(rooms, present), plans.expected(rooms, wanted)
    overhead = _overhead(now_expected.seconds, measured)
    present_seconds, predicted = now_expected.seconds + overhead, then_expected.seconds + overhead
    models = [t.model for n, t in tracks.items() if t.model is not None and n not in lost]
    fewest = min((m.steps for m in models), default=0)
    doubt = guards.doubt(state.guard, now, fewest, guards.reach(present, wanted))
    rough = fewest < KNOWN_WELL or any(room.is_rough(wanted[room.name]) for room in rooms)
    moved = None if rough else _uncertainty(now_expected, then_expected, tracks) / predicted
    usual = guards.band(settings, models, doubt, moved)
    refined = state.guard.refined or not _is_near(wanted, present, tracks, settings.grain)
    limit = guards.band(settings, models, doubt, moved, refined=refined)
    found = [lost_words(name, tracks[name], now) for name in sorted(lost)] + steady(seen, tracks)
    signs = _signs(live, rooms, tracks, best, usual)
    found += _stragglers(live, rooms, tracks, best, signs)
    return Weighed(
        present=present,
        wanted=wanted,
        rooms=tuple(rooms),
        rows=plans.rows(rooms, tracks, wanted),
        found=tuple(found),
        unknown=tuple(room.name for room in rooms if not room.known),
        lost=lost,
        steps=fewest,
        band=limit,
        usual=usual,
        gain=present_seconds / predicted - 1.0 if predicted > 0 else 0.0,
        present_seconds=present_seconds,
        predicted_seconds=predicted,
        measured=measured,
        advice=_advice(live, rooms, best, total=total, grain=settings.grain, limit=usual),
        signs=signs,
    )


def waited_for(mode: Synchronization | None) -> float:
    """The part of a single step's variation that others wait for.

    All of it where every round waits for everybody; without a bound, or with backups, nothing. Under a bound of s it is
    taken to even out over the s + 1 iterations that a worker may be away from the others.
    """
    if mode is None or mode.lockstep:
        return 1.0
    if mode.bound is None or isinstance(mode, Backup):
        return 0.0
    return 1.0 / (1 + mode.bound)


def _overhead(by_models: float, measured: guards.Speed | None) -> float:
    """What a round takes beyond its last worker: messages on the way, the update."""
    return 0.0 if measured is None else max(0.0, measured.seconds - by_models)


def _is_near(wanted: Mapping[str, int], present: Mapping[str, int], tracks: Mapping[str, Track], grain: int) -> bool:
    """Whether all shares are like ones that were computed: a CPU limit may make a few samples more take twice as long.

    One grain more is always near.
    """
    largest = {name: max(share, tracks[name].largest) for name, share in present.items() if name in tracks}
    return all(wanted[name] <= max(NEAR * known, known + grain) for name, known in largest.items())


def _uncertainty(now: Expected, then: Expected, tracks: Mapping[str, Track]) -> float:
    """What errors of the models may make of the difference between two rounds, seconds.

    A model that is wrong is wrong about both; what counts is by how much more its worker decides about one of them.
    """
    errors = {name: track.model.error for name, track in tracks.items() if track.model is not None}
    moved = [(weight - then.weights[name]) * errors.get(name, 0.0) for name, weight in now.weights.items()]
    return math.hypot(*moved)


def _signs(
    live: list[WorkerSeen], rooms: list[Room], tracks: Mapping[str, Track], best: Mapping[str, int], limit: float
) -> Signs:
    """The worker that stays the slowest with its smallest share, if it is slower than the others by more than noise."""
    if len(rooms) < 2 or not all(room.known for room in rooms):
        return Signs()
    times = {room.name: room.due(best[room.name]) for room in rooms}
    last = max(times, key=lambda name: times[name])
    worker = next(w for w in live if w.name == last)
    others = max(seconds for name, seconds in times.items() if name != last)
    if best[last] > worker.bounds.minimum or times[last] <= others * (1 + limit):
        return Signs()
    waits = [wait for w in live if w.name != last and (wait := _wait(w, tracks)) is not None]
    behind = math.ceil(times[last] / others) - 1 if others > 0 else 0
    at_minimum = worker.share <= worker.bounds.minimum
    return Signs(last, holds_up=at_minimum and bool(waits) and median(waits) > max(WAITING, limit), needed=behind)


def _wait(worker: WorkerSeen, tracks: Mapping[str, Track]) -> float | None:
    """Part of its newest steps that a worker spent waiting; `None`: not known."""
    track = tracks.get(worker.name)
    points = steps_with(track.points, worker.share)[-guards.RECENT :] if track is not None else []
    parts = [max(0.0, p.step - p.busy - p.beside) / p.step for p in points if p.step > 0]
    return median(parts) if parts else None


def _stragglers(
    live: list[WorkerSeen], rooms: list[Room], tracks: Mapping[str, Track], best: Mapping[str, int], signs: Signs
) -> list[Found]:
    if not signs.straggler:
        return []
    times = {room.name: room.seconds(best[room.name]) for room in rooms}
    worker = next(w for w in live if w.name == signs.straggler)
    others = max(seconds for name, seconds in times.items() if name != worker.name)
    return [straggler(worker, tracks[worker.name], times[worker.name], others)]


def _advice(
    live: list[WorkerSeen], rooms: list[Room], best: Mapping[str, int], *, total: int, grain: int, limit: float
) -> str:
    bounds = {w.name: w.bounds for w in live}
    without = plans.faster_without(rooms, bounds, total, grain)
    if without is not None:
        name, times = without
        return f"without {name} rounds would be {times:.1f}x faster: drain it, or lower its batch.min"
    held = [room.name for room in rooms if room.known and not room.limit and best[room.name] == room.high]
    if held and (times := plans.faster_unbound(rooms, best, total, grain)) > 1 + limit:
        return f"{', '.join(held)} could take more than batch.max: a higher one would make rounds {times:.2f}x faster"
    return ""


def balanced(weighed: Weighed) -> Found | None:
    """A finding that says so when a memory ceiling or bound holds the best plan back; `None`: nothing does."""
    row = next((r for r in weighed.rows if r.limit == "memory"), None)
    if row is None:
        return None
    words = f"{row.name} stays at {row.wanted}: a larger share was refused or did not fit its memory"
    return Found(row.name, Finding.CEILING, words)
